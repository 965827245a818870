package gptq

import (
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
)

// BenchmarkRead reads a layer of an 8B model as quantizing does.
func BenchmarkRead(b *testing.B) {
	const n, k = 4096, 4096
	c, err := hf.Open(sourcetest.Folder(b, `{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true}}`,
		sourcetest.Of[uint32]("a.qweight", "I32", []int{k / 8, n}), sourcetest.Of[uint16]("a.scales", "F16", []int{k / 128, n}),
		sourcetest.Of[uint32]("a.qzeros", "I32", []int{k / 128, n / 8})), Scheme{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	x, _ := c.Tensor("a.weight")
	v := make([]float32, 1<<18)
	at := int64(0)
	for b.Loop() {
		if err := x.ReadFloat32(v, at); err != nil {
			b.Fatal(err)
		}
		at = (at + int64(len(v))) % (n * k)
	}
	b.ReportMetric(float64(b.N)*float64(len(v))/b.Elapsed().Seconds()/1e6, "Mweights/s")
}
