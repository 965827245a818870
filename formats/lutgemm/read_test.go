package lutgemm

import (
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Layout{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Layout{}) }

const config = `{"quantization_config": {"quant_method": "lutgemm"}}`

// TestValues adds up factors in their order: + where a bit is set.
func TestValues(t *testing.T) {
	planes := sourcetest.Of[uint32]("a.bWeight", "I32", []int{1, 2, 2}, 0b0101, 0, 0b0011, 0x80000000)
	alphas := sourcetest.F16("a.alpha", []int{1, 2, 2}, 4, 1, 0.5, 0.25)
	bias := sourcetest.F16("a.q_bias", []int{1, 2}, 8, 0)
	v := sourcetest.Values(t, Layout{}, "a.weight", config, planes, alphas, bias)
	sourcetest.Equal(t, v[:4], 12.5, 4.5, 11.5, 3.5)
	sourcetest.Equal(t, v[62:], -1.25, -0.75)
	v = sourcetest.Values(t, Layout{}, "a.weight", config, planes, alphas)
	sourcetest.Equal(t, v[:4], 4.5, -3.5, 3.5, -4.5)
}

func TestRefuses(t *testing.T) {
	planes := sourcetest.Of[int32]("a.bWeight", "I32", []int{6, 3, 4})
	alphas := sourcetest.Of[uint16]("a.alpha", "F16", []int{2, 3, 4})
	infinite := sourcetest.Of[uint16]("a.q_bias", "F16", []int{1, 2}, 0, 0x7c00)
	for _, tt := range []struct {
		name, want string
		tensors    []sourcetest.Tensor
	}{
		{"dimensions", "is I32 [6 4]: want I32 [k/32, 1 to 8 planes, n]", []sourcetest.Tensor{sourcetest.Of[int32]("a.bWeight", "I32", []int{6, 4}), alphas}},
		{"type", "is I64 [6 3 4]: want I32", []sourcetest.Tensor{sourcetest.Of[int64]("a.bWeight", "I64", []int{6, 3, 4}), alphas}},
		{"planes", "is I32 [6 9 4]: want I32", []sourcetest.Tensor{sourcetest.Of[int32]("a.bWeight", "I32", []int{6, 9, 4}), alphas}},
		{"nothing", "is I32 [0 3 4]: want I32", []sourcetest.Tensor{sourcetest.Of[int32]("a.bWeight", "I32", []int{0, 3, 4}), alphas}},
		{"no factors", `tensor "a.bWeight" in model.safetensors: no factors: want a tensor "a.alpha"`, []sourcetest.Tensor{planes}},
		{"groups", `tensor "a.alpha" in model.safetensors: shape [4 3 4]: want [groups, planes, n] for groups of whole words of [6 3 4]`, []sourcetest.Tensor{planes, sourcetest.Of[uint16]("a.alpha", "F16", []int{4, 3, 4})}},
		{"shape of factors", "is F16 [2 4 3]: want [F16] [2 3 4]", []sourcetest.Tensor{planes, sourcetest.Of[uint16]("a.alpha", "F16", []int{2, 4, 3})}},
		{"type of factors", "is F32 [2 3 4]: want [F16] [2 3 4]", []sourcetest.Tensor{planes, sourcetest.Of[float32]("a.alpha", "F32", []int{2, 3, 4})}},
		{"shape of offsets", "is F16 [1 2]: want [F16] [2 4]", []sourcetest.Tensor{planes, alphas, infinite}},
		{"offset", "element 1 is +Inf: want a scale", []sourcetest.Tensor{sourcetest.Of[int32]("a.bWeight", "I32", []int{1, 1, 2}), sourcetest.Of[uint16]("a.alpha", "F16", []int{1, 1, 2}), infinite}},
		{"rows", "it has 3 rows and 32 columns: want multiples of 2 and 32", []sourcetest.Tensor{sourcetest.Of[int32]("a.bWeight", "I32", []int{1, 1, 3}), sourcetest.Of[uint16]("a.alpha", "F16", []int{1, 1, 3})}},
	} {
		t.Run(tt.name, func(t *testing.T) { sourcetest.Refuses(t, Layout{}, tt.want, config, tt.tensors...) })
	}
}
