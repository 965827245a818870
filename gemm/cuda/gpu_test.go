package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
	"github.com/lutq/lutq/repack"
)

// onGPU runs a test inside Do of the first GPU, with an engine.
func onGPU(t testing.TB, test func(e *Engine, s *driver.Stream)) {
	t.Helper()
	onGPUWith(t, driver.Options{CacheDir: t.TempDir()}, test)
}

func onGPUWith(t testing.TB, o driver.Options, test func(e *Engine, s *driver.Stream)) {
	t.Helper()
	c, err := driver.Open(o)
	if err != nil {
		t.Skip(err)
	}
	n, err := c.DeviceCount()
	if err != nil {
		t.Skip(err)
	}
	if n == 0 {
		t.Skip("no GPU")
	}
	d, err := c.OpenDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = d.Do(func() error {
		e, err := New(d, c.Cache())
		if err != nil {
			t.Skip(err)
		}
		s, err := d.NewStream()
		if err != nil {
			return err
		}
		test(e, s)
		return errors.Join(s.Close(), e.Close())
	})
	switch { // the function may have ended the device's goroutine, and ends this one too
	case err != nil && t.Skipped():
		t.SkipNow()
	case err != nil && t.Failed():
		t.FailNow()
	case err != nil:
		t.Fatal(err)
	}
}

// must returns a function that returns v, or ends the test if there was an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// problem is a multiplication on the GPU.
type problem struct {
	w    *Matrix
	o    Operands
	y    []uint16 // with some elements behind it that must not change
	dev  *driver.Device
	n, m int
}

const guard = 64

func newProblem(t testing.TB, e *Engine, m *lut.Matrix, x, bias []uint16, rows int, dtype driver.DType) *problem {
	t.Helper()
	tiles := must(repack.CUDA(m))(t)
	w := must(e.Upload(tiles, dtype))(t)
	p := &problem{w: w, dev: e.dev, n: m.N, m: rows, y: make([]uint16, rows*m.N+guard)}
	p.o = Operands{X: must(e.dev.Upload(driver.Bytes(x)))(t), Y: must(e.dev.Alloc(2 * len(p.y)))(t), M: rows}
	if bias != nil {
		p.o.Bias = must(e.dev.Upload(driver.Bytes(bias)))(t)
	}
	return p
}

// run poisons Y, multiplies and returns Y.
func (p *problem) run(t testing.TB, e *Engine, s *driver.Stream, c Config) []uint16 {
	t.Helper()
	if err := p.dev.Fill8(p.o.Y, 0xff, 2*len(p.y)); err != nil {
		t.Fatal(err)
	}
	if err := p.dev.Sync(); err != nil {
		t.Fatal(err)
	}
	err := e.MatMulWith(s, p.w, p.o, c)
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err = errors.Join(err, s.Sync(), p.dev.Read(driver.Bytes(p.y), p.o.Y)); err != nil {
		t.Fatal(err)
	}
	for i, v := range p.y[p.m*p.n:] {
		if v != 0xffff {
			t.Fatalf("element %d behind Y was written", i)
		}
	}
	return slices.Clone(p.y[:p.m*p.n])
}

func (p *problem) close(t testing.TB) {
	err := errors.Join(p.w.Close(), p.dev.Free(p.o.X), p.dev.Free(p.o.Y))
	if p.o.Bias != 0 {
		err = errors.Join(err, p.dev.Free(p.o.Bias))
	}
	if err != nil {
		t.Error(err)
	}
}

func floats(y []uint16, dtype driver.DType) []float32 {
	f := make([]float32, len(y))
	for i, v := range y {
		if f[i] = num.F16ToF32(v); dtype == driver.BF16 {
			f[i] = num.BF16ToF32(v)
		}
	}
	return f
}

// TestGPU multiplies awkward shapes under every configuration. Each must agree with
// float64 and give the same bits as the others and as itself.
func TestGPU(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		many := Format{4, 128, weight.F16, driver.F16} // in three slices
		for i, f := range append(testFormats(), many) {
			if !*long && i%3 != 0 && f != many {
				continue
			}
			shape := [][2]int{{1000, 992}, {520, 1056}, {17, 8288}, {2144, 512}}[i%4]
			if f == many {
				shape = [2]int{3*sevenTiles + 40, 544}
			}
			k := shape[1]
			group := f.Group
			if group == 0 {
				group = k
			}
			m := randomMatrix(uint64(i), shape[0], k, f.Bits, group, f.Scale)
			for _, rows := range []int{1, 3, 8, 9, 16, 37} {
				name := fmt.Sprintf("%s, %d×%d, %d rows", f.name(), shape[0], k, rows)
				x, bias := randomX(1, rows*k, f.Type), randomX(2, shape[0], f.Type)
				p := newProblem(t, e, m, x, bias, rows, f.Type)
				rm, rx := rounded(m, x, f)
				want := product(rm, rx, rows)
				for j, b := range floats(bias, f.Type) {
					for r := range rows {
						want[r*m.N+j] += float64(b)
					}
				}
				limit := 3e-4
				if f.Type == driver.BF16 {
					limit = 2.5e-3
				}
				var first []uint16
				for _, c := range e.Configs(f, shape[0], k, rows) {
					for range 2 {
						y := p.run(t, e, s, c)
						if err := ref.RelErr(floats(y, f.Type), want); !(err <= limit) {
							t.Errorf("%s, %v: relative error %g", name, c, err)
						}
						if first == nil {
							first = y
						}
						if !slices.Equal(y, first) {
							t.Errorf("%s, %v: not the bits of the first configuration's first run", name, c)
						}
					}
				}
				p.close(t)
			}
		}
	})
}

// testFormats covers every width, group, scale type and type of X, if not every
// combination.
func testFormats() []Format {
	groups := []int{32, 64, 128, 256, 0}
	scales := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3}
	var all []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for i, group := range groups {
			dtype := driver.F16
			if (bits+i)%2 == 1 {
				dtype = driver.BF16
			}
			f := Format{bits, group, scales[(bits+i)%len(scales)], dtype}
			if group != 32 && f.Scale.Size() == 1 {
				f.Scale = scales[(bits+i)%3]
			}
			all = append(all, f)
		}
	}
	return all
}

// TestGPUIdentity multiplies by the identity: every weight must come out as itself,
// rounded once.
func TestGPUIdentity(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			const n, k, group = 48, 288, 64
			f := Format{bits, group, weight.F16, driver.F16}
			m := randomMatrix(5, n, k, bits, group, []weight.ScaleType{weight.F16, weight.E4M4, weight.S1E4M3}[bits%3])
			x := make([]uint16, k*k)
			for i := range k {
				x[i*k+i] = num.F32ToF16(1)
			}
			p := newProblem(t, e, m, x, nil, k, f.Type)
			y := p.run(t, e, s, lutgemm{}.variants(f, MaxRows)[0])
			rm, _ := rounded(m, nil, f)
			w := rm.Dequantize()
			for i := range k {
				for j := range n {
					if got, want := y[i*n+j], num.F32ToF16(w[j*k+i]); got != want {
						t.Fatalf("%d bits: weight %d,%d is %g, want %g", bits, j, i, num.F16ToF32(got), num.F16ToF32(want))
					}
				}
			}
			p.close(t)
		}
	})
}

// TestGPUPrebuilt multiplies with the kernels that need no compiler. They give the
// bits that the compiled ones give.
func TestGPUPrebuilt(t *testing.T) {
	const n, k = 200, 544
	rows := []int{1, 2, 5, 8, 9, 16, 33}
	type result struct {
		of string
		y  []uint16
	}
	multiply := func(e *Engine, s *driver.Stream) (all []result) {
		for i, f := range Formats() {
			if !f.prebuilt() || !*long && i%3 != 0 {
				continue
			}
			m := randomMatrix(uint64(i), n, k, f.Bits, f.Group, f.Scale)
			for _, r := range rows {
				p := newProblem(t, e, m, randomX(1, r*k, f.Type), randomX(2, n, f.Type), r, f.Type)
				name := fmt.Sprintf("%s, %d rows", f.name(), r)
				configs := e.Configs(f, n, k, r)
				for _, c := range configs {
					y := p.run(t, e, s, c)
					if c == configs[0] {
						all = append(all, result{name, y})
					} else if !slices.Equal(y, all[len(all)-1].y) {
						t.Fatalf("%s: %v and %v give different bits", name, configs[0], c)
					}
				}
				p.close(t)
			}
		}
		return all
	}
	var want, got []result
	onGPU(t, func(e *Engine, s *driver.Stream) {
		if e.noCompiler != nil {
			t.Skip(e.noCompiler)
		}
		want = multiply(e, s)
	})
	onGPUWith(t, driver.Options{CacheDir: t.TempDir(), NoCompiler: true}, func(e *Engine, s *driver.Stream) {
		got = multiply(e, s)
		m := randomMatrix(1, n, k, 4, 32, weight.E4M4)
		var missing *driver.MissingError
		if _, err := e.Upload(must(repack.CUDA(m))(t), driver.F16); !errors.As(err, &missing) {
			t.Errorf("a format that is not prebuilt: got error %v, want the missing compiler's", err)
		}
	})
	if len(got) != len(want) {
		t.Fatalf("%d products without a compiler, %d with one", len(got), len(want))
	}
	for i := range want {
		if !slices.Equal(want[i].y, got[i].y) {
			t.Fatalf("%s: the prebuilt kernel gives other bits than the compiled one", want[i].of)
		}
	}
}

// TestGPUTune tunes and looks for the choice in a new engine.
func TestGPUTune(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		m := randomMatrix(1, 512, 1024, 4, 128, weight.F16)
		p := newProblem(t, e, m, randomX(1, 1024, driver.F16), nil, 1, driver.F16)
		before := p.run(t, e, s, lutgemm{}.variants(p.w.Format, 1)[0])
		timings := must(e.Tune(s, []*Matrix{p.w}, p.o))(t)
		if len(timings) != len(e.Configs(p.w.Format, 512, 1024, 1)) || timings[0].Us <= 0 {
			t.Errorf("got timings %v", timings)
		}
		again := must(New(e.dev, e.cache))(t)
		if got, want := must(again.choice(p.w, 1))(t), timings[0].Config; got != want {
			t.Errorf("a new engine chooses %v, want %v", got, want)
		}
		if y := p.run(t, e, s, must(e.choice(p.w, 1))(t)); !slices.Equal(y, before) {
			t.Error("tuning changed the result")
		}
		p.close(t)
	})
}

func TestBadOperands(t *testing.T) {
	l := limits{132, 227 << 10}
	f := Format{4, 128, weight.F16, driver.F16}
	for _, test := range []struct {
		name    string
		n, k, m int
		ok      bool
	}{
		{"good", 100, 992, 16, true},
		{"no rows", 100, 992, 0, false},
		{"too many rows", 100, 992, 17, false},
		{"K", 100, 1000, 1, false},
		{"no features", 0, 992, 1, false},
		{"huge", 1, math.MaxInt32 - 31, 1, false},
	} {
		if _, _, err := shapeOf(f, test.n, test.k, test.m).plan(lutgemm{}.variants(f, test.m)[0], l); (err == nil) != test.ok {
			t.Errorf("%s: got error %v", test.name, err)
		}
	}
	if _, _, err := shapeOf(f, 64, 256, 1).plan(lutgemm{}.variants(f, 1)[0], limits{100, 48 << 10}); err == nil {
		t.Error("a GPU of little shared memory: no error")
	}
	open := &Matrix{N: 8, K: 32, Format: f, codes: 1}
	for _, test := range []struct {
		name string
		w    *Matrix
		o    Operands
	}{
		{"closed", &Matrix{}, Operands{X: 16, Y: 16, M: 1}},
		{"no rows", open, Operands{X: 16, Y: 16}},
		{"no X", open, Operands{Y: 16, M: 1}},
		{"X not aligned", open, Operands{X: 8, Y: 16, M: 1}},
		{"Y not aligned", open, Operands{X: 16, Y: 17, M: 1}},
	} {
		if err := test.o.check(test.w); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	if err := (Operands{X: 16, Y: 16, M: 99}).check(open); err != nil {
		t.Error(err)
	}
	if _, err := FormatOf(&repack.CUDATiles{K: 8, Group: 8}, driver.F32); err == nil {
		t.Error("float32 activations: no error")
	}
}
