package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// outlier is a channel of layer 1 of a model: rows (or elements) i of tensors are multiplied by a factor, and
// columns of others divided by it, which leaves the function that the model computes as it was.
type outlier struct {
	name          string
	rows, columns []string
	row           int
	column        func(row int) []int // that read it
	layers        []string            // whose table it decides
}

// outliers lists the places that a channel can be in: lutq-tiny has 4 heads of 32 for 2 of keys and values.
func outliers() []outlier {
	same := func(row int) []int { return []int{row} }
	qkv, mlp := []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, []string{"mlp.gate_proj", "mlp.up_proj"}
	return []outlier{
		{"a norm before the attention", []string{"input_layernorm"}, qkv, 5, same, qkv},
		{"a norm before the MLP", []string{"post_attention_layernorm"}, mlp, 5, same, mlp},
		{"a value", []string{"self_attn.v_proj"}, []string{"self_attn.o_proj"}, 40, func(int) []int { return []int{72, 104} }, []string{"self_attn.o_proj"}},
		{"a unit of the MLP", []string{"mlp.up_proj"}, []string{"mlp.down_proj"}, 9, same, []string{"mlp.down_proj"}},
	}
}

// write writes a model with the outlier.
func (o outlier) write(t *testing.T, dir string, factor float32) string {
	t.Helper()
	return changedModel(t, dir, func(x *hf.Tensor, w []float32) {
		name, ok := strings.CutPrefix(strings.TrimSuffix(x.Name, ".weight"), "model.layers.1.")
		if !ok {
			return
		}
		k := x.Shape[len(x.Shape)-1]
		if slices.Contains(o.rows, name) {
			if len(x.Shape) == 1 {
				w[o.row] *= factor
			} else {
				for i := range k {
					w[o.row*k+i] *= factor
				}
			}
		}
		if slices.Contains(o.columns, name) {
			for _, c := range o.column(o.row) {
				for at := c; at < len(w); at += k {
					w[at] /= factor
				}
			}
		}
	})
}

// tables returns the tables that a plan's layers have once they are chosen, but for the usual one.
func tables(t *testing.T, p *Plan, usual string) map[string]string {
	t.Helper()
	if err := p.Choose(t.Context(), RunOptions{}); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for i := range p.Items {
		if it := &p.Items[i]; it.Quantized() && it.Format.Codebook != usual {
			got[it.Layer] = it.Format.Codebook
		}
		if it := &p.Items[i]; it.Quantized() && it.Format.Codebook != it.Codebook.Name {
			t.Errorf("%s is said to have the table %s, and has %s", it.Layer, it.Format.Codebook, it.Codebook.Name)
		}
	}
	return got
}

// TestChoose: layers with a channel whose weights are small and inputs large get the table that has a zero, at
// every width; all others the one with the smallest error, where that differs by more than the samples do. The
// layers that runtimes fuse are alike.
func TestChoose(t *testing.T) {
	racetest.Skip(t)
	far := []string{`{"bits": 2}`, `{"bits": 3}`, `{}`}
	near := []string{`{"bits": 5}`, `{"scale": "absmax", "group": "row", "scale_type": "e4m4"}`}
	for _, recipe := range far {
		if got := tables(t, plan(t, tiny, recipe), "js"); len(got) > 0 {
			t.Errorf("%s: without an outlier: %v", recipe, got)
		}
	}
	for _, o := range outliers() {
		t.Run(o.name, func(t *testing.T) {
			dir := o.write(t, tiny, 1000)
			want := make(map[string]string)
			for _, l := range o.layers {
				want["model.layers.1."+l] = "nf"
			}
			for _, recipe := range far {
				if diff := cmp.Diff(want, tables(t, plan(t, dir, recipe), "js")); diff != "" {
					t.Errorf("%s: the tables other than js differ (-want +got):\n%s", recipe, diff)
				}
			}
			for _, recipe := range near {
				got := tables(t, plan(t, dir, recipe), "js")
				for layer := range want {
					if got[layer] != "nf" {
						t.Errorf("%s: %s has not the table nf", recipe, layer)
					}
				}
			}
			if got := tables(t, plan(t, o.write(t, tiny, 4), `{}`), "js"); len(got) > 0 {
				t.Errorf("4 times as large: %v", got)
			}
			if got := tables(t, plan(t, dir, `{"codebook": "js"}`), "js"); len(got) > 0 {
				t.Errorf("the table that was named is not that of %v", got)
			}
		})
	}
}

// TestSizes holds what is known of layers' inputs against sums over a small model by hand: a row of up that is
// multiplied, and the column that reads it divided, leave everything but that input as it is.
func TestSizes(t *testing.T) {
	unit := outliers()[3]
	of := func(dir string) map[string][]float64 {
		p := plan(t, dir, `{}`)
		z, err := newSizes(t.Context(), &run{plan: p, memory: memory{workers: 3, block: 1000}})
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string][]float64)
		for i := range z.d.Blocks {
			if err := z.block(t.Context(), &z.d.Blocks[i]); err != nil {
				t.Fatal(err)
			}
			for s, v := range z.of {
				all[s.Name] = v
			}
		}
		return all
	}
	as, changed := of(tiny), of(unit.write(t, tiny, 1<<10))
	for state, want := range as {
		for k, v := range want {
			if strings.HasSuffix(state, "layers.1.mlp.mid") && k == unit.row {
				v *= 1 << 20
			}
			if got := changed[state][k]; math.Abs(got-v) > 1e-9*v {
				t.Fatalf("component %d of %s is %g, want %g", k, state, got, v)
			}
		}
	}

	src := open(t, tiny)
	read := func(name string) []float32 {
		x, _ := src.Tensor(name)
		w := make([]float32, x.Elements())
		if err := x.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		return w
	}
	const layer = "model.layers.0."
	embed, norm, v := read("model.embed_tokens.weight"), read(layer+"input_layernorm.weight"), read(layer+"self_attn.v_proj.weight")
	hidden := len(norm)
	h, mean := make([]float64, hidden), 0.
	for i, e := range embed {
		h[i%hidden] += float64(e) * float64(e)
		mean += float64(e) * float64(e) / float64(hidden)
	}
	var in, value float64
	for k := range h {
		x := h[k] / mean * float64(norm[k]) * float64(norm[k])
		if k == 17 {
			in = x
		}
		value += float64(v[40*hidden+k]) * float64(v[40*hidden+k]) * x
	}
	if got := as[layer+"self_attn.in"][17]; math.Abs(got-in) > 1e-9*in {
		t.Errorf("an input of the attention is %g, want %g", got, in)
	}
	for _, i := range []int{72, 104} { // the values of the second head, for the third and the fourth of queries
		if got := as[layer+"self_attn.out"][i]; math.Abs(got-value) > 1e-9*value {
			t.Errorf("input %d of o_proj is %g, want %g", i, got, value)
		}
	}
}

// TestChooseFamilies: every family's layers get a table, stacks and what is stored by columns included, and that of
// a container is the one that its layers have.
func TestChooseFamilies(t *testing.T) {
	racetest.Skip(t)
	names := []string{"llama-bias", "phi3", "gemma2", "gpt-oss", "gpt-oss-mxfp4", "mixtral", "mixtral-fused", "qwen2-moe-fused", "qwen3-moe-fp8"}
	for _, g := range archtest.Goldens(t) {
		if !slices.Contains(names, g.Name) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			g.Write(t, dir)
			p := plan(t, dir, `{"group": 32}`)
			if _, err := p.Run(t.Context(), out, RunOptions{Threads: 2}); err != nil {
				t.Fatal(err)
			}
			if err := p.Choose(t.Context(), RunOptions{Threads: 1, MaxRAM: baseRAM + 1<<20}); err != nil {
				t.Fatal(err)
			}
			m := openContainer(t, out)
			for i := range p.Items {
				it := &p.Items[i]
				if !it.Quantized() {
					continue
				}
				w, err := m.Linear(it.Layer)
				if err != nil {
					t.Fatal(err)
				}
				if got := m.Spec(it.Layer).Codebook; got != it.Format.Codebook || it.undecided() {
					t.Errorf("%s has the table %s, the plan %s", it.Layer, got, it.Format.Codebook)
				}
				table := make([]byte, 4*len(it.Codebook.Values))
				num.EncodeF32(table, it.Codebook.Values)
				if !slices.Equal(w.Parts()[lut.CodebookPart], table) {
					t.Errorf("%s: the table is not %s", it.Layer, it.Format.Codebook)
				}
			}
		})
	}
}

// TestChosenContainer: a model with outliers is the same on any number of threads, names each layer's table, needs
// no newer version of the format, and holds against its source.
func TestChosenContainer(t *testing.T) {
	racetest.Skip(t)
	dir := outliers()[1].write(t, tiny, 1000)
	var want map[string]string
	for _, o := range []RunOptions{{Threads: 1}, {Threads: 3, MaxRAM: baseRAM + 1<<20}} {
		out := filepath.Join(t.TempDir(), "out")
		if _, err := plan(t, dir, `{}`).Run(t.Context(), out, o); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = files(t, out)
		}
		if diff := cmp.Diff(want, files(t, out)); diff != "" {
			t.Errorf("%+v: the files differ", o)
		}
		m := openContainer(t, out)
		if c := m.Config(); c.Codebook != "js" || c.Version != 1 || !strings.Contains(c.Command, "--codebook auto ") {
			t.Errorf("the configuration has table %s, version %d, command %q", c.Codebook, c.Version, c.Command)
		}
		if got := m.Spec("model.layers.1.mlp.up_proj").Codebook; got != "nf" {
			t.Errorf("up_proj has the table %s, want nf", got)
		}
		rep, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, dir)})
		if err != nil || len(rep.Problems) > 0 {
			t.Errorf("verification: %v, problems %q", err, rep.Problems)
		}
	}
}

// TestChosenByText: where a text tells what layers read, it decides, whatever the weights say; a run that is stopped
// and goes on ends with the same bytes, also where some layers of a set are done.
func TestChosenByText(t *testing.T) {
	racetest.Skip(t)
	// The norm is as it was: only the text knows that its channel 5 is large.
	o := outliers()[0]
	o.rows = nil
	dir := o.write(t, textModels(t)["llama"], 1000)
	large := func(x *text) *text {
		x.change = func(all []rounding.Stats) []rounding.Stats {
			if strings.Contains(x.visited[len(x.visited)-1], "layers.1.self_attn.v_proj") {
				s := all[0].(*seen)
				for i := range s.k {
					s.h[i*s.k+5] *= 1000
					s.h[5*s.k+i] *= 1000
				}
			}
			return all
		}
		return x
	}
	for _, recipe := range []string{
		`{"method": "gptq"}`, `{"method": "sparsegpt"}`, `{"method": "wanda"}`,
		`{"method": "gptq", "tensors": [{"match": "k_proj", "bits": 3}], "split_fused": true}`,
	} {
		t.Run(recipe, func(t *testing.T) {
			if got := tables(t, plan(t, dir, `{}`), "js"); got["model.layers.1.self_attn.v_proj"] != "" {
				t.Fatalf("without a text: %v", got)
			}
			want := filepath.Join(t.TempDir(), "want")
			res, err := textPlan(t, dir, recipe, large(newText(t, dir)), nil).Run(t.Context(), want, RunOptions{Threads: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range res.Layers {
				large := strings.Contains(l.Layer, "layers.1.self_attn") && !strings.Contains(l.Layer, "o_proj")
				if large && l.Format.Codebook != "nf" && l.Format.Method != methodSparseGPT { // which may drop the channel's weights
					t.Errorf("%s has the table %s, want nf", l.Layer, l.Format.Codebook)
				}
			}
			out := filepath.Join(t.TempDir(), "out")
			for after := rand.Int32N(5) + 1; ; after += 9 {
				ctx, cancel := context.WithCancel(t.Context())
				var pieces atomic.Int32
				_, err := textPlan(t, dir, recipe, large(newText(t, dir)), nil).Run(ctx, out, RunOptions{Threads: 1, Progress: func(int64, string) {
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
			}
			if diff := cmp.Diff(files(t, want), files(t, out)); diff != "" {
				t.Error("the files differ from those of a run that was left alone")
			}
		})
	}
}

// FuzzTables reads how far tables were chosen, and writes and reads again what says so.
func FuzzTables(f *testing.F) {
	f.Add([]byte(`{"next":2,"sizes":[1.5,1e-300,0.1],"tables":{"model.layers.0.mlp.up_proj.weight":"nf"}}`))
	f.Add([]byte(`{"next":9,"sizes":[1,2,3]}`))
	f.Add([]byte(`{"next":1,"sizes":[1]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseTables(data, 3, 4)
		if err != nil {
			return
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseTables(text, 3, 4)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(got, again, cmpopts.EquateEmpty()); d != "" || got.Next > 5 {
			t.Errorf("read -, written and read again +:\n%s", d)
		}
	})
}
