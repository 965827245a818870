package quantize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// halver is a refiner that halves the scales of the layers it knows.
type halver struct {
	knows  func(layer string) bool
	spoil  func(m *lut.Matrix)
	before func(state string) error
	memory int64 // bytes
	cannot error
	key    string
	calls  int
	// recodes changes codes as well
	recodes bool
}

func (h *halver) Memory(map[string]weight.Matrix) int64 { return h.memory }

func (h *halver) Check(map[string]weight.Matrix) error { return h.cannot }

func (h *halver) Seconds(context.Context) (float64, error) { return 1e6, nil }

func (h *halver) Flags() []string { return []string{"--halve"} }
func (h *halver) Key() string     { return "halve" + h.key }

func (h *halver) Refine(_ context.Context, shapes map[string]weight.Matrix, layers *Layers, state string) (*lutq.Learning, error) {
	h.calls++
	if h.before != nil {
		if err := h.before(state); err != nil {
			return nil, err
		}
	}
	for _, layer := range slices.Sorted(maps.Keys(shapes)) {
		if !h.knows(layer) {
			continue
		}
		read, err := layers.Read(layer)
		if err != nil {
			return nil, err
		}
		if m, ok := read.(*trellis.Matrix); ok {
			s := make([]float32, m.N)
			m.ScaleType.Decode(s, m.Scales)
			for i := range s {
				s[i] /= 2
			}
			m.ScaleType.Encode(m.Scales, s)
			m.Rings = nil
			if err := layers.Write(layer, m); err != nil {
				return nil, err
			}
			continue
		}
		m := read.(*lut.Matrix)
		s := make([]float32, m.N*m.Groups())
		m.ScaleType.Decode(s, m.Scales)
		for i := range s {
			s[i] /= 2
		}
		m.ScaleType.Encode(m.Scales, s)
		if !h.recodes {
			m.Codes = nil
		} else {
			for i := range m.Codes {
				m.Codes[i] ^= 1 // of the first code in the byte
			}
		}
		if h.spoil != nil {
			h.spoil(m)
		}
		if err := layers.Write(layer, m); err != nil {
			return nil, err
		}
	}
	return &lutq.Learning{Mode: "halve", Steps: 1}, nil
}

// refinePlan plans a recipe with a refiner.
func refinePlan(t *testing.T, dir, recipe string, f Refiner) *Plan {
	t.Helper()
	r, err := ParseRecipe([]byte(recipe))
	if err != nil {
		t.Fatal(err)
	}
	r.Refine = f
	p, err := NewPlan(modeltest.Open(t, dir), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRefine(t *testing.T) {
	src, _ := oddModel(t)
	const recipe = `{"bits": 3, "group": 32, "codebook": "nf", "method": "nfl", "scale_type": "bf16", "tensors": [{"match": "k_proj", "codebook": "int"}]}`
	plainDir, out := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "out")
	if _, err := plan(t, src, strings.Replace(recipe, "nfl", "rtn", 1)).Run(t.Context(), plainDir, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	h := &halver{knows: func(layer string) bool { return !strings.Contains(layer, "down_proj") }}
	p := refinePlan(t, src, recipe, h)
	if _, err := p.Run(t.Context(), out, RunOptions{Threads: 3, MaxRAM: littleRAM}); err != nil {
		t.Fatal(err)
	}
	plain, err := lutq.Open(plainDir)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	got, err := lutq.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	for layer, method := range map[string]string{
		"model.layers.0.self_attn.q_proj": "nfl",
		"model.layers.0.self_attn.k_proj": "rtn+learn",
		"model.layers.0.mlp.down_proj":    "rtn",
	} {
		if m := got.Spec(layer).Method; m != method {
			t.Errorf("%s has the method %q, want %q", layer, m, method)
		}
		was, err := plain.Linear(layer)
		if err != nil {
			t.Fatal(err)
		}
		is, err := got.Linear(layer)
		if err != nil {
			t.Fatal(err)
		}
		factor := float32(0.5)
		if method == "rtn" {
			factor = 1
		}
		want := weight.Dequantize(was)
		for i := range want {
			want[i] *= factor
		}
		if !slices.Equal(weight.Dequantize(is), want) || !bytes.Equal(is.Parts()[lut.CodesPart], was.Parts()[lut.CodesPart]) {
			t.Errorf("%s is not what the refiner returned", layer)
		}
	}
	if l := got.Config().Learn; l == nil || l.Mode != "halve" {
		t.Errorf("the configuration says %+v of learning", l)
	}
	if c := got.Config().Command; !strings.HasSuffix(c, "--halve") || !strings.Contains(c, "--method nfl") {
		t.Errorf("the command is %q", c)
	}
	rep, err := got.Verify(t.Context(), lutq.VerifyOptions{Original: p.Source})
	if err != nil || len(rep.Problems) > 0 {
		t.Errorf("verification: %v, problems %q", err, rep.Problems)
	}
	if _, err := os.Stat(filepath.Join(out, stateName)); err == nil {
		t.Error("the refiner's state is in the output")
	}
}

// TestRefineResume stops a run within the refiner, whose state must be there
// when it goes on, and gone in the end.
func TestRefineResume(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	h := &halver{knows: func(string) bool { return true }}
	h.before = func(state string) error {
		cancel()
		if err := os.WriteFile(state, []byte("half"), 0o644); err != nil {
			return err
		}
		return ctx.Err()
	}
	if _, err := refinePlan(t, tiny, `{}`, h).Run(ctx, out, RunOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got error %v", err)
	}
	h.before = func(state string) error {
		data, err := os.ReadFile(state)
		if string(data) != "half" {
			t.Errorf("the state is %q (%v)", data, err)
		}
		return nil
	}
	if _, err := plan(t, tiny, `{}`).Run(t.Context(), out, RunOptions{}); !errors.Is(err, outdir.ErrOtherRun) {
		t.Errorf("without the refiner: got error %v, want %v", err, outdir.ErrOtherRun)
	}
	if _, err := refinePlan(t, tiny, `{}`, h).Run(t.Context(), out, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if h.calls != 2 {
		t.Errorf("the refiner was called %d times, want 2", h.calls)
	}
	if _, ok := files(t, out)[stateName]; ok {
		t.Error("the refiner's state is in the output")
	}
}

func TestRefineBad(t *testing.T) {
	racetest.Skip(t)
	all := func(string) bool { return true }
	for _, tc := range []struct {
		name, want string
		refiner    Refiner
		recipe     string
	}{
		{"no refiner", "no text to learn from", nil, `{"method": "nfl"}`},
		{"not normal", "nfl is for the codebook nf", &halver{knows: all}, `{"method": "nfl", "codebook": "int"}`},
		{"other format", "format is not the one", &halver{knows: all, spoil: func(m *lut.Matrix) { m.Group = 32 }}, `{}`},
		{"short", "_proj.codes takes", &halver{knows: all, recodes: true, spoil: func(m *lut.Matrix) { m.Codes = m.Codes[1:] }}, `{}`},
		{"table", "is below the one before", &halver{knows: all, spoil: func(m *lut.Matrix) {
			m.Codebook = slices.Clone(m.Codebook)
			slices.Reverse(m.Codebook)
		}}, `{}`},
		{"failing", "learning failed", &halver{before: func(string) error { return errors.New("learning failed") }}, `{}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := ParseRecipe([]byte(tc.recipe))
			if err != nil {
				t.Fatal(err)
			}
			r.Refine = tc.refiner
			out := filepath.Join(t.TempDir(), "out")
			p, err := NewPlan(modeltest.Open(t, tiny), r)
			if err == nil {
				_, err = p.Run(t.Context(), out, RunOptions{})
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
			if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestRefineMemory checks that what a refiner takes counts, and that a run which
// may not take it does nothing.
func TestRefineMemory(t *testing.T) {
	const need = 28 << 30
	halve := &halver{knows: func(string) bool { return true }, memory: need}
	p := refinePlan(t, tiny, `{"bits": 3}`, halve)
	e, err := p.Estimate(t.Context(), RunOptions{})
	if err != nil || e.PeakRAM < need || e.PeakRAM > need+need/10 || e.Seconds < 1e6 {
		t.Errorf("estimate %+v, %v: want a little above %d bytes, and 1e6 seconds", e, err, need)
	}
	out := filepath.Join(t.TempDir(), "out")
	var memory *MemoryError
	if _, err := p.Run(t.Context(), out, RunOptions{MaxRAM: need - 1}); !errors.As(err, &memory) || memory.Need != need || memory.Hint() == "" {
		t.Errorf("with %d bytes: %v, want an error on memory", need-1, err)
	}
	if halve.calls > 0 || len(files(t, filepath.Dir(out))) > 0 {
		t.Errorf("%d layers were refined and %v written all the same", halve.calls, files(t, filepath.Dir(out)))
	}
	if _, err := p.Run(t.Context(), out, RunOptions{MaxRAM: e.PeakRAM}); err != nil {
		t.Errorf("with as much as was estimated: %v", err)
	}
}

// TestRefineOtherRun goes on with a run of another refiner, and of none.
func TestRefineOtherRun(t *testing.T) {
	src, _ := oddModel(t)
	const recipe = `{"bits": 3, "group": 32, "method": "nfl"}`
	out := filepath.Join(t.TempDir(), "out")
	all := func(string) bool { return true }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := &halver{knows: all, before: func(string) error { cancel(); return ctx.Err() }}
	if _, err := refinePlan(t, src, recipe, h).Run(ctx, out, RunOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got error %v", err)
	}
	other := &halver{knows: all, key: " twice"}
	if _, err := refinePlan(t, src, recipe, other).Run(t.Context(), out, RunOptions{}); !errors.Is(err, outdir.ErrOtherRun) || other.calls > 0 {
		t.Errorf("another refiner over an unfinished run, called %d times: got error %v", other.calls, err)
	}
	if _, err := refinePlan(t, src, recipe, &halver{knows: all}).Run(t.Context(), out, RunOptions{}); err != nil {
		t.Errorf("the same refiner: %v", err)
	}
}

// TestRefineDefaults checks the table and scales of layers that are refined,
// where none are named.
func TestRefineDefaults(t *testing.T) {
	for recipe, want := range map[string]weight.Spec{
		`{"bits": 3}`:                  {Codebook: AutoCodebook, Scale: weight.MSE},
		`{"bits": 4}`:                  {Codebook: AutoCodebook, Scale: weight.MSE},
		`{"bits": 3, "method": "nfl"}`: {Codebook: "nf", Scale: weight.MSE},
		`{"bits": 3, "method": "nfl", "scale": "absmax"}`: {Codebook: "nf", Scale: weight.Absmax},
	} {
		for _, it := range refinePlan(t, tiny, recipe, &halver{}).Items {
			if got := (weight.Spec{Codebook: it.Format.Codebook, Scale: it.Format.Scale}); it.Quantized() && got != want {
				t.Errorf("%s: %s has %+v, want %+v", recipe, it.Layer, got, want)
				break
			}
		}
	}
}

// TestRefineKilled stops a run while what was refined is put in its place: it goes on with
// that, unless the result is damaged, which is then made again from the layers as they were.
func TestRefineKilled(t *testing.T) {
	src, _ := oddModel(t)
	const recipe = `{"bits": 3, "group": 32, "codebook": "int", "scale_type": "bf16"}`
	knows := func(layer string) bool { return !strings.Contains(layer, "k_proj") }
	for _, recodes := range []bool{false, true} {
		whole := filepath.Join(t.TempDir(), "whole")
		if _, err := refinePlan(t, src, recipe, &halver{knows: knows, recodes: recodes}).Run(t.Context(), whole, RunOptions{}); err != nil {
			t.Fatal(err)
		}
		want := files(t, whole)
		for _, tc := range []struct {
			name  string
			spoil func(data []byte) []byte
			calls int
		}{
			{"whole", func(data []byte) []byte { return data }, 1},
			{"cut short", func(data []byte) []byte { return data[:len(data)-1] }, 2},
			{"one bit", func(data []byte) []byte { data[len(data)/2] ^= 1; return data }, 2},
		} {
			t.Run(fmt.Sprintf("%s, new codes %v", tc.name, recodes), func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				ctx, cancel := context.WithCancel(t.Context())
				h := &halver{knows: knows, recodes: recodes}
				stop := RunOptions{Threads: 1, Progress: func(int64, string) {
					if h.calls > 0 {
						cancel() // when the first layer is in its place
					}
				}}
				if _, err := refinePlan(t, src, recipe, h).Run(ctx, out, stop); !errors.Is(err, context.Canceled) {
					t.Fatalf("got error %v", err)
				}
				result := filepath.Join(out+".partial", refinedName)
				data, err := os.ReadFile(result)
				if err == nil {
					err = os.WriteFile(result, tc.spoil(data), 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				res, err := refinePlan(t, src, recipe, h).Run(t.Context(), out, RunOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if h.calls != tc.calls {
					t.Errorf("the refiner was called %d times, want %d", h.calls, tc.calls)
				}
				if diff := cmp.Diff(want, files(t, out)); diff != "" {
					t.Errorf("the files differ (-want +got):\n%s", diff)
				}
				if tc.calls == 1 && res.Resumed != res.Tensors {
					t.Errorf("%d of %d tensors resumed", res.Resumed, res.Tensors)
				}
			})
		}
	}
}

// FuzzJournal reads what an interrupted run may have left: no line of it stops the next one.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"tensor":"a","sums":["00"],"energy":1}` + "\n" + `{"refinement":{"learning":{},"parts":["a.scales"],"sha256":""}}` + "\n" + `{"tensor":"a","refined":true}` + "\n"))
	f.Add([]byte("{}\nnull\n[]\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		j, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.add(entry{record: record{Tensor: "new", Refined: true}}); err != nil {
			t.Fatal(err)
		}
		j.close()
		again, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		defer again.close()
		if len(again.done) != len(j.done) || again.refined["new"].Tensor != "new" {
			t.Errorf("%d records, %d refined: what was added is not there", len(again.done), len(again.refined))
		}
	})
}

func (h *halver) Recodes() bool { return h.recodes }

// TestRefinedBytes holds the room for a refiner's result to what is written in its place.
func TestRefinedBytes(t *testing.T) {
	if size := plan(t, tiny, `{}`).refinedBytes(); size != 0 {
		t.Errorf("%d bytes without a refiner", size)
	}
	for _, recodes := range []bool{false, true} {
		h := &halver{knows: func(string) bool { return true }, recodes: recodes}
		var got int64
		h.before = func(state string) error {
			h.spoil = func(m *lut.Matrix) { got += int64(4*len(m.Codebook) + len(m.Scales) + len(m.Codes)) }
			return nil
		}
		p := refinePlan(t, tiny, `{"bits": 3}`, h)
		if _, err := p.Run(t.Context(), filepath.Join(t.TempDir(), "out"), RunOptions{}); err != nil {
			t.Fatal(err)
		}
		if size := p.refinedBytes(); size != got || got == 0 {
			t.Errorf("%d bytes expected, %d written", size, got)
		}
	}
}
