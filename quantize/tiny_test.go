package quantize

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
)

// scaledModel writes a copy of a small model in float32 with one tensor multiplied by a factor.
func scaledModel(t *testing.T, tensor string, factor float64) string {
	t.Helper()
	from := t.TempDir()
	for _, g := range archtest.Goldens(t) {
		if g.Name == "llama" {
			g.Write(t, from)
		}
	}
	return changedModel(t, from, func(x *hf.Tensor, w []float32) {
		if x.Name == tensor {
			for i := range w {
				w[i] = float32(factor * float64(w[i]))
			}
		}
	})
}

// changedModel writes a copy of a model in float32 whose tensors a function has changed.
func changedModel(t *testing.T, from string, change func(x *hf.Tensor, w []float32)) string {
	t.Helper()
	dir, src := t.TempDir(), open(t, from)
	config, err := src.ConfigJSON()
	if err != nil {
		t.Fatal(err)
	}
	var entries []hf.Entry
	for _, x := range src.Tensors() {
		entries = append(entries, hf.Entry{Name: x.Name, DType: "F32", Shape: x.Shape})
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range src.Tensors() {
		v := make([]float32, x.Elements())
		if err := x.ReadFloat32(v, 0); err != nil {
			t.Fatal(err)
		}
		change(x, v)
		data := make([]byte, 4*len(v))
		num.EncodeF32(data, v)
		if err := w.WriteAt(x.Name, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, configName), config, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTinyWeights: whatever the method, a container holds against its source, its errors are true, and scales that
// their type is too narrow for are told, with the type that is not.
func TestTinyWeights(t *testing.T) {
	racetest.Skip(t)
	const tensor = "model.layers.1.mlp.up_proj"
	for _, factor := range []float64{1e-38, 1e-9} {
		dir := scaledModel(t, tensor+lutq.WeightSuffix, factor)
		for _, tc := range []struct {
			recipe string
			most   float64 // relative error
			wants  bool
		}{
			{`"method": "rtn"`, 1, true},
			{`"method": "rtn", "codebook": "nf", "bits": 3`, 1, true},
			{`"method": "rtn", "scale_type": "f32"`, .15, false},
			{`"method": "gptq"`, 1, true},
			{`"method": "gptq", "scale_type": "f32"`, .3, false},
			{`"method": "gptq", "kind": "bcq"`, 1, true},
			{`"method": "bcq"`, 1, true},
			{`"method": "bcq", "scale_type": "f32"`, .15, false},
			{`"method": "magnitude"`, 1, true},
			{`"method": "magnitude", "scale_type": "f32"`, .5, false},
			{`"method": "wanda"`, 1, true},
			{`"method": "sparsegpt"`, 1, true},
			{`"method": "sparsegpt", "scale_type": "f32"`, .6, false},
			{`"method": "bnb-kbit"`, 1, true},
			{`"method": "rtn", "codebook": "trellis"`, 1, true},
			{`"method": "rtn", "codebook": "trellis", "scale_type": "f32"`, .15, false},
			{`"method": "gptq", "codebook": "trellis"`, 1, true},
			{`"method": "gptq", "codebook": "trellis", "scale_type": "f32"`, .3, false},
		} {
			t.Run(fmt.Sprint(factor, tc.recipe), func(t *testing.T) {
				group := `, "group": 32}`
				if strings.Contains(tc.recipe, "trellis") {
					group = "}" // which is the row
				}
				recipe := "{" + tc.recipe + group
				p := textPlan(t, dir, recipe, newText(t, dir), nil)
				out := filepath.Join(t.TempDir(), "out")
				res, err := p.Run(t.Context(), out, RunOptions{})
				if err != nil {
					t.Fatal(err)
				}
				report, err := openContainer(t, out).Verify(t.Context(), lutq.VerifyOptions{Original: open(t, dir)})
				if err != nil || len(report.Problems) > 0 {
					t.Errorf("verified: %v, %v", report.Problems, err)
				}
				for _, l := range res.Layers {
					if l.Layer != tensor {
						if l.Narrow.Rows > 0 && !strings.Contains(recipe, "kbit") {
							t.Errorf("%s: %+v", l.Layer, l.Narrow)
						}
						continue
					}
					if l.Error > tc.most || tc.most == 1 && !(l.Error > .9) || math.IsNaN(l.Error) {
						t.Errorf("error %v, want %v", l.Error, tc.most)
					}
					want := Narrow{}
					switch {
					case !tc.wants:
					case strings.Contains(recipe, "kbit"):
						want = Narrow{l.N, weight.E4M4}
					case factor < 1e-30:
						want = Narrow{l.N, weight.F32}
					default:
						want = Narrow{l.N, weight.BF16}
					}
					if l.Narrow != want {
						t.Errorf("got %+v, want %+v", l.Narrow, want)
					}
				}
			})
		}
	}
}
