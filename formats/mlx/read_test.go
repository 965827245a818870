package mlx

import (
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const config = `{"quantization": {"group_size": 4, "bits": 4}}`

func words() sourcetest.Tensor {
	return sourcetest.Of[uint32]("a.weight", "U32", []int{1, 1}, 0x76543210)
}

func part(name string, v ...float32) sourcetest.Tensor {
	return sourcetest.F16(name, []int{1, len(v)}, v...)
}

func TestAffine(t *testing.T) {
	v := sourcetest.Values(t, Scheme{}, "a.weight", config, words(), part("a.scales", 1, -2), part("a.biases", -8, 0.5))
	sourcetest.Equal(t, v, -8, -7, -6, -5, -7.5, -9.5, -11.5, -13.5)
	// What a layer has of its own replaces what holds for all.
	own := `{"quantization": {"group_size": 4, "bits": 4, "a": {"group_size": 2, "bits": 8}, "b": false}}`
	v = sourcetest.Values(t, Scheme{}, "a.weight", own, words(), part("a.scales", 1, 2), part("a.biases", 0, 0))
	sourcetest.Equal(t, v, 0x10, 0x32, 2*0x54, 2*0x76)
}

// TestTwoKeys: mlx-lm 0.32 writes what holds under two keys, and reads one of them.
func TestTwoKeys(t *testing.T) {
	const both = `{"quantization_config": {"group_size": 2, "bits": 8}, "quantization": {"group_size": 4, "bits": 4}}`
	v := sourcetest.Values(t, Scheme{}, "a.weight", both, words(), part("a.scales", 1, -2), part("a.biases", -8, 0.5))
	sourcetest.Equal(t, v, -8, -7, -6, -5, -7.5, -9.5, -11.5, -13.5)
}

func TestRefuses(t *testing.T) {
	refuses := func(want, config string, tensors ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, config, tensors...)
	}
	scales, biases := part("a.scales", 1, 1), part("a.biases", 0, 0)
	refuses(`no scales: want a tensor "a.scales"`, config, words(), biases)
	refuses(`no biases: want a tensor "a.biases"`, config, words(), scales)
	refuses("a.biases", config, words(), scales, part("a.biases", 0))
	refuses("rows of 1 words are no groups of 5 codes of 4 bits", `{"quantization": {"group_size": 5, "bits": 4}}`, words(), scales, biases)
	refuses("config.json stores it in 9 bits", `{"quantization": {"group_size": 4, "bits": 9}}`, words(), scales, biases)
	refuses("want 2 to 6 or 8", `{"quantization": {"group_size": 8, "bits": 1}}`, words(), scales, biases)
	refuses(`in mode "mxfp8"`, `{"quantization": {"group_size": 4, "bits": 4, "mode": "mxfp8"}}`, words(), scales, biases)
	refuses("as nvfp4 in 8 bits", `{"quantization": {"group_size": 4, "bits": 8, "mode": "nvfp4"}}`, words(), scales)
	refuses("want bits and group_size as numbers", `{"quantization": {"group_size": "4", "bits": 4}}`, words())
	refuses(`is the scales of "b", whose weights are not there in U32`, config, words(), scales, biases, part("b.scales", 1))
	refuses("stacks of them are not supported", config, sourcetest.Of[uint32]("a.weight", "U32", []int{1, 1, 1}), scales, biases)
}
