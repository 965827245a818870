package viterbi_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/viterbi"
)

// codes calls f with a code of each layout and rate. The pairs' table is of random numbers.
func codes(t testing.TB, f func(name string, code *trellis.Code)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 5))
	for rate := 2; rate <= 16; rate++ {
		for _, codebook := range []string{trellis.Pairs, trellis.Mul1} {
			code, err := trellis.NewCode(codebook, rate)
			if err != nil {
				continue
			}
			for i := range code.Table {
				a, b := num.F32ToF16(float32(rng.NormFloat64())), num.F32ToF16(float32(rng.NormFloat64()))
				code.Table[i] = uint32(b)<<16 | uint32(a)
			}
			f(fmt.Sprint(codebook, rate), code)
		}
	}
}

// TestRings packs what is chosen and reads it again.
func TestRings(t *testing.T) {
	codes(t, func(name string, code *trellis.Code) {
		t.Run(name, func(t *testing.T) {
			e, err := viterbi.New(code)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			l := code.Layout()
			n := l.Rows * l.Cols
			ring, values, symbols := make([]float32, n), make([]float32, n), make([]uint16, l.Steps())
			var energy, left float64
			for i := range ring {
				ring[i] = float32(rng.NormFloat64())
			}
			e.Worker().Encode(symbols, values, ring)
			packed := make([]byte, l.Bytes())
			l.Pack(packed, symbols)
			for step := range l.Steps() {
				row, col := l.At(step)
				pair := code.Pair(l.Window(packed, step))
				for i := range l.Together {
					at := row*l.Cols + col + i
					if got := num.F16ToF32(uint16(pair >> (16 * i))); got != values[at] {
						t.Fatalf("step %d of the ring stands for %v: said %v", step, got, values[at])
					}
					energy += float64(ring[at]) * float64(ring[at])
					left += float64(ring[at]-values[at]) * float64(ring[at]-values[at])
				}
			}
			if left > energy/float64(int(1)<<(l.Rate/2)) {
				t.Errorf("%v of %v is left", left, energy)
			}
		})
	})
}
