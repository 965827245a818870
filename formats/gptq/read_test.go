package gptq

import (
	"math"
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const (
	v1          = `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": false}}`
	v1Symmetric = `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": true}}`
	v2Symmetric = `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": true, "checkpoint_format": "gptq_v2"}}`
	v2          = `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": false, "checkpoint_format": "gptq_v2"}}`
)

// columnsOfEight are 8 columns of one row: 0 to 7, and 8 to 15 of another.
func columnsOfEight() sourcetest.Tensor {
	return sourcetest.Of[uint32]("a.qweight", "I32", []int{1, 2}, 0x76543210, 0xfedcba98)
}

func zerosOf(groups ...uint32) sourcetest.Tensor {
	return sourcetest.Of("a.qzeros", "I32", []int{2, 1}, groups...)
}

func scalesOf() sourcetest.Tensor { return sourcetest.F16("a.scales", []int{2, 2}, 1, 2, 0.5, -1) }

func indexOf(groups ...int32) sourcetest.Tensor {
	return sourcetest.Of("a.g_idx", "I32", []int{8}, groups...)
}

// TestZeroPoints: version 1 stores them less 1, so that 0 is stored as the largest.
func TestZeroPoints(t *testing.T) {
	straight := indexOf(0, 0, 0, 0, 1, 1, 1, 1)
	// Row 0 has zeros 0 and 3, row 1 has 8 and 15.
	want := []float32{0, 1, 2, 3, 0.5, 1, 1.5, 2, 0, 2, 4, 6, 3, 2, 1, float32(math.Copysign(0, -1))}
	v := sourcetest.Values(t, Scheme{}, "a.weight", v1, columnsOfEight(), zerosOf(0x7f, 0xe2), scalesOf(), straight)
	sourcetest.Equal(t, v, want...)
	v = sourcetest.Values(t, Scheme{}, "a.weight", v2, columnsOfEight(), zerosOf(0x80, 0xf3), scalesOf(), straight)
	sourcetest.Equal(t, v, want...)
}

// TestReordered: the group of a column is the one that g_idx has, whatever its place.
func TestReordered(t *testing.T) {
	v := sourcetest.Values(t, Scheme{}, "a.weight", v2, columnsOfEight(), zerosOf(0, 0), scalesOf(), indexOf(1, 0, 1, 0, 1, 0, 1, 0))
	sourcetest.Equal(t, v[:8], 0, 1, 1, 3, 2, 5, 3, 7)
}

// TestWithoutZeros: codes are around the middle, and columns in their order.
func TestWithoutZeros(t *testing.T) {
	v := sourcetest.Values(t, Scheme{}, "a.weight", v1Symmetric, columnsOfEight(), scalesOf())
	sourcetest.Equal(t, v, -8, -7, -6, -5, -2, -1.5, -1, -0.5, 0, 2, 4, 6, -4, -5, -6, -7)
}

// TestSymmetric: zero points that config.json calls symmetric are 8 for all programs, whichever version they are stored
// in, or they are refused: GPTQModel 7.0's Marlin takes 8 for them, its Torch kernel what is stored (read
// as version 1 with 8 stored: 9), which gave perplexities of e^5.221 and e^6.816.
func TestSymmetric(t *testing.T) {
	want := []float32{-8, -7, -6, -5, -2, -1.5, -1, -0.5, 0, 2, 4, 6, -4, -5, -6, -7}
	for _, config := range []string{v1Symmetric, v2Symmetric} {
		for _, zeros := range []uint32{0x77, 0x88} {
			v := sourcetest.Values(t, Scheme{}, "a.weight", config, columnsOfEight(), zerosOf(zeros, zeros), scalesOf())
			sourcetest.Equal(t, v, want...)
		}
		for _, zeros := range []sourcetest.Tensor{zerosOf(0x88, 0x89), zerosOf(0x78, 0x88), zerosOf(0x66, 0x66), zerosOf(0x99, 0x99)} {
			sourcetest.Refuses(t, Scheme{}, `tensor "a.qzeros" in model.safetensors: has zero points of its own, and config.json says sym: true`, config, columnsOfEight(), zeros, scalesOf())
		}
	}
	sourcetest.Refuses(t, Scheme{}, `config.json says sym: false, and there are no zero points: want a tensor "a.qzeros"`, v1, columnsOfEight(), scalesOf())
	// Nothing is said, or something else of this layer: what is stored counts.
	for _, config := range []string{
		`{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4}}`,
		`{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": null}}`,
		`{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4, "sym": true, "dynamic": {"+:b": {"sym": true}, "+:a": {"sym": false}}}}`,
	} {
		v := sourcetest.Values(t, Scheme{}, "a.weight", config, columnsOfEight(), zerosOf(0x88, 0x88), scalesOf())
		sourcetest.Equal(t, v[:8], -9, -8, -7, -6, -2.5, -2, -1.5, -1)
	}
}

func TestRefuses(t *testing.T) {
	refuses := func(want, config string, tensors ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, config, tensors...)
	}
	refuses(`checkpoint_format "marlin" is not supported`, `{"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}}`, columnsOfEight())
	refuses("want bits and group_size as numbers", `{"quantization_config": {"quant_method": "gptq", "bits": "four"}}`, columnsOfEight())
	refuses(`tensor "a.qweight" in model.safetensors: no scales: want a tensor "a.scales"`, v1, columnsOfEight())
	refuses("shape [2 1]: want [groups, n] for codes of [1 2]", v1, columnsOfEight(), sourcetest.F16("a.scales", []int{2, 1}, 1, 1))
	refuses("5 groups of 8 columns, in config.json of 4", v1, columnsOfEight(), sourcetest.F16("a.scales", []int{5, 2}, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), indexOf(0, 0, 0, 0, 1, 1, 1, 1))
	refuses("column 7 is in group 2 of 2", v1, columnsOfEight(), zerosOf(0, 0), scalesOf(), indexOf(0, 0, 0, 0, 1, 1, 1, 2))
	refuses("column 0 is in group -1 of 2", v1, columnsOfEight(), zerosOf(0, 0), scalesOf(), indexOf(-1, 0, 0, 0, 1, 1, 1, 1))
	refuses("32 columns in 1 words are no codes", v1, columnsOfEight(), scalesOf(), sourcetest.Of[int32]("a.g_idx", "I32", []int{32}))
	refuses("a.qzeros", v1, columnsOfEight(), sourcetest.Of[uint32]("a.qzeros", "I32", []int{1, 1}, 0), scalesOf())
	refuses("stacks of matrices are not supported", v1, sourcetest.Of[uint32]("a.qweight", "I32", []int{2, 1, 1}, 0, 0), scalesOf())
	inf := sourcetest.Of[uint16]("a.scales", "F16", []int{2, 2}, 0x3c00, 0x3c00, 0x3c00, 0x7c00)
	refuses(`tensor "a.scales" in model.safetensors: element 3 is +Inf: want a scale`, v1Symmetric, columnsOfEight(), inf)
	refuses("scales of type I64", v1, columnsOfEight(), sourcetest.Of[int64]("a.scales", "I64", []int{2, 2}))
}
