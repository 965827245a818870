package cpu

// PackedB is the right-hand side of [Engine.Block]: a K×N matrix in panels of
// 16 columns, [⌈N/16⌉][K][16], with zeros in the columns beyond N. The zero
// value is empty; packing into it again reuses its memory.
type PackedB struct {
	N, K int
	data []float32
}

// resize sets the shape and returns the memory.
func (b *PackedB) resize(n, k int) []float32 {
	need := ceilDiv(n, 16) * 16 * k
	if cap(b.data) < need {
		b.data = make([]float32, need)
	}
	b.N, b.K, b.data = n, k, b.data[:need]
	return b.data
}

// PackedOver returns a K×N matrix that lies in data, which holds ⌈N/16⌉·16·K elements. What is in
// the columns beyond N does not matter.
func PackedOver(n, k int, data []float32) PackedB {
	return PackedB{N: n, K: k, data: data[:ceilDiv(n, 16)*16*k]}
}

// SetCol writes column j, of K elements.
func (b *PackedB) SetCol(j int, v []float32) {
	panel := b.data[j/16*16*b.K+j%16:]
	for i, x := range v[:b.K] {
		panel[16*i] = x
	}
}

// SetRow writes row i, of N elements.
func (b *PackedB) SetRow(i int, v []float32) {
	at := b.data[16*i:]
	for v = v[:b.N]; len(v) > 16; v = v[16:] {
		copy(at, v[:16])
		at = at[16*b.K:]
	}
	copy(at, v)
}

// FromCol returns the columns from j on, in the same memory; j is a multiple of 16.
func (b *PackedB) FromCol(j int) PackedB {
	if j%16 != 0 || j > b.N {
		panic(badShape)
	}
	return PackedB{N: b.N - j, K: b.K, data: b.data[j*b.K:]}
}

// FromRow returns the rows from i on, in the same memory.
func (b *PackedB) FromRow(i int) PackedB { return PackedB{N: b.N, K: b.K, data: b.data[16*i:]} }

// PackRows packs the transpose of src[n,k], row-major with rows ld elements
// apart: column j of dst is row j of src. With the keys of an attention head
// as src, [Engine.Block] then gives the scores Q·Kᵀ.
func (e *Engine) PackRows(dst *PackedB, src []float32, n, k, ld int) {
	data := dst.resize(n, k)
	if n == 0 || k == 0 {
		return
	}
	if len(src) < (n-1)*ld+k || ld < k {
		panic(badShape)
	}
	for p := 0; p < n; p += 16 {
		e.isa.packRows(data[p*k:], src[p*ld:], ld, min(16, n-p), k)
	}
}

// PackCols packs src[k,n], row-major with rows ld elements apart: column j of
// dst is column j of src. With the values of an attention head as src,
// [Engine.Block] then gives P·V.
func (e *Engine) PackCols(dst *PackedB, src []float32, n, k, ld int) {
	data := dst.resize(n, k)
	if n == 0 || k == 0 {
		return
	}
	if len(src) < (k-1)*ld+n || ld < n {
		panic(badShape)
	}
	for p := 0; p < n; p += 16 {
		panel := data[p*k:][:16*k]
		if n-p < 16 {
			clear(panel)
			for i := range k {
				copy(panel[16*i:], src[i*ld+p:i*ld+n])
			}
			continue
		}
		for i := range k {
			*(*[16]float32)(panel[16*i:]) = [16]float32(src[i*ld+p:])
		}
	}
}

// Block computes y[m,n] = alpha · x[m,k] · b, or adds that to y, from the
// first n columns and first k rows of b; rows of y and x are ldy and ldx
// elements apart. It runs on the calling goroutine and allocates nothing, for
// use inside [Engine.Parallel]. The numerics are those of [Engine.MatMul];
// each block's sum is multiplied by alpha and rounded before it is added.
func (e *Engine) Block(y []float32, ldy int, x []float32, ldx, m int, b *PackedB, n, k int, alpha float32, add bool) {
	if m <= 0 || n <= 0 {
		return
	}
	if n > b.N || k > b.K || ldx < k || ldy < n || len(y) < (m-1)*ldy+n || len(x) < (m-1)*ldx+k {
		panic(badShape)
	}
	if k == 0 {
		if !add {
			for r := range m {
				clear(y[r*ldy:][:n])
			}
		}
		return
	}
	var edge edgeTile
	for k0 := 0; k0 < k; k0 += kBlock {
		e.isa.sweep(sweep{
			y: y, ldy: ldy,
			x: x[k0:], ldx: ldx, m: m,
			b: b.data[16*k0:], stride: 16 * b.K, n: n, k: min(kBlock, k-k0),
			alpha: alpha, add: add || k0 > 0,
		}, &edge)
	}
}
