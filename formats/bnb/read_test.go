package bnb

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const in4Bits = `{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}`

func stateOf(text string) sourcetest.Tensor {
	return sourcetest.Of("a.weight.quant_state.bitsandbytes__nf4", "U8", []int{len(text)}, []uint8(text)...)
}

func table() sourcetest.Tensor {
	v := make([]float32, 16)
	for i := range v {
		v[i] = float32(i)
	}
	return sourcetest.Of("a.weight.quant_map", "F32", []int{16}, v...)
}

func packed(codes ...uint8) sourcetest.Tensor {
	return sourcetest.Of("a.weight", "U8", []int{len(codes), 1}, codes...)
}

func absmax(v ...float32) sourcetest.Tensor {
	return sourcetest.Of("a.weight.absmax", "F32", []int{len(v)}, v...)
}

// TestBlocks: the first of two codes is in the higher bits, and blocks run on from row to row.
func TestBlocks(t *testing.T) {
	q := stateOf(`{"quant_type": "nf4", "blocksize": 4, "shape": [3, 3], "dtype": "float32"}`)
	v := sourcetest.Values(t, Scheme{}, "a.weight", in4Bits, packed(0x01, 0x23, 0x45, 0x67, 0x80), absmax(1, 10, -1), table(), q)
	sourcetest.Equal(t, v, 0, 1, 2, 3, 40, 50, 60, 70, -8)
}

// TestNested: scales have a table, a scale for each 256 and an offset, which here are 2.
func TestNested(t *testing.T) {
	inner := make([]float32, 256)
	inner[7], inner[8] = 0.5, -0.5
	v := sourcetest.Values(t, Scheme{}, "a.weight", in4Bits, packed(0x12, 0x34, 0x56), table(),
		stateOf(`{"quant_type": "nf4", "blocksize": 2, "shape": [1, 6], "nested_blocksize": 2, "nested_offset": 3.0}`),
		sourcetest.Of[uint8]("a.weight.absmax", "U8", []int{3}, 7, 8, 7),
		sourcetest.Of("a.weight.nested_quant_map", "F32", []int{256}, inner...),
		sourcetest.Of[float32]("a.weight.nested_absmax", "F32", []int{2}, 2, 4))
	sourcetest.Equal(t, v, 4, 8, 3*2, 4*2, 5*5, 6*5)
}

func TestRefuses(t *testing.T) {
	refuses := func(want string, tensors ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, in4Bits, tensors...)
	}
	good := `{"quant_type": "nf4", "blocksize": 2, "shape": [1, 4]}`
	refuses("want JSON with the blocksize", stateOf(``))
	refuses("want JSON with the blocksize", stateOf(`{"blocksize": "2"}`))
	refuses("want JSON with the blocksize", stateOf(`{"blocksize": 0, "shape": [1, 4]}`))
	refuses("shape [0 4]: want that of a matrix", stateOf(`{"blocksize": 2, "shape": [0, 4]}`))
	refuses(`no tensor "a.weight`, stateOf(good))
	refuses("1 bytes: want half as many as weights of [1 4]", stateOf(good), packed(0), absmax(1, 1), table())
	refuses(`tensor "a.weight.absmax" in model.safetensors: is F32 [1]: want [F32] [2]`, stateOf(good), packed(0, 0), absmax(1), table())
	refuses(`quant_type "int8": want nf4 or fp4`, stateOf(fmt.Sprintf(`{"quant_type": "int8", %s`, good[22:])), packed(0, 0), absmax(1, 1), table())
	nested := stateOf(`{"quant_type": "nf4", "blocksize": 2, "shape": [1, 4], "nested_blocksize": 256}`)
	refuses(`no tensors "a.weight.nested_absmax" and`, nested, packed(0, 0), absmax(1, 1), table())
}
