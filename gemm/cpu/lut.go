package cpu

import "github.com/lutq/lutq/repack"

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
		s.decode(out[:512*halves], half, p.Bits, &w.table, &scales)
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
	s.decode(values[:], words, w.p.Bits, &w.table, &ones)
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
	k := w.p.K
	for k0 := 0; k0 < k; k0 += 32 {
		if k0 > 0 && k0%kBlock == 0 {
			for r := range m {
				addGeneric(total[r][:], total[r][:], block[r][:])
			}
			block = [maxFusedRows][16]float32{}
		}
		cols := min(32, k-k0)
		w.decode(generic, values[:], panel, k0, cols)
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
