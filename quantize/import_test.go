package quantize

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/source/sourcetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rtn"
)

// TestImport takes over what other programs quantized: what has a form as a table, or in equal steps as sums of binary
// codes, becomes that one, and every weight stays the number that it is.
func TestImport(t *testing.T) {
	racetest.Skip(t)
	const rows, apart = "do not end with its rows", "do not lie side by side"
	for _, tt := range []struct {
		folder string
		want   map[string]string // of a weight: its format, or why there is none
	}{
		{"ct/testdata/ints", map[string]string{
			"a.q_proj": "2:64:q2::bf16:lut", "a.k_proj": "3:32:q3::f16:lut", "a.v_proj": "4:64:q4::bf16:lut", "a.o_proj": "4:64:q4::f32:lut",
			"a.up_proj": "5:row:q5::bf16:lut", "a.down_proj": "8:64:::f16:bcq",
		}},
		{"ct/testdata/asymmetric", map[string]string{
			"a.q_proj": "2:64:::f16:bcq", "a.k_proj": "3:64:::f16:bcq", "a.v_proj": "4:row:::f16:bcq", "a.down_proj": "8:64:::f32:bcq", "a.o_proj": apart, "a.up_proj": apart,
		}},
		{"ct/testdata/mixed", map[string]string{
			"a.q_proj": "4:16:e2m1::f32:lut", "a.k_proj": "4:32:e2m1::e8m0:lut", "a.v_proj": "8:row:::f16:bcq", "a.o_proj": "4:32:q4::bf16:lut",
		}},
		{"gptq/testdata/symmetric", map[string]string{
			"a.q_proj": "4:64:q4::f16:lut", "a.k_proj": "2:64:q2::f16:lut", "a.v_proj": "3:32:q3::f16:lut", "a.up_proj": "8:row:::f16:bcq",
		}},
		{"gptq/testdata/v1", map[string]string{
			"a.q_proj": "4:64:::f32:bcq", "a.k_proj": "2:64:::f32:bcq", "a.v_proj": "3:32:::f32:bcq", "a.up_proj": "8:row:::f32:bcq",
		}},
		{"gptq/testdata/act-order", map[string]string{"a.q_proj": apart, "a.k_proj": apart}},
		{"awq/testdata/gemm", map[string]string{"a.q_proj": "4:64:::f32:bcq", "a.k_proj": "4:64:q4::f16:lut"}},
		{"bnb/testdata/nf4", map[string]string{"a.q_proj": "4:64:nf::f32:lut", "a.k_proj": rows, "a.v_proj": "4:128:nf::f32:lut"}},
		{"bnb/testdata/nf4-nested", map[string]string{"a.q_proj": "4:64:nf::f32:lut", "a.k_proj": rows}},
		{"bnb/testdata/fp4", map[string]string{
			"a.q_proj": "4:64:file:bitsandbytes-fp4::f32:lut", "a.k_proj": rows, "a.v_proj": "4:128:file:bitsandbytes-fp4::f32:lut",
		}},
		{"mlx/testdata/affine", map[string]string{
			"a.q_proj": "4:64:::f16:bcq", "a.k_proj": "2:32:q2::bf16:lut", "a.v_proj": "3:64:::f16:bcq",
			"embed_tokens": "5:64:::f32:bcq", "a.up_proj": "6:32:::f32:bcq", "a.down_proj": "8:64:::f32:bcq",
		}},
		{"mlx/testdata/fp4", map[string]string{"a.q_proj": "4:32:e2m1::e8m0:lut", "a.k_proj": "4:16:e2m1::s1e4m3:lut"}},
		{"modelopt/testdata/nvfp4", map[string]string{"a.q_proj": "4:16:e2m1::f32:lut", "a.k_proj": "4:16:e2m1::f32:lut"}},
		{"marlin/testdata/groups", map[string]string{"a.q_proj": "4:128:q4::f16:lut"}},
		{"marlin/testdata/rows", map[string]string{"a.q_proj": "4:row:q4::f16:lut"}},
		{"kbit/testdata/flat", map[string]string{
			"a.q_proj": "2:32:kbit::e4m4:lut", "a.k_proj": "3:32:kbit::f32:lut", "a.v_proj": "4:32:kbit::e4m4:lut", "a.o_proj": "5:32:kbit::e4m4:lut",
		}},
		{"kbit/testdata/tiled", map[string]string{"a.q_proj": "2:32:kbit::e4m4:lut", "a.k_proj": "5:32:kbit::f32:lut"}},
		{"lutgemm/testdata/offsets", map[string]string{"a.q_proj": "3:32:::f16:bcq", "a.k_proj": "4:64:::f16:bcq", "a.v_proj": "8:row:::f16:bcq"}},
		{"lutgemm/testdata/plain", map[string]string{"a.q_proj": "2:row:::f16:bcq", "a.k_proj": "1:32:::f16:bcq"}},
		{"gpt-oss-mxfp4", map[string]string{
			"model.layers.0.mlp.experts.down_proj": "4:row:e2m1::e8m0:lut", "model.layers.0.mlp.experts.gate_up_proj": "4:32:e2m1::e8m0:lut",
			"model.layers.1.mlp.experts.down_proj": "4:row:e2m1::e8m0:lut", "model.layers.1.mlp.experts.gate_up_proj": "4:32:e2m1::e8m0:lut",
		}},
	} {
		t.Run(tt.folder, func(t *testing.T) {
			dir := filepath.Join("..", "formats", filepath.FromSlash(tt.folder))
			for _, g := range archtest.Goldens(t) {
				if g.Name == tt.folder {
					dir = t.TempDir()
					g.Write(t, dir)
				}
			}
			src, err := source.Open(dir, source.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			p, homeless, err := NewImport(src, ImportOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]string)
			for i := range p.Items {
				if it := &p.Items[i]; it.Quantized() {
					got[it.Layer] = it.Format.Fields()
				}
			}
			for _, h := range homeless {
				got[strings.TrimSuffix(h.Tensor, lutq.WeightSuffix)] = h.Why
			}
			for layer, want := range tt.want {
				if !strings.Contains(got[layer], want) {
					t.Errorf("%s becomes %q: want %q", layer, got[layer], want)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("there are %v: want %v", got, tt.want)
			}
			out := filepath.Join(t.TempDir(), "out")
			res, err := p.Run(context.Background(), out, RunOptions{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			m, err := lutq.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if report, err := m.Verify(context.Background(), lutq.VerifyOptions{Original: p.Source}); err != nil || len(report.Problems) > 0 || report.SHA256 != res.SHA256 {
				t.Errorf("verified: %+v, %v", report, err)
			}
			for _, x := range p.Source.Tensors() {
				if x.Encoding() == nil {
					continue
				}
				want, got := make([]float32, x.Elements()), []float32(nil)
				if err := x.ReadFloat32(want, 0); err != nil {
					t.Fatal(err)
				}
				if dense, ok := m.Checkpoint().Tensor(x.Name); ok {
					got = make([]float32, x.Elements())
					err = dense.ReadFloat32(got, 0)
				} else {
					mat, err := m.Linear(strings.TrimSuffix(x.Name, lutq.WeightSuffix))
					if err != nil {
						t.Fatal(err)
					}
					n, k := mat.Shape()
					got = make([]float32, n*k)
					for i := range n {
						mat.Row(got[i*k:(i+1)*k], i)
					}
				}
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s has other values, or cannot be read: %v", x.Name, err)
				}
			}
			if res.Error != 0 {
				t.Errorf("the relative error is %v", res.Error)
			}
		})
	}
	plain, err := source.Open("../calib/testdata/lutq-tiny", source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, _, err := NewImport(plain, ImportOptions{}); err == nil || !strings.Contains(err.Error(), "no weight is quantized by another program") {
		t.Errorf("a model that is not quantized: %v", err)
	}
}

// TestImportZeroPoints: s·(code − zero), as AutoGPTQ and AutoAWQ write it, is the sum of binary codes and an offset to the bit,
// whatever numbers scales of F16 are, and with factors in F16 as far as these round; where scales have more digits than sums
// have room for, it is refused.
func TestImportZeroPoints(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, k, group = 16, 64, 16
	for _, width := range []int{2, 4, 8} {
		var words, zeros []uint32
		for range n * k * width / 32 {
			words = append(words, r.Uint32())
		}
		for range n * k / group * width / 32 {
			zeros = append(zeros, r.Uint32())
		}
		scales := make([]float32, n*k/group)
		for i := range scales {
			scales[i] = num.F16ToF32(uint16(r.Uint32()) &^ 0x4000) // below 2 and above −2, subnormal ones among them
		}
		code := func(words []uint32, i int) float64 {
			return float64(words[i*width/32] >> (i * width % 32) & (1<<width - 1))
		}
		config := fmt.Sprintf(`{"quantization_config": {"quant_method": "gptq", "bits": %d, "group_size": %d, "sym": false, "checkpoint_format": "gptq_v2"}}`, width, group)
		parts := []sourcetest.Tensor{
			sourcetest.Of("a.q_proj.qweight", "I32", []int{k * width / 32, n}, words...), sourcetest.Of("a.q_proj.qzeros", "I32", []int{k / group, n * width / 32}, zeros...),
		}
		scaled := append(parts, sourcetest.F16("a.q_proj.scales", []int{k / group, n}, scales...))
		for _, factors := range []weight.ScaleType{0, weight.F32, weight.F16} {
			p := importOf(t, config, ImportOptions{Factors: factors}, scaled...)
			out := filepath.Join(t.TempDir(), "out")
			res, err := p.Run(context.Background(), out, RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m, err := lutq.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if report, err := m.Verify(context.Background(), lutq.VerifyOptions{Original: p.Source}); err != nil || len(report.Problems) > 0 {
				t.Errorf("verified: %+v, %v", report, err)
			}
			mat, err := m.Linear("a.q_proj")
			if err != nil {
				t.Fatal(err)
			}
			if s := m.Spec("a.q_proj"); s.Kind != "bcq" || s.ScaleType != cmp.Or(factors, weight.F32) {
				t.Fatalf("it becomes %v", s.Fields())
			}
			if (res.Error > 0) != (factors == weight.F16) || res.Error > 1e-3 {
				t.Errorf("factors in %v: a relative error of %v", factors, res.Error)
			}
			row := make([]float32, k)
			for i := range n {
				mat.Row(row, i)
				for j, got := range row {
					s, zero := float64(scales[j/group*n+i]), code(zeros[j/group*n*width/32:], i)
					// Column i has the codes from word i of n on.
					want, slack := s*(code(words[j*width/32*n+i:], j%(32/width))-zero), 0.0
					if factors == weight.F16 {
						slack = 0x1p-11*math.Abs(s)*float64(int(2)<<width) + float64(width+1)*0x1p-25
					}
					if math.Abs(float64(got)-want) > slack {
						t.Fatalf("%d bits, factors in %v: weight [%d, %d] is %v: want %v", width, factors, i, j, got, want)
					}
				}
			}
		}
		for i := range scales {
			scales[i] = 1 + 0x1p-23 // of which 2^b − 1 is no number
		}
		p := importOf(t, config, ImportOptions{}, append(parts, sourcetest.Of("a.q_proj.scales", "F32", []int{k / group, n}, scales...))...)
		if it := p.Items[0]; it.Quantized() || it.Kept != KeptHomeless {
			t.Errorf("%d bits: sums that round become %v", width, it.Format.Fields())
		}
	}
}

// TestImportShapes: what is read as another shape than the model has is refused before it is written.
func TestImportShapes(t *testing.T) {
	const config = `{"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, ` +
		`"num_attention_heads": 1, "tie_word_embeddings": true, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": true}}`
	const q = "model.layers.0.self_attn.q_proj."
	src, err := source.Open(sourcetest.Folder(t, config, sourcetest.Of[uint32](q+"qweight", "I32", []int{1, 16}, make([]uint32, 16)...), sourcetest.F16(q+"scales", []int{1, 16}, make([]float32, 16)...)), source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	const want = "weights are not those of its model; by config.json the shape [16 8] of " + q + "weight should be [16 16]"
	if _, _, err := NewImport(src, ImportOptions{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v: want %q", err, want)
	}
}

// importOf plans to take over a folder of some tensors.
func importOf(t *testing.T, config string, o ImportOptions, tensors ...sourcetest.Tensor) *Plan {
	t.Helper()
	src, err := source.Open(sourcetest.Folder(t, config, tensors...), source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	p, _, err := NewImport(src, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// FuzzImport takes over folders of any config.json and tensors: what comes of it holds, or is refused in a line.
func FuzzImport(f *testing.F) {
	const config, weights = "config.json", "model.safetensors"
	folders, err := filepath.Glob("../formats/*/testdata/*/values.json")
	if err != nil || len(folders) == 0 {
		f.Fatalf("no folders: %v", err)
	}
	for _, path := range folders {
		c, err := os.ReadFile(filepath.Join(filepath.Dir(path), config))
		if err != nil {
			f.Fatal(err)
		}
		w, err := os.ReadFile(filepath.Join(filepath.Dir(path), weights))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(c, w)
	}
	f.Fuzz(func(t *testing.T, c, w []byte) {
		dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
		for name, data := range map[string][]byte{config: c, weights: w} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := func() error {
			src, err := source.Open(dir, source.Options{})
			if err != nil {
				return err
			}
			defer src.Close()
			p, _, err := NewImport(src, ImportOptions{})
			if err != nil {
				return err
			}
			if _, err := p.Run(context.Background(), out, RunOptions{Threads: 1}); err != nil {
				return err
			}
			m, err := lutq.Open(out)
			if err != nil {
				t.Fatalf("what was written cannot be opened: %v", err)
			}
			defer m.Close()
			if report, err := m.Verify(context.Background(), lutq.VerifyOptions{Original: p.Source}); err != nil || len(report.Problems) > 0 {
				t.Fatalf("what was written is not as it should be: %+v, %v", report, err)
			}
			return nil
		}()
		if err != nil && (strings.ContainsRune(err.Error(), '\n') || len(err.Error()) > 10_000) {
			t.Fatalf("error is %q", err)
		}
	})
}

// TestImportComesBack: what was exported as it is comes back as the container that it was, to the bit.
func TestImportComesBack(t *testing.T) {
	const name = "model.layers.0.mlp.down_proj.weight"
	shapes := map[string][]int{name: {64, 256}, "model.layers.0.self_attn.q_proj.weight": {64, 256}, "model.embed_tokens.weight": {32, 256}}
	tensors := make(map[string][]float32)
	for name, s := range shapes {
		tensors[name] = random(uint64(len(name)), s[0]*s[1])
	}
	dir := writeModel(t, tensors, shapes)
	for _, p := range export.Presets() {
		if p.Target == "gguf" || p.Target == "mlx" { // which want all of a model, and one in 16 bits
			continue
		}
		t.Run(p.Target, func(t *testing.T) {
			r := Recipe{}
			if err := p.Fill(&r.Default, weight.F32); err != nil {
				t.Fatal(err)
			}
			made, err := NewPlan(modeltest.Open(t, dir), r)
			if err != nil {
				t.Fatal(err)
			}
			out := t.TempDir()
			first, err := made.Run(t.Context(), filepath.Join(out, "a"), RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m := modeltest.Open(t, filepath.Join(out, "a"))
			to, err := export.For(p.Target)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := export.New(t.Context(), m, to)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := plan.Run(t.Context(), filepath.Join(out, "b"), export.Options{NewRounder: rtn.NewRounder}); err != nil {
				t.Fatal(err)
			}
			back, homeless, err := NewImport(modeltest.Open(t, filepath.Join(out, "b")), ImportOptions{})
			if err != nil || len(homeless) > 0 {
				t.Fatal(err, homeless)
			}
			again, err := back.Run(t.Context(), filepath.Join(out, "c"), RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if again.SHA256 != first.SHA256 {
				t.Errorf("%s: comes back as %v, not as %v", p.Target, back.Items[0].Format, made.Items[0].Format)
			}
		})
	}
}
