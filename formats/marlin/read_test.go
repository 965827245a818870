package marlin

import (
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Layout{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Layout{}) }

const config = `{"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}}`

func TestRefuses(t *testing.T) {
	codes := sourcetest.Of[int32]("a.B", "I32", []int{8, 512})
	scales := sourcetest.Of[uint16]("a.s", "F16", []int{1, 256})
	for _, tt := range []struct {
		name, want, config string
		tensors            []sourcetest.Tensor
	}{
		{"bits", "MARLIN has bits as a number, 4", `{"quantization_config": {"quant_method": "marlin", "bits": 8}}`, []sourcetest.Tensor{codes, scales}},
		{"no bits", "MARLIN has bits as a number, 4", `{"quantization_config": {"quant_method": "gptq", "is_marlin_format": true}}`, []sourcetest.Tensor{codes, scales}},
		{"no scales", `tensor "a.B" in model.safetensors: no scales: want a tensor "a.s"`, config, []sourcetest.Tensor{codes}},
		{"rows", "n a multiple of 256", config, []sourcetest.Tensor{sourcetest.Of[int32]("a.B", "I32", []int{8, 256}), scales}},
		{"columns", "k of 128", config, []sourcetest.Tensor{sourcetest.Of[int32]("a.B", "I32", []int{4, 512}), scales}},
		{"type", "is F32 [8 512]: want I32", config, []sourcetest.Tensor{sourcetest.Of[float32]("a.B", "F32", []int{8, 512}), scales}},
		{"scales", `tensor "a.s" in model.safetensors: is F16 [2 256]: want [F16] [1 256]`, config, []sourcetest.Tensor{codes, sourcetest.Of[uint16]("a.s", "F16", []int{2, 256})}},
		{"type of scales", "is F32 [1 256]: want [F16]", config, []sourcetest.Tensor{codes, sourcetest.Of[float32]("a.s", "F32", []int{1, 256})}},
	} {
		t.Run(tt.name, func(t *testing.T) { sourcetest.Refuses(t, Layout{}, tt.want, tt.config, tt.tensors...) })
	}
}
