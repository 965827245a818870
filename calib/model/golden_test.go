package model_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cpu"
)

// shared is where the larger models are, if they are.
const shared = "../../../shared"

// queryRows is how many queries of a head package cpu takes at a time: windows are to
// have more, and parts of as many.
const queryRows = 56

// tiny is the model of the repository.
const tiny = "../testdata/lutq-tiny"

// need skips the test without a path that is not part of the repository.
func need(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not here", path)
	}
	return path
}

func newOps(t testing.TB, threads int) *modelcpu.Ops {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return modelcpu.New(e)
}

func open(t testing.TB, dir string, threads int) *model.Model {
	t.Helper()
	m, err := model.Open(modeltest.Open(t, dir), newOps(t, threads), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// logits returns all logits of a window.
func logits(t testing.TB, m *model.Model, tokens []int) []float32 {
	t.Helper()
	h, err := m.Hidden(context.Background(), tokens)
	if err != nil {
		t.Fatal(err)
	}
	l := m.Ops().Floats(len(tokens) * m.Vocab())
	if err := m.Logits(l, h, len(tokens)); err != nil {
		t.Fatal(err)
	}
	dst := make([]float32, l.Len())
	m.Ops().Read(dst, l)
	return dst
}

// maxError is the largest difference relative to the largest value.
func maxError(got []float32, want []float64) float64 {
	var worst, scale float64
	for i, w := range want {
		scale = max(scale, math.Abs(w))
		d := math.Abs(float64(got[i]) - w)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst = max(worst, d)
	}
	return worst / scale
}

// Logits that transformers computed on a GPU. They are from matrix products of
// TF32's precision, 2⁻¹¹, where ours agree with float64 to 1e-6
// (TestAgainstReference and TestTinyAgainstReference).
func TestGoldenLogits(t *testing.T) {
	racetest.Skip(t)
	for _, dir := range []string{tiny, filepath.Join(shared, "models/lutq-11m")} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			data, err := os.ReadFile(need(t, filepath.Join(dir, "golden.json")))
			if err != nil {
				t.Fatal(err)
			}
			var golden struct {
				IDs   []int     `json:"first64_ids"`
				Last  []float64 `json:"logits_last_first16"`
				Row10 []float64 `json:"logits_row10_first16"`
			}
			if err := json.Unmarshal(data, &golden); err != nil {
				t.Fatal(err)
			}
			m := open(t, dir, 2)
			got := logits(t, m, golden.IDs)
			for _, row := range []struct {
				at   int
				want []float64
			}{{len(golden.IDs) - 1, golden.Last}, {10, golden.Row10}} {
				if e := maxError(got[row.at*m.Vocab():], row.want); e > 1e-3 {
					t.Errorf("row %d: relative error %.2g, want at most 1e-3", row.at, e)
				}
			}
		})
	}
}

// BenchmarkWindow runs windows of 2048 tokens through a model, with and without its
// output head. LUTQ_BENCH_MODEL names more models, in a list.
func BenchmarkWindow(b *testing.B) {
	dirs := append([]string{tiny, filepath.Join(shared, "models/lutq-11m")}, filepath.SplitList(os.Getenv("LUTQ_BENCH_MODEL"))...)
	for _, dir := range dirs {
		b.Run(filepath.Base(dir), func(b *testing.B) {
			m := open(b, need(b, dir), 2)
			const rows = 128
			tokens := make([]int, 2048)
			for i := range tokens {
				tokens[i] = i * 7919 % m.Vocab()
			}
			dst := m.Ops().Floats(rows * m.Vocab())
			width := m.Decoder().Hidden
			for _, head := range []bool{true, false} {
				b.Run(map[bool]string{true: "all", false: "no-head"}[head], func(b *testing.B) {
					for b.Loop() {
						h, err := m.Hidden(context.Background(), tokens)
						if err != nil {
							b.Fatal(err)
						}
						for from := 0; head && from < len(tokens); from += rows {
							if err := m.Logits(dst, h.Slice(from*width, (from+rows)*width), rows); err != nil {
								b.Fatal(err)
							}
						}
					}
					b.ReportMetric(float64(b.N*len(tokens))/b.Elapsed().Seconds(), "tokens/s")
				})
			}
		})
	}
}
