package torch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/timing"
)

// Timing says how some rows of activations were found to be multiplied the fastest.
type Timing struct {
	Rows int                `json:"rows"` // the most of those that are treated alike
	Way  cuda.Way           `json:"-"`
	Us   map[string]float64 `json:"us"` // of each way, in microseconds; 0 where its result was another
}

// Measurer times the ways to multiply numbers of rows by N×K matrices of a format.
type Measurer interface {
	Times(f table.Format, n, k int, rows []int) ([]Timing, error)
}

const (
	ringBytes   = 160 << 20 // of matrices that are used in turn, above three times what a level-2 cache has
	ringMost    = 32
	fewCalls    = 16
	replays     = 5
	worthIt     = 0.98 // of the best guess's time, in which another has to be done to be chosen
	mostOff     = 1. / 16
	scaleOfAll  = 1. / 16
	seed        = 39
	bytesOfType = 2 // of activations
)

// OnGPU is a [Measurer] that multiplies on a GPU. Preparing activations counts: PyTorch's norms do not.
type OnGPU struct {
	dev    *driver.Device
	engine *cuda.Engine
	stream *driver.Stream
	blas   *driver.BLAS
}

// NewOnGPU takes GPU i into use.
func NewOnGPU(c *driver.CUDA, i int) (g *OnGPU, err error) {
	g = new(OnGPU)
	if g.dev, err = c.OpenDevice(i); err != nil {
		return nil, err
	}
	err = g.dev.Do(func() (err error) {
		if g.engine, err = cuda.New(g.dev, nil); err != nil { // whose choices for one launch are those of [New]
			return err
		}
		if g.stream, err = g.dev.NewStream(); err != nil {
			return err
		}
		g.blas, err = g.dev.NewBLAS(g.stream)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Close frees all.
func (g *OnGPU) Close() error {
	err := g.dev.Do(func() error {
		var errs []error
		if g.blas != nil {
			errs = append(errs, g.blas.Close())
		}
		if g.engine != nil {
			errs = append(errs, g.engine.Close())
		}
		if g.stream != nil {
			errs = append(errs, g.stream.Close())
		}
		return errors.Join(errs...)
	})
	return errors.Join(err, g.dev.Close())
}

// Times implements [Measurer].
func (g *OnGPU) Times(f table.Format, n, k int, rows []int) (all []Timing, err error) {
	err = g.dev.Do(func() (err error) {
		all, err = g.times(f, n, k, rows)
		return err
	})
	return all, err
}

// product is what is timed: matrices, activations and memory for results.
type product struct {
	ring []*cuda.Matrix
	o    cuda.Operands
	u    *cuda.Unpacked
}

func (g *OnGPU) times(f table.Format, n, k int, rows []int) (all []Timing, err error) {
	m := memory{dev: g.dev, random: rand.NewChaCha8([32]byte{seed})}
	defer func() { err = errors.Join(err, m.free()) }()
	p, err := g.product(&m, f, n, k, rows)
	if err != nil {
		return nil, err
	}
	for _, count := range rows {
		p.o.M = count
		t, err := g.fastest(p)
		if err != nil {
			return nil, fmt.Errorf("%d rows by %d×%d: %w", count, n, k, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// product returns what is multiplied, of random codes and activations.
func (g *OnGPU) product(m *memory, f table.Format, n, k int, rows []int) (p product, err error) {
	values := make([]float32, 1<<f.Bits) // that no integers stand for
	for i := range values {
		v := 2*float32(i)/float32(len(values)-1) - 1
		values[i] = v * v * v
	}
	t, err := table.New(f, n, k, values, nil)
	if err != nil {
		return p, err
	}
	codes, scales := t.Sizes()[0], t.Sizes()[1]
	count := min(max(ringBytes/(codes+scales), 2), ringMost)
	scale := make([]byte, f.Scale.Size())
	f.Scale.Encode(scale, []float32{scaleOfAll})
	most, scratch := 0, 0
	var kernels []driver.Kernel
	for _, r := range rows {
		most, scratch = max(most, r), max(scratch, g.engine.MostScratch(t, r))
		for _, by := range g.engine.Ways(t, r) {
			kernels = append(kernels, t.Kernels(g.engine.GPU(), by, r)...)
		}
	}
	g.dev.Prepare(kernels)
	at := []driver.Ptr{m.codes(codes * count), m.upload(slices.Repeat(scale, count*scales/len(scale)))}
	p.o = cuda.Operands{X: m.upload(numbers(m.random, f.Type, most*k)), Y: m.alloc(bytesOfType * most * n), Scratch: m.alloc(scratch + 16)}
	size := bytesOfType * n * k // at once, as PyTorch multiplies
	p.u = &cuda.Unpacked{BLAS: g.blas, Scratch: m.alloc(size), Bytes: size}
	if m.err != nil {
		return p, m.err
	}
	p.ring, err = g.engine.Over(t, count, at...)
	return p, err
}

// fastest times all ways for p.o.M rows.
func (g *OnGPU) fastest(p product) (Timing, error) {
	t := p.ring[0].Tiles
	ways := g.engine.Ways(t, p.o.M)
	got := Timing{Rows: p.o.M, Way: ways[0], Us: make(map[string]float64)}
	if len(ways) == 1 {
		return got, nil
	}
	multiply := func(by cuda.Way, i int) error {
		if by == cuda.AsNumbers {
			return p.u.MatMul(g.stream, p.ring[i%len(p.ring)], p.o, t.Format().Type, false)
		}
		return g.engine.MatMulWay(g.stream, p.ring[i%len(p.ring)], p.o, by)
	}
	want, err := g.result(p, func() error { return multiply(cuda.AsNumbers, 0) })
	if err != nil {
		return got, err
	}
	var arms []*timing.Arm
	var right []cuda.Way
	for _, by := range ways {
		y, err := g.result(p, func() error { return multiply(by, 0) })
		if err != nil {
			return got, fmt.Errorf("%v: %w", by, err)
		}
		if got.Us[by.String()] = 0; !near(y, want) {
			continue
		}
		right = append(right, by)
		arms = append(arms, &timing.Arm{Ring: len(p.ring), Few: fewCalls, Call: func(i int) error { return multiply(by, i) }})
	}
	if err := timing.Measure(g.dev, g.stream, arms, replays); err != nil {
		return got, err
	}
	for i, by := range right {
		got.Us[by.String()] = arms[i].Median()
	}
	got.Way = choose(ways[0], right, got.Us)
	return got, nil
}

// choose returns the fastest of some ways, or the best guess where that takes about as long, so that chance seldom decides.
func choose(guess cuda.Way, right []cuda.Way, us map[string]float64) cuda.Way {
	best := right[0] // multiplying by numbers is always among them
	for _, by := range right {
		if us[by.String()] < us[best.String()] {
			best = by
		}
	}
	if slices.Contains(right, guess) && us[best.String()] > worthIt*us[guess.String()] {
		return guess
	}
	return best
}

// result returns the first, middle and last rows of a product.
func (g *OnGPU) result(p product, multiply func() error) ([]float32, error) {
	n, _ := p.ring[0].Shape()
	if err := g.dev.Fill8(p.o.Y, 0xff, bytesOfType*p.o.M*n); err != nil { // not a number
		return nil, err
	}
	if err := errors.Join(multiply(), g.stream.Sync()); err != nil {
		return nil, err
	}
	var all []float32
	for _, row := range []int{0, p.o.M / 2, p.o.M - 1} {
		data, y := make([]byte, bytesOfType*n), make([]float32, n)
		if err := g.dev.Read(data, p.o.Y+driver.Ptr(bytesOfType*row*n)); err != nil {
			return nil, err
		}
		scaleLike(p.ring[0].Type()).Decode(y, data)
		all = append(all, y...)
	}
	return all, nil
}

// near reports whether a result is as near to another as rounding has it.
func near(got, want []float32) bool {
	most, off := float32(0), float32(0)
	for i, w := range want {
		d := got[i] - w
		if d != d {
			return false
		}
		most, off = max(most, w, -w), max(off, d, -d)
	}
	return off <= mostOff*most
}

// scaleLike returns the type of scales that is stored as a type of activations.
func scaleLike(t driver.DType) weight.ScaleType {
	if t == driver.BF16 {
		return weight.BF16
	}
	return weight.F16
}

// numbers returns normal ones of a type of activations.
func numbers(r *rand.ChaCha8, t driver.DType, count int) []byte {
	of := rand.New(r)
	values := make([]float32, min(count, 1<<16)) // which repeat
	for i := range values {
		values[i] = float32(of.NormFloat64())
	}
	data := make([]byte, bytesOfType*len(values))
	if t == driver.BF16 {
		num.EncodeBF16(data, values)
	} else {
		num.EncodeF16(data, values)
	}
	return slices.Repeat(data, (count+len(values)-1)/len(values))[:bytesOfType*count]
}

// memory allocates until that fails.
type memory struct {
	dev    *driver.Device
	random *rand.ChaCha8
	all    []driver.Ptr
	err    error
}

func (m *memory) keep(p driver.Ptr, err error) driver.Ptr {
	if err != nil {
		m.err = errors.Join(m.err, err)
		return 0
	}
	m.all = append(m.all, p)
	return p
}

func (m *memory) alloc(size int) driver.Ptr { return m.keep(m.dev.Alloc(size)) }

func (m *memory) upload(data []byte) driver.Ptr { return m.keep(m.dev.Upload(data)) }

// codes returns random ones.
func (m *memory) codes(size int) driver.Ptr {
	data := make([]byte, size)
	_, _ = m.random.Read(data) // never fails
	return m.upload(data)
}

func (m *memory) free() error {
	var errs []error
	for _, p := range m.all {
		errs = append(errs, m.dev.Free(p))
	}
	return errors.Join(errs...)
}
