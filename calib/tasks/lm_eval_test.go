package tasks_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/tasks"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
)

// golden is what lm-evaluation-harness finds of the small model by transformers in float32: scripts/tasks_check.py wrote it.
type golden struct {
	Files   map[string]string `json:"files"`
	Samples map[string][]struct {
		Requests       [][2]string `json:"requests"`
		LogLikelihoods []float64   `json:"log_likelihoods"`
		Greedy         []bool      `json:"greedy"`
		Acc            float64     `json:"acc"`
		AccNorm        *float64    `json:"acc_norm"`
	} `json:"samples"`
}

func readGolden(t *testing.T) (g golden, dir string) {
	t.Helper()
	data, err := os.ReadFile("testdata/lm_eval.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, text := range g.Files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return g, dir
}

func openTiny(t *testing.T) (*model.Model, *tasks.Encoder) {
	t.Helper()
	from, err := source.Open("../testdata/lutq-tiny", source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close() })
	tok, err := tokenizer.Read(from)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := cpu.New(cpu.Options{Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	m, err := model.Open(from, modelcpu.New(engine), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, &tasks.Encoder{Tokenizer: tok, Begin: 0, Context: m.Decoder().MaxPositions}
}

// TestLMEval: the requests are those of lm-evaluation-harness to the letter, log-likelihoods are as near as float32 is, and
// the answers are the same. Two and three devices that share the items say the same.
func TestLMEval(t *testing.T) {
	g, dir := readGolden(t)
	m, encoder := openTiny(t)
	second, _ := openTiny(t)
	third, _ := openTiny(t)
	for name, samples := range g.Samples {
		t.Run(name, func(t *testing.T) {
			task, err := tasks.Load(t.Context(), tasks.Source{Spec: filepath.Join(dir, name+".yaml")}, tasks.Options{Seed: 1234})
			if err != nil {
				t.Fatal(err)
			}
			if len(task.Items) != len(samples) {
				t.Fatalf("%d items: want %d", len(task.Items), len(samples))
			}
			for i, item := range task.Items {
				var asked [][2]string
				for _, r := range item.Requests {
					asked = append(asked, [2]string{r.Context, r.Continuation})
				}
				if d := cmp.Diff(samples[i].Requests, asked); d != "" {
					t.Fatalf("item %d:\n%s", i+1, d)
				}
			}
			reads, err := encoder.EncodeAll(task)
			if err != nil {
				t.Fatal(err)
			}
			answers, err := tasks.Score(t.Context(), m, reads, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, on := range [][]*model.Model{{m, second}, {m, second, third}} {
				last := 0
				shared, err := tasks.ScoreOn(t.Context(), on, reads, func(done int) {
					if done < last || done > len(reads) {
						t.Errorf("%d devices: told of %d items of %d after %d", len(on), done, len(reads), last)
					}
					last = done
				})
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(answers.Likelihoods, shared.Likelihoods); d != "" {
					t.Errorf("%d devices say something else:\n%s", len(on), d)
				}
			}
			result := task.Judge(answers)
			for i, s := range samples {
				for j, want := range s.LogLikelihoods {
					got := answers.Likelihoods[i][j]
					if math.Abs(got.Sum-want) > 2e-6*max(1, math.Abs(want)) || got.Greedy != s.Greedy[j] {
						t.Errorf("item %d, request %d: %v %v: want %v %v", i+1, j+1, got.Sum, got.Greedy, want, s.Greedy[j])
					}
				}
				c := result.Chosen[i]
				if c.Right != (s.Acc == 1) || s.AccNorm != nil && c.RightNorm != (*s.AccNorm == 1) {
					t.Errorf("item %d: right %v and %v, want %v and %v", i+1, c.Right, c.RightNorm, s.Acc, s.AccNorm)
				}
			}
		})
	}
}
