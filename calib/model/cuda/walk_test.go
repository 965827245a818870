package cuda

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/rounding"
)

// taker keeps the statistics of layers whose quantized matrices are there already.
type taker struct {
	layers map[string]*lut.Matrix
	order  []string
	h, d   map[string][]float32
}

func (k *taker) Wants(string) bool { return true }

func (k *taker) Weight(path string) (weight.Matrix, error) { return k.layers[path], nil }

func (k *taker) Quantize(_ context.Context, all []rounding.Readers) (err error) {
	for _, of := range all {
		k.order = append(k.order, of.Layers...)
		if k.h[of.Layers[0]], err = of.Stats[0].Hessian(); err != nil {
			return err
		}
		if k.d[of.Layers[0]], err = of.Stats[0].Drift(); err != nil {
			return err
		}
	}
	return nil
}

func walk(t testing.TB, o model.StatsOps) *taker {
	t.Helper()
	src := source(t, 3, 32, false).(*quantized)
	k := &taker{layers: src.layers, h: map[string][]float32{}, d: map[string][]float32{}}
	tokens := window(t, 60)
	err := model.Walk(context.Background(), src.Checkpoint, o, k, model.WalkOptions{
		Windows: [][]int{tokens[:40], tokens[13:], tokens}, Original: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestGPUWalk compares the statistics of a walk with those of the host, and of a second one.
func TestGPUWalk(t *testing.T) { onGPU(t, testWalk) }

func testWalk(t *testing.T, o *Ops, i int) {
	want, got, again := walk(t, newCPU(t)), walk(t, o), walk(t, o)
	if !slices.Equal(got.order, want.order) {
		t.Fatalf("came by %v: want %v", got.order, want.order)
	}
	for path, h := range want.h {
		if e := distance(got.h[path], h); !(e <= 4*types[i].deep) {
			t.Errorf("%s: H differs by %.2g", path, e)
		}
		var norm float32
		for _, v := range want.d[path] {
			norm += v * v
		}
		// What differs in small differences of two large numbers is mostly how those are rounded.
		if e := distance(got.d[path], want.d[path]); norm > 0 && !(e <= 20*types[i].deep) {
			t.Errorf("%s: D differs by %.2g", path, e)
		}
		if !slices.Equal(again.h[path], got.h[path]) || !slices.Equal(again.d[path], got.d[path]) {
			t.Errorf("%s: other bits the second time", path)
		}
	}
}

// BenchmarkGPUWalk takes windows of 2048 tokens through two blocks of a model of 8 billion weights, and
// tells the seconds that 32 blocks and 128 windows would take, up to each visit of a block. Times are those
// of the second block.
func BenchmarkGPUWalk(b *testing.B) {
	const windows, blocks = 16, 2
	benchmarkGPU(b, func(o *Ops) {
		src := block8B(b, blocks)
		random := &timer{o: o, taker: taker{layers: map[string]*lut.Matrix{}}}
		for _, s := range src.Decoder().Stored() {
			random.layers[s.Path] = random8B(b, s.N, s.K)
		}
		var all [][]int
		for i := range windows {
			tokens := make([]int, 2048)
			for j := range tokens {
				tokens[j] = (i + 7*j) % src.Decoder().Vocab
			}
			all = append(all, tokens)
		}
		for _, original := range []bool{false, true} {
			b.Run(fmt.Sprintf("original %v", original), func(b *testing.B) {
				random.last, random.seconds, random.least = time.Now(), nil, 0
				err := model.Walk(context.Background(), src, o, random, model.WalkOptions{Windows: all, Original: original})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(random.least)/(1<<30), "GiB-free")
				for i, s := range random.seconds[4:] {
					b.ReportMetric(s*32*128/windows, fmt.Sprintf("s/visit%d", i))
				}
			})
		}
	})
}

// timer times the visits of a walk.
type timer struct {
	taker
	o       *Ops
	last    time.Time
	seconds []float64
	least   int64 // bytes of the device's memory that were free
}

func (k *timer) Quantize(context.Context, []rounding.Readers) error {
	if err := k.o.Err(); err != nil {
		return err
	}
	k.seconds, k.last = append(k.seconds, time.Since(k.last).Seconds()), time.Now()
	return k.o.dev.Do(func() error {
		free, _, err := k.o.dev.Memory()
		if k.least == 0 || free < k.least {
			k.least = free
		}
		return err
	})
}

// random8B is a matrix of random codes in 4 bits.
func random8B(b *testing.B, n, k int) *lut.Matrix {
	book, err := lut.NewCodebook("nf", 4, 64)
	if err != nil {
		b.Fatal(err)
	}
	m := &lut.Matrix{N: n, K: k, Bits: 4, Group: 64, ScaleType: weight.F16, Codebook: book.Values}
	m.Codes, m.Scales = make([]byte, n*m.RowBytes()), make([]byte, n*m.Groups()*m.ScaleType.Size())
	for i := range m.Codes {
		m.Codes[i] = byte(i * 2654435761 >> 7)
	}
	scales := make([]float32, n*m.Groups())
	for i := range scales {
		scales[i] = 0.02
	}
	m.ScaleType.Encode(m.Scales, scales)
	return m
}

// TestGPUExperts fits a model with experts to windows.
func TestGPUExperts(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testExperts(t, o)
		}
	})
}

// testExperts: what is made of a model with experts does not depend on how many are fitted beside each other, and little on how many
// windows pass through them at a time.
func testExperts(t *testing.T, o *Ops) {
	for _, g := range archtest.Goldens(t) {
		if g.Name != "qwen3-moe-mixed" {
			continue
		}
		dir := t.TempDir()
		g.Write(t, dir)
		m := modeltest.Open(t, dir)
		fitted := func(threads, together int) (*quantize.Result, []byte) {
			r, err := quantize.ParseRecipe([]byte(`{"bits": 4, "group": 32, "method": "gptq", "codebook": "nf"}`))
			if err != nil {
				t.Fatal(err)
			}
			src, err := model.NewCheckpoint(m)
			if err != nil {
				t.Fatal(err)
			}
			c := &walkCalibrator{src: src, o: o, walk: model.WalkOptions{Original: true, Together: together}}
			for i := range 4 {
				c.walk.Windows = append(c.walk.Windows, slices.Concat(g.Tokens[i:], g.Tokens[:i]))
			}
			r.Methods.GPTQ, r.Calibrate = gptq.Options{Damp: .1, Retarget: .5}, c
			p, err := quantize.NewPlan(m, r)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			res, err := p.Run(t.Context(), out, quantize.RunOptions{Threads: threads})
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			return res, data
		}
		want, data := fitted(1, 0)
		if want.Fit.Rows == 0 {
			t.Fatal("no row was fitted")
		}
		if _, again := fitted(4, 0); !bytes.Equal(again, data) {
			t.Error("four workers make other weights than one")
		}
		got, _ := fitted(4, 3*len(g.Tokens))
		if math.Abs(got.OutputError-want.OutputError) > .01*want.OutputError || got.Fit.Rows != want.Fit.Rows {
			t.Errorf("together: error %v of %d rows: want %v of %d", got.OutputError, got.Fit.Rows, want.OutputError, want.Fit.Rows)
		}
		return
	}
	t.Fatal("there is no such model")
}

// walkCalibrator implements [quantize.Calibrator] by a walk.
type walkCalibrator struct {
	src  model.Source
	o    *Ops
	walk model.WalkOptions
}

func (c *walkCalibrator) Flags() []string                              { return nil }
func (c *walkCalibrator) Key() string                                  { return "" }
func (c *walkCalibrator) Record() *lutq.Calibration                    { return &lutq.Calibration{} }
func (c *walkCalibrator) Apart() bool                                  { return false }
func (c *walkCalibrator) Block() int                                   { return 1 << 20 }
func (c *walkCalibrator) Devices() int                                 { return 1 + len(c.walk.Beside) }
func (c *walkCalibrator) Memory(quantize.Fitting) (host, device int64) { return 0, 0 }
func (c *walkCalibrator) Walk(ctx context.Context, v *quantize.Visitor) error {
	return model.Walk(ctx, c.src, c.o, v, c.walk)
}

func (c *walkCalibrator) Seconds(context.Context, quantize.Fitting) (float64, error) { return 0, nil }
