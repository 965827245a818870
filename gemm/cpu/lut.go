package cpu

import (
	"errors"

	"github.com/lutq/lutq/repack"
)

// LUT is a quantized weight matrix in the CPU layout of package repack, with
// any codebook. A weight is the float32 product of its table value and its
// group's scale.
type LUT struct {
	p     *repack.CPUPanels
	table [32]float32 // the codebook over and over; at 2 bits see NewLUT
	fixed *fixedLUT   // nil: products are in float32
}

// NewLUT wraps p, which it keeps.
func NewLUT(p *repack.CPUPanels) (*LUT, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.ByBytes {
		return nil, errors.New("codes by bytes are for Fix to make")
	}
	w := &LUT{p: p}
	for i := range w.table {
		w.table[i] = p.Codebook[i%len(p.Codebook)]
	}
	if p.Bits == 2 {
		// The second half takes the upper code of a pair to its value.
		for i := range 16 {
			w.table[16+i] = p.Codebook[i/4]
		}
	}
	return w, nil
}

// Rows returns N.
func (w *LUT) Rows() int { return w.p.N }

// Cols returns K.
func (w *LUT) Cols() int { return w.p.K }

// Bytes returns the size of codes, scales and table.
func (w *LUT) Bytes() int64 { return w.p.Bytes() }

// groupScales decodes the scales of a group of a panel.
func (w *LUT) groupScales(s isa, dst *[16]float32, panel, group int) {
	size := 16 * w.p.ScaleType.Size()
	s.scales(dst, w.p.Scales[(panel*w.p.Groups()+group)*size:][:size], w.p.ScaleType)
}

func (w *LUT) decode(s isa, dst []float32, panel, k0, kc int) {
	p := w.p
	hb := p.HalfBytes()
	words := p.Panels[panel*p.PanelBytes():][:p.PanelBytes()]
	var scales [16]float32
	for k := k0; k < k0+kc; {
		out, half := dst[16*(k-k0):], words[k/32*hb:]
		// As many half-blocks as the group has whole.
		group := k / p.Group
		halves := (min((group+1)*p.Group, k0+kc) - k) / 32
		if halves == 0 {
			n := min(32, k0+kc-k)
			w.decodeEdge(s, out[:16*n], half[:hb], panel, k)
			k += n
			continue
		}
		w.groupScales(s, &scales, panel, group)
		w.decodeHalves(s, out[:512*halves], half, &scales)
		k += 32 * halves
	}
}

// decodeEdge writes the weights of a half-block that columns of several
// groups share, or that K cuts short, to dst [n][16]; k is its first column.
func (w *LUT) decodeEdge(s isa, dst []float32, words []byte, panel, k int) {
	var ones, scales [16]float32
	for i := range ones {
		ones[i] = 1
	}
	var values [512]float32
	w.decodeHalves(s, values[:], words, &ones)
	group := -1
	for i := 0; i < len(dst); i += 16 {
		if g := (k + i/16) / w.p.Group; g != group {
			group = g
			w.groupScales(s, &scales, panel, group)
		}
		for lane, c := range scales {
			dst[i+lane] = values[i+lane] * c
		}
	}
}

// decodeHalves decodes half-blocks of one group.
func (w *LUT) decodeHalves(s isa, dst []float32, words []byte, scales *[16]float32) {
	if w.p.ByBytes {
		s.decodeBytes(dst, words, w.p.Bits, &w.table, scales)
	} else {
		s.decode(dst, words, w.p.Bits, &w.table, scales)
	}
}
