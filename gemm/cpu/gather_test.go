package cpu

import (
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
)

// Rows of every stored form are those that it stands for, to the bit.
func TestGather(t *testing.T) {
	for _, c := range []weightCase{denseCase("F32"), denseCase("F16"), denseCase("BF16"), lutCase(3, 24, weight.BF16), lutCase(2, 64, weight.F16)} {
		for _, shape := range [][2]int{{1, 1}, {16, 32}, {37, 259}, {50, 600}} {
			n, k := shape[0], shape[1]
			r := rand.New(rand.NewPCG(uint64(n), uint64(k)))
			w, want, err := c.make(r, n, k)
			if err != nil {
				t.Fatal(err)
			}
			rows := []int{0, n - 1, n / 2, n / 2}
			for range 30 {
				rows = append(rows, r.IntN(n))
			}
			for _, e := range engines(t) {
				got := poisoned(len(rows) * k)
				e.Gather(got, w, rows)
				for i, row := range rows {
					if at := diff(got[i*k:(i+1)*k], want[row*k:(row+1)*k]); at >= 0 {
						t.Fatalf("%s, %s, %d×%d: column %d of row %d: got %v, want %v", c.name, e.label(), n, k, at, row, got[i*k+at], want[row*k+at])
					}
				}
			}
		}
	}
}
