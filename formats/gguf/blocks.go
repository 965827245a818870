package gguf

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// block is the number of weights of the types that containers are written in.
const block = 32

// levels returns what the codes of a block stand for, by code, before the scale; nil for a type whose blocks are
// not codes of one table and a scale.
func (t Type) levels() []float32 {
	switch t {
	case Q4_0:
		return foreign.Integers(4)
	case Q5_0:
		return foreign.Integers(5)
	case Q8_0: // two's complement
		v := foreign.Integers(8)
		return append(v[128:], v[:128]...)
	case IQ4_NL: // kvalues_iq4nl of ggml
		return iq4Values()[:]
	case MXFP4:
		v := make([]float32, 16)
		for i := range v {
			v[i] = num.F4E2M1ToF32(uint8(i))
		}
		return v
	}
	return nil
}

// blockTypes lists the types that a container can be written in without loss, those of fewer bytes first.
func blockTypes() []Type { return []Type{MXFP4, Q4_0, IQ4_NL, Q5_0, Q8_0} }

// fit finds out how a matrix, which may be without codes, is written in a type.
func (t Type) fit(w *lut.Matrix) (foreign.Match, foreign.Fit) {
	if foreign.FitGroup(w.Group, w.K, block) == 0 {
		return foreign.Match{}, foreign.Fit{Why: fmt.Sprintf("its %d columns, in groups of %d, are no whole blocks of %d", w.K, w.Group, block)}
	}
	m, ok := foreign.MatchTable(w.Codebook, t.levels(), true)
	switch {
	case !ok:
		return m, foreign.Fit{Why: "its table is no multiple of " + t.String()}
	case t == MXFP4:
		return m, fitPowers(m, w)
	}
	return m, foreign.FitScales(m, w, weight.F16)
}

// fitPowers says whether a matrix's scales are powers of two, or 0, for which a block has codes of 0.
func fitPowers(m foreign.Match, w *lut.Matrix) foreign.Fit {
	scales := make([]float32, w.Groups())
	for n := range w.N {
		w.RowScales(scales, n)
		for _, s := range scales {
			d := math.Abs(float64(s) * m.Factor)
			if frac, exp := math.Frexp(d); d != 0 && (frac != 0.5 || exp-1 < -127 || exp-1 > 127) {
				return foreign.Fit{Why: fmt.Sprintf("a scale of it, %v, is no power of two", s)}
			}
		}
	}
	return foreign.Fit{Change: m.Rounded}
}

// fitBlocks finds the types that hold a matrix, those of least change first.
func fitBlocks(w *lut.Matrix) ([]Type, foreign.Fit) {
	var held []Type
	changes := make(map[Type]float64)
	why := "its table is no multiple of that of " + alternatives(blockTypes())
	for _, t := range blockTypes() {
		m, fit := t.fit(w)
		switch {
		case fit.Why == "":
			held, changes[t] = append(held, t), fit.Change
		case m.Codes != nil: // the table fits, but a scale does not
			why = fit.Why
		case foreign.FitGroup(w.Group, w.K, block) == 0:
			return nil, fit
		}
	}
	if held == nil {
		return nil, foreign.Fit{Why: why}
	}
	slices.SortStableFunc(held, func(a, b Type) int { return cmp.Compare(changes[a], changes[b]) })
	return held, foreign.Fit{Change: changes[held[0]]}
}

func alternatives(types []Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.String()
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// packer writes rows of a matrix in blocks. It has scratch memory, so each goroutine needs its own.
type packer struct {
	t      Type
	match  foreign.Match
	matrix *lut.Matrix
	codes  []uint8
	scales []float32
}

// newPacker returns a packer for a type that holds the matrix.
func newPacker(t Type, w *lut.Matrix) (*packer, error) {
	m, fit := t.fit(w)
	if fit.Why != "" {
		return nil, fmt.Errorf("%s", fit.Why)
	}
	return &packer{t, m, w, make([]uint8, w.K), make([]float32, w.Groups())}, nil
}

// row writes the blocks of row n.
func (p *packer) row(dst []byte, n int) {
	w := p.matrix
	p.match.RowCodes(p.codes, w, n)
	w.RowScales(p.scales, n)
	_, size := p.t.Block()
	for b := range w.K / block {
		d := float32(float64(p.scales[b*block/w.Group]) * p.match.Factor)
		p.t.pack(dst[b*size:(b+1)*size], p.codes[b*block:(b+1)*block], d)
	}
}

// pack writes a block of 32 codes, which it may change, with a scale.
func (t Type) pack(dst []byte, q []uint8, d float32) {
	q = q[:block]
	if t == MXFP4 {
		dst[0] = packE8M0(q, d)
		packNibbles(dst[1:], q)
		return
	}
	h := num.F32ToF16(d)
	dst[0], dst[1] = byte(h), byte(h>>8)
	dst = dst[2:]
	switch t {
	case Q8_0:
		copy(dst, q)
		return
	case Q5_0:
		var high uint32
		for j, c := range q {
			high |= uint32(c>>4) << j
		}
		dst[0], dst[1], dst[2], dst[3] = byte(high), byte(high>>8), byte(high>>16), byte(high>>24)
		dst = dst[4:]
	}
	packNibbles(dst, q)
}

// packNibbles writes the low halves of 32 codes.
func packNibbles(dst []byte, q []uint8) {
	dst, q = dst[:block/2], q[:block]
	for j := range dst {
		dst[j] = q[j]&15 | q[j+block/2]<<4
	}
}

// packE8M0 returns the exponent of a scale. The sign of one below 0 goes to the codes, and one of 0 makes them 0.
func packE8M0(q []uint8, d float32) byte {
	if d == 0 {
		clear(q)
		return 0
	}
	if d < 0 {
		for j := range q {
			q[j] ^= 8
		}
	}
	_, e := math.Frexp(math.Abs(float64(d)))
	return byte(e - 1 + 127)
}

// codebook returns the levels of a type in ascending order, as far as a search for scales knows them: none for
// a type without a table of at most 32.
func (t Type) codebook() lut.Codebook {
	switch t {
	case Q4_0, Q5_0, IQ4_NL:
		return lut.Codebook{Name: t.String(), Values: t.levels()}
	}
	return lut.Codebook{}
}

// rounder returns what writes a row of k weights in a type; newRounder is of what rounds to a table. It has scratch memory, so each
// goroutine needs its own.
func (t Type) rounder(k int, newRounder func(lut.Format) (foreign.Round, error)) (func(dst []byte, w []float32) error, error) {
	if e := NewEncoder(t); e != nil {
		return func(dst []byte, w []float32) error { return e.Encode(dst, w, nil) }, nil
	}
	table := t.codebook()
	if table.Values == nil {
		return t.encode, nil
	}
	round, err := newRounder(lut.Format{Codebook: table, Group: block, Scale: weight.MSE, ScaleType: weight.F16})
	if err != nil {
		return nil, err
	}
	m := &lut.Matrix{N: 1, K: k, Bits: table.Bits(), Group: block, ScaleType: weight.F16, Codebook: table.Values}
	m.Codes, m.Scales = make([]byte, m.RowBytes()), make([]byte, m.Groups()*m.ScaleType.Size())
	parts := m.Parts()
	p, err := newPacker(t, m)
	if err != nil {
		return nil, err
	}
	return func(dst []byte, w []float32) error {
		if err := round(parts, w, 1); err != nil {
			return err
		}
		p.row(dst, 0)
		return nil
	}, nil
}

// encode writes weights in a type of numbers, to nearest, or in Q8_0. It fails on what F16 cannot hold.
func (t Type) encode(dst []byte, w []float32) error {
	switch t {
	case F32:
		num.EncodeF32(dst, w)
	case BF16:
		num.EncodeBF16(dst, w)
	case F16:
		num.EncodeF16(dst, w)
		for i, v := range w {
			if dst[2*i+1]&0x7c == 0x7c {
				return fmt.Errorf("weight %v is beyond F16", v)
			}
		}
	case Q8_0:
		for b := range len(w) / block {
			if err := encodeQ8(dst[b*34:(b+1)*34], w[b*block:(b+1)*block]); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("weights are not rounded to type %s", t)
	}
	return nil
}

// encodeQ8 rounds 32 weights to the nearest of 255 levels, the outermost of which is the largest weight, as ggml does.
func encodeQ8(dst []byte, w []float32) error {
	top := float32(0)
	for _, v := range w {
		top = max(top, max(v, -v)) // NaN stays
	}
	d := top / 127
	if d = num.F16ToF32(num.F32ToF16(d)); d-d != 0 {
		return fmt.Errorf("weights up to %v are beyond Q8_0", top)
	}
	h := num.F32ToF16(d)
	dst[0], dst[1] = byte(h), byte(h>>8)
	for j, v := range w {
		q := 0.0
		if d != 0 {
			q = math.Round(float64(v) / float64(d))
		}
		dst[2+j] = byte(int8(min(max(q, -127), 127)))
	}
	return nil
}
