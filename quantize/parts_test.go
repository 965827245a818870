package quantize

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// goldenModel writes the tiny checkpoint of a family.
func goldenModel(t *testing.T, name string) string {
	t.Helper()
	all := archtest.Goldens(t)
	dir := t.TempDir()
	all[slices.IndexFunc(all, func(g archtest.Golden) bool { return g.Name == name })].Write(t, dir)
	return dir
}

// TestParts checks that what takes no part in text stays as it is, and that its linear layers are quantized on request.
func TestParts(t *testing.T) {
	matrix := func(name string) hf.Entry { return hf.Entry{Name: name, DType: "BF16", Shape: []int{8, 8}} }
	src := zeros(t,
		matrix("model.layers.0.self_attn.q_proj.weight"),
		matrix("model.visual.blocks.0.attn.qkv.weight"),
		matrix("model.visual.merger.linear_fc1.weight"),
		matrix("model.visual.pos_embed.weight"),
		matrix("model.visual.patch_embed.proj.weight"),
		hf.Entry{Name: "model.visual.blocks.0.norm1.weight", DType: "BF16", Shape: []int{8}},
		hf.Entry{Name: "model.visual.blocks.0.attn.stack", DType: "BF16", Shape: []int{2, 8, 8}},
		matrix("mtp.fc.weight"),
		matrix("mtp.layers.0.self_attn.q_proj.weight"),
		matrix("mtp.layers.0.mlp.gate.weight"),
		matrix("mtp.embed_tokens.weight"),
	)
	for _, test := range []struct {
		name, recipe string
		quantized    []string
		kept         map[Reason]int
	}{
		{
			"by default", `{}`,
			[]string{"model.layers.0.self_attn.q_proj"},
			map[Reason]int{KeptTower: 6, KeptFurther: 4},
		},
		{
			"vision", `{"vision": true}`,
			[]string{"model.layers.0.self_attn.q_proj", "model.visual.blocks.0.attn.qkv", "model.visual.merger.linear_fc1"},
			map[Reason]int{KeptTower: 4, KeptFurther: 4},
		},
		{
			"mtp", `{"mtp": true}`,
			[]string{"model.layers.0.self_attn.q_proj", "mtp.fc", "mtp.layers.0.self_attn.q_proj"},
			map[Reason]int{KeptTower: 6, KeptFurther: 2},
		},
		{
			"both, some kept", `{"mtp": true, "vision": true, "tensors": [{"match": "merger|mtp\\.fc", "keep": true}]}`,
			[]string{"model.layers.0.self_attn.q_proj", "model.visual.blocks.0.attn.qkv", "mtp.layers.0.self_attn.q_proj"},
			map[Reason]int{KeptTower: 4, KeptFurther: 2, KeptByRule: 2},
		},
		{
			"a rule for one", `{"tensors": [{"match": "mtp.*(q_proj|gate)", "bits": 5}]}`,
			[]string{"model.layers.0.self_attn.q_proj", "mtp.layers.0.self_attn.q_proj"},
			map[Reason]int{KeptTower: 6, KeptFurther: 3},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := plan(t, src, test.recipe)
			kept := make(map[Reason]int)
			for _, k := range p.Kept() {
				kept[k.Reason] = k.Tensors
			}
			var layers []string
			for _, it := range p.Items {
				if it.Quantized() {
					layers = append(layers, it.Layer)
				}
			}
			slices.Sort(layers)
			if d := cmp.Diff(test.quantized, layers); d != "" {
				t.Errorf("layers (-want +got):\n%s", d)
			}
			if d := cmp.Diff(test.kept, kept); d != "" {
				t.Errorf("kept (-want +got):\n%s", d)
			}
			again, err := ParseRecipe([]byte(test.recipe))
			if err != nil {
				t.Fatal(err)
			}
			for flag, on := range map[string]bool{"--vision": again.Vision, "--mtp": again.MTP} {
				if strings.Contains(p.Command(), flag) != on {
					t.Errorf("command %q has no part for %s, or one", p.Command(), flag)
				}
			}
		})
	}
	plain := zeros(t, matrix("model.layers.0.self_attn.q_proj.weight"))
	for _, r := range []Recipe{{Vision: true}, {MTP: true}} {
		if _, err := NewPlan(modeltest.Open(t, plain), r); err == nil || !strings.Contains(err.Error(), "has no linear layers") {
			t.Errorf("%+v of a model without: error %v", r, err)
		}
	}
}

// TestLastLayers: layers behind those of the configuration predict further tokens.
func TestLastLayers(t *testing.T) {
	dir := goldenModel(t, "glm4-moe")
	addTensors(t, dir,
		hf.Entry{Name: "model.layers.3.eh_proj.weight", DType: "F32", Shape: []int{64, 128}},
		hf.Entry{Name: "model.layers.3.self_attn.o_proj.weight", DType: "F32", Shape: []int{64, 128}},
		hf.Entry{Name: "model.layers.3.enorm.weight", DType: "F32", Shape: []int{64}},
		hf.Entry{Name: "model.layers.3.shared_head.head.weight", DType: "F32", Shape: []int{64, 64}},
	)
	for recipe, want := range map[string]int{`{}`: 4, `{"mtp": true}`: 2} {
		p := plan(t, dir, recipe)
		i := slices.IndexFunc(p.Kept(), func(k Kept) bool { return k.Reason == KeptFurther })
		if i < 0 || p.Kept()[i].Tensors != want || !slices.Equal(p.Kept()[i].Names, []string{"model.layers.3.*"}) {
			t.Errorf("%s: kept are %+v: want %d of model.layers.3.*", recipe, p.Kept(), want)
		}
	}
}

// addTensors adds zeros to a folder.
func addTensors(t *testing.T, dir string, add ...hf.Entry) {
	t.Helper()
	c, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var entries []hf.Entry
	data := make(map[string][]byte)
	for _, x := range c.Tensors() {
		b := make([]byte, x.Bytes())
		if _, err := x.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		entries, data[x.Name] = append(entries, hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape}), b
	}
	for _, e := range add {
		n, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		entries, data[e.Name] = append(entries, e), make([]byte, n)
	}
	to := t.TempDir()
	w, err := hf.NewWriter(to, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range data {
		if err := w.WriteAt(name, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, name := range c.Shards() {
		if err := os.Rename(filepath.Join(to, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrapper quantizes a model with towers, which stay to the bit, infinities in them included, with the files of its processor.
func TestWrapper(t *testing.T) {
	racetest.Skip(t)
	dir := goldenModel(t, "gemma4-sees")
	const bound = "model.audio_tower.layers.0.feed_forward1.ffw_layer_1.input_max"
	rewrite(t, dir, bound, func(b []byte) { b[0], b[1] = 0x80, 0x7f })
	files := map[string]string{"preprocessor_config.json": `{"image_processor_type": "X"}`, "processor_config.json": `{}`, "chat_template.jinja": "x"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, vision := range []bool{false, true} {
		p, err := NewPlan(modeltest.Open(t, dir), Recipe{Vision: vision})
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "out")
		if _, err := p.Run(t.Context(), out, RunOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != text {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		m, err := lutq.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		original, err := hf.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer original.Close()
		r, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: original})
		if err != nil || len(r.Problems) > 0 {
			t.Errorf("verify: %v, %v", err, r)
		}
		seeing := slices.ContainsFunc(m.Linears(), func(l string) bool { return strings.Contains(l, "vision_tower") })
		hearing := slices.ContainsFunc(m.Linears(), func(l string) bool { return strings.Contains(l, "audio_tower") })
		if seeing != vision || hearing != vision {
			t.Errorf("vision %v: layers of what sees %v, and hears %v", vision, seeing, hearing)
		}
	}
	rewrite(t, dir, "model.language_model.norm.weight", func(b []byte) { b[0], b[1] = 0x80, 0x7f })
	p := plan(t, dir, `{}`)
	if _, err := p.Run(t.Context(), filepath.Join(t.TempDir(), "out"), RunOptions{}); err == nil || !strings.Contains(err.Error(), "model.language_model.norm.weight: weight 0 is not a number or infinite") {
		t.Errorf("infinite in the language model: error %v", err)
	}
}

// rewrite changes the data of a tensor in place.
func rewrite(t *testing.T, dir, name string, change func(b []byte)) {
	t.Helper()
	c, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, ok := c.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	b := make([]byte, x.Bytes())
	if _, err := x.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, x.Shard)
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	header, err := c.Header(x.Shard)
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(regexp.QuoteMeta(`"`+name+`":{`) + `[^}]*"data_offsets":\[(\d+),`).FindSubmatch(header)
	if at == nil {
		t.Fatalf("no offset of %s", name)
	}
	offset, err := strconv.Atoi(string(at[1]))
	if err != nil {
		t.Fatal(err)
	}
	change(b)
	copy(all[len(header)+offset:], b)
	if err := os.WriteFile(path, all, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestComplete: an output without a tensor of the source, or without one that replaces it, is not installed.
func TestComplete(t *testing.T) {
	src := goldenModel(t, "llama")
	for _, drop := range []string{"model.norm.weight", "model.layers.1.mlp.up_proj.weight"} {
		p := plan(t, src, `{}`)
		p.Items = slices.DeleteFunc(p.Items, func(it Item) bool { return it.Tensor.Name == drop })
		p.at = nil
		out := filepath.Join(t.TempDir(), "out")
		if _, err := p.Run(t.Context(), out, RunOptions{}); err == nil || !strings.Contains(err.Error(), drop) {
			t.Errorf("without %s: error %v", drop, err)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("without %s an output is installed", drop)
		}
	}
	p := plan(t, src, `{}`)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(t.Context(), out, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(p.Items, func(it Item) bool { return it.Quantized() })
	it := &p.Items[i]
	it.stored = append(it.stored, stored{Entry: hf.Entry{Name: it.Layer + ".more", DType: "U8", Shape: []int{1}}})
	if err := p.complete(out); err == nil || !strings.Contains(err.Error(), it.Layer+".more of "+it.Tensor.Name) {
		t.Errorf("without a part: error %v", err)
	}
}
