package cuda

import (
	"flag"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// TestHost compares operations with float64 on the host, with kernels compiled for it: in
// float32, and with -long in all types. -long runs other tests for a GPU there too, and
// all in either order of a block's threads.
func TestHost(t *testing.T) {
	long := flag.Lookup("long").Value.String() == "true"
	for _, order := range []struct {
		name    string
		major   int
		reverse bool
	}{{"forward", 8, false}, {"in reverse", 9, true}} {
		if order.reverse && !long {
			continue
		}
		t.Run(order.name, func(t *testing.T) {
			kerneltest.HostGPU(t, order.major, order.reverse)
			onGPU(t, func(t *testing.T, o *Ops, i int) {
				if long || i == 0 {
					opstest.Run(t, o, opstest.Options{Acts: types[i].tol})
				}
				if long || i == 1 {
					t.Run("Flash", func(t *testing.T) {
						cases := flashCases()
						if !long { // compiled for two sizes of heads
							cases = slices.DeleteFunc(cases, func(c flashCase) bool { return c.dim != 128 && c.dim != 256 })
						}
						if i > 0 {
							testFlash(t, o, i, cases)
							testFlashElsewhere(t, o, i)
						}
					})
				}
				if i == 1 && long {
					t.Run("PackedSteps", func(t *testing.T) { testPackedSteps(t, o, i, 8, 1, 5) })
					t.Run("MixtureSteps", func(t *testing.T) { testMixtureSteps(t, o, i, 5, mixtureCases(), 1, 5) })
				}
				if i == 1 || i > 1 && long {
					t.Run("Inputs", func(t *testing.T) { testInputs(t, o, long) })
				}
				if i == 1 && !long { // for what is of 16 bits alone
					opstest.Attend(t, o, opstest.Options{Acts: types[i].tol})
				}
				if i == 0 {
					t.Run("Solve", func(t *testing.T) { testSolves(t, o, 1, 5, 64, 65, 200) })
					t.Run("Walk", func(t *testing.T) { testWalk(t, o, i) })
					t.Run("Score", func(t *testing.T) { testScore(t, o) })
					t.Run("Rank", func(t *testing.T) { testRank(t, o) })
					t.Run("Mix", func(t *testing.T) { testMix(t, o, i) })
					t.Run("Columns", func(t *testing.T) { testColumns(t, o) })
				}
			})
			t.Run("Families", func(t *testing.T) {
				onGPU(t, func(t *testing.T, o *Ops, i int) {
					if long {
						opstest.Families(t, o, familyBounds(i))
					} else if i == 0 { // those whose operations differ: others are read or turned otherwise, by the host
						opstest.Families(t, o, familyBounds(i), "llama", "llama-bias", "llama-gelu", "llama-tied", "mistral-head-dim", "phi3", "qwen2-sliding",
							"qwen3", "gemma2", "gemma3", "mixtral", "qwen2-moe", "qwen3-moe-mixed", "gpt-oss")
					}
				})
			})
			t.Run("Ahead", func(t *testing.T) {
				onGPU(t, func(t *testing.T, o *Ops, i int) {
					if long {
						opstest.Ahead(t, o)
					} else if i == 0 {
						opstest.Ahead(t, o, "llama-llama3", "qwen3-moe-mixed")
					}
				})
			})
			if !long {
				t.Run("Mixtures", func(t *testing.T) {
					onGPU(t, func(t *testing.T, o *Ops, i int) {
						if i == 0 {
							opstest.Steps(t, o, familyBounds(i), "mixtral", "qwen2-moe", "gpt-oss")
						}
					})
				})
			}
			if long {
				t.Run("Steps", TestGPUSteps)
				t.Run("AdamBF16", TestGPUAdamBF16)
				t.Run("AttentionBackBlocks", TestGPUAttentionBackBlocks)
				t.Run("Gradient", TestGPUGradient)
				t.Run("Errors", TestGPUErrors)
				t.Run("Streamed", TestGPUStreamed)
			}
		})
	}
}
