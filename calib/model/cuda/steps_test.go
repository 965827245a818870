package cuda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestGPUPackedSteps goes through a text a token at a time, alone and beside others, by packed weights, and compares with
// the whole window.
func TestGPUPackedSteps(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		testPackedSteps(t, o, i, 64, 1, 2, 4, 5, 9, 16)
	})
}

// testPackedSteps takes so many texts side by side, the same one in all slots.
func testPackedSteps(t *testing.T, o *Ops, i, length int, texts ...int) {
	most := 1e-4 // of the divergence
	if types[i].acts == driver.BF16 {
		most = 1e-3
	}
	for _, bits := range []int{4, 3} {
		src, tokens := source(t, bits, 64, true), window(t, length+1)
		want := evaluate(t, src, o, tokens).logits
		for _, n := range texts {
			t.Run(fmt.Sprintf("%d bits, %d texts", bits, n), func(t *testing.T) {
				got := stepByStep(t, src, o, tokens[:length], n)
				vocab := len(want) / length
				divergence := 0.0
				for row := range length {
					divergence += klOf(want[row*vocab:][:vocab], got[0][row*vocab:][:vocab]) / float64(length)
				}
				t.Logf("logits differ by %.2g, divergence %.2g", distance(got[0], want), divergence)
				if d := distance(got[0], want); !(d <= types[i].deep) || !(divergence <= most) {
					t.Errorf("logits differ by %.2g, divergence %.2g: want at most %.2g and %.2g", d, divergence, types[i].deep, most)
				}
				for slot := range got {
					if !slices.Equal(got[slot], got[0]) {
						t.Errorf("slot %d has other bits", slot)
					}
				}
				if again := stepByStep(t, src, o, tokens[:length], n); !slices.Equal(again[n-1], got[0]) {
					t.Error("other bits the second time")
				}
			})
		}
	}
}

// stepByStep returns the logits of n equal texts, of each slot.
func stepByStep(t *testing.T, src model.Source, o *Ops, tokens []int, n int) [][]float32 {
	t.Helper()
	m, err := model.New(src, o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := m.NewCache(n, len(tokens))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, slots, next, host := make([][]float32, n), make([]int, n), make([]int, n), make([]float32, n*m.Vocab())
	for _, token := range tokens {
		for slot := range n {
			slots[slot], next[slot] = slot, token
		}
		logits, _, err := c.Step(context.Background(), slots, next)
		if err != nil {
			t.Fatal(err)
		}
		o.Read(host, logits)
		for slot := range n {
			all[slot] = append(all[slot], host[slot*m.Vocab():][:m.Vocab()]...)
		}
	}
	return all
}

// klOf is KL(softmax(p)‖softmax(q)).
func klOf(p, q []float32) float64 {
	logSum := func(v []float32) float64 {
		top, sum := float64(slices.Max(v)), 0.0
		for _, x := range v {
			sum += math.Exp(float64(x) - top)
		}
		return top + math.Log(sum)
	}
	lp, lq, kl := logSum(p), logSum(q), 0.0
	for i := range p {
		a := float64(p[i]) - lp
		kl += math.Exp(a) * (a - float64(q[i]) + lq)
	}
	return kl
}
