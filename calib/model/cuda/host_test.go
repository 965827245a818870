package cuda

import (
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// hostStamps returns the stamps of a test, and what asks them about a subtest with the kernels for the i-th type of activations, and
// more.
func hostStamps(t *testing.T, arch int) (due func(t *testing.T, i int, more ...driver.Kernel)) {
	s := kerneltest.NewStamps(t, kerneltest.StampOptions{Update: *cudatest.Update, All: *cudatest.Long})
	return func(t *testing.T, i int, more ...driver.Kernel) {
		t.Helper()
		s.Due(t, kerneltest.Modules(arch, append(Kernels(types[i].acts), more...)...)...)
	}
}

// hostFamilies are those whose operations differ: others are read or turned otherwise, by the host.
func hostFamilies() []string {
	return []string{
		"llama", "llama-bias", "llama-gelu", "llama-tied", "mistral-head-dim", "phi3", "qwen2-sliding",
		"qwen3", "gemma2", "gemma3", "mixtral", "qwen2-moe", "qwen3-moe-mixed", "gpt-oss",
		"smollm3", "olmo2", "ernie4-5", "hunyuan", "ministral3", "glm4-moe", "minimax-m2",
		"qwen3-next", "qwen3-5", "gemma4", "gemma4-large", "gemma4-moe", "deepseek-v3", "deepseek-v3-plain", "llama4",
		"lfm2", "granite-hybrid", "lfm2-moe", "nemotron-h", "nemotron-h-moe", "nemotron-h-latent",
	}
}

// TestHost compares operations with float64 on the host, with kernels compiled for it: in
// float32, and of 16 bits what differs there.
func TestHost(t *testing.T) {
	if *cudatest.Long {
		t.Skip("with -long TestHostLong does so in all types")
	}
	const arch = 800
	due := hostStamps(t, arch)
	kerneltest.HostGPU(t, arch/100, false)
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		options := opstest.Options{Acts: types[i].tol, Each: func(t *testing.T) { due(t, i) }}
		run := func(name string, test func(t *testing.T)) {
			t.Run(name, func(t *testing.T) {
				due(t, i)
				test(t)
			})
		}
		rounds := func(name string, test func(t *testing.T)) {
			t.Run(name, func(t *testing.T) {
				due(t, i, SearchKernel())
				test(t)
			})
		}
		switch i {
		case 0:
			opstest.Run(t, o, options)
			run("Solve", func(t *testing.T) { testSolves(t, o, 1, 5, 64, 65, 330) })
			run("Walk", func(t *testing.T) { testWalk(t, o, i) })
			run("Experts", func(t *testing.T) { testExperts(t, o) })
			rounds("Devices", func(t *testing.T) { testDevices(t, o) })
			run("Score", func(t *testing.T) { testScore(t, o) })
			run("Rank", func(t *testing.T) { testRank(t, o) })
			run("Mix", func(t *testing.T) { testMix(t, o, i) })
			rounds("Columns", func(t *testing.T) { testColumns(t, o) })
			rounds("Search", func(t *testing.T) { testSearch(t, o) })
			for _, family := range hostFamilies() {
				run("Families "+family, func(t *testing.T) { opstest.Families(t, o, familyBounds(i), family) })
			}
			for _, family := range []string{"llama-llama3", "qwen3-moe-mixed", "glm4-moe", "qwen3-5", "deepseek-v3-plain"} {
				run("Ahead "+family, func(t *testing.T) { opstest.Ahead(t, o, family) })
			}
			for _, family := range []string{"mixtral", "qwen2-moe", "gpt-oss", "glm4-moe", "minimax-m2", "qwen3-next", "granite-hybrid", "lfm2", "lfm2-moe", "nemotron-h", "nemotron-h-moe", "deepseek-v3"} {
				b := familyBounds(i)
				b.Recorded = true
				run("Recorded "+family, func(t *testing.T) { opstest.Steps(t, o, b, family) })
			}
			for _, family := range []string{"smollm3", "olmo2", "ernie4-5", "ministral3", "qwen3-5", "gemma4", "llama4"} {
				run("Steps "+family, func(t *testing.T) { opstest.Steps(t, o, familyBounds(i), family) })
			}
		case 1:
			run("Flash", func(t *testing.T) {
				// Compiled for two sizes of heads.
				testFlash(t, o, i, slices.DeleteFunc(flashCases(), func(c flashCase) bool { return c.dim != 128 && c.dim != 256 }))
				testFlashElsewhere(t, o, i)
			})
			run("Inputs", func(t *testing.T) { testInputs(t, o, false) })
			run("GLURows", func(t *testing.T) { testGLURows(t, o) })
			run("StepsAhead", func(t *testing.T) { testStepsAhead(t, o, true, 3, 1) })
			run("RingInputs", func(t *testing.T) { testRingInputs(t, o, 1, 3, 9) })
			run("Attend", func(t *testing.T) { opstest.Attend(t, o, options) }) // for what is of 16 bits alone
			for _, family := range []string{"qwen3-5", "qwen3-5-bias"} {
				run("Steps "+family, func(t *testing.T) { opstest.Steps(t, o, familyBounds(i), family) })
			}
		}
	})
}

// TestHostRings does so with what rounds rings, whose kernels are compiled for each rate.
func TestHostRings(t *testing.T) {
	if *cudatest.Long {
		t.Skip("with -long TestHostLong does so")
	}
	const arch = 900
	stamps := kerneltest.NewStamps(t, kerneltest.StampOptions{Update: *cudatest.Update, All: *cudatest.Long})
	kerneltest.HostGPU(t, arch/100, false)
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i != 0 {
			return
		}
		run := func(name string, rate int, test func(t *testing.T)) {
			t.Run(name, func(t *testing.T) {
				code, err := trellis.NewCode(trellis.Pairs, rate)
				if err != nil {
					t.Fatal(err)
				}
				stamps.Due(t, kerneltest.Modules(arch, RingKernels(code.Layout())...)...)
				test(t)
			})
		}
		run("Rotate", 2, func(t *testing.T) { testRotate(t, o) })
		run("Viterbi 2", 2, func(t *testing.T) { testViterbi(t, o, trellis.Pairs, 2, 1) })
		run("Viterbi 6", 6, func(t *testing.T) { testViterbi(t, o, trellis.Pairs, 6, 3) })
		run("Viterbi 12", 12, func(t *testing.T) { testViterbi(t, o, trellis.Pairs, 12, 1) })
		run("Viterbi far", 4, func(t *testing.T) { testViterbiFar(t, o) })
		run("Rings", 8, func(t *testing.T) { testRings(t, o, ringCases()[0]) })
		run("Rings by a state", 6, func(t *testing.T) { testRingsByState(t, o, 16, 72, 6) })
	})
}

// TestHostLong runs all tests for a GPU on the host, in all types and in either order of a block's threads.
func TestHostLong(t *testing.T) {
	if !*cudatest.Long {
		t.Skip("with -long")
	}
	for _, order := range []struct {
		name    string
		major   int
		reverse bool
	}{{"forward", 8, false}, {"in reverse", 9, true}} {
		t.Run(order.name, func(t *testing.T) {
			kerneltest.HostGPU(t, order.major, order.reverse)
			onGPU(t, func(t *testing.T, o *Ops, i int) {
				opstest.Run(t, o, opstest.Options{Acts: types[i].tol})
				t.Run("Flash", func(t *testing.T) {
					if i > 0 {
						testFlash(t, o, i, flashCases())
						testFlashElsewhere(t, o, i)
					}
				})
				if i == 1 {
					t.Run("PackedSteps", func(t *testing.T) { testPackedSteps(t, o, i, 8, 1, 5) })
					t.Run("StepsAhead", func(t *testing.T) { testStepsAhead(t, o, true, 3, 1, 4, 16) })
					t.Run("MixtureSteps", func(t *testing.T) { testMixtureSteps(t, o, i, 5, mixtureCases(), 1, 5) })
				}
				if i > 0 {
					t.Run("Inputs", func(t *testing.T) { testInputs(t, o, true) })
					t.Run("GLURows", func(t *testing.T) { testGLURows(t, o) })
					t.Run("RingInputs", func(t *testing.T) { testRingInputs(t, o, 1, 3, 8, 9, 16) })
				}
				if i == 0 {
					t.Run("Solve", func(t *testing.T) { testSolves(t, o, 1, 5, 64, 65, 330) })
					t.Run("Walk", func(t *testing.T) { testWalk(t, o, i) })
					t.Run("Experts", func(t *testing.T) { testExperts(t, o) })
					t.Run("Score", func(t *testing.T) { testScore(t, o) })
					t.Run("Rank", func(t *testing.T) { testRank(t, o) })
					t.Run("Mix", func(t *testing.T) { testMix(t, o, i) })
					t.Run("Columns", func(t *testing.T) { testColumns(t, o) })
					t.Run("Search", func(t *testing.T) { testSearch(t, o) })
					t.Run("Rotate", func(t *testing.T) { testRotate(t, o) })
					testViterbi(t, o, trellis.Pairs, 6, 3)
					testViterbi(t, o, trellis.MCG, 8, 1)
					testRings(t, o, ringCases()[0])
				}
			})
			t.Run("Families", func(t *testing.T) {
				onGPU(t, func(t *testing.T, o *Ops, i int) { opstest.Families(t, o, familyBounds(i)) })
			})
			t.Run("Ahead", func(t *testing.T) {
				onGPU(t, func(t *testing.T, o *Ops, _ int) { opstest.Ahead(t, o) })
			})
			t.Run("Steps", TestGPUSteps)
			t.Run("AdamBF16", TestGPUAdamBF16)
			t.Run("AttentionBackBlocks", TestGPUAttentionBackBlocks)
			t.Run("Gradient", TestGPUGradient)
			t.Run("Errors", TestGPUErrors)
			t.Run("Streamed", TestGPUStreamed)
		})
	}
}
