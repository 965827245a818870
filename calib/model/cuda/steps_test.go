package cuda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
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

// TestGPUStepsAhead compares steps that read ahead with others, for texts whose products are by different kernels.
func TestGPUStepsAhead(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i > 0 {
			testStepsAhead(t, o, false, 32, 1, 4, 16)
			testStepsAhead(t, o, true, 32, 1)
		}
	})
}

// testStepsAhead holds steps whose products read ahead, in all ways at once, to the bits of those whose products do not. The host knows lines alone.
func testStepsAhead(t *testing.T, o *Ops, lines bool, length int, texts ...int) {
	src, tokens := source(t, 4, 64, true), window(t, length)
	for _, n := range texts {
		o.ahead = gemmcuda.Ahead{}
		want := stepByStep(t, src, o, tokens, n)
		o.ahead = gemmcuda.Ahead{Next: 1 << 20, Own: 2 << 20, Within: 1 << 20, Lines: lines, Spare: 4}
		got := stepByStep(t, src, o, tokens, n)
		o.ahead = gemmcuda.Ahead{}
		for slot := range got {
			if !slices.Equal(got[slot], want[slot]) {
				t.Errorf("%d texts: slot %d has other bits", n, slot)
			}
		}
	}
}

// TestProducts holds products of a step that is recorded to what they know of each other: nothing the first time.
func TestProducts(t *testing.T) {
	ahead := gemmcuda.Ahead{Next: 1, Spare: 2}
	o := &Ops{ahead: ahead, recording: &recording{}}
	a, b := gemmcuda.Follower{W: &gemmcuda.Matrix{}, M: 1}, gemmcuda.Follower{W: &gemmcuda.Matrix{}, M: 1, Gates: gemmcuda.Gates{Activation: "silu"}}
	all := []gemmcuda.Follower{a, b, {}, a} // the third is of something else
	for _, f := range all {
		if s := o.product(f); s == nil || s.Ahead != ahead || s.Behind != nil || s.Told {
			t.Errorf("the first time %+v is known", s)
		}
	}
	o.recording.again = true
	told := []bool{false, true, true, false}
	for i, f := range all {
		s := o.product(f)
		if s.Told != told[i] || (s.Behind == nil) != (i == len(all)-1) || s.Behind != nil && *s.Behind != all[i+1] {
			t.Errorf("product %d: %+v is known", i, s)
		}
	}
	o.recording = nil
	if s := o.product(a); s != nil {
		t.Errorf("of a product of no step %+v is known", s)
	}
}
