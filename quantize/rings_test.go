package quantize

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
)

// ringRecipe has rings of several rates, by both methods, beside tables that read the same.
const ringRecipe = `{"codebook": "trellis", "bits": 2, "method": "gptq", "tensors": [
	{"match": "layers\\.1\\..*(o_proj|down_proj)", "bits": 3.5, "method": "rtn"}, {"match": "layers\\.0\\..*k_proj", "codebook": "nf", "bits": 3},
	{"match": "embed_tokens", "bits": 4, "scale_type": "f32"}], "split_fused": true}`

// TestRings: layers are those that the quantizer makes of whole matrices, the container holds against its source, and threads, memory
// and how rows are divided, also among devices, have no part in it.
func TestRings(t *testing.T) {
	for name, dir := range textModels(t) {
		t.Run(name, func(t *testing.T) {
			if name != "mixtral-fused" {
				racetest.Skip(t)
			}
			var want map[string]string
			for _, o := range []RunOptions{{Threads: 1}, {Threads: 2}, {Threads: 3, MaxRAM: littleRAM + ringRAM + 2*4*128*128}} {
				out := filepath.Join(t.TempDir(), "out")
				x := newText(t, dir)
				x.block, x.devices = (o.Threads-1)<<14, o.Threads
				p := textPlan(t, dir, ringRecipe, x, nil)
				res, err := p.Run(t.Context(), out, o)
				if err != nil {
					t.Fatal(err)
				}
				if want == nil {
					want = files(t, out)
					checkRings(t, p, out, res)
					continue
				}
				if diff := cmp.Diff(want, files(t, out)); diff != "" {
					t.Errorf("%+v: the files differ", o)
				}
			}
		})
	}
}

func checkRings(t *testing.T, p *Plan, out string, res *Result) {
	t.Helper()
	m := openContainer(t, out)
	rep, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: p.Source})
	if err != nil || len(rep.Problems) > 0 {
		t.Errorf("verification: %v, problems %q", err, rep.Problems)
	}
	var bytes int64
	for i := range p.Items {
		it := &p.Items[i]
		bytes += it.BytesOut
		if !it.Quantized() || it.Format.Kind != trellis.Name || it.Format.Method != methodRTN || it.Experts > 0 {
			continue
		}
		q, err := it.plain.Quantizer(it.layer(it.Codebook))
		if err != nil {
			t.Fatal(err)
		}
		w := make([]float32, it.N*it.K)
		if err := it.Tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		var parts [][]byte
		for _, s := range it.stored {
			parts = append(parts, make([]byte, s.size))
		}
		if err := q.Rows(parts, make([]rounding.RowError, it.N), w); err != nil {
			t.Fatal(err)
		}
		linear, err := m.Linear(it.Layer)
		if err != nil {
			t.Fatal(err)
		}
		for j, part := range linear.Parts()[:len(parts)] {
			if string(part) != string(parts[j]) {
				t.Errorf("%s: part %d differs from the same weights quantized in memory", it.Layer, j)
			}
		}
	}
	if bytes != p.Totals().BytesOut || bytes != res.BytesOut {
		t.Errorf("%d bytes: the plan says %d, the result %d", bytes, p.Totals().BytesOut, res.BytesOut)
	}
	fitted := 0
	for _, l := range res.Layers {
		switch {
		case l.Format.Method != methodGPTQ || l.Format.Kind != trellis.Name:
		case l.Fit.Rows != l.N || !(l.Fit.Loss > 0) || !(l.Fit.Loss < l.Fit.NearestLoss) || !(l.OutputError > 0 && l.OutputError < l.Error*1.5):
			t.Errorf("%s: fit %+v, output error %v of %v", l.Layer, l.Fit, l.OutputError, l.Error)
		default:
			fitted++
		}
	}
	if fitted == 0 {
		t.Error("no layer was fitted")
	}
	if c := m.Config(); c.Kind != trellis.Name || c.Codebook != trellis.Pairs || c.Group != weight.RowGroup || c.Version != lutq.Version3 || !strings.Contains(c.Command, "--bits 2 --group row --codebook trellis --method gptq") {
		t.Errorf("the configuration says %+v", c)
	}
}

// TestRingsResume stops runs again and again, and damages what they left.
func TestRingsResume(t *testing.T) {
	racetest.Skip(t)
	dir := textModels(t)["llama"]
	whole := filepath.Join(t.TempDir(), "whole")
	if _, err := textPlan(t, dir, ringRecipe, newText(t, dir), nil).Run(t.Context(), whole, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	stopped := 0
	for after := int32(2); ; after += 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var pieces atomic.Int32
		_, err := textPlan(t, dir, ringRecipe, newText(t, dir), nil).Run(ctx, out, RunOptions{Threads: 2, Progress: func(int64, string) {
			if pieces.Add(1) == after {
				cancel()
			}
		}})
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		stopped++
		damage(t, out+".partial", stopped)
	}
	if stopped < 3 {
		t.Errorf("stopped %d times, want more", stopped)
	}
	got, want := files(t, out), files(t, whole)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s differs from that of a run that was left alone", name)
		}
	}
}

// TestRingsOfExperts: experts whose rows do not fill what is stored together are refused.
func TestRingsOfExperts(t *testing.T) {
	dir := textModels(t)["mixtral-fused"]
	r, err := ParseRecipe([]byte(`{"codebook": "mul1", "bits": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewPlan(modeltest.Open(t, dir), r)
	if err == nil || !strings.Contains(err.Error(), "rows: weights of kind trellis are stored 128 rows together: name another kind with --tensor, or keep it") {
		t.Errorf("got error %v", err)
	}
}
