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

func (w *LUT) decode(_ isa, dst []float32, panel, k0, kc int) {
	hb := w.p.HalfBytes()
	half := panelHalf{w: w, panel: panel, group: -1}
	words := w.p.Panels[panel*w.p.PanelBytes():][:w.p.PanelBytes()]
	for k := k0; k < k0+kc; k += 32 {
		half.decode(dst[16*(k-k0):16*min(k+32-k0, kc)], words[k/32*hb:][:hb], k)
	}
}

// panelHalf decodes the half-blocks of a panel and remembers the scales of
// the group that it is in.
type panelHalf struct {
	w      *LUT
	panel  int
	group  int
	scales [16]float32
}

// decode writes the weights of the columns k, k+1, … that words begins with
// to dst [≤ 32][16].
func (h *panelHalf) decode(dst []float32, words []byte, k int) {
	n := len(dst) / 16
	first, last := k/h.w.p.Group, (k+n-1)/h.w.p.Group
	if n < 32 || first != last {
		h.w.decodeEdge(dst, words, h.panel, k)
		return
	}
	if first != h.group {
		h.group = first
		h.w.groupScales(&h.scales, h.panel, first)
	}
	h.w.decodeHalf((*[512]float32)(dst), words, &h.scales)
}

// decodeHalf writes the weights of a half-block of one group to dst [32][16].
func (w *LUT) decodeHalf(dst *[512]float32, words []byte, scales *[16]float32) {
	t := &w.table
	switch w.p.Bits {
	case 2:
		for j := range 2 {
			o := (*[256]float32)(dst[256*j:])
			for lane, s := range scales {
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&3] * s
				o[lane+16] = t[d>>2&3] * s
				o[lane+32] = t[d>>4&3] * s
				o[lane+48] = t[d>>6&3] * s
				o[lane+64] = t[d>>8&3] * s
				o[lane+80] = t[d>>10&3] * s
				o[lane+96] = t[d>>12&3] * s
				o[lane+112] = t[d>>14&3] * s
				o[lane+128] = t[d>>16&3] * s
				o[lane+144] = t[d>>18&3] * s
				o[lane+160] = t[d>>20&3] * s
				o[lane+176] = t[d>>22&3] * s
				o[lane+192] = t[d>>24&3] * s
				o[lane+208] = t[d>>26&3] * s
				o[lane+224] = t[d>>28&3] * s
				o[lane+240] = t[d>>30] * s
			}
		}
	case 3:
		for lane, s := range scales {
			var spare uint32
			for j := range 3 {
				o := (*[160]float32)(dst[160*j:])
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&7] * s
				o[lane+16] = t[d>>3&7] * s
				o[lane+32] = t[d>>6&7] * s
				o[lane+48] = t[d>>9&7] * s
				o[lane+64] = t[d>>12&7] * s
				o[lane+80] = t[d>>15&7] * s
				o[lane+96] = t[d>>18&7] * s
				o[lane+112] = t[d>>21&7] * s
				o[lane+128] = t[d>>24&7] * s
				o[lane+144] = t[d>>27&7] * s
				spare |= d >> 30 << (2 * j)
			}
			dst[lane+480] = t[spare&7] * s
			dst[lane+496] = t[spare>>3&7] * s
		}
	case 4:
		for j := range 4 {
			o := (*[128]float32)(dst[128*j:])
			for lane, s := range scales {
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&15] * s
				o[lane+16] = t[d>>4&15] * s
				o[lane+32] = t[d>>8&15] * s
				o[lane+48] = t[d>>12&15] * s
				o[lane+64] = t[d>>16&15] * s
				o[lane+80] = t[d>>20&15] * s
				o[lane+96] = t[d>>24&15] * s
				o[lane+112] = t[d>>28] * s
			}
		}
	case 5:
		for lane, s := range scales {
			var spare uint32
			for j := range 5 {
				o := (*[96]float32)(dst[96*j:])
				d := binary.LittleEndian.Uint32(words[64*j+4*lane:])
				o[lane] = t[d&31] * s
				o[lane+16] = t[d>>5&31] * s
				o[lane+32] = t[d>>10&31] * s
				o[lane+48] = t[d>>15&31] * s
				o[lane+64] = t[d>>20&31] * s
				o[lane+80] = t[d>>25&31] * s
				spare |= d >> 30 << (2 * j)
			}
			dst[lane+480] = t[spare&31] * s
			dst[lane+496] = t[spare>>5&31] * s
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

// fusedRows is the largest number of rows of x that the fused path takes on
// s. With vector registers it pays to decode whole panels first.
func (s isa) fusedRows() int { return [...]int{maxFusedRows, 0, 0}[s] }

const maxFusedRows = 8

// fused computes y[m,n] = x[m,K] · Ŵᵀ for the n ≤ 16 rows of a panel, rows of
// y being ldy apart, without a panel between: the weights of a half-block go
// from codes through the table into the sums of all m ≤ maxFusedRows rows.
// The bits are those of decode and gemm.
func (w *LUT) fused(y []float32, ldy, n int, x []float32, m, panel int) {
	var total, block [maxFusedRows][16]float32
	var values [512]float32
	k, hb := w.p.K, w.p.HalfBytes()
	half := panelHalf{w: w, panel: panel, group: -1}
	words := w.p.Panels[panel*w.p.PanelBytes():][:w.p.PanelBytes()]
	for k0 := 0; k0 < k; k0 += 32 {
		if k0 > 0 && k0%kBlock == 0 {
			for r := range m {
				addGeneric(total[r][:], total[r][:], block[r][:])
			}
			block = [maxFusedRows][16]float32{}
		}
		cols := min(32, k-k0)
		half.decode(values[:16*cols], words[k0/32*hb:][:hb], k0)
		for r := range m {
			xr := x[r*k+k0:][:cols]
			for j := 0; j < 16; j += 4 {
				madd((*[4]float32)(block[r][j:]), xr, values[j:])
			}
		}
	}
	for r := range m {
		for j := range n {
			y[r*ldy+j] = total[r][j] + block[r][j]
		}
	}
}
