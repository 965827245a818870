package fit

import (
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/source/modeltest"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
)

// TestEstimates: models of every sort of block have an estimate of time and memory, on either device. The GPU's speed is the host's here.
func TestEstimates(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if !slices.Contains([]string{"llama", "qwen3-moe", "gpt-oss", "deepseek-v3", "gemma4", "nemotron-h", "nemotron-h-moe"}, g.Name) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			for _, device := range []string{"cpu", "cuda"} {
				o := Options{Device: device, Open: func(int64) ([]model.Ops, func() error, error) {
					e, err := gemmcpu.New(gemmcpu.Options{Threads: 1})
					return []model.Ops{modelcpu.New(e)}, func() error { return nil }, err
				}}
				c, err := newCalibrator(modeltest.Open(t, dir), &corpus.Mixture{Windows: [][]int{g.Tokens}, Context: len(g.Tokens)}, o, true)
				if err != nil {
					t.Fatal(err)
				}
				f := quantize.Fitting{Share: .3, Beside: 3, Prepared: 1 << 20, Matrices: 10, Weights: 1e6, Products: 1e6}
				seconds, err := c.Seconds(t.Context(), f)
				host, gpu := c.Memory(f)
				if err != nil || !(seconds > 0) || host <= 0 || (gpu > 0) != (device == "cuda") {
					t.Errorf("on %s: %v s, %d and %d bytes, error %v", device, seconds, host, gpu, err)
				}
			}
		})
	}
}
