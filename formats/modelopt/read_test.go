package modelopt

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }

const config = `{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}`

func layer() []sourcetest.Tensor {
	return []sourcetest.Tensor{
		sourcetest.Of[uint8]("a.weight", "U8", []int{1, 8}, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe),
		sourcetest.Of[uint8]("a.weight_scale", "F8_E4M3", []int{1, 1}, 0x40), // 2
		sourcetest.Of[float32]("a.weight_scale_2", "F32", nil, 4),
	}
}

// TestSecondScale: it multiplies, where that of compressed-tensors divides; and the lower four
// bits of a byte come first.
func TestSecondScale(t *testing.T) {
	v := sourcetest.Values(t, Scheme{}, "a.weight", config, layer()...)
	sourcetest.Equal(t, v[1:8], 4, 8, 12, 16, 24, 32, 48)
	sourcetest.Equal(t, v[9:], -4, -8, -12, -16, -24, -32, -48)
}

// TestSideFile: what config.json does not say may stand in a file of its own, which is not copied.
func TestSideFile(t *testing.T) {
	dir := sourcetest.Folder(t, `{}`, layer()...)
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, sideName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}`)
	c, err := hf.Open(dir, Scheme{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if x, ok := c.Tensor("a.weight"); !ok || x.StoredAs() != "NVFP4, one scale" {
		t.Errorf("the weight is %+v", x)
	}
	if files := c.SideFiles(); len(files) != 1 || files[0] != "config.json" {
		t.Errorf("side files are %v", files)
	}
	write(`{"quantization": 4}`)
	if _, err := hf.Open(dir, Scheme{}); err == nil {
		t.Error("a side file of no object is read")
	}
}

func TestRefuses(t *testing.T) {
	refuses := func(want, config string, tensors ...sourcetest.Tensor) {
		t.Helper()
		sourcetest.Refuses(t, Scheme{}, want, config, tensors...)
	}
	all := layer()
	refuses(`quant_algo "FP8" of Model Optimizer is not supported`, `{"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}`, all...)
	refuses("want quant_algo as text", `{"quantization_config": {"quant_method": "modelopt", "quant_algo": 4}}`, all...)
	refuses(`no scales: want tensors "a.weight_scale" and "a.weight_scale_2"`, config, all[:2]...)
	refuses("is F32 [2]: want one number in F32", config, all[0], all[1], sourcetest.Of[float32]("a.weight_scale_2", "F32", []int{2}, 1, 1))
	refuses("a.weight_scale", config, all[0], sourcetest.Of[uint8]("a.weight_scale", "F8_E4M3", []int{1, 2}), all[2])
	refuses("element 0 is NaN: want a scale", config, all[0], sourcetest.Of[uint8]("a.weight_scale", "F8_E4M3", []int{1, 1}, 0x7f), all[2])
	refuses("want [n, k/2], with k a multiple of 16", config, sourcetest.Of[uint8]("a.weight", "U8", []int{1, 4}), all[1], all[2])
	refuses("stacks of them are not supported", config, sourcetest.Of[uint8]("a.weight", "U8", []int{1, 1, 8}), all[1], all[2])
}
