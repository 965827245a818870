package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"

	"github.com/lutq/lutq/calib/model"
)

// TestGPUSolve compares factors and solutions with those of float64. There are no activations in them.
func TestGPUSolve(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testSolves(t, o, 1, 5, 64, 65, 200, 1500)
		}
	})
}

func testSolves(t *testing.T, o *Ops, sizes ...int) {
	for _, k := range sizes {
		t.Run(fmt.Sprint(k), func(t *testing.T) { testSolve(t, o, k) })
	}
}

// BenchmarkGPUSolve times what a state of a model of 8 billion weights takes.
func BenchmarkGPUSolve(b *testing.B) {
	benchmarkGPU(b, func(o *Ops) {
		for _, k := range []int{4096, 14336} {
			h, l, d := o.Floats(k*k), o.Floats(k*k), o.Floats(k*k)
			time := func(name string, f func()) {
				b.Run(fmt.Sprint(name, " ", k), func(b *testing.B) {
					for b.Loop() {
						f()
						if err := o.Err(); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			time("reorder", func() { o.Reorder(l, h, nil, 1, k) })
			time("reorder and factor", func() {
				o.Reorder(l, h, nil, 1, k)
				if !o.Cholesky(l, k) {
					b.Fatal("the identity is not positive definite")
				}
			})
			time("solve", func() { o.Solve(d, l, k, k) })
			o.Free(h, l, d)
		}
	})
}

func testSolve(t *testing.T, o *Ops, k int) {
	r := rand.New(rand.NewPCG(uint64(k), 1))
	array := func(v []float32) model.Array {
		a := o.Floats(len(v))
		o.Write(a, v)
		return a
	}
	read := func(a model.Array) []float32 {
		v := make([]float32, a.Len())
		o.Read(v, a)
		return v
	}
	// A sum of products with a diagonal that keeps it far from singular.
	h := make([]float32, k*k)
	for range 2 * k {
		x := make([]float64, k)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		for i := range x {
			for j := range x {
				h[i*k+j] += float32(x[i] * x[j] / float64(2*k))
			}
		}
	}
	const more = 0.125
	order := r.Perm(k)
	matrix, factor, unit := array(h), o.Floats(k*k), o.Floats(k*k)
	defer o.Free(matrix, factor, unit)
	o.Reorder(factor, matrix, order, more, k)
	ordered := read(factor)
	want := make([]float64, k*k)
	for i := range k {
		for j := range k {
			v := h[order[i]*k+order[j]]
			if i == j {
				v += more
			}
			if ordered[i*k+j] != v {
				t.Fatalf("in order, [%d, %d] is %v: want %v", i, j, ordered[i*k+j], v)
			}
			want[i*k+j] = float64(v)
		}
	}
	if !o.Cholesky(factor, k) {
		t.Fatal("the matrix is not positive definite")
	}
	if _, ok := lapack64.Potrf(blas64.Symmetric{Uplo: blas.Lower, N: k, Data: want, Stride: k}); !ok {
		t.Fatal("the matrix is not positive definite in float64")
	}
	l := read(factor)
	near := func(what string, i, j int, got float32, want, size float64) {
		t.Helper()
		if !(math.Abs(float64(got)-want) <= 2e-5*size) {
			t.Fatalf("%s[%d, %d] is %v: want %v", what, i, j, got, want)
		}
	}
	for i := range k {
		for j := range i + 1 {
			near("L", i, j, l[i*k+j], want[i*k+j], 1)
		}
	}
	o.UnitUpper(unit, factor, k)
	a := read(unit)
	for i := range k {
		for j := range k {
			v := 0.
			if i <= j {
				v = want[(k-1-i)*k+k-1-j] / want[(k-1-j)*k+k-1-j]
			}
			near("A", i, j, a[i*k+j], v, 1)
		}
	}
	const rows = 7
	x := make([]float32, rows*k)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	solved := array(x)
	defer o.Free(solved)
	o.Solve(solved, factor, rows, k)
	got := read(solved)
	for i := range rows {
		b := blas64.General{Rows: k, Cols: 1, Stride: 1, Data: make([]float64, k)}
		for j := range k {
			b.Data[j] = float64(x[i*k+j])
		}
		lapack64.Potrs(blas64.Triangular{Uplo: blas.Lower, Diag: blas.NonUnit, N: k, Data: want, Stride: k}, b)
		for j := range k {
			near("X", i, j, got[i*k+j], b.Data[j], 10)
		}
	}

	indefinite := slices.Clone(h)
	indefinite[k*k-1] = -1
	o.Write(matrix, indefinite)
	if o.Cholesky(matrix, k) {
		t.Error("a matrix with a negative element on its diagonal counts as positive definite")
	}
	indefinite[0] = float32(math.NaN())
	o.Write(matrix, indefinite)
	if o.Cholesky(matrix, k) {
		t.Error("a matrix with a NaN counts as positive definite")
	}
}
