package kbit

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
)

// both reads either layout.
type both struct{}

func (both) Decode(s *hf.Stored) ([]hf.Encoded, bool, error) {
	if found, ok, err := Flat().Decode(s); ok || err != nil {
		return found, ok, err
	}
	return Tiled().Decode(s)
}

func TestGolden(t *testing.T) { sourcetest.Golden(t, both{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, both{}) }

// TestOther: each reader leaves the other's folders alone.
func TestOther(t *testing.T) {
	for folder, y := range map[string]Layout{"flat": Tiled(), "tiled": Flat()} {
		c, err := hf.Open(filepath.Join("testdata", folder), y)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CheckPlain(); err == nil {
			t.Errorf("%s takes %s", y.Name(), folder)
		}
		c.Close()
	}
}

func TestRefuses(t *testing.T) {
	const (
		flat = `{"quantization_config": {"quant_method": "kbit", "layout": "kbit", "block_size": 32, "shapes": {"a": [2, 32]}}}`
		odd  = `{"quantization_config": {"quant_method": "kbit", "layout": "kbit", "block_size": 32, "shapes": {"a": [2, 48]}}}`
		tile = `{"quantization_config": {"quant_method": "kbit", "layout": "kbit-tiled", "block_size": 32, "shapes": {"a": [2, 32]}}}`
		huge = `{"quantization_config": {"quant_method": "kbit", "layout": "kbit", "block_size": 32, "shapes": {"a": [2147483647, 2147483616]}}}`
	)
	packed := sourcetest.Of[int32]("a.kbit_packed", "I32", []int{6})
	scales := sourcetest.Of[uint8]("a.kbit_absmax", "U8", []int{2})
	table := sourcetest.Of[float32]("a.kbit_codebook", "F32", []int{4}, -1, -0.5, 0.5, 1)
	all := []sourcetest.Tensor{packed, scales, table}
	infinite := sourcetest.Of("a.kbit_codebook", "F32", []int{4}, -1, 0, 1, float32(math.Inf(1)))
	nan := sourcetest.Of("a.kbit_absmax", "F32", []int{2}, 1, float32(math.NaN()))
	for _, tt := range []struct {
		name, want, config string
		tensors            []sourcetest.Tensor
	}{
		{"block", "want layout, block_size 32, and shapes", `{"quantization_config": {"quant_method": "kbit", "layout": "kbit", "block_size": 64}}`, all},
		{"layout", `layout "spiral": want kbit or kbit-tiled`, `{"quantization_config": {"quant_method": "kbit", "layout": "spiral", "block_size": 32}}`, all},
		{"shape", "config.json has shape [] for it: want [n, k]", `{"quantization_config": {"quant_method": "kbit", "layout": "kbit", "block_size": 32}}`, all},
		{"rows", "it has 48 columns: want a multiple of 32, for else blocks would lie in two rows", odd, all},
		{"tiles", "it has 2 rows and 32 columns: want multiples of 128 and 64", tile, all},
		{"size", `tensor "a.kbit_packed" in model.safetensors: is I32 [6]: want [I32] [`, huge, all},
		{"no scales", `want tensors "a.kbit_absmax" and "a.kbit_codebook" beside it`, flat, all[:1]},
		{"no padding", "is I32 [4]: want [I32] [6]", flat, []sourcetest.Tensor{sourcetest.Of[int32]("a.kbit_packed", "I32", []int{4}), scales, table}},
		{"type of scales", "is F16 [2]: want [U8 F32] [2]", flat, []sourcetest.Tensor{packed, sourcetest.Of[uint16]("a.kbit_absmax", "F16", []int{2}), table}},
		{"scale", `tensor "a.kbit_absmax" in model.safetensors: element 1 is NaN`, flat, []sourcetest.Tensor{packed, nan, table}},
		{"table", "is F32 [6]: want F32 with 4, 8, 16 or 32 values", flat, []sourcetest.Tensor{packed, scales, sourcetest.Of[float32]("a.kbit_codebook", "F32", []int{6})}},
		{"value", "element 3 is +Inf: want a number", flat, []sourcetest.Tensor{packed, scales, infinite}},
	} {
		t.Run(tt.name, func(t *testing.T) { sourcetest.Refuses(t, both{}, tt.want, tt.config, tt.tensors...) })
	}
}
