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

// TestGPUFP8GEMM multiplies small integers, which E4M3 has and tensor cores add up exactly, by scales that are powers of two.
func TestGPUFP8GEMM(t *testing.T) {
	onGPU(t, func(d *Device) {
		b, err := d.NewFP8BLAS()
		var missing *MissingError
		if errors.As(err, &missing) || d.Info.Major < 9 {
			t.Skip("no cuBLASLt for E4M3: ", err)
		}
		must(t, err)
		s := got(d.NewStream())(t)
		const m, n, k, ld = 37, 48, 96, 64
		r := rand.New(rand.NewPCG(3, 4))
		for _, out := range []DType{F16, BF16, F32} {
			for _, add := range []bool{false, true} {
				if add && out != F32 {
					continue
				}
				draw := func(rows int) ([]float32, []byte, []float32) {
					v, scales := make([]float32, rows*k), make([]float32, rows)
					raw := make([]byte, len(v))
					for i := range v {
						v[i] = float32(r.IntN(5) - 2)
						raw[i] = num.F32ToF8E4M3(v[i])
					}
					for i := range scales {
						scales[i] = []float32{.5, 1, 2}[r.IntN(3)]
					}
					return v, raw, scales
				}
				x, xs, ofX := draw(m)
				w, ws, ofW := draw(n)
				y := make([]float32, m*ld)
				for i := range y {
					y[i] = float32(r.IntN(9) - 4)
				}
				want := slices.Clone(y)
				for i := range m {
					for j := range n {
						var sum float32
						for l := range k {
							sum += x[i*k+l] * w[j*k+l]
						}
						sum *= ofX[i] * ofW[j]
						if add {
							sum += y[i*ld+j]
						}
						want[i*ld+j] = sum
					}
				}
				raw := make([]byte, out.Size()*len(y))
				encode, decode := num.EncodeF32, num.DecodeF32
				switch out {
				case F16:
					encode, decode = num.EncodeF16, num.DecodeF16
				case BF16: // which has 8 bits of a sum
					encode, decode = num.EncodeBF16, num.DecodeBF16
					rounded := make([]byte, 2*len(want))
					encode(rounded, want)
					decode(want, rounded)
				}
				encode(raw, y)
				g := FP8GEMM{M: m, N: n, K: k, Ld: ld, Out: out, Add: add}
				g.X, g.W, g.Y = got(d.Upload(xs))(t), got(d.Upload(ws))(t), got(d.Upload(raw))(t)
				g.ScalesX, g.ScalesW = got(d.Upload(Bytes(ofX)))(t), got(d.Upload(Bytes(ofW)))(t)
				must(t, b.GEMM(s, g))
				must(t, d.Read(raw, g.Y))
				result := make([]float32, len(y))
				decode(result, raw)
				if !slices.Equal(result, want) {
					t.Errorf("to %v, added %v: the product is wrong", out, add)
				}
				for _, p := range []Ptr{g.X, g.W, g.Y, g.ScalesX, g.ScalesW} {
					must(t, d.Free(p))
				}
			}
		}
		must(t, b.Close())
		must(t, s.Close())
	})
}
