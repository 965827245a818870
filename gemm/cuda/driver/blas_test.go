package driver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
)

// TestGPUGEMM multiplies small integers, which every type and order of sums does
// exactly, in all ways of laying matrices out.
func TestGPUGEMM(t *testing.T) {
	onGPU(t, func(d *Device) {
		s := got(d.NewStream())(t)
		b, err := d.NewBLAS(s)
		var missing *MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		must(t, err)
		must(t, b.SumInFloat32())
		const m, n, k = 13, 24, 40
		r := rand.New(rand.NewPCG(1, 2))
		for _, types := range [][2]DType{{F16, F16}, {F16, F32}, {BF16, BF16}, {BF16, F32}, {F32, F32}} {
			for mode := range 16 {
				g := GEMM{
					M: m, N: n, K: k, TransA: mode&1 != 0, TransB: mode&2 != 0, In: types[0], Out: types[1],
					Alpha: 1, Batch: 1 + mode>>2&1*2,
				}
				if mode&8 != 0 {
					g.Alpha, g.Beta = 2, -1
				}
				// A matrix whose rows have two elements to spare, and a batch of them.
				random := func(rows, cols int, trans bool, stride int) ([]float32, Operand) {
					if trans {
						rows, cols = cols, rows
					}
					v := make([]float32, max(stride, 1)*g.Batch*rows*(cols+2))
					for i := range v {
						v[i] = float32(r.IntN(5) - 2)
					}
					return v, Operand{Ld: cols + 2, Stride: stride * rows * (cols + 2)}
				}
				av, a := random(m, k, g.TransA, 1)
				bv, bo := random(k, n, g.TransB, mode>>1&1) // the same for the whole batch, or not
				cv, c := random(m, n, false, 1)
				at := func(v []float32, o Operand, batch, row, col int, trans bool) *float32 {
					if trans {
						row, col = col, row
					}
					return &v[batch*o.Stride+row*o.Ld+col]
				}
				want := slices.Clone(cv)
				for i := range g.Batch {
					for x := range m {
						for y := range n {
							var sum float32
							for z := range k {
								sum += *at(av, a, i, x, z, g.TransA) * *at(bv, bo, i, z, y, g.TransB)
							}
							out := at(want, c, i, x, y, false)
							*out = g.Alpha*sum + g.Beta**out
						}
					}
				}
				upload := func(v []float32, t DType) (Ptr, error) {
					switch raw := make([]byte, t.Size()*len(v)); t {
					case F16:
						num.EncodeF16(raw, v)
						return d.Upload(raw)
					case BF16:
						num.EncodeBF16(raw, v)
						return d.Upload(raw)
					}
					return d.Upload(Bytes(v))
				}
				g.A, g.B, g.C = a, bo, c
				g.A.Ptr, g.B.Ptr, g.C.Ptr = got(upload(av, g.In))(t), got(upload(bv, g.In))(t), got(upload(cv, g.Out))(t)
				must(t, b.GEMM(g))
				raw, result := make([]byte, g.Out.Size()*len(cv)), make([]float32, len(cv))
				must(t, d.Read(raw, g.C.Ptr))
				switch g.Out {
				case F16:
					num.DecodeF16(result, raw)
				case BF16:
					num.DecodeBF16(result, raw)
				default:
					num.DecodeF32(result, raw)
				}
				if !slices.Equal(result, want) {
					t.Errorf("%s: the product is wrong", fmt.Sprintf("%+v", g))
				}
				for _, p := range []Ptr{g.A.Ptr, g.B.Ptr, g.C.Ptr} {
					must(t, d.Free(p))
				}
			}
		}
		must(t, b.Close())
		must(t, s.Close())
	})
}
