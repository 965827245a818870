package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPackedOver fills panels column by column and row by row: they are what packing gives, also
// where a view begins later.
func TestPackedOver(t *testing.T) {
	e, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range [][2]int{{1, 1}, {16, 8}, {40, 24}, {33, 70}} {
		n, k := size[0], size[1]
		cols := make([]float32, n*k) // [n, k]
		for i := range cols {
			cols[i] = float32(r.NormFloat64())
		}
		var want PackedB
		e.PackRows(&want, cols, n, k, k)
		data := make([]float32, len(want.data))
		byCol, byRow := PackedOver(n, k, data), PackedOver(n, k, make([]float32, len(data)))
		for j := range n {
			byCol.SetCol(j, cols[j*k:])
		}
		for i := range k {
			row := make([]float32, n)
			for j := range row {
				row[j] = cols[j*k+i]
			}
			byRow.SetRow(i, row)
		}
		for _, got := range []PackedB{byCol, byRow} {
			if !slices.Equal(got.data, want.data) {
				t.Fatalf("%d×%d: panels differ", n, k)
			}
		}

		x := make([]float32, k)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		for j := 0; j < n; j += 16 {
			for i := range k {
				cut := byCol.FromCol(j)
				cut = cut.FromRow(i)
				y := make([]float32, n-j)
				e.Block(y, n-j, x[i:], k-i, 1, &cut, n-j, k-i, 1, false)
				for col, got := range y {
					var sum float64
					for l := i; l < k; l++ {
						sum += float64(x[l]) * float64(cols[(j+col)*k+l])
					}
					if math.Abs(sum-float64(got)) > 1e-4 {
						t.Fatalf("%d×%d from column %d and row %d: %v at %d, want %v", n, k, j, i, got, col, sum)
					}
				}
			}
		}
	}
}

// TestArrange: dense weights in panels give the same bits, on every instruction set, for products and for rows.
func TestArrange(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, name := range []string{"generic", "avx2", "avx512"} {
		e, err := New(Options{Threads: 2, ISA: name})
		if err != nil {
			continue // not on this machine
		}
		for _, dtype := range []string{"F32", "F16", "BF16"} {
			for _, size := range [][2]int{{1, 1}, {16, 16}, {33, 300}, {50, 7}, {64, 512}, {200, 700}} {
				n, k := size[0], size[1]
				data := make([]byte, n*k*map[string]int{"F32": 4, "F16": 2, "BF16": 2}[dtype])
				for i := range data {
					data[i] = byte(r.Uint32()) & 0x3f // finite in each type
				}
				plain, err := NewDense(n, k, dtype, data)
				if err != nil {
					t.Fatal(err)
				}
				panels := *plain
				e.Arrange(&panels)
				e.Arrange(&panels)
				if panels.n != n || panels.Rows() != n || panels.Cols() != k {
					t.Fatal("another shape")
				}
				x := make([]float32, 3*k)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				for m := 1; m <= 3; m += 2 { // one row has a kernel of its own
					want, got := poisoned(m*n), poisoned(m*n)
					e.MatMul(want, x, m, plain)
					e.MatMul(got, x, m, &panels)
					if i := diff(got, want); i >= 0 {
						t.Errorf("%s %s %d×%d, %d rows: element %d: got %g, want %g", name, dtype, n, k, m, i, got[i], want[i])
					}
				}
				rows, again := make([]float32, 2*k), make([]float32, 2*k)
				e.Gather(rows, plain, []int{n - 1, 0})
				e.Gather(again, &panels, []int{n - 1, 0})
				if !slices.Equal(again, rows) {
					t.Errorf("%s %s %d×%d: other bits", name, dtype, n, k)
				}
			}
		}
		e.Close()
	}
}
