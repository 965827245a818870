package model_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/dense"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/rtn"
)

// stored is a tensor to write.
type stored struct {
	hf.Entry
	data []byte
}

// tinyWith writes the tiny model with other tensors.
func tinyWith(t *testing.T, change func([]stored) []stored) string {
	t.Helper()
	dir := t.TempDir()
	config, err := os.ReadFile(filepath.Join(tiny, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := hf.Open(tiny)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all []stored
	for _, x := range c.Tensors() {
		s := stored{hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape}, make([]byte, x.Bytes())}
		if _, err := x.ReadAt(s.data, 0); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	all = change(all)
	entries := make([]hf.Entry, len(all))
	for i, s := range all {
		entries[i] = s.Entry
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := w.WriteAt(s.Name, s.data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nll is the mean loss of a window of tokens.
func nll(t *testing.T, dir string) float64 {
	t.Helper()
	tokens := make([]int, 64)
	for i := range tokens {
		tokens[i] = (37*i + 11) % 4096
	}
	m, err := model.Open(modeltest.Open(t, dir), newOps(t, 1), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, sum := logits(t, m, tokens), 0.0
	for i, next := range tokens[1:] {
		row, total := l[i*m.Vocab():(i+1)*m.Vocab()], 0.0
		for _, v := range row {
			total += math.Exp(float64(v))
		}
		sum += math.Log(total) - float64(row[next])
	}
	return sum / float64(len(tokens)-1)
}

// TestStored: models that are stored in unusual ways compute what transformers 5.24 computes of them in float32, and so do
// containers of them.
func TestStored(t *testing.T) {
	const (
		plain  = 12.587711487818726 // of transformers
		rolled = 12.522694307626633
	)
	head := func(all []stored, shift int) []stored {
		i := slices.IndexFunc(all, func(s stored) bool { return s.Name == "model.embed_tokens.weight" })
		h := all[i]
		h.Name, h.data = "lm_head.weight", slices.Concat(h.data[shift:], h.data[:shift])
		return append(all, h)
	}
	for _, tc := range []struct {
		name   string
		change func([]stored) []stored
		want   float64
		tied   bool // in a container
	}{
		{"a head that equals the embedding", func(all []stored) []stored { return head(all, 0) }, plain, true},
		{"another head", func(all []stored) []stored { return head(all, 100*256) }, rolled, false},
		{"a bias of zeros", func(all []stored) []stored {
			return append(all, stored{hf.Entry{Name: "model.layers.0.self_attn.q_proj.bias", DType: hf.F16, Shape: []int{128}}, make([]byte, 256)})
		}, plain, true},
		{"F64", func(all []stored) []stored {
			for i := range all {
				v := make([]float32, len(all[i].data)/2)
				num.DecodeBF16(v, all[i].data)
				all[i].DType, all[i].data = hf.F64, make([]byte, 8*len(v))
				num.EncodeF64(all[i].data, v)
			}
			return all
		}, plain, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := tinyWith(t, tc.change)
			if got := nll(t, dir); math.Abs(got-tc.want) > 2e-5 {
				t.Errorf("the loss is %v: want %v", got, tc.want)
			}
			src := modeltest.Open(t, dir)
			few, err := quantize.ParseRule(`layers\.[012]\.=keep`)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := quantize.NewPlan(src, quantize.Recipe{Default: weight.Spec{Bits: 5, Group: 16}, Rules: []quantize.Rule{few}})
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, err := plan.Run(context.Background(), out, quantize.RunOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := nll(t, out); math.Abs(got-tc.want) > 0.03 {
				t.Errorf("the loss with a block in 5 bits is %v: want about %v", got, tc.want)
			}
			for _, to := range []foreign.Target{gguf.Target{NoTokenizer: true}, dense.Target{}} {
				plan, err := export.New(context.Background(), src, to)
				if err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(t.TempDir(), to.Name())
				if _, err := plan.Run(context.Background(), out, export.Options{NewRounder: rtn.NewRounder}); err != nil {
					t.Fatal(err)
				}
				if got := nll(t, out); math.Abs(got-tc.want) > 2e-5 {
					t.Errorf("the loss as %s is %v: want %v", to.Name(), got, tc.want)
				}
			}
			m, err := lutq.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			text, err := m.Checkpoint().ConfigJSON()
			if err != nil {
				t.Fatal(err)
			}
			var says struct {
				Tied bool `json:"tie_word_embeddings"`
			}
			if err := json.Unmarshal(text, &says); err != nil || says.Tied != tc.tied {
				t.Errorf("the container says tie_word_embeddings: %v, %v: want %v", says.Tied, err, tc.tied)
			}
		})
	}
}
