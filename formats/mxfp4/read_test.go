package mxfp4

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const config = `{"quantization_config": {"quant_method": "mxfp4"}}`

// TestStacks decodes matrices and stacks of any shape.
func TestStacks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		stored := []int{rapid.IntRange(1, 9).Draw(rt, "n"), rapid.IntRange(1, 5).Draw(rt, "blocks")}
		if rapid.Bool().Draw(rt, "stack") {
			stored = append([]int{rapid.IntRange(1, 3).Draw(rt, "experts")}, stored...)
		}
		count := 1
		for _, d := range stored {
			count *= d
		}
		codes, scales := make([]uint8, 16*count), make([]uint8, count)
		for i := range codes {
			codes[i] = uint8(r.Uint32())
		}
		for i := range scales {
			scales[i] = uint8(r.IntN(253)) // the largest that is finite in float32
		}
		levels := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}
		var want []float32
		for i, b := range codes {
			s := float32(math.Ldexp(1, int(scales[i/16])-127))
			want = append(want, levels[b%16]*s, levels[b/16]*s)
		}
		got := sourcetest.Values(t, Scheme{}, "a", config,
			sourcetest.Of("a_scales", "U8", stored, scales...),
			sourcetest.Of("a_blocks", "U8", append(slices.Clone(stored), 16), codes...),
			sourcetest.Of[uint16]("a_bias", "BF16", []int{1}, 1))
		sourcetest.Equal(t, got, want...)
	})
}

func TestRefuses(t *testing.T) {
	u8 := func(name string, shape ...int) sourcetest.Tensor { return sourcetest.Of[uint8](name, "U8", shape) }
	for _, tt := range []struct {
		name, want string
		tensors    []sourcetest.Tensor
	}{
		{"no scales", `tensor "a_blocks" in model.safetensors: no scales: want a tensor "a_scales"`, []sourcetest.Tensor{u8("a_blocks", 2, 1, 16)}},
		{"no blocks", `tensor "a_scales" in model.safetensors: is the scales of "a_blocks"`, []sourcetest.Tensor{u8("a_scales", 2, 1)}},
		{"blocks of another size", "want blocks of 16 bytes", []sourcetest.Tensor{u8("a_blocks", 2, 1, 8), u8("a_scales", 2, 1)}},
		{"blocks of a vector", "want blocks of 16 bytes", []sourcetest.Tensor{u8("a_blocks", 2, 16), u8("a_scales", 2)}},
		{"scales of another shape", `scales "a_scales" are U8 [1 2]: want U8 [2 1]`, []sourcetest.Tensor{u8("a_blocks", 2, 1, 16), u8("a_scales", 1, 2)}},
		{"scales of another type", `scales "a_scales" are BF16`, []sourcetest.Tensor{u8("a_blocks", 2, 1, 16), sourcetest.Of[uint16]("a_scales", "BF16", []int{2, 1})}},
		{"stored twice", `stores "a", which is there as well`, []sourcetest.Tensor{sourcetest.Of[uint16]("a", "BF16", []int{2}), u8("a_blocks", 2, 1, 16), u8("a_scales", 2, 1)}},
		{"too large", "is too large", []sourcetest.Tensor{u8("a_blocks", 0, 1<<32, 16), u8("a_scales", 0, 1<<32)}},
		{"empty", "has no elements", []sourcetest.Tensor{u8("a_blocks", 0, 1, 16), u8("a_scales", 0, 1)}},
		{"scale of NaN", `tensor "a_scales" in model.safetensors: element 0 is NaN`, []sourcetest.Tensor{u8("a_blocks", 1, 1, 16), sourcetest.Of[uint8]("a_scales", "U8", []int{1, 1}, 255)}},
	} {
		t.Run(tt.name, func(t *testing.T) { sourcetest.Refuses(t, Scheme{}, tt.want, config, tt.tensors...) })
	}
	// What another scheme stores is left to it.
	if _, ok, err := (Scheme{}).Decode(&hf.Stored{Method: "gptq"}); ok || err != nil {
		t.Errorf("a folder of GPTQ is decoded: %v", err)
	}
}
