package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
)

// part is a stored tensor with its data.
type part struct {
	Entry
	data []byte
}

// encodedFolder writes a folder of a config.json and tensors, and opens it.
func encodedFolder(t fataler, config string, parts ...part) *Checkpoint {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var entries []Entry
	for _, p := range parts {
		entries = append(entries, p.Entry)
	}
	w, err := NewWriter(dir, entries, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if err := w.WriteAt(p.Name, p.data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir, FP8Scheme{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

type fataler interface {
	Helper()
	Fatal(...any)
	Cleanup(func())
}

// codesOf returns random codes of FP8, none of which is NaN or infinite.
func codesOf(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		for b[i] = byte(r.Uint32()); b[i]&0x7c == 0x7c; {
			b[i] = byte(r.Uint32())
		}
	}
	return b
}

// scalesOf returns random scales of a type, and what they are.
func scalesOf(r *rand.Rand, t DType, n int) (data []byte, values []float32) {
	values = make([]float32, n)
	for i := range values {
		values[i] = float32(math.Ldexp(float64(128+r.IntN(128)), -14))
		if t == F8E8M0 {
			values[i] = float32(math.Ldexp(1, r.IntN(40)-30))
		}
	}
	data = make([]byte, n*t.Bits()/8)
	switch t {
	case F32:
		num.EncodeF32(data, values)
	case BF16:
		num.EncodeBF16(data, values)
	case F16:
		num.EncodeF16(data, values)
	case F8E8M0, U8:
		for i, v := range values {
			_, exp := math.Frexp(float64(v))
			data[i] = byte(exp - 1 + 127)
			values[i] = float32(math.Ldexp(1, exp-1))
		}
	}
	return data, values
}

// checkValues reads a tensor as a whole and in parts, as numbers and as bytes.
func checkValues(t *rapid.T, c *Checkpoint, name string, shape []int, want []float32) {
	x, ok := c.Tensor(name)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	if !slices.Equal(x.Shape, shape) || x.Elements() != int64(len(want)) || x.Bytes() != int64(len(want)*x.DType.Bits()/8) {
		t.Fatalf("%s is %s %v, %d bytes: want %v", name, x.DType, x.Shape, x.Bytes(), shape)
	}
	got := make([]float32, len(want))
	if err := x.ReadFloat32(got, 0); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("element %d of %v is %v: want %v", i, shape, got[i], want[i])
		}
	}
	raw := make([]byte, x.Bytes())
	if x.DType == BF16 {
		num.EncodeBF16(raw, want)
		num.DecodeBF16(got, raw)
		if !slices.Equal(got, want) {
			t.Fatal("values are not exact in BF16")
		}
	} else {
		num.EncodeF32(raw, want)
	}
	for range 4 {
		from := rapid.IntRange(0, len(want)).Draw(t, "from")
		to := rapid.IntRange(from, len(want)).Draw(t, "to")
		if err := x.ReadFloat32(got[:to-from], int64(from)); err != nil || !slices.Equal(got[:to-from], want[from:to]) {
			t.Fatalf("elements %d to %d are %v (%v): want %v", from, to, got[:to-from], err, want[from:to])
		}
		from = rapid.IntRange(0, len(raw)).Draw(t, "first byte")
		p := make([]byte, rapid.IntRange(0, len(raw)+3-from).Draw(t, "bytes"))
		n, err := x.ReadAt(p, int64(from))
		if end := min(len(raw), from+len(p)); n != end-from || !bytes.Equal(p[:n], raw[from:end]) || (n < len(p)) != (err == io.EOF) {
			t.Fatalf("%d bytes from %d of %d: %d, %v", len(p), from, len(raw), n, err)
		}
	}
}

// TestFP8 decodes matrices and stacks of any shape, with every way to share scales.
func TestFP8(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		n, k := rapid.IntRange(1, 20).Draw(t, "n"), rapid.IntRange(1, 20).Draw(t, "k")
		shape, experts := []int{n, k}, 1
		if rapid.Bool().Draw(t, "stack") {
			experts = rapid.IntRange(1, 3).Draw(t, "experts")
			shape = []int{experts, n, k}
		}
		before := shape[:len(shape)-2]
		config, rows, cols := `{"quantization_config": {"quant_method": "fp8"}}`, n, k
		var scaleShape []int
		ofAll := false
		switch rapid.SampledFrom([]string{"block", "ct block", "group", "row", "flat row", "matrix", "all"}).Draw(t, "kind") {
		case "block":
			rows, cols = rapid.IntRange(1, 24).Draw(t, "rows"), rapid.IntRange(1, 24).Draw(t, "cols")
			config = fmt.Sprintf(`{"quantization_config": {"quant_method": "fp8", "weight_block_size": [%d, %d]}}`, rows, cols)
			scaleShape = slices.Concat(before, []int{(n + rows - 1) / rows, (k + cols - 1) / cols})
		case "ct block":
			rows, cols = 4, 8
			config = `{"text_config": {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
				"config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [4, 8]}}}}}}`
			scaleShape = slices.Concat(before, []int{(n + 3) / 4, (k + 7) / 8})
		case "group":
			rows, cols = 1, 8
			config = `{"compression_config": {"format": "float-quantized", "config_groups": {"a": {"weights": {"strategy": "group", "group_size": 8}}}}}`
			scaleShape = slices.Concat(before, []int{n, (k + 7) / 8})
		case "row":
			rows, scaleShape = 1, slices.Concat(before, []int{n, 1})
		case "flat row":
			rows, scaleShape = 1, slices.Concat(before, []int{n})
		case "matrix":
			scaleShape = slices.Concat(before, []int{1, 1})
		case "all":
			scaleShape, ofAll = []int{1}, true
		}
		count := 1
		for _, d := range scaleShape {
			count *= d
		}
		codeType := rapid.SampledFrom([]DType{F8E4M3, F8E5M2}).Draw(t, "codes")
		scaleType := rapid.SampledFrom([]DType{F32, BF16, F16, F8E8M0}).Draw(t, "scales")
		codes := codesOf(r, experts*n*k)
		scaleData, scales := scalesOf(r, scaleType, count)

		want := make([]float32, len(codes))
		for e := range experts {
			for i := range n {
				for j := range k {
					at := (e*n+i)*k + j
					value := num.F8E4M3ToF32(codes[at])
					if codeType == F8E5M2 {
						value = num.F8E5M2ToF32(codes[at])
					}
					s := scales[0]
					if !ofAll {
						across := (k + cols - 1) / cols
						s = scales[(e*((n+rows-1)/rows)+i/rows)*across+j/cols]
					}
					want[at] = value * s
				}
			}
		}
		suffix := rapid.SampledFrom([]string{"_scale_inv", "_scale"}).Draw(t, "suffix")
		c := encodedFolder(t, config,
			part{Entry{"a.weight" + suffix, scaleType, scaleShape}, scaleData},
			part{Entry{"a.weight", codeType, shape}, codes},
			part{Entry{"a.input_scale", F32, []int{1}}, make([]byte, 4)},
			part{Entry{"norm.weight", BF16, []int{1}}, []byte{1, 2}},
		)
		checkValues(t, c, "a.weight", shape, want)
		x, _ := c.Tensor("a.weight")
		if want := int64(len(codes) + len(scaleData) + 4); x.StoredBytes() != want || len(c.Tensors()) != 2 {
			t.Fatalf("%d bytes in %d tensors: want %d in 2", x.StoredBytes(), len(c.Tensors()), want)
		}
		if _, ok := c.Tensor("a.weight" + suffix); ok || !c.Stores("a.weight"+suffix) {
			t.Fatal("scales are a tensor of their own, or not stored")
		}
	})
}

// TestDecodeLarge reads what takes several pieces, of many rows or of a part of one.
func TestDecodeLarge(t *testing.T) {
	for _, shape := range [][]int{{700, 600}, {3, 300_000}, {600_000, 1}, {2, 130, 1100}} {
		t.Run(fmt.Sprint(shape), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			before, n, k := shape[:len(shape)-2], shape[len(shape)-2], shape[len(shape)-1]
			const rows, cols = 2, 7
			down, across := (n+rows-1)/rows, (k+cols-1)/cols
			codes := codesOf(r, (len(before)+1)*n*k)
			scaleShape := slices.Concat(before, []int{down, across})
			scaleData, scales := scalesOf(r, BF16, (len(before)+1)*down*across)
			c := encodedFolder(t, `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 7]}}`,
				part{Entry{"a", F8E4M3, shape}, codes}, part{Entry{"a_scale_inv", BF16, scaleShape}, scaleData})
			x, _ := c.Tensor("a")
			got := make([]float32, len(codes))
			if err := x.ReadFloat32(got, 0); err != nil {
				t.Fatal(err)
			}
			for at, v := range got {
				e, i, j := at/(n*k), at/k%n, at%k
				if want := num.F8E4M3ToF32(codes[at]) * scales[(e*down+i/rows)*across+j/cols]; v != want {
					t.Fatalf("element %d is %v: want %v", at, v, want)
				}
			}
		})
	}
}

// TestStoredAs names every encoding as it is shown.
func TestStoredAs(t *testing.T) {
	for _, tt := range []struct {
		config string
		scale  []int
		want   string
	}{
		{`"weight_block_size": [128, 128]`, []int{1, 1}, "F8_E4M3, one scale"},
		{`"weight_block_size": [2, 4]`, []int{2, 2}, "F8_E4M3, a scale per 2×4"},
		{`"weight_block_size": null`, []int{4, 1}, "F8_E4M3, a scale per row"},
		{`"weight_block_size": null`, nil, "F8_E4M3, one scale"},
	} {
		n := 1
		for _, d := range tt.scale {
			n *= d
		}
		c := encodedFolder(t, `{"quantization_config": {"quant_method": "fp8", `+tt.config+`}}`,
			part{Entry{"a.weight", F8E4M3, []int{4, 8}}, make([]byte, 32)}, part{Entry{"a.weight_scale_inv", F32, tt.scale}, make([]byte, 4*n)})
		x, _ := c.Tensor("a.weight")
		if got := x.StoredAs(); got != tt.want {
			t.Errorf("%s, scale of shape %v: %q: want %q", tt.config, tt.scale, got, tt.want)
		}
	}
}

// TestDecodeRefuses: what does not fit together is an error that names the tensor.
func TestDecodeRefuses(t *testing.T) {
	const fp8 = `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}}`
	const perTensor = `{"quantization_config": {"quant_method": "fp8"}}`
	e := func(name string, t DType, shape ...int) Entry { return Entry{name, t, shape} }
	weight := e("a.weight", F8E4M3, 4, 3)
	for _, tt := range []struct {
		name, config string
		entries      []Entry
		want         string
	}{
		{"no scale", fp8, []Entry{weight}, `tensor "a.weight" in model.safetensors: no scale: want a tensor "a.weight_scale_inv"`},
		{"two scales", fp8, []Entry{weight, e("a.weight_scale", F32, 2, 2), e("a.weight_scale_inv", F32, 2, 2)}, "has two scales"},
		{"scale too small", fp8, []Entry{weight, e("a.weight_scale_inv", F32, 2, 1)}, `tensor "a.weight" in model.safetensors: scale "a.weight_scale_inv" of shape [2 1]: want [2 2], for blocks of 2×2 weights of [4 3]`},
		{"scale per row where there are blocks", fp8, []Entry{weight, e("a.weight_scale_inv", F32, 4, 1)}, "want [2 2]"},
		{"blocks that config does not have", perTensor, []Entry{weight, e("a.weight_scale_inv", F32, 2, 2)}, "want one number, or one a row of [4 3]"},
		{"scale of integers", fp8, []Entry{weight, e("a.weight_scale_inv", U8, 2, 2)}, "is of type U8: want F32"},
		{"vector", perTensor, []Entry{e("a.weight", F8E4M3, 4), e("a.weight_scale_inv", F32, 1)}, "weights of shape [4]: want a matrix"},
		{"zero point", perTensor, []Entry{weight, e("a.weight_scale", F32, 1), e("a.weight_zero_point", F32, 1)}, "has a zero point"},
		{"scale of nothing", fp8, []Entry{e("a.weight", BF16, 4, 3), e("b.weight_scale_inv", F32, 2, 2)}, `tensor "b.weight_scale_inv" in model.safetensors: is the scale of "b.weight"`},
		{"block of one number", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}`, []Entry{weight}, "blocks of [128] weights"},
		{"block of nothing", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}}`, []Entry{weight}, "blocks of [0 128] weights"},
		{"block too large", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 99999999999]}}`, []Entry{weight}, "want two positive numbers"},
		{"block of text", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": "128x128"}}`, []Entry{weight}, "weight_block_size: want two numbers"},
		{"different blocks", `{"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
			"a": {"weights": {"strategy": "block", "block_structure": [2, 2]}}, "b": {"weights": {"strategy": "channel"}}}}}`, []Entry{weight}, "different blocks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := checkpoint(t, `{}`, tt.entries...).Dir()
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tt.config), 0o644); err != nil {
				t.Fatal(err)
			}
			c, err := Open(dir, FP8Scheme{})
			if err == nil {
				c.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v: want %q in it", err, tt.want)
			}
		})
	}
}

// TestBadScales: scales that are none are found when they are read.
func TestBadScales(t *testing.T) {
	f32 := func(v ...float32) []byte {
		b := make([]byte, 4*len(v))
		num.EncodeF32(b, v)
		return b
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, tt := range []struct {
		name         string
		codes, scale []byte
		want         string // "" where it can be read
	}{
		{"NaN", []byte{8, 8, 8, 8}, f32(1, nan), `tensor "a_scale" in model.safetensors: element 1 is NaN: want a scale`},
		{"infinite", []byte{8, 8, 8, 8}, f32(inf, 1), "element 0 is +Inf: want a scale"},
		{"negative", []byte{8, 8, 8, 8}, f32(1, -1), "element 1 is -1: want a scale"},
		{"zero", []byte{8, 8, 8, 0}, f32(1, 0), "element 1 is 0, but the weights that it is the scale of are not"},
		{"zero of zeros", []byte{8, 8, 0, 0x80}, f32(1, 0), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := encodedFolder(t, `{"quantization_config": {"quant_method": "fp8"}}`,
				part{Entry{"a", F8E4M3, []int{2, 2}}, tt.codes}, part{Entry{"a_scale", F32, []int{2, 1}}, tt.scale})
			x, _ := c.Tensor("a")
			err := x.ReadFloat32(make([]float32, 4), 0)
			_, readErr := x.ReadAt(make([]byte, 16), 0)
			for _, err := range []error{err, readErr} {
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got error %v: want %q in it", err, tt.want)
				}
			}
		})
	}
	// A code that is NaN passes, as a NaN of other types does.
	c := encodedFolder(t, `{"quantization_config": {"quant_method": "fp8"}}`,
		part{Entry{"a", F8E4M3, []int{1, 2}}, []byte{0x7f, 0x38}}, part{Entry{"a_scale", F32, nil}, f32(2)})
	x, _ := c.Tensor("a")
	v := make([]float32, 2)
	if err := x.ReadFloat32(v, 0); err != nil || !math.IsNaN(float64(v[0])) || v[1] != 2 {
		t.Errorf("codes of NaN and 1 are %v: %v", v, err)
	}
}

func TestConfigJSON(t *testing.T) {
	const q = `"quantization_config": {"quant_method": "fp8", "a": [1, {"b": "}"}]}`
	for _, tt := range []struct{ name, config, want string }{
		{"only", `{` + q + `}`, `{}`},
		{"first", `{` + q + `, "a": 1}`, `{ "a": 1}`},
		{"middle", "{\n  \"a\": 1,\n  " + q + ",\n  \"b\": 2\n}\n", "{\n  \"a\": 1,\n  \"b\": 2\n}\n"},
		{"last", "{\"a\" : 1, " + q + "\n}", "{\"a\" : 1\n}"},
		{"both keys", `{` + q + `,"compression_config":3,"a":1,"b":2}`, `{"a":1,"b":2}`},
		{"of the language model", `{"a": 1, "text_config": {"b":2, ` + q + `}}`, `{"a": 1, "text_config": {"b":2}}`},
		{"in something else", `{` + q + `, "vision_config": {"quantization_config": 1}}`, `{ "vision_config": {"quantization_config": 1}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := encodedFolder(t, tt.config, part{Entry{"a", BF16, []int{1}}, []byte{1, 2}})
			got, err := c.ConfigJSON()
			if err != nil || string(got) != tt.want || !json.Valid(got) {
				t.Errorf("got %q, %v: want %q", got, err, tt.want)
			}
		})
	}
	const gptq = `{"quantization_config": {"quant_method": "gptq"}}`
	c := encodedFolder(t, gptq, part{Entry{"a", BF16, []int{1}}, []byte{1, 2}})
	if got, err := c.ConfigJSON(); err != nil || string(got) != gptq {
		t.Errorf("of a scheme that is not decoded it is %q, %v", got, err)
	}
}

// TestSideFilesOfDecoded: what says how the weights were quantized stays behind with
// the codes.
func TestSideFilesOfDecoded(t *testing.T) {
	for config, want := range map[string][]string{
		`{"quantization_config": {"quant_method": "fp8"}}`:  {"config.json", "vocab.json"},
		`{"quantization_config": {"quant_method": "gptq"}}`: {"config.json", "quantize_config.json", "vocab.json"},
	} {
		dir := encodedFolder(t, config, part{Entry{"a", BF16, []int{1}}, []byte{1, 2}}).Dir()
		for _, name := range []string{"quantize_config.json", "vocab.json"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := mustOpen(t, dir).SideFiles(); !slices.Equal(got, want) {
			t.Errorf("%s: side files are %q: want %q", config, got, want)
		}
	}
}

// FuzzDecode opens folders of any config and weights, and reads all there is.
func FuzzDecode(f *testing.F) {
	for _, s := range []struct {
		config string
		parts  []part
	}{
		{`{"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}}`, []part{
			{Entry{"a.weight", F8E4M3, []int{3, 3}}, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9}}, {Entry{"a.weight_scale_inv", BF16, []int{2, 2}}, []byte{0, 60, 0, 60, 0, 60, 0, 60}},
		}},
		{`{"text_config": {"quantization_config": {"quant_method": "fbgemm_fp8"}}}`, []part{
			{Entry{"a", F8E5M2, []int{2, 1, 2}}, []byte{1, 2, 3, 4}}, {Entry{"a_scale", F8E8M0, []int{2, 1, 1}}, []byte{127, 120}},
		}},
		{`{"compression_config": {"format": "float-quantized", "config_groups": {"g": {"weights": {"strategy": "group", "group_size": 2}}}}}`, []part{
			{Entry{"a", F8E4M3, []int{1, 4}}, []byte{1, 2, 3, 4}}, {Entry{"a_scale", F8E8M0, []int{1, 2}}, []byte{127, 120}},
		}},
	} {
		dir := encodedFolder(f, s.config, s.parts...).Dir()
		weights, err := os.ReadFile(filepath.Join(dir, singleName))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(s.config), weights)
		f.Add([]byte(`{"text_config":{"quantization_config":{"quant_method":"a\nb"}}}`), weights)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, weights []byte) {
		for name, data := range map[string][]byte{"config.json": config, singleName: weights} {
			path := filepath.Join(dir, name)
			_ = os.Remove(path) // ext4 takes milliseconds to write over a file
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c, err := Open(dir, FP8Scheme{})
		if err == nil {
			defer c.Close()
			err = c.CheckPlain()
		}
		if err != nil {
			if text := err.Error(); strings.ContainsRune(text, '\n') || len(text) > 10_000 {
				t.Fatalf("error is %q", err)
			}
			return
		}
		var stored int64
		for _, x := range c.Tensors() {
			stored += x.StoredBytes()
			if x.Encoding() == nil {
				continue
			}
			v := make([]float32, x.Elements())
			if err := x.ReadFloat32(v, 0); err != nil {
				continue
			}
			raw := make([]byte, x.Bytes())
			if _, err := x.ReadAt(raw, 0); err != nil && len(raw) > 0 {
				t.Fatalf("%s can be read as numbers, but not as bytes: %v", x.Name, err)
			}
		}
		if stored > int64(len(weights)) {
			t.Fatalf("tensors take %d bytes of a file of %d", stored, len(weights))
		}
		if text, err := c.ConfigJSON(); err != nil || !json.Valid(text) && json.Valid(config) {
			t.Fatalf("config.json becomes %q, %v", text, err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	const n, k = 4096, 4096
	r := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name, config string
		bytes        int64
		parts        []part
	}{
		{"FP8", `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`, n * k, nil},
		{"BF16", `{}`, n * k * 2, []part{{Entry{"a", BF16, []int{n, k}}, make([]byte, 2*n*k)}}},
	} {
		switch tt.name {
		case "FP8":
			scales, _ := scalesOf(r, F32, n/128*k/128)
			tt.parts = []part{{Entry{"a", F8E4M3, []int{n, k}}, codesOf(r, n*k)}, {Entry{"a_scale_inv", F32, []int{n / 128, k / 128}}, scales}}
		}
		b.Run(tt.name, func(b *testing.B) {
			x, _ := encodedFolder(b, tt.config, tt.parts...).Tensor("a")
			v := make([]float32, 1<<18)
			b.SetBytes(tt.bytes * int64(len(v)) / (n * k))
			at := int64(0)
			for b.Loop() {
				if err := x.ReadFloat32(v, at); err != nil {
					b.Fatal(err)
				}
				at = (at + int64(len(v))) % (n * k)
			}
			b.ReportMetric(float64(b.N)*float64(len(v))/b.Elapsed().Seconds()/1e6, "Mweights/s")
		})
	}
}
