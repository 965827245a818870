package eval

import (
	"context"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
)

var long = flag.Bool("long", false, "evaluate the larger models too")

// shared is where the larger models and texts are, if they are.
const shared = "../../../shared"

func need(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not here", path)
	}
	return path
}

// load opens a model with its tokenizer.
func load(t testing.TB, dir string, threads int) (*model.Model, *tokenizer.Tokenizer, Options) {
	t.Helper()
	ops := newOps(t, threads)
	m, err := model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m, tok, Options{Ops: ops}
}

func build(t testing.TB, path string, tok corpus.Tokenizer, o corpus.Options) *corpus.Set {
	t.Helper()
	set, err := corpus.BuildFile(path, tok, o)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// What transformers measured in float32 over the first windows of 2048 tokens:
// lutq-tiny on harbour.txt, SmolLM2 (scripts/smollm2.py) and Gemma 3
// (scripts/gemma3.py) on a CPU, by scripts/compare_transformers.py, Gemma with
// BOS before each window; the lutq models on the other texts on a GPU, whose
// matrix products have TF32's precision.
func TestGoldenPerplexity(t *testing.T) {
	racetest.Skip(t)
	const data = "../testdata"
	texts, models := filepath.Join(shared, "text"), filepath.Join(shared, "models")
	smollm2, gemma3 := os.Getenv("LUTQ_SMOLLM2"), os.Getenv("LUTQ_GEMMA3")
	for _, tt := range []struct {
		dir, text  string
		windows    int
		want, tol  float64
		long       bool
		textTokens int
		bos        corpus.BOS
	}{
		{data + "/lutq-tiny", data + "/harbour.txt", 3, 57.53806076126763, 1e-4, false, 7632, ""},
		{filepath.Join(models, "lutq-tiny"), filepath.Join(texts, "wiki.test.raw"), 40, 100.92107816477966, 0.02, false, 0, ""},
		{filepath.Join(models, "lutq-tiny"), filepath.Join(texts, "books.txt"), 40, 45.39886708194932, 0.01, true, 0, ""},
		{filepath.Join(models, "lutq-11m"), filepath.Join(texts, "wiki.test.raw"), 40, 49.767511435360085, 0.01, true, 0, ""},
		{filepath.Join(models, "lutq-11m"), filepath.Join(texts, "books.txt"), 40, 29.88004576734498, 0.01, true, 0, ""},
		{smollm2, data + "/harbour.txt", 1, 19.786023283539127, 1e-4, true, 7029, ""},
		{smollm2, filepath.Join(texts, "wiki.test.raw"), 3, 22.89573157226084, 1e-4, true, 303415, ""},
		{gemma3, data + "/harbour.txt", 1, 19.051590860663172, 1e-4, true, 6830, corpus.BOSWindow},
	} {
		t.Run(filepath.Base(tt.dir)+"/"+filepath.Base(tt.text), func(t *testing.T) {
			if tt.long && !*long {
				t.Skip("takes -long")
			}
			if tt.dir == "" {
				t.Skip("LUTQ_SMOLLM2 or LUTQ_GEMMA3 names no folder")
			}
			for _, path := range []string{tt.dir, tt.text} {
				if strings.HasPrefix(path, shared) {
					need(t, path)
				}
			}
			m, tok, o := load(t, tt.dir, 0)
			set := build(t, tt.text, tok, corpus.Options{MaxWindows: tt.windows, BOS: tt.bos})
			if tt.textTokens > 0 && set.TextTokens != tt.textTokens {
				t.Errorf("got %d tokens, want %d", set.TextTokens, tt.textTokens)
			}
			r, err := Run(context.Background(), nil, []Model{m}, set, o)
			if err != nil {
				t.Fatal(err)
			}
			if got := r[0].PPL; math.Abs(got-tt.want) > tt.tol {
				t.Errorf("perplexity: got %.6f, want %.6f ± %g", got, tt.want, tt.tol)
			} else {
				t.Logf("perplexity %.6f, want %.6f, %.0f tokens/s", got, tt.want, r[0].TokensPerSecond)
			}
		})
	}
}

// BenchmarkRun compares a model with itself, which does all the work of
// comparing it with a quantized one.
func BenchmarkRun(b *testing.B) {
	for _, dir := range []string{filepath.Join(shared, "models/lutq-11m"), os.Getenv("LUTQ_SMOLLM2")} {
		if dir == "" {
			continue
		}
		b.Run(filepath.Base(dir), func(b *testing.B) {
			m, tok, o := load(b, need(b, dir), 2)
			set := build(b, need(b, filepath.Join(shared, "text/wiki.test.raw")), tok, corpus.Options{MaxWindows: 1})
			for b.Loop() {
				if _, err := Run(context.Background(), m, []Model{m}, set, o); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(2*b.N*set.Tokens())/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
