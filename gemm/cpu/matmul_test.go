package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
)

// engines starts one engine for every instruction set of this machine, and
// one of three threads for the best.
func engines(t testing.TB) []*Engine {
	t.Helper()
	var es []*Engine
	for _, name := range append(ISAs(), "") {
		threads := 2
		if name == "" {
			threads = 3
		}
		e, err := New(Options{ISA: name, Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		es = append(es, e)
	}
	return es
}

func (e *Engine) label() string { return fmt.Sprintf("%s, %d threads", e.ISA(), e.Threads()) }

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// poisoned returns n NaNs, to see what is written.
func poisoned(n int) []float32 {
	return slices.Repeat([]float32{float32(math.NaN())}, n)
}

// diff returns the first index where got and want differ in a bit, or -1.
func diff(got, want []float32) int {
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			return i
		}
	}
	return -1
}

// A weightCase makes weights of one stored form together with the float32
// values that they stand for.
type weightCase struct {
	name string
	make func(r *rand.Rand, n, k int) (Weights, []float32, error)
}

func denseCase(dtype string) weightCase {
	return weightCase{dtype, func(r *rand.Rand, n, k int) (Weights, []float32, error) {
		v := normal(r, n*k)
		var data []byte
		switch dtype {
		case "F32":
			data = make([]byte, 4*n*k)
			num.EncodeF32(data, v)
			num.DecodeF32(v, data)
		case "F16":
			data = make([]byte, 2*n*k)
			num.EncodeF16(data, v)
			num.DecodeF16(v, data)
		case "BF16":
			data = make([]byte, 2*n*k)
			num.EncodeBF16(data, v)
			num.DecodeBF16(v, data)
		}
		// Checkpoints align tensors to nothing.
		data = append(make([]byte, 1, len(data)+1), data...)[1:]
		w, err := NewDense(n, k, dtype, data)
		return w, v, err
	}}
}

func lutCase(bits, group int, st weight.ScaleType) weightCase {
	return weightCase{fmt.Sprintf("LUT %d bits, group %d, %v", bits, group, st), func(r *rand.Rand, n, k int) (Weights, []float32, error) {
		m := randomMatrix(r, n, k, bits, group, st)
		p, err := repack.CPU(m)
		if err != nil {
			return nil, nil, err
		}
		w, err := NewLUT(p)
		return w, m.Dequantize(), err
	}}
}

// randomMatrix returns a matrix with random codes, scales and table. The
// group is cut to the row.
func randomMatrix(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) *lut.Matrix {
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: min(group, k), ScaleType: st}
	codes := make([]uint8, k)
	m.Codes = make([]byte, n*m.RowBytes())
	for i := range n {
		for j := range codes {
			codes[j] = uint8(r.IntN(1 << bits))
		}
		lut.PackCodes(m.Codes[i*m.RowBytes():(i+1)*m.RowBytes()], codes, bits)
	}
	scales := make([]float32, n*m.Groups())
	for i := range scales {
		scales[i] = 0.1 + r.Float32()
	}
	m.Scales = make([]byte, len(scales)*st.Size())
	st.Encode(m.Scales, scales)
	m.Codebook = normal(r, 1<<bits)
	slices.Sort(m.Codebook)
	return m
}

func weightCases() []weightCase {
	cases := []weightCase{denseCase("F32"), denseCase("F16"), denseCase("BF16")}
	types := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for i, group := range []int{32, 64, 128, 256, 1 << 20, 7, 50} {
			cases = append(cases, lutCase(bits, group, types[(bits+i)%len(types)]))
		}
	}
	return cases
}

// tolerance bounds the relative error of n outputs in the Frobenius norm. A
// few of them can be unlucky together.
func tolerance(n int) float64 {
	if n < 32 {
		return 4e-6
	}
	return 1e-6
}

// cancelled returns what makes an error relative to x·valuesᵀ, exact, or to a
// sum with that, one relative to the terms' root sum of squares. That is near
// the norm of the result, but for a few elements that happen to cancel.
func cancelled(exact []float64, x, values []float32, n, k int) float64 {
	var norm, terms float64
	for i, v := range exact {
		norm += v * v
		for l, a := range x[i/n*k:][:k] {
			term := float64(a) * float64(values[i%n*k+l])
			terms += term * term
		}
	}
	return min(1, math.Sqrt(norm/terms))
}

// checkMatMul compares every engine with the reference and, bit for bit, with
// the others and with want, where that is not nil. It returns the product.
func checkMatMul(t *rapid.T, es []*Engine, w Weights, values []float32, x []float32, m int, want []float32) []float32 {
	n, k := w.Rows(), w.Cols()
	exact := ref.MatMul(x, values, m, n, k)
	shrunk := cancelled(exact, x, values, n, k)
	for _, e := range es {
		y := poisoned(m*n + 3)
		e.MatMul(y, x, m, w)
		if err := ref.RelErr(y[:m*n], exact) * shrunk; !(err <= tolerance(m*n)) {
			t.Fatalf("%s: relative error %g", e.label(), err)
		}
		for i, v := range y[m*n:] {
			if v == v {
				t.Fatalf("%s: wrote %d elements past the end", e.label(), i+1)
			}
		}
		y = y[:m*n]
		if want == nil {
			want = y
		}
		if i := diff(y, want); i >= 0 {
			t.Fatalf("%s: row %d, column %d: got %g, want %g as elsewhere", e.label(), i/n, i%n, y[i], want[i])
		}
	}
	return want
}

func TestMatMul(t *testing.T) {
	es := engines(t)
	edges := []int{1, 2, 7, 8, 13, 14, 15, 16, 17, 27, 28, 29, 31, 32, 33, 48, 63, 64, 65, 70}
	for _, wc := range weightCases() {
		t.Run(wc.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				size := rapid.OneOf(rapid.SampledFrom(edges), rapid.IntRange(1, 70))
				m, n := size.Draw(t, "m"), size.Draw(t, "n")
				k := rapid.OneOf(size, rapid.SampledFrom([]int{172, 255, 256, 257, 511, 512, 513, 600})).Draw(t, "k")
				if m*n*k > 200_000 {
					m = max(1, 200_000/(n*k)) // the float64 reference is slow
				}
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
				w, values, err := wc.make(r, n, k)
				if err != nil {
					t.Fatal(err)
				}
				checkMatMul(t, es, w, values, normal(r, m*k), m, nil)
			})
		})
	}
}

// TestBitsOfWeights holds LUT against Dense of the dequantized matrix, and few rows of X
// against many: quantized weights have a second arithmetic for few.
func TestBitsOfWeights(t *testing.T) {
	racetest.Skip(t)
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		const m, n, k = 37, 50, 300
		q := randomMatrix(r, n, k, bits, 64, weight.F16)
		p, err := repack.CPU(q)
		if err != nil {
			t.Fatal(err)
		}
		packed, err := NewLUT(p)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, 4*n*k)
		num.EncodeF32(data, q.Dequantize())
		dense, err := NewDense(n, k, "F32", data)
		if err != nil {
			t.Fatal(err)
		}
		x := normal(r, m*k)
		want := poisoned(m * n)
		es[0].MatMul(want, x, m, dense)
		few := poisoned(m * n) // what few rows of X give
		for i := range m {
			es[0].MatMul(few[i*n:(i+1)*n], x[i*k:(i+1)*k], 1, packed)
		}
		for _, e := range es {
			y := poisoned(m * n)
			e.MatMul(y, x, m, packed)
			if i := diff(y, want); i >= 0 {
				t.Errorf("%d bits, %s: element %d: got %g, want %g as from dense weights", bits, e.label(), i, y[i], want[i])
			}
			for at, rows := 0, 1; at+rows <= m; at, rows = at+rows, rows%12+1 {
				for _, test := range []struct {
					w    Weights
					want []float32
				}{{packed, want}, {dense, want}} {
					if test.w == packed && rows <= fusedRows {
						test.want = few
					}
					y := poisoned(rows * n)
					e.MatMul(y, x[at*k:(at+rows)*k], rows, test.w)
					if j := diff(y, test.want[at*n:(at+rows)*n]); j >= 0 {
						t.Fatalf("%d bits, %T, %s: %d rows from %d, element %d: got %g, want %g", bits, test.w, e.label(), rows, at, j, y[j], test.want[at*n+j])
					}
				}
			}
		}
	}
}

// TestThreads compares 1 to 9 threads on shapes that are divided by panels,
// by rows, and over several turns of the activation buffer.
func TestThreads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{1, 600, 80}, {5, 40, 300}, {300, 16, 64}, {200, 33, 520}, {100, 700, 40}} {
		m, n, k := shape[0], shape[1], shape[2]
		w, _, err := denseCase("F16").make(r, n, k)
		if err != nil {
			t.Fatal(err)
		}
		x := normal(r, m*k)
		var want []float32
		for threads := 1; threads <= 9; threads++ {
			e, err := New(Options{Threads: threads})
			if err != nil {
				t.Fatal(err)
			}
			y := poisoned(m * n)
			e.MatMul(y, x, m, w)
			e.Close()
			if want == nil {
				want = y
			}
			if i := diff(y, want); i >= 0 {
				t.Errorf("%v, %d threads: element %d: got %g, want %g as with one", shape, threads, i, y[i], want[i])
			}
		}
	}
}

// TestTurns runs a product whose activations are more than the buffer holds.
func TestTurns(t *testing.T) {
	es := engines(t)
	e := es[len(es)-1]
	const n, k = 8, 70
	m := xElements/xStride + 100
	r := rand.New(rand.NewPCG(1, 2))
	w, values, err := denseCase("F32").make(r, n, k)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, m*k)
	for i := range x {
		x[i] = float32(i%17) - 8
	}
	y := poisoned(m * n)
	e.MatMul(y, x, m, w)
	if cap(e.xbuf) > xElements {
		t.Errorf("the activation buffer took %d elements: want at most %d", cap(e.xbuf), xElements)
	}
	if err := ref.RelErr(y, ref.MatMul(x, values, m, n, k)); !(err <= 1e-6) {
		t.Errorf("relative error %g", err)
	}
}

func TestMatMulMany(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const k = 300
	for _, e := range engines(t) {
		for _, m := range []int{1, 6, 40} {
			x := normal(r, m*k)
			var ops []Op
			var want [][]float32
			for i, n := range []int{96, 32, 33, 1, 500} {
				w, _, err := weightCases()[i%4].make(r, n, k)
				if err != nil {
					t.Fatal(err)
				}
				y := poisoned(m * n)
				e.MatMul(y, x, m, w)
				want = append(want, y)
				ops = append(ops, Op{Y: poisoned(m * n), W: w})
			}
			e.MatMulMany(x, m, ops...)
			for i, op := range ops {
				if j := diff(op.Y, want[i]); j >= 0 {
					t.Errorf("%s, %d rows, product %d: element %d: got %g, want %g as alone", e.label(), m, i, j, op.Y[j], want[i][j])
				}
			}
		}
	}
}

func TestBadProducts(t *testing.T) {
	e := engines(t)[0]
	r := rand.New(rand.NewPCG(1, 2))
	a, _, _ := denseCase("F32").make(r, 4, 8)
	b, _, _ := denseCase("F32").make(r, 4, 9)
	for _, test := range []struct {
		name string
		want string
		call func()
	}{
		{"short y", badShape, func() { e.MatMul(make([]float32, 7), make([]float32, 16), 2, a) }},
		{"short x", badShape, func() { e.MatMul(make([]float32, 8), make([]float32, 15), 2, a) }},
		{"columns", badOp, func() { e.MatMulMany(make([]float32, 18), 2, Op{make([]float32, 8), a}, Op{make([]float32, 8), b}) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != test.want {
					t.Errorf("got panic %v, want %q", got, test.want)
				}
			}()
			test.call()
		})
	}
	for _, test := range []struct {
		name  string
		n, k  int
		dtype string
		bytes int
	}{
		{"type", 1, 1, "I8", 1},
		{"empty", 0, 3, "F32", 0},
		{"negative", -1, -3, "F32", 12},
		{"size", 2, 3, "BF16", 11},
	} {
		if _, err := NewDense(test.n, test.k, test.dtype, make([]byte, test.bytes)); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	if _, err := NewLUT(&repack.CPUPanels{}); err == nil {
		t.Error("empty panels: no error")
	}
}
