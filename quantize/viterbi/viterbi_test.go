package viterbi

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// normal draws numbers for tests: SplitMix64, of which Box and Muller make two and keep one.
type normal uint64

func (n *normal) uniform() uint64 {
	*n += 0x9E3779B97F4A7C15
	z := uint64(*n)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

func (n *normal) next() float32 {
	u, v := float64(n.uniform()>>11+1)*0x1p-53, float64(n.uniform()>>11)*0x1p-53
	return float32(math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v))
}

// ring draws the weights of a ring in the order in which windows are shifted.
func (n *normal) ring(l trellis.Layout) []float32 {
	ring := make([]float32, l.Rows*l.Cols)
	for i := range l.Steps() {
		if l.Together > 1 {
			i = l.Steps() - 1 - i
		}
		row, col := l.At(i)
		for j := range l.Together {
			ring[row*l.Cols+col+j] = n.next()
		}
	}
	return ring
}

// encode returns what a ring becomes.
func encode(w *Worker, l trellis.Layout, ring []float32) (symbols []uint16, values []float32) {
	symbols, values = make([]uint16, l.Steps()), make([]float32, len(ring))
	w.Encode(symbols, values, ring)
	return symbols, values
}

// golden are mean squared errors of rings of normal(1): 48 of pairs, 16 of others. They are those of another program, in C: costs are
// float32, the first pass is over the ring turned by half, the second from the edge at its beginning to itself.
var golden = []struct {
	codebook string
	rate     int
	mse      float64
}{
	{"trellis", 2, 0.280279},
	{"trellis", 3, 0.141456},
	{"trellis", 4, 0.071439},
	{"trellis", 5, 0.036251},
	{"trellis", 6, 0.018734},
	{"trellis", 7, 0.009537},
	{"trellis", 8, 0.004967},
	{"trellis", 9, 0.002774},
	{"trellis", 10, 0.001486},
	{"trellis", 11, 0.000841},
	{"trellis", 12, 0.000513},
	{"mul1", 2, 0.283998},
	{"mul1", 3, 0.141334},
	{"mul1", 4, 0.070386},
	{"mul1", 5, 0.035286},
	{"mul1", 6, 0.017771},
	{"mul1", 7, 0.009080},
	{"mul1", 8, 0.004562},
	{"mul1", 10, 0.001165},
	{"mul1", 12, 0.000305},
	{"mul1", 14, 0.000081},
	{"mul1", 16, 0.000022},
	{"mcg", 6, 0.018800},
	{"3inst", 6, 0.019282},
}

// checkRing reads a ring again from its bits.
func checkRing(t *testing.T, code *trellis.Code, symbols []uint16, values []float32) {
	t.Helper()
	l := code.Layout()
	packed := make([]byte, l.Bytes())
	l.Pack(packed, symbols)
	for step := range l.Steps() {
		row, col := l.At(step)
		pair := code.Pair(l.Window(packed, step))
		for i := range l.Together {
			if got, want := values[row*l.Cols+col+i], num.F16ToF32(uint16(pair>>(16*i))); got != want {
				t.Fatalf("step %d stands for %v: said %v", step, want, got)
			}
		}
	}
}

// TestRings encodes random rings of each layout and rate. The error is that of the other program within what integers cost, or less.
func TestRings(t *testing.T) {
	for _, g := range golden {
		t.Run(fmt.Sprint(g.codebook, g.rate), func(t *testing.T) {
			code, e := newEncoder(t, g.codebook, g.rate)
			l, w, rng := code.Layout(), e.Worker(), normal(1)
			rings, near := 16, 0.02
			if l.Together > 1 {
				rings = 48
			}
			if e.kernels.isa == portable().isa { // which takes a hundred times as long
				rings, near = 1, 0.3
			}
			var sum float64
			for range rings {
				ring := rng.ring(l)
				symbols, values := encode(w, l, ring)
				checkRing(t, code, symbols, values)
				for i, v := range values {
					d := float64(ring[i]) - float64(v)
					sum += d * d
				}
			}
			if mse := sum / float64(rings*l.Rows*l.Cols); math.Abs(mse/g.mse-1) > near {
				t.Errorf("mean squared error %.6f: want %.6f", mse, g.mse)
			}
		})
	}
}

// TestWorkers encodes rings by workers that share an encoder and have seen other rings: codes are the ones of a new worker.
func TestWorkers(t *testing.T) {
	for _, g := range golden {
		if g.rate != 3 && g.rate != 12 {
			continue
		}
		code, e := newEncoder(t, g.codebook, g.rate)
		l, rng := code.Layout(), normal(2)
		rings := make([][]float32, 3)
		want := make([][]uint16, len(rings))
		for i := range rings {
			rings[i] = rng.ring(l)
			want[i], _ = encode(e.Worker(), l, rings[i])
		}
		var group sync.WaitGroup
		for first := range rings {
			group.Go(func() {
				w := e.Worker()
				encode(w, l, slices.Repeat([]float32{float32(math.Inf(1))}, l.Rows*l.Cols))
				for i := range rings {
					i = (first + i) % len(rings)
					if got, _ := encode(w, l, rings[i]); !slices.Equal(got, want[i]) {
						t.Errorf("%s%d: worker %d chooses other codes for ring %d", g.codebook, g.rate, first, i)
					}
				}
			})
		}
		group.Wait()
	}
}
