package quantize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

const tiny = "../calib/testdata/lutq-tiny"

// open opens a checkpoint for the length of a test.
func open(t testing.TB, dir string) *hf.Checkpoint {
	t.Helper()
	c, err := modeltest.Open(t, dir).Weights()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// plan plans a recipe given as JSON.
func plan(t testing.TB, dir, recipe string) *Plan {
	t.Helper()
	r, err := ParseRecipe([]byte(recipe))
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(modeltest.Open(t, dir), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// writeModel writes a checkpoint of float32 tensors with some side files.
func writeModel(t testing.TB, tensors map[string][]float32, shapes map[string][]int) string {
	t.Helper()
	dir := t.TempDir()
	var names []string
	for name := range tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	var entries []hf.Entry
	for _, name := range names {
		entries = append(entries, hf.Entry{Name: name, DType: "F32", Shape: shapes[name]})
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b := make([]byte, 4*len(tensors[name]))
		num.EncodeF32(b, tensors[name])
		if err := w.WriteAt(name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config.json": `{"model_type": "llama"}`, "LICENSE": "none\n", "tokenizer.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func random(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(0.02 * rng.NormFloat64())
	}
	return w
}

// oddModel is a checkpoint with shapes that no group divides.
func oddModel(t testing.TB) (dir string, tensors map[string][]float32) {
	shapes := map[string][]int{
		"model.embed_tokens.weight":               {31, 45},
		"model.layers.0.self_attn.q_proj.weight":  {33, 45},
		"model.layers.0.self_attn.k_proj.weight":  {11, 45},
		"model.layers.0.self_attn.q_proj.bias":    {33},
		"model.layers.0.mlp.down_proj.weight":     {45, 301},
		"model.layers.0.input_layernorm.weight":   {45},
		"model.layers.0.mlp.gate.weight":          {8, 45},
		"model.layers.1.self_attn.q_norm.weight":  {1, 45},
		"model.layers.0.self_attn.rotary.inv_frq": {4},
	}
	tensors = make(map[string][]float32)
	for name, shape := range shapes {
		n := 1
		for _, d := range shape {
			n *= d
		}
		tensors[name] = random(uint64(len(name)), n)
	}
	return writeModel(t, tensors, shapes), tensors
}

// files returns every file of a folder.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

func TestRun(t *testing.T) {
	src, tensors := oddModel(t)
	for _, recipe := range []string{
		`{}`,
		`{"bits": 3, "group": "row", "codebook": "js"}`,
		`{"bits": 5, "group": 32, "codebook": "jt", "scale_type": "e4m4"}`,
		`{"bits": 2, "codebook": "js", "scale_type": "s1e4m3", "tensors": [{"match": "down_proj", "bits": 4, "codebook": "int"}]}`,
		`{"codebook": "fp", "scale_type": "bf16", "tensors": [{"match": "embed_tokens", "bits": 5}, {"match": "[qk]_proj", "keep": true}]}`,
	} {
		t.Run(recipe, func(t *testing.T) {
			p := plan(t, src, recipe)
			out := filepath.Join(t.TempDir(), "out")
			res, err := p.Run(t.Context(), out, RunOptions{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			m, err := lutq.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if len(m.Linears()) != res.Quantized || m.Config().SHA256 != res.SHA256 {
				t.Errorf("the container has layers %v and digest %s, the result says %+v", m.Linears(), m.Config().SHA256, res)
			}
			for i := range p.Items {
				it := &p.Items[i]
				if it.Quantized() {
					checkLayer(t, m, it, tensors[it.Tensor.Name])
					continue
				}
				got, ok := m.Checkpoint().Tensor(it.Tensor.Name)
				if !ok {
					t.Errorf("%s is missing", it.Tensor.Name)
					continue
				}
				w := make([]float32, got.Elements())
				if err := got.ReadFloat32(w, 0); err != nil || !slices.Equal(w, tensors[got.Name]) {
					t.Errorf("%s is not copied as it was (%v)", got.Name, err)
				}
			}
			report, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: p.Source, Threads: 2})
			if err != nil || len(report.Problems) > 0 {
				t.Errorf("verification: %v, problems %q", err, report.Problems)
			}
			for _, name := range []string{"LICENSE", "tokenizer.json"} {
				if files(t, out)[name] != files(t, src)[name] {
					t.Errorf("%s is not copied byte for byte", name)
				}
			}
			if _, err := os.Stat(out + ".partial"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the work folder is still there: %v", err)
			}
		})
	}
}

// checkLayer holds a stored layer against one quantized in memory in one go.
func checkLayer(t *testing.T, m *lutq.Model, it *Item, w []float32) {
	t.Helper()
	linear, err := m.Linear(it.Layer)
	if err != nil {
		t.Fatal(err)
	}
	got, err := lut.Of(linear)
	if err != nil {
		t.Fatal(err)
	}
	cb := it.Codebook
	if got.ScaleType.Size() == 1 {
		ratio := got.Codebook[0] / cb.Values[0]
		if f, _ := math.Frexp(float64(ratio)); f != 0.5 {
			t.Errorf("%s: the table is %v times its original, want a power of two", it.Layer, ratio)
		}
		cb = cb.Scaled(ratio)
	}
	q, err := it.plain.Quantizer(it.layer(cb))
	if err != nil {
		t.Fatal(err)
	}
	codes, scales := make([]byte, len(got.Codes)), make([]byte, len(got.Scales))
	if err := q.Rows([][]byte{lut.ScalesPart: scales, lut.CodesPart: codes}, make([]rounding.RowError, it.N), w); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(codes, got.Codes) || !bytes.Equal(scales, got.Scales) || !slices.Equal(cb.Values, got.Codebook) {
		t.Errorf("%s differs from the same weights quantized in memory", it.Layer)
	}
}

// littleRAM is memory for one worker and a few rows of a tiny model.
const littleRAM = baseRAM + 64*tensorRAM + 64<<10

// TestSameBytes checks that threads, memory, shards on the way and repetition
// have no part in the result.
func TestSameBytes(t *testing.T) {
	var want map[string]string
	for _, o := range []RunOptions{{Threads: 1}, {Threads: 2}, {Threads: 7}, {Threads: 3, MaxRAM: littleRAM}} {
		out := filepath.Join(t.TempDir(), "out")
		if _, err := plan(t, tiny, `{"codebook": "js", "bits": 3}`).Run(t.Context(), out, o); err != nil {
			t.Fatal(err)
		}
		got := files(t, out)
		if want == nil {
			want = got
		}
		for name := range want {
			if got[name] != want[name] {
				t.Errorf("%+v: %s differs", o, name)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%+v: %d files, want %d", o, len(got), len(want))
		}
	}
}

// TestProgress has the bytes done grow to those that a plan reads, in a run that
// goes on too.
func TestProgress(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	p := plan(t, tiny, `{}`)
	total, stop := p.Totals().BytesIn, p.Totals().BytesIn/2
	for _, want := range []error{context.Canceled, nil} {
		ctx, cancel := context.WithCancel(t.Context())
		var last int64
		_, err := p.Run(ctx, out, RunOptions{Threads: 2, Progress: func(done int64, tensor string) {
			if done <= last || done > total {
				t.Errorf("%s: %d bytes done after %d: want more, of %d", tensor, done, last, total)
			}
			if last = done; want != nil && done > stop {
				cancel()
			}
		}})
		cancel()
		if !errors.Is(err, want) {
			t.Fatalf("got error %v, want %v", err, want)
		}
		if want == nil && last != total {
			t.Errorf("%d bytes done at the end: want %d", last, total)
		}
	}
}

// TestResume stops a run again and again, and damages what it left behind.
func TestResume(t *testing.T) {
	const recipe = `{"bits": 4, "group": 32, "tensors": [{"match": "layers\\.1\\.", "bits": 5}]}`
	want := filepath.Join(t.TempDir(), "want")
	if _, err := plan(t, tiny, recipe).Run(t.Context(), want, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	work := out + ".partial"
	stopped := 0
	for after := int32(1); ; after += 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var pieces atomic.Int32
		said := 0
		res, err := plan(t, tiny, recipe).Run(ctx, out, RunOptions{
			Threads: 2,
			Progress: func(int64, string) {
				if pieces.Add(1) == after {
					cancel()
				}
			},
			Resumed: func(n int) { said = n },
		})
		cancel()
		if err == nil {
			// Of those it was told of some may be damaged.
			if res.Resumed == 0 || said < res.Resumed {
				t.Errorf("the last run resumed %d tensors, and was told of %d", res.Resumed, said)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if stopped == 0 && said > 0 {
			t.Errorf("the first run was told of %d tensors", said)
		}
		stopped++
		damage(t, work, stopped)
	}
	if stopped < 2 {
		t.Fatalf("stopped %d times, want more", stopped)
	}
	got := files(t, out)
	if len(got) != len(files(t, want)) {
		t.Errorf("%d files, want those of an uninterrupted run", len(got))
	}
	for name, data := range files(t, want) {
		if got[name] != data {
			t.Errorf("%s differs from an uninterrupted run's", name)
		}
	}
}

// damage does to a work folder what a crash may do.
func damage(t *testing.T, work string, how int) {
	t.Helper()
	// A side file that the model had then.
	if err := os.WriteFile(filepath.Join(work, "new", "merges.txt"), []byte("#"), 0o644); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(work, journalName)
	switch how % 3 {
	case 0: // a line cut short
		f, err := os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(`{"tensor": "model.norm.wei`); err != nil {
			t.Fatal(err)
		}
	case 1: // data that never reached the disk
		f, err := os.OpenFile(filepath.Join(work, "new", "model.safetensors"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(make([]byte, 100_000), 200_000); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOtherRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := plan(t, tiny, `{}`).Run(ctx, out, RunOptions{Progress: func(int64, string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got error %v", err)
	}
	if _, err = plan(t, tiny, `{"bits": 3}`).Run(t.Context(), out, RunOptions{}); !errors.Is(err, outdir.ErrOtherRun) {
		t.Errorf("another recipe over an unfinished run: got error %v", err)
	}
	if _, err := os.Stat(out + ".partial"); err != nil {
		t.Errorf("the unfinished run is gone: %v", err)
	}
}

func TestExistingOutput(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	p := plan(t, tiny, `{}`)
	res, err := p.Run(t.Context(), out, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), out, RunOptions{}); !errors.Is(err, outdir.ErrExists) {
		t.Errorf("got error %v, want %v", err, outdir.ErrExists)
	}
	before := files(t, out)
	again, err := plan(t, tiny, `{"bits": 3}`).Run(t.Context(), out, RunOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if after := files(t, out); again.SHA256 == res.SHA256 || len(after) != len(before) || after["model.safetensors"] == before["model.safetensors"] {
		t.Error("a forced run did not replace its output")
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "keep"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(out, "config.json")
	for _, tc := range []struct {
		name, out string
		inputs    []string
	}{
		{"a foreign folder", foreign, nil},
		{"the model", tiny, nil},
		{"above the model", filepath.Dir(tiny), nil},
		{"in the model", filepath.Join(tiny, "out"), nil},
		{"with another input", out, []string{text}},
	} {
		before := files(t, out)
		if _, err := p.Run(t.Context(), tc.out, RunOptions{Force: true, Inputs: tc.inputs}); err == nil {
			t.Errorf("%s was replaced", tc.name)
		}
		if len(files(t, foreign)) != 1 || !maps.Equal(before, files(t, out)) {
			t.Errorf("%s: a refused run changed files", tc.name)
		}
	}
}

func TestBadWeights(t *testing.T) {
	for _, tc := range []struct {
		name, tensor, want string
		at                 int
		value              float32
	}{
		{"NaN in a layer", "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight: weight [2, 5] is NaN", 2*301 + 5, float32(math.NaN())},
		{"infinity in a layer", "model.layers.0.mlp.down_proj.weight", "weight [0, 0] is +Inf", 0, float32(math.Inf(1))},
		{"NaN in a norm", "model.layers.0.input_layernorm.weight", "weight 7", 7, float32(math.NaN())},
		{"too large for f16", "model.layers.0.mlp.down_proj.weight", "does not fit f16", 0, 1e9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, tensors := oddModel(t)
			shapes := map[string][]int{"model.layers.0.mlp.down_proj.weight": {45, 301}, "model.layers.0.input_layernorm.weight": {45}}
			for name := range tensors {
				if shapes[name] == nil {
					delete(tensors, name)
				}
			}
			tensors[tc.tensor][tc.at] = tc.value
			out := filepath.Join(t.TempDir(), "out")
			_, err := plan(t, writeModel(t, tensors, shapes), `{}`).Run(t.Context(), out, RunOptions{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
			if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	p := plan(t, tiny, `{"bits": 3, "codebook": "js", "tensors": [{"match": "down_proj", "bits": 4}]}`)
	if _, err := p.Run(t.Context(), out, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	before, after := files(t, tiny)["config.json"], files(t, out)["config.json"]
	if head := strings.TrimRight(before, " \n}"); !strings.HasPrefix(after, head) {
		t.Error("config.json does not begin as it did")
	}
	var was, is map[string]any
	if err := errors.Join(json.Unmarshal([]byte(before), &was), json.Unmarshal([]byte(after), &is)); err != nil {
		t.Fatal(err)
	}
	q, ok := is["quantization_config"].(map[string]any)
	if !ok || len(is) != len(was)+2 {
		t.Fatalf("got keys %v", slices.Sorted(maps.Keys(is)))
	}
	const class = "lutq_hf.LutqLlamaForCausalLM"
	if m := map[string]any{"AutoConfig": class + "Config", "AutoModelForCausalLM": class}; !reflect.DeepEqual(is["auto_map"], m) {
		t.Errorf("auto_map is %v", is["auto_map"])
	}
	if q["quant_method"] != "lutq" || q["bits"] != 3.0 || q["scale"] != "mse" {
		t.Errorf("got %v", q)
	}
	tc := q["tensors"].(map[string]any)["model.layers.2.mlp.down_proj"].(map[string]any)
	if tc["bits"] != 4.0 || tc["codebook"] != nil {
		t.Errorf("down_proj: got %v", tc)
	}
	want := "lutq quantize MODEL OUT --bits 3 --group 64 --codebook js --method rtn --scale mse --scale-type f16 --tensor 'down_proj=4'"
	if q["command"] != want {
		t.Errorf("got command %v, want %s", q["command"], want)
	}
}

// TestCode: every container has the code that transformers opens it with, instead of a file of that name in
// the source. config.json names it where it names a class and no code of the model's own, and its digest is one of the container's.
func TestCode(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"named", `{"architectures": ["PhiNew_2"]}`, `{"AutoConfig": "lutq_hf.LutqPhiNew_2Config", "AutoModelForCausalLM": "lutq_hf.LutqPhiNew_2"}`},
		{
			"seeing", `{"architectures": ["XForConditionalGeneration"]}`,
			`{"AutoConfig": "lutq_hf.LutqXForConditionalGenerationConfig", "AutoModelForCausalLM": "lutq_hf.LutqXForConditionalGeneration", "AutoModelForImageTextToText": "lutq_hf.LutqXForConditionalGeneration"}`,
		},
		{"no class", `{"model_type": "llama"}`, ""},
		{"no list", `{"architectures": "X"}`, ""},
		{"no name", `{"architectures": ["a\"}.b"]}`, ""},
		{"empty", `{}`, ""},
		{"code of its own", `{"architectures": ["X"], "auto_map": {"AutoModel": "mine.X"}}`, `{"AutoModel": "mine.X"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, _ := oddModel(t)
			for name, text := range map[string]string{"config.json": c.config, lutq.CodeName: "raise SystemExit\n"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, err := plan(t, dir, `{}`).Run(t.Context(), out, RunOptions{}); err != nil {
				t.Fatal(err)
			}
			written := files(t, out)
			if written[lutq.CodeName] != string(lutq.Code()) {
				t.Error("the code is another")
			}
			var is struct {
				AutoMap json.RawMessage `json:"auto_map"`
			}
			if err := json.Unmarshal([]byte(written["config.json"]), &is); err != nil || string(is.AutoMap) != c.want {
				t.Errorf("auto_map is %s, %v", is.AutoMap, err)
			}
			if err := os.WriteFile(filepath.Join(out, lutq.CodeName), []byte("#"), 0o644); err != nil {
				t.Fatal(err)
			}
			m, err := lutq.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			r, err := m.Verify(t.Context(), lutq.VerifyOptions{})
			if err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], lutq.CodeName+" differs") {
				t.Errorf("verifying found %v, %v", r, err)
			}
		})
	}
}

func TestEstimate(t *testing.T) {
	e, err := plan(t, tiny, `{}`).Estimate(t.Context(), RunOptions{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if e.PeakRAM < baseRAM+baseGarbage || e.PeakRAM > baseRAM+baseGarbage+8<<20 || e.Seconds <= 0 || e.Seconds > 60 {
		t.Errorf("got %+v", e)
	}
}
