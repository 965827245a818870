package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// BenchmarkGradients reports the GFLOP/s of the gradients with products, and
// the elements or weights that others take in a nanosecond. Sizes are those of
// SmolLM2-135M.
func BenchmarkGradients(b *testing.B) {
	const rows, hidden, inter, group, bits = 512, 576, 1536, 64, 4
	r := rand.New(rand.NewPCG(1, 2))
	for _, threads := range []int{1, 2} {
		e, err := gemmcpu.New(gemmcpu.Options{Threads: threads})
		if err != nil {
			b.Fatal(err)
		}
		ops := cpu.New(e)
		array := func(n int) model.Array {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(r.NormFloat64())
			}
			a := ops.Acts(n)
			ops.Write(a, v)
			return a
		}
		bench := func(name string, work float64, unit string, f func()) {
			b.Run(fmt.Sprintf("%s/%d", name, threads), func(b *testing.B) {
				for b.Loop() {
					f()
				}
				b.ReportMetric(work*float64(b.N)/float64(b.Elapsed().Nanoseconds()), unit)
			})
		}

		w := benchLayer(b, ops, r, inter, hidden, group, bits)
		x, y := array(rows*hidden), array(rows*inter)
		dx, ds, table := array(rows*hidden), array(inter*hidden/group), ops.Floats(1<<bits)
		product := float64(2 * rows * hidden * inter)
		bench("Linear", product, "GFLOP/s", func() { ops.Linear(x, rows, model.Product{Y: y, W: w}) })
		bench("LinearBack", product, "GFLOP/s", func() { ops.LinearBack(dx, y, rows, w, false) })
		bench("ScaleGrad", product, "GFLOP/s", func() { ops.ScaleGrad(ds, nil, y, x, rows, w, false) })
		bench("ScaleGrad table", product, "GFLOP/s", func() { ops.ScaleGrad(ds, table, y, x, rows, w, false) })
		bench("ScaleGrad lsq", product, "GFLOP/s", func() { ops.ScaleGrad(ds, nil, y, x, rows, w, true) })
		scales := array(inter * hidden / group)
		bench("SetScales", inter*hidden, "weights/ns", func() { ops.SetScales(w, scales) })
		bench("Recode", inter*hidden, "weights/ns", func() { ops.Recode(w, false) })
		bench("Recode bf16", inter*hidden, "weights/ns", func() { ops.Recode(w, true) })

		for _, t := range []int{512, 2048} {
			s := model.AttentionShape{T: t, Heads: 9, KVHeads: 3, Dim: 64, Scale: 0.125}
			q, k, v := array(t*576), array(t*192), array(t*192)
			o, dq, dk, dv, do := array(t*576), array(t*576), array(t*192), array(t*192), array(t*576)
			lse := ops.Floats(9 * t)
			half := 2 * 64 * 9 * float64(t) * float64(t+1) / 2 // a product with the seen half of the scores
			bench(fmt.Sprintf("Attention %d", t), 2*half, "GFLOP/s", func() { ops.Attention(o, lse, q, k, v, s) })
			bench(fmt.Sprintf("AttentionBack %d", t), 5*half, "GFLOP/s", func() { ops.AttentionBack(dq, dk, dv, do, o, lse, q, k, v, s) })
		}

		g, u := array(rows*inter), array(rows*inter)
		bench("GLUBack", rows*inter, "elements/ns", func() { ops.GLUBack(g, u, y, g, u, arch.Gating{Act: arch.SiLU}) })
		norm := array(hidden)
		bench("RMSNormBack", rows*hidden, "elements/ns", func() { ops.RMSNormBack(dx, x, x, norm, rows, 1e-5, false) })
		adam := model.Adam{P: array(1 << 16), M: ops.Floats(1 << 16), V: ops.Floats(1 << 16), G: array(1 << 16), LR: 1e-4, B1: 0.9, B2: 0.999, Eps: 1e-8, Step: 1}
		bench("Adam", 1<<16, "elements/ns", func() { ops.Adam(adam) })
		adam.BF16 = true
		bench("Adam bf16", 1<<16, "elements/ns", func() { ops.Adam(adam) })
		bench("ExpScale", 1<<16, "elements/ns", func() { ops.ExpScale(adam.G, adam.P, adam.M) })
		e.Close()
	}
}

// benchLayer uploads a random trainable layer of absmax scales.
func benchLayer(b *testing.B, ops opstest.Ops, r *rand.Rand, n, k, group, bits int) model.Weight {
	b.Helper()
	book, err := lut.NewCodebook("nf", bits, group)
	if err != nil {
		b.Fatal(err)
	}
	v, scales := make([]float32, n*k), make([]float32, n*k/group)
	for i := range v {
		v[i] = float32(r.NormFloat64() * 0.05)
		s := &scales[i/group]
		*s = max(*s, float32(math.Abs(float64(v[i]))))
	}
	data := make([]byte, 4*len(v))
	num.EncodeF32(data, v)
	original, err := ops.Dense(n, k, hf.F32, data)
	if err != nil {
		b.Fatal(err)
	}
	w, err := ops.Trainable(model.Trainable{
		N: n, K: k, Group: group, Codes: make([]uint8, n*k), Table: book.Values, Scales: scales, ScaleType: weight.F16, Original: original,
	})
	if err != nil {
		b.Fatal(err)
	}
	ops.Recode(w, false)
	return w
}
