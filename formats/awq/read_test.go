package awq

import (
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const text = `{"quantization_config": {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 2}}`

// words are two columns of eight rows, of which the first is 0 to 7 in the places of its words.
func words() sourcetest.Tensor {
	return sourcetest.Of[uint32]("a.qweight", "I32", []int{2, 1}, 0x76543210, 0xffffffff)
}

func scales() sourcetest.Tensor {
	return sourcetest.F16("a.scales", []int{1, 8}, 1, 1, 1, 1, 1, 1, 1, 2)
}

// TestOrder: neighbouring rows lie four places apart.
func TestOrder(t *testing.T) {
	zeros := sourcetest.Of[uint32]("a.qzeros", "I32", []int{1, 1}, 0xf0000000) // of row 7
	v := sourcetest.Values(t, Scheme{}, "a.weight", text, words(), zeros, scales())
	sourcetest.Equal(t, v, 0, 15, 4, 15, 1, 15, 5, 15, 2, 15, 6, 15, 3, 15, -16, 0)
}

// TestZeroPoint: what config.json says of zero points is so, or the layer is refused: what AutoAWQ writes without them
// is for kernels that have none.
func TestZeroPoint(t *testing.T) {
	with, without := strings.Replace(text, `"bits"`, `"zero_point": true, "bits"`, 1), strings.Replace(text, `"bits"`, `"zero_point": false, "bits"`, 1)
	zeros := func(z uint32) sourcetest.Tensor { return sourcetest.Of("a.qzeros", "I32", []int{1, 1}, z) }
	middle := []float32{-8, 7, -4, 7, -7, 7, -3, 7, -6, 7, -2, 7, -5, 7, -2, 14}
	for _, tensors := range [][]sourcetest.Tensor{{words(), scales()}, {words(), scales(), zeros(0x88888888)}} {
		sourcetest.Equal(t, sourcetest.Values(t, Scheme{}, "a.weight", without, tensors...), middle...)
	}
	sourcetest.Equal(t, sourcetest.Values(t, Scheme{}, "a.weight", with, words(), scales(), zeros(0x88888888)), middle...)
	sourcetest.Refuses(t, Scheme{}, `tensor "a.qzeros" in model.safetensors: has zero points of its own, and config.json says zero_point: false`, without, words(), scales(), zeros(0x88888887))
	sourcetest.Refuses(t, Scheme{}, `says zero_point: false`, without, words(), scales(), zeros(0))
	sourcetest.Refuses(t, Scheme{}, `config.json says zero_point: true, and there are none: want a tensor "a.qzeros"`, with, words(), scales())
}

func TestRefuses(t *testing.T) {
	refuses := func(want, text string, tensors ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, text, tensors...)
	}
	refuses(`version "GEMV" with 4 bits is not supported`, `{"quantization_config": {"quant_method": "awq", "version": "GEMV", "bits": 4}}`, words())
	refuses("with 3 bits is not supported", `{"quantization_config": {"quant_method": "awq", "version": "gemm", "bits": 3}}`, words())
	refuses("want bits and group_size as numbers", `{"quantization_config": {"quant_method": "awq", "bits": []}}`, words())
	refuses(`no scales: want a tensor "a.scales"`, text, words())
	refuses("config.json has groups of 0 weights", `{"quantization_config": {"quant_method": "awq", "bits": 4}}`, words(), scales())
	refuses(`tensor "a.scales" in model.safetensors: is F16 [1 4]: want [F16 BF16 F32] [1 8]`, text, words(), sourcetest.F16("a.scales", []int{1, 4}, 1, 1, 1, 1))
	refuses("a.qzeros", text, words(), scales(), sourcetest.Of[uint32]("a.qzeros", "I32", []int{2, 1}))
	refuses("stacks of matrices are not supported", text, sourcetest.Of[uint32]("a.qweight", "I32", []int{1, 2, 1}))
}
