package ct

import (
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
)

// BenchmarkRead reads a layer of an 8B model as quantizing does.
func BenchmarkRead(b *testing.B) {
	const n, k = 4096, 4096
	c, err := hf.Open(sourcetest.Folder(b, textOf(packed, `"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128`),
		sourcetest.Of[uint32]("a.weight_packed", "I32", []int{n, k / 8}), sourcetest.Of[uint16]("a.weight_scale", "BF16", []int{n, k / 128}), shapeOf(n, k)), Scheme{})
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
