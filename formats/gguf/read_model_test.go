package gguf

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
)

// putPair writes a pair of the types that [Describe] gives.
func (f *rawFile) putPair(kv KV) {
	switch v := kv.Value.(type) {
	case uint32:
		f.put(kv.Key, U32, v)
	case float32:
		f.put(kv.Key, Float, v)
	case bool:
		f.put(kv.Key, Bool, v)
	case string:
		f.put(kv.Key, String, v)
	case []string:
		f.put(kv.Key, Array, v)
	case []uint32:
		f.put(kv.Key, Array, U32, uint64(len(v)), v)
	case []bool:
		f.put(kv.Key, Array, Bool, uint64(len(v)), v)
	case []int32:
		f.put(kv.Key, Array, I32, uint64(len(v)), v)
	case []float32:
		f.put(kv.Key, Array, Float, uint64(len(v)), v)
	default:
		panic(fmt.Sprintf("%T", v))
	}
}

// content is a tensor to be put in a file.
type content struct {
	name  string
	shape []int
	typ   Type
	data  []byte
}

// modelBytes puts a file together.
func modelBytes(kvs []KV, tensors []content) []byte {
	f := newFile(version, uint64(len(tensors)), uint64(len(kvs)))
	for _, kv := range kvs {
		f.putPair(kv)
	}
	offset := uint64(0)
	for _, x := range tensors {
		f.put(x.name, uint32(len(x.shape)))
		for _, n := range slices.Backward(x.shape) {
			f.put(uint64(n))
		}
		f.put(x.typ, offset)
		offset += uint64(len(x.data)+alignment-1) / alignment * alignment
	}
	f.pad(alignment)
	for _, x := range tensors {
		f.put(x.data).pad(alignment)
	}
	return f.Bytes()
}

func float32Bytes(v []float32) []byte {
	b := make([]byte, 4*len(v))
	num.EncodeF32(b, v)
	return b
}

// floats reads a tensor of a checkpoint, of stacks that are stored by columns the rows.
func floats(t *testing.T, c *hf.Checkpoint, name string, turned bool) []float32 {
	t.Helper()
	x, ok := c.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	v := make([]float32, x.Elements())
	if err := x.ReadFloat32(v, 0); err != nil {
		t.Fatal(err)
	}
	if turned {
		e, k, n := x.Shape[0], x.Shape[1], x.Shape[2]
		w := make([]float32, len(v))
		for m := range e {
			for i := range k {
				for j := range n {
					w[(m*n+j)*k+i] = v[(m*k+i)*n+j]
				}
			}
		}
		return w
	}
	return v
}

// contents makes the tensors of a golden model's file in float32, as llama.cpp's converter would: the
// reading is not asked.
func contents(t *testing.T, c *hf.Checkpoint, d *arch.Decoder) []content {
	t.Helper()
	tensors, err := Tensors(d)
	if err != nil {
		t.Fatal(err)
	}
	var all []content
	for i := range tensors {
		x := &tensors[i]
		var v []float32
		shape := x.Shape
		switch {
		case x.Values != nil:
			v = x.Values
		case x.Source != "":
			w := floats(t, c, x.Source, false)
			k := len(w) / x.Rows()
			for i := range x.Rows() {
				for _, e := range w[x.Row(i)*k : (x.Row(i)+1)*k] {
					v = append(v, x.To(e))
				}
			}
		}
		for _, l := range x.Layers {
			s := l.Stored
			name, k := s.Tensor, s.K
			if x.Bias {
				name, k = s.Bias, 1
			}
			w := floats(t, c, name, s.Transposed && !x.Bias)
			for i := range x.Taken(l) {
				row := l.Expert*s.N + l.Row + x.Row(i)*l.Step
				e := w[row*k : (row+1)*k]
				if x.Columns != nil {
					e = make([]float32, k)
					for j, from := range x.Columns {
						e[j] = w[row*k+from]
					}
				}
				v = append(v, e...)
			}
		}
		if x.Turned {
			v = turned(v, x.Shape)
		}
		all = append(all, content{x.Name, shape, F32, float32Bytes(v)})
	}
	return all
}

// turned makes matrices of a shape out of their columns.
func turned(v []float32, shape []int) []float32 {
	rows, wide := shape[1], shape[2]
	w := make([]float32, len(v))
	for m := range shape[0] {
		for c := range wide {
			for r := range rows {
				w[(m*rows+r)*wide+c] = v[(m*wide+c)*rows+r]
			}
		}
	}
	return w
}

// openModel opens a file as a checkpoint.
func openModel(path string) (*hf.Checkpoint, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	c, err := f.Checkpoint()
	return c, errors.Join(err, f.Close())
}

// writeModel writes a file of a golden model and opens it as a checkpoint.
func writeModel(t *testing.T, kvs []KV, tensors []content) *hf.Checkpoint {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, modelBytes(kvs, tensors), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := openModel(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestCheckpoint reads models of all families back: the tensors of the Hugging Face folder, and a config.json
// that describes the same decoder.
func TestCheckpoint(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			c, d := open(t, g)
			if refused()[g.Name] != "" {
				t.Skip("has no GGUF")
			}
			kvs, err := Describe(d)
			if err != nil {
				t.Fatal(err)
			}
			got := writeModel(t, kvs, contents(t, c, d))
			e, err := arch.ReadFrom(got, got.Has)
			if err != nil {
				t.Fatal(err)
			}
			if lost()[g.Name] == "" {
				compareDecoders(t, e, d)
			}
			// The names of a model of several modes, or of stacked experts, are those of the plain one: layers are held
			// against layers.
			pairs := map[string]string{e.Embed + ".weight": d.Embed + ".weight", e.Norm.Tensor: d.Norm.Tensor}
			for i := range e.Blocks {
				a, b := &e.Blocks[i], &d.Blocks[i]
				for j, n := range a.Norms() {
					pairs[n.Tensor] = b.Norms()[j].Tensor
				}
				vectors := b.Mixer.Vectors()
				for j, v := range a.Mixer.Vectors() {
					pairs[v.Tensor] = vectors[j].Tensor
				}
				if a.MoE != nil && a.MoE.Routing.Correction != "" {
					pairs[a.MoE.Routing.Correction] = b.MoE.Routing.Correction
				}
			}
			delete(pairs, "")
			for x, y := range pairs {
				// 1 is added to norms and taken away, and decays are exponentiated: that rounds.
				if v, w := floats(t, got, x, false), floats(t, c, y, false); !slices.EqualFunc(v, w, func(a, b float32) bool { return abs32(a-b) <= 0x1p-22 }) {
					t.Errorf("%s differs: %v, want %v", x, v[:4], w[:4])
				}
			}
			want := slices.Collect(d.Linears())
			n := 0
			for l := range e.Linears() {
				compareLayers(t, got, c, l, want[n])
				n++
			}
			if n != len(want) {
				t.Errorf("%d layers: want %d", n, len(want))
			}
		})
	}
}

// lost lists the models of which a file does not say all, since llama.cpp does not ask, and what.
func lost() map[string]string {
	return map[string]string{
		"gpt-oss": "the limit", "llama-dynamic": "the rope", "mistral": "the window", "mixtral-fused": "the window", "qwen2-sliding": "the window",
	}
}

func compareDecoders(t *testing.T, got, want *arch.Decoder) {
	t.Helper()
	if len(got.Blocks) != len(want.Blocks) {
		t.Fatalf("%d blocks: want %d", len(got.Blocks), len(want.Blocks))
	}
	g, w := numbers(got), numbers(want)
	if alike(got, want) {
		return
	}
	for i := range min(len(g), len(w)) {
		if f, ok := g[i].(float64); g[i] != w[i] && !(ok && near(f, w[i].(float64))) {
			t.Errorf("number %d of the decoder is %v: want %v", i, g[i], w[i])
			break
		}
	}
	t.Errorf("decoder of %d numbers: want %d", len(g), len(w))
}

// compareLayers holds rows of a layer in one checkpoint against those in another, which may store it otherwise.
func compareLayers(t *testing.T, a, b *hf.Checkpoint, l, m *arch.Linear) {
	t.Helper()
	if l.N != m.N || l.K != m.K || (l.Stored.Bias == "") != (m.Stored.Bias == "") {
		t.Errorf("%s is %d×%d: want %d×%d, with biases %q and %q", l.Name, l.N, l.K, m.N, m.K, l.Stored.Bias, m.Stored.Bias)
		return
	}
	rows := func(c *hf.Checkpoint, l *arch.Linear, bias bool) []float32 {
		s := l.Stored
		name, k := s.Tensor, s.K
		if bias {
			name, k = s.Bias, 1
		}
		all := floats(t, c, name, s.Transposed && !bias)
		var v []float32
		for i := range l.N {
			row := l.Expert*s.N + l.Row + i*l.Step
			v = append(v, all[row*k:(row+1)*k]...)
		}
		return v
	}
	if !slices.Equal(rows(a, l, false), rows(b, m, false)) {
		t.Errorf("%s has other weights", l.Name)
	}
	if l.Stored.Bias != "" && !slices.Equal(rows(a, l, true), rows(b, m, true)) {
		t.Errorf("%s has another bias", l.Name)
	}
}

func golden(t *testing.T, name string) archtest.Golden {
	t.Helper()
	for _, g := range archtest.Goldens(t) {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no golden %s", name)
	return archtest.Golden{}
}

// TestCodesOfBlocks holds what import takes over, codes of a table times scales, against the decoders: for rows that
// llama.cpp has in another order as for others.
func TestCodesOfBlocks(t *testing.T) {
	c, d := open(t, golden(t, "llama"))
	kvs, err := Describe(d)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 20))
	for _, typ := range []Type{Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4, Q4_1} {
		t.Run(typ.String(), func(t *testing.T) {
			tensors, n := contents(t, c, d), 0
			for i := range tensors {
				x := &tensors[i]
				if k := x.shape[len(x.shape)-1]; len(x.shape) != 2 || k%block != 0 || !strings.HasPrefix(x.name, "blk.") {
					continue
				}
				n++
				x.typ = typ
				x.data = make([]byte, x.shape[0]*typ.RowBytes(x.shape[1]))
				_, size := typ.Block()
				for i := range x.data {
					x.data[i] = byte(r.UintN(256))
					if at := i % size; at == 1 || at == 0 && typ == MXFP4 || at == 3 && typ == Q4_1 { // scales that are finite
						x.data[i] = x.data[i]&0x80 | 0x3a
					}
				}
			}
			if n == 0 {
				t.Fatal("no matrix has whole blocks")
			}
			got := writeModel(t, kvs, tensors)
			for _, x := range got.Tensors() {
				e := x.Encoding()
				if e == nil {
					continue
				}
				m, ok := e.Codec.(*codes.Matrix)
				if ok != (typ != Q4_1) {
					t.Fatalf("%s is codes of a table: %v", x.Name, ok)
				}
				if !ok {
					continue
				}
				want, v := make([]float32, x.Elements()), make([]float32, x.Elements())
				if err := x.ReadFloat32(want, 0); err != nil {
					t.Fatal(err)
				}
				if err := m.ReadFloat32(v, 0); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(v, want) {
					t.Errorf("%s: %v, want %v", x.Name, v[:8], want[:8])
				}
				part := make([]float32, 40)
				if err := m.ReadFloat32(part, 21); err != nil || !slices.Equal(part, want[21:61]) {
					t.Errorf("%s: a part differs, %v", x.Name, err)
				}
			}
		})
	}
}

// TestOpenModelBad refuses files that are not what their pairs say.
func TestCheckpointBad(t *testing.T) {
	c, d := open(t, golden(t, "llama"))
	kvs, err := Describe(d)
	if err != nil {
		t.Fatal(err)
	}
	set := func(key string, value any) func([]KV, []content) ([]KV, []content) {
		return func(kvs []KV, x []content) ([]KV, []content) {
			return append(slices.DeleteFunc(slices.Clone(kvs), func(kv KV) bool { return kv.Key == key }), KV{key, value}), x
		}
	}
	tests := []struct {
		name, want string
		change     func([]KV, []content) ([]KV, []content)
	}{
		{"no architecture", "no general.architecture", set("general.architecture", uint32(1))},
		{"an unknown one", `general.architecture "mamba" is not one that is known`, set("general.architecture", "mamba")},
		{"no layers", "num_hidden_layers", set("llama.block_count", uint32(0))},
		{"heads of another number", "attn_q.weight", set("llama.attention.head_count", uint32(2))},
		{"a text for a number", "want a number", set("llama.embedding_length", "64")},
		{"an epsilon that is none", "is NaN", set("llama.attention.layer_norm_rms_epsilon", float32(math.NaN()))},
		{"an unknown rope", "rope.scaling.type", set("llama.rope.scaling.type", "spiral")},
		{"a tensor too few", "no tensor blk.0.attn_norm.weight", func(kvs []KV, x []content) ([]KV, []content) {
			return kvs, slices.DeleteFunc(slices.Clone(x), func(c content) bool { return c.name == "blk.0.attn_norm.weight" })
		}},
		{"a tensor too many", "has no place", func(kvs []KV, x []content) ([]KV, []content) {
			return kvs, append(slices.Clone(x), content{"blk.0.attn_sub_norm.weight", []int{1}, F32, make([]byte, 4)})
		}},
		{"frequencies of its own", "rope_freqs.weight", func(kvs []KV, x []content) ([]KV, []content) {
			v := slices.Repeat([]float32{3}, d.Blocks[0].Attn().Dim/2)
			return kvs, append(slices.Clone(x), content{"rope_freqs.weight", []int{len(v)}, F32, float32Bytes(v)})
		}},
	}
	tensors := contents(t, c, d)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := os.WriteFile(path, modelBytes(tt.change(kvs, tensors)), 0o666); err != nil {
				t.Fatal(err)
			}
			c, err := openModel(path)
			if err == nil {
				c.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q: want one line with %q", err, tt.want)
			}
		})
	}
}

// TestPairsOfOthers reads files whose pairs say what llama.cpp's converter has them say, where Describe has other words for it.
func TestPairsOfOthers(t *testing.T) {
	drop := func(keys ...string) func(kvs []KV, x []content) ([]KV, []content) {
		return func(kvs []KV, x []content) ([]KV, []content) {
			return slices.DeleteFunc(kvs, func(kv KV) bool {
				return slices.ContainsFunc(keys, func(key string) bool { return strings.HasSuffix(kv.Key, "."+key) })
			}), x
		}
	}
	tests := []struct {
		name, golden string
		change       func(kvs []KV, x []content) ([]KV, []content)
	}{
		{"a further layer", "glm4-moe", func(kvs []KV, x []content) ([]KV, []content) {
			for i := range kvs {
				if kvs[i].Key == "glm4moe.block_count" {
					kvs[i].Value = kvs[i].Value.(uint32) + 1
				}
			}
			further := content{"blk.3.nextn.eh_proj.weight", []int{1}, F32, make([]byte, 4)}
			return append(kvs, KV{"glm4moe.nextn_predict_layers", uint32(1)}), append(x, further)
		}},
		{"no way of scoring", "deepseek-v3", drop("expert_gating_func")},
		{"no count of dense layers", "deepseek-v3", drop("leading_dense_block_count")},
		{"one group", "glm4-moe-lite", func(kvs []KV, x []content) ([]KV, []content) {
			return append(kvs, KV{"deepseek2.expert_group_count", uint32(1)}, KV{"deepseek2.expert_group_used_count", uint32(1)}), x
		}},
		{"an amplitude by a multiplier", "ministral3", func(kvs []KV, x []content) ([]KV, []content) {
			kvs, x = drop("attn_factor")(kvs, x)
			return append(kvs, KV{"mistral3.rope.scaling.yarn_log_multiplier", float32(1)}), x
		}},
		{"every fourth layer attends", "qwen3-5-even", drop("attention.recurrent_layers", "full_attention_interval")},
		{"no sizes of heads", "olmo3", drop("key_length", "value_length", "dimension_count")},
		{"no sizes of heads between others", "lfm2", drop("key_length", "value_length", "dimension_count")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, d := open(t, golden(t, tt.golden))
			kvs, err := Describe(d)
			if err != nil {
				t.Fatal(err)
			}
			kvs, tensors := tt.change(kvs, contents(t, c, d))
			got := writeModel(t, kvs, tensors)
			e, err := arch.ReadFrom(got, got.Has)
			if err != nil {
				t.Fatal(err)
			}
			compareDecoders(t, e, d)
		})
	}
}

// Whole numbers that are no integers have a point in config.json, as the classes of transformers want it.
func TestConfigHasPoints(t *testing.T) {
	c, d := open(t, golden(t, "gpt-oss"))
	kvs, err := Describe(d)
	if err != nil {
		t.Fatal(err)
	}
	config := string(configOf(t, writeModel(t, kvs, contents(t, c, d))))
	for _, want := range []string{`"swiglu_limit": 7.0`, `"factor": 4.0`, `"original_max_position_embeddings": 32,`, `"num_hidden_layers": 2`} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in %s", want, config)
		}
	}
}
