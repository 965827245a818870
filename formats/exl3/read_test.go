package exl3

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source/sourcetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// TestGolden: of the folders in testdata, scripts/rivals.py makes two, and converted has a layer that exllamav3 1.6.5 converted. Its
// kernels' weights are those of values.json in all three, see scripts/exl3_check.py.
func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const config = `{"quantization_config": {"quant_method": "exl3", "bits": 3}}`

// stored are the tensors of a layer of some codes.
func stored(name string, tiles []int, codes []uint16, suh, svh []float32) []sourcetest.Tensor {
	return []sourcetest.Tensor{
		sourcetest.Of(name+".trellis", "I16", tiles, codes...),
		sourcetest.F16(name+".suh", []int{len(suh)}, suh...), sourcetest.F16(name+".svh", []int{len(svh)}, svh...),
	}
}

// drawn returns n numbers that float16 has.
func drawn(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = num.F16ToF32(num.F32ToF16(float32(r.NormFloat64())))
	}
	return v
}

// TestWeights: a weight of any shape is the sum of its definition: of codes by two matrices of ±1, times its factors.
func TestWeights(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		n, k := 128*rapid.IntRange(1, 2).Draw(rt, "rows"), 128*rapid.IntRange(1, 2).Draw(rt, "columns")
		codebook := rapid.SampledFrom([]string{trellis.Mul1, trellis.MCG, trellis.Inst3}).Draw(rt, "codebook")
		rate := 2 * rapid.IntRange(1, 8).Draw(rt, "bits")
		if codebook == trellis.Mul1 && rapid.Bool().Draw(rt, "half") {
			rate = rapid.SampledFrom([]int{3, 5, 7}).Draw(rt, "rate")
		}
		tiles := []int{k / 16, n / 16, 8 * rate}
		words := make([]uint16, k/16*n/16*8*rate)
		for i := range words {
			words[i] = uint16(r.Uint32())
		}
		suh, svh := drawn(r, k), drawn(r, n)
		tensors := stored("a", tiles, words, suh, svh)
		switch codebook {
		case trellis.Mul1:
			tensors = append(tensors, sourcetest.Of[uint32]("a.mul1", "I32", nil, mul1Mark))
		case trellis.MCG:
			tensors = append(tensors, sourcetest.Of[uint32]("a.mcg", "I32", []int{1}, mcgMark))
		}
		got := sourcetest.Values(t, Scheme{}, "a.weight", config, tensors...)
		code, err := trellis.NewCode(codebook, rate)
		if err != nil {
			rt.Fatal(err)
		}
		layout := code.Layout()
		step, ring := places(layout), make([]byte, layout.Bytes())
		// Some weights, each by the sum over all of a block's codes.
		for range 2 {
			row, col := r.IntN(n), r.IntN(k)
			sum := 0.0
			for i := range 128 {
				for j := range 128 {
					nn, kk := row&^127+i, col&^127+j
					at := (kk/16*(n/16) + nn/16) * layout.Bytes()
					for b := range ring {
						ring[b] = byte(words[(at+b)/2] >> (8 * ((at + b) % 2)))
					}
					v := float64(num.F16ToF32(uint16(code.Pair(layout.Window(ring, step[nn%16][kk%16])))))
					if odd(uint(row&127&i)) != odd(uint(col&127&j)) {
						v = -v
					}
					sum += v
				}
			}
			want := sum / 128 * float64(svh[row]) * float64(suh[col])
			if d := float64(got[row*k+col]) - want; d > 1e-4 || d < -1e-4 {
				rt.Fatalf("weight %d, %d is %v: want %v", row, col, got[row*k+col], want)
			}
		}
	})
}

// places returns the step of each row and column.
func places(l trellis.Layout) (steps [16][16]int) {
	for i := range l.Steps() {
		row, col := l.At(i)
		steps[row][col] = i
	}
	return steps
}

// odd reports whether the number of bits that are set is.
func odd(x uint) bool {
	is := false
	for ; x != 0; x &= x - 1 {
		is = !is
	}
	return is
}

// TestBands: a layer hands out the rows of any bands as a matrix of their own.
func TestBands(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]uint16, 8*24*16*3)
	for i := range words {
		words[i] = uint16(r.Uint32())
	}
	c, err := hf.Open(sourcetest.Folder(t, config, stored("a", []int{8, 24, 48}, words, drawn(r, 128), drawn(r, 384))...), Scheme{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, _ := c.Tensor("a.weight")
	all := make([]float32, 384*128)
	if err := x.ReadFloat32(all, 0); err != nil {
		t.Fatal(err)
	}
	l := x.Encoding().Codec.(*Layer)
	if s, want := l.Spec(), (weight.Spec{Kind: trellis.Name, Bits: 3, Group: weight.RowGroup, Codebook: trellis.Inst3, ScaleType: weight.F16}); s != want {
		t.Errorf("spec is %+v: want %+v", s, want)
	}
	for _, at := range [][2]int{{0, 384}, {128, 128}, {128, 256}, {256, 128}, {256, 100}} {
		m, err := l.Matrix(at[0], at[1])
		if err != nil {
			t.Fatal(err)
		}
		sourcetest.Equal(t, weight.Dequantize(m), all[at[0]*128:][:at[1]*128]...)
	}
}

func TestRefuses(t *testing.T) {
	with := func(more ...sourcetest.Tensor) []sourcetest.Tensor {
		return append(stored("a", []int{8, 8, 32}, nil, make([]float32, 128), make([]float32, 128)), more...)
	}
	without := func(suffix string, more ...sourcetest.Tensor) []sourcetest.Tensor {
		return append(slices.DeleteFunc(with(), func(x sourcetest.Tensor) bool { return x.Name == "a"+suffix }), more...)
	}
	tiles := func(dtype hf.DType, shape ...int) []sourcetest.Tensor {
		return without(".trellis", sourcetest.Of[uint8]("a.trellis", dtype, shape))
	}
	ones := make([]float32, 128)
	nan := slices.Clone(ones)
	nan[5] = num.F16ToF32(0x7E00)
	for _, tt := range []struct {
		name, want string
		tensors    []sourcetest.Tensor
	}{
		{"tiles of another type", "is I32 [8 8 16]: want I16", tiles("I32", 8, 8, 16)},
		{"a stack of tiles", "is I16 [2 8 8 32]: want I16", tiles("I16", 2, 8, 8, 32)},
		{"no tiles", "shape [8 0 32] has no elements", tiles("I16", 8, 0, 32)},
		{"half a block", "8×4 tiles of 16: want multiples of 8", tiles("I16", 8, 4, 32)},
		{"odd words", "tiles of 33 words: want 16", tiles("I16", 8, 8, 33)},
		{"nine bits", "9 bits a weight: codebook 3inst has none", tiles("I16", 8, 8, 144)},
		{"half bits of another codebook", "2.5 bits a weight: codebook 3inst has none", tiles("I16", 8, 8, 40)},
		{"no factors of inputs", `tensor "a.trellis" in model.safetensors: no factors: want a tensor "a.suh"`, without(".suh")},
		{"no factors of outputs", `no factors: want a tensor "a.svh"`, without(".svh")},
		{"factors of another shape", `tensor "a.suh" in model.safetensors: is F16 [256]: want [F16] [128]`, without(".suh", sourcetest.F16("a.suh", []int{256}, make([]float32, 256)...))},
		{"factors of another type", "is BF16 [128]: want [F16] [128]", without(".svh", sourcetest.Of[uint16]("a.svh", "BF16", []int{128}))},
		{"signs of another shape", "is I16 [128]: want [I16] [8]", without(".suh", sourcetest.Of[uint16]("a.su", "I16", []int{128}))},
		{"a factor of NaN", `tensor "a.suh" in model.safetensors: element 5 is not finite: want a factor`, without(".suh", sourcetest.F16("a.suh", []int{128}, nan...))},
		{"a scale of NaN", `tensor "a.svh" in model.safetensors: element 5 is not finite: want a factor`, without(".svh", sourcetest.F16("a.svh", []int{128}, nan...))},
		{"factors without tiles", `tensor "a.suh" in model.safetensors: no tensor "a.trellis" beside it`, without(".trellis")},
		{"two codebooks", `is there, and "a.mcg" as well`, with(sourcetest.Of[uint32]("a.mcg", "I32", nil, mcgMark), sourcetest.Of[uint32]("a.mul1", "I32", nil, mul1Mark))},
		{"an unknown codebook", `tensor "a.mul1" in model.safetensors: is 0x7, which is no codebook that is known: want 0x83dcd12d`, with(sourcetest.Of[uint32]("a.mul1", "I32", nil, 7))},
		{"a marker of two", "is I32 [2]: want one I32", with(sourcetest.Of[uint32]("a.mul1", "I32", []int{2}))},
		{"rows of an embedding", "are rows of an embedding", with(sourcetest.Of[uint16]("a.signs", "I16", []int{8}))},
		{"a weight beside it", `stores "a.weight", which is there as well`, with(sourcetest.Of[uint16]("a.weight", "BF16", []int{128, 128}))},
		{"a bias of another length", "shape [64]: want [128]", with(sourcetest.F16("a.bias", []int{64}, make([]float32, 64)...))},
	} {
		t.Run(tt.name, func(t *testing.T) { sourcetest.Refuses(t, Scheme{}, tt.want, config, tt.tensors...) })
	}
	sourcetest.Refuses(t, Scheme{}, `config.json: quantization_config: codebook "lut_e4m3" is not supported: want mul1, mcg or 3inst`,
		`{"quantization_config": {"quant_method": "exl3", "codebook": "lut_e4m3"}}`, with()...)
}

// TestKnown: a folder is known by its tensors where config.json says nothing, and not where it names another format.
func TestKnown(t *testing.T) {
	tensors := stored("a", []int{8, 8, 32}, nil, make([]float32, 128), make([]float32, 128))
	if v := sourcetest.Values(t, Scheme{}, "a.weight", `{}`, tensors...); len(v) != 128*128 {
		t.Errorf("%d weights", len(v))
	}
	if _, ok, err := (Scheme{}).Decode(&hf.Stored{Key: "quantization_config", Method: "gptq"}); ok || err != nil {
		t.Errorf("a folder of GPTQ is decoded: %v", err)
	}
}
