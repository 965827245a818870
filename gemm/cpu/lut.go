package cpu

import (
	"encoding/binary"

	"github.com/lutq/lutq/repack"
)

// LUT is a quantized weight matrix in the CPU layout of package repack, with
// any codebook. A weight is the float32 product of its table value and its
// group's scale.
type LUT struct {
	p     *repack.CPUPanels
	table [32]float32 // the codebook, over and over
}

// NewLUT wraps p, which it keeps.
func NewLUT(p *repack.CPUPanels) (*LUT, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	w := &LUT{p: p}
	for i := range w.table {
		w.table[i] = p.Codebook[i%len(p.Codebook)]
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
func (w *LUT) groupScales(dst *[16]float32, panel, group int) {
	size := 16 * w.p.ScaleType.Size()
	w.p.ScaleType.Decode(dst[:], w.p.Scales[(panel*w.p.Groups()+group)*size:][:size])
}

func (w *LUT) decode(s isa, dst []float32, panel, k0, kc int) {
	p := w.p
	hb := p.HalfBytes()
	words := p.Panels[panel*p.PanelBytes()+k0/32*hb:]
	var scales [16]float32
	group := -1
	for k := 0; k < kc; k += 32 {
		n := min(32, kc-k)
		first, last := (k0+k)/p.Group, (k0+k+n-1)/p.Group
		if first != group {
			group = first
			w.groupScales(&scales, panel, group)
		}
		out := dst[16*k:][:16*n]
		if n == 32 && first == last {
			w.decodeHalf((*[512]float32)(out), words[:hb], &scales)
		} else {
			w.decodeEdge(out, words[:hb], panel, k0+k)
		}
		words = words[hb:]
	}
}

// decodeHalf writes the weights of a half-block of one group to dst [32][16].
func (w *LUT) decodeHalf(dst *[512]float32, words []byte, scales *[16]float32) {
	bits := w.p.Bits & 7
	per := 32 / bits
	mask := uint32(1)<<bits - 1
	for lane, scale := range scales {
		var spare uint32
		at := lane
		for j := range bits {
			d := binary.LittleEndian.Uint32(words[4*(16*j+lane):])
			spare |= d >> 30 << (2 * j)
			for range per {
				dst[at&511] = w.table[d&mask&31] * scale
				d >>= bits
				at += 16
			}
		}
		if per*bits < 32 {
			dst[480+lane] = w.table[spare&mask&31] * scale
			dst[496+lane] = w.table[spare>>bits&mask&31] * scale
		}
	}
}

// decodeEdge writes the weights of a half-block that columns of several
// groups share, or that K cuts short, to dst [n][16]; k is its first column.
func (w *LUT) decodeEdge(dst []float32, words []byte, panel, k int) {
	var ones, scales [16]float32
	for i := range ones {
		ones[i] = 1
	}
	var values [512]float32
	w.decodeHalf(&values, words, &ones)
	group := -1
	for i := 0; i < len(dst); i += 16 {
		if g := (k + i/16) / w.p.Group; g != group {
			group = g
			w.groupScales(&scales, panel, group)
		}
		for lane, s := range scales {
			dst[i+lane] = values[i+lane] * s
		}
	}
}
