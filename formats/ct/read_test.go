package ct

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

// textOf is a config.json with one group of layers.
func textOf(format, weights string) string {
	return fmt.Sprintf(`{"quantization_config": {"quant_method": "compressed-tensors", "format": %q, "config_groups": {"a": {"targets": ["Linear"], "weights": {%s}}}}}`,
		format, weights)
}

func shapeOf(n, k int64) sourcetest.Tensor {
	return sourcetest.Of("a.weight_shape", "I64", []int{2}, n, k)
}

// TestPackings: codes of 3 bits lie in words of ten, or run on from word to word, as the width of
// a row tells.
func TestPackings(t *testing.T) {
	config := textOf(packed, `"num_bits": 3, "type": "int", "strategy": "channel"`)
	scale := sourcetest.F16("a.weight_scale", []int{1, 1}, 1)
	whole, stream := make([]uint32, 4), make([]uint32, 3)
	var want []float32
	for i := range 32 {
		c := uint32(i * i % 7)
		want = append(want, float32(c)-4)
		whole[i/10] |= c << (i % 10 * 3)
		for b := range 3 {
			stream[(3*i+b)/32] |= (c >> b & 1) << ((3*i + b) % 32)
		}
	}
	for _, words := range [][]uint32{whole, stream} {
		v := sourcetest.Values(t, Scheme{}, "a.weight", config, sourcetest.Of("a.weight_packed", "I32", []int{1, len(words)}, words...), scale, shapeOf(1, 32))
		sourcetest.Equal(t, v, want...)
	}
	// 20 codes are two words either way.
	sourcetest.Refuses(t, Scheme{}, "may be packed in two ways", config, sourcetest.Of[uint32]("a.weight_packed", "I32", []int{1, 2}), scale, shapeOf(1, 20))
}

// TestGlobalScale: that of NVFP4 divides here, and the lower four bits of a byte come first.
func TestGlobalScale(t *testing.T) {
	v := sourcetest.Values(t, Scheme{}, "a.weight", textOf(nvfp4, `"num_bits": 4, "type": "float"`),
		sourcetest.Of[uint8]("a.weight_packed", "U8", []int{1, 8}, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe),
		sourcetest.Of[uint8]("a.weight_scale", "F8_E4M3", []int{1, 1}, 0x40), // 2
		sourcetest.Of[float32]("a.weight_global_scale", "F32", []int{1}, 4))
	sourcetest.Equal(t, v[1:8], 0.25, 0.5, 0.75, 1, 1.5, 2, 3)
	sourcetest.Equal(t, v[9:], -0.25, -0.5, -0.75, -1, -1.5, -2, -3)
}

// TestSymmetric: what config.json says of zero points and of columns that are reordered is so, or the layer is refused:
// transformers 5.24 with compressed-tensors 0.17 reads zero points only where symmetric is false, and then takes 0 for
// the codes in the middle where none are stored (a perplexity of e^11.29 for e^5.22).
func TestSymmetric(t *testing.T) {
	const four = `"num_bits": 4, "type": "int", "strategy": "group", "group_size": 4`
	zeros := func(z ...uint32) sourcetest.Tensor {
		return sourcetest.Of("a.weight_zero_point", "I32", []int{1, 2}, z...)
	}
	order := func(groups ...int32) sourcetest.Tensor {
		return sourcetest.Of("a.weight_g_idx", "I32", []int{8}, groups...)
	}
	words, scale := sourcetest.Of[uint32]("a.weight_packed", "I32", []int{1, 1}, 0x76543210), sourcetest.F16("a.weight_scale", []int{1, 2}, 1, 2)
	values := func(config string, more ...sourcetest.Tensor) []float32 {
		t.Helper()
		return sourcetest.Values(t, Scheme{}, "a.weight", textOf(packed, config), append(more, words, scale, shapeOf(1, 8))...)
	}
	refuses := func(want, config string, more ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, textOf(packed, config), append(more, words, scale, shapeOf(1, 8))...)
	}
	middle := []float32{-8, -7, -6, -5, -8, -6, -4, -2}
	for _, config := range []string{four, four + `, "symmetric": true`, four + `, "symmetric": null`} {
		sourcetest.Equal(t, values(config), middle...)
		sourcetest.Equal(t, values(config, zeros(8, 8)), middle...)
		refuses(`tensor "a.weight_zero_point" in model.safetensors: has zero points of its own, and config.json says symmetric: true`, config, zeros(8, 9))
		refuses(`says symmetric: true`, config, zeros(0, 0))
	}
	sourcetest.Equal(t, values(four+`, "symmetric": false`, zeros(0, 1)), 0, 1, 2, 3, 6, 8, 10, 12)
	refuses(`config.json says symmetric: false, and there are no zero points: want a tensor "a.weight_zero_point"`, four+`, "symmetric": false`)
	for _, none := range []string{four, four + `, "actorder": null`, four + `, "actorder": "weight"`} {
		sourcetest.Equal(t, values(none, order(-1, -1, -1, -1, -1, -1, -1, -1)), middle...)
		sourcetest.Equal(t, values(none, order(0, 0, 0, 0, 1, 1, 1, 1)), middle...)
		refuses("config.json has no actorder for them", none, order(1, 0, 0, 0, 0, 1, 1, 1))
	}
	sourcetest.Equal(t, values(four+`, "actorder": "group"`, order(1, 0, 0, 0, 0, 1, 1, 1)), -16, -7, -6, -5, -4, -6, -4, -2)
	// Bytes are signed.
	bytes := func(config string, more ...sourcetest.Tensor) ([]sourcetest.Tensor, string) {
		return append(more, sourcetest.Of[uint8]("a.weight", "I8", []int{1, 2}, 3, 0xff), sourcetest.F16("a.weight_scale", []int{1, 1}, 2)), textOf(ints, `"num_bits": 8, "type": "int", `+config)
	}
	all, config := bytes(`"symmetric": true`, sourcetest.Of[uint8]("a.weight_zero_point", "I8", []int{1, 1}, 0))
	sourcetest.Equal(t, sourcetest.Values(t, Scheme{}, "a.weight", config, all...), 6, -2)
	all, config = bytes(`"symmetric": true`, sourcetest.Of[uint8]("a.weight_zero_point", "I8", []int{1, 1}, 1))
	sourcetest.Refuses(t, Scheme{}, `says symmetric: true`, config, all...)
	all, config = bytes(`"symmetric": false`)
	sourcetest.Refuses(t, Scheme{}, `says symmetric: false`, config, all...)
}

func TestRefuses(t *testing.T) {
	refuses := func(want, config string, tensors ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, config, tensors...)
	}
	const four = `"num_bits": 4, "type": "int", "strategy": "channel"`
	config := textOf(packed, four)
	words := sourcetest.Of[uint32]("a.weight_packed", "I32", []int{2, 1})
	scale := sourcetest.F16("a.weight_scale", []int{2, 1}, 1, 1)
	refuses(`no scale: want a tensor "a.weight_scale"`, config, words)
	refuses(`no shape: want a tensor "a.weight_shape"`, config, words, scale)
	refuses("is [0 8]: want the shape of a matrix", config, words, scale, shapeOf(0, 8))
	refuses("element 1 is 4294967296", config, words, scale, shapeOf(2, 1<<32))
	refuses("is I32 [2 1]: want [I32] [2 2]", config, words, scale, shapeOf(2, 16))
	refuses("a.weight_scale", config, words, sourcetest.F16("a.weight_scale", []int{2, 2}, 1, 1, 1, 1), shapeOf(2, 8))
	refuses("a.weight_zero_point", config, words, scale, shapeOf(2, 8), sourcetest.Of[uint32]("a.weight_zero_point", "I32", []int{2, 1}))
	refuses("column 0 is in group 1 of 1", textOf(packed, four+`, "actorder": "group"`), words, scale, shapeOf(2, 8), sourcetest.Of[int32]("a.weight_g_idx", "I32", []int{8}, 1, 0, 0, 0, 0, 0, 0, 0))
	refuses("stores it in 9 bits", textOf(packed, `"num_bits": 9, "type": "int", "strategy": "channel"`), words, scale, shapeOf(2, 8))
	refuses(`scales per "tensor"`, textOf(packed, `"num_bits": 4, "type": "int", "strategy": "tensor"`), words, scale, shapeOf(2, 8))
	refuses(`as "pack-quantized" of type "float", which is not supported`, textOf(packed, `"num_bits": 4, "type": "float"`), words, scale)
	refuses("stacks of them are not supported", config, sourcetest.Of[uint32]("a.weight_packed", "I32", []int{1, 2, 1}), scale)
	refuses("no group says how weights are stored", `{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}`, words, scale)
	refuses("is no pattern that is understood", `{"compression_config": {"format": "pack-quantized", "config_groups": {"a": {"targets": ["re:("], "weights": {}}}}}`, words)
	refuses("is in no group", `{"compression_config": {"format": "pack-quantized", "config_groups": {"a": {"targets": ["re:b"], "weights": {}}}}}`, words)
	refuses(`is the scale of "b", whose weights are not there`, config, sourcetest.F16("b.weight_scale", []int{1, 1}, 1))
	nibbles := sourcetest.Of[uint8]("a.weight_packed", "U8", []int{1, 8})
	byte1 := sourcetest.Of[uint8]("a.weight_scale", "F8_E4M3", []int{1, 1}, 0x38)
	nv := textOf(nvfp4, `"num_bits": 4, "type": "float"`)
	refuses(`no scale of all weights: want a tensor "a.weight_global_scale"`, nv, nibbles, byte1)
	refuses("is 0: want a number above 0 to divide by", nv, nibbles, byte1, sourcetest.Of[float32]("a.weight_global_scale", "F32", []int{1}, 0))
	refuses("with k a multiple of 32", textOf(mxfp4, ""), nibbles, byte1)
}
