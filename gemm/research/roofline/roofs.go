package roofline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/timing"
)

// Roofs are what bounds products on a device, as it was measured there: what it reads, and what it multiplies with dense
// weights. Kernels in fewer bits than those multiply may come out above.
type Roofs struct {
	Device     string  `json:"device"`            // that products ran on, in words
	BytesPerS  float64 `json:"bytes_per_s"`       // read from memory
	FLOPPerS   float64 `json:"flop_per_s"`        // 0 where there is nothing to multiply by
	Reads      string  `json:"read_by,omitempty"` // how the first was measured
	Multiplies string  `json:"multiplied_by,omitempty"`
}

// At returns the most floating-point operations a second at an intensity, in operations a byte.
func (r *Roofs) At(intensity float64) float64 {
	read := intensity * r.BytesPerS
	if r.FLOPPerS == 0 {
		return read
	}
	return min(read, r.FLOPPerS)
}

// OnCPU measures the roofs of the processors: memory is read as [bench.ReadRate] does,
// and many rows of X are multiplied in float32 by a matrix that the caches hold.
func OnCPU(ctx context.Context, o bench.Options) (*Roofs, error) {
	rate, err := bench.ReadRate(ctx, o)
	if err != nil {
		return nil, err
	}
	e, err := cpu.New(cpu.Options{Threads: o.Threads})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	const rows, n = 384, 768
	r := rand.New(rand.NewPCG(1, 1))
	x, weights, y := make([]float32, rows*n), make([]float32, n*n), make([]float32, rows*n)
	for _, v := range [][]float32{x, weights} {
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
	}
	data := make([]byte, 4*len(weights))
	num.EncodeF32(data, weights)
	w, err := cpu.NewDense(n, n, "F32", data)
	if err != nil {
		return nil, err
	}
	best := 0.0 // products a second
	for range bench.Repetitions {
		start, calls := time.Now(), 0
		for calls == 0 || time.Since(start) < 50*time.Millisecond {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			e.MatMul(y, x, rows, w)
			calls++
		}
		best = max(best, float64(calls)/time.Since(start).Seconds())
	}
	return &Roofs{
		Device:    fmt.Sprintf("cpu, %s, threads: %d", e.ISA(), e.Threads()),
		BytesPerS: rate, Reads: "reading more than the caches hold",
		FLOPPerS: 2 * rows * n * n * best, Multiplies: "the float32 kernel at its best",
	}, nil
}

// OnCUDA measures the roofs of the first GPU: packed weights are read as [bench.ReadRateCUDA] does, and cuBLAS, where it is
// there, multiplies many rows of X by a large matrix of a type, f16 or bf16.
func OnCUDA(ctx context.Context, dtype string) (*Roofs, error) {
	t, err := driver.ParseHalf(cmp.Or(dtype, driver.F16.String()))
	if err != nil {
		return nil, err
	}
	r := &Roofs{Reads: "the fastest kernel that only reads packed weights"}
	if r.BytesPerS, err = bench.ReadRateCUDA(ctx); err != nil {
		return nil, err
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return nil, err
	}
	dev, err := c.OpenDevice(0)
	if err != nil {
		return nil, err
	}
	r.Device = dev.Info.Name
	err = dev.Do(func() (err error) {
		r.FLOPPerS, err = productRate(dev, t, 8192, 8192, 4096)
		return err
	})
	err = errors.Join(err, dev.Close())
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		return r, nil
	}
	r.Multiplies = fmt.Sprintf("cuBLAS in %v at 8192×8192, M = 4096", t)
	return r, err
}

// productRate returns how many operations a second cuBLAS takes to multiply m rows by an n×k matrix.
func productRate(dev *driver.Device, t driver.DType, n, k, m int) (_ float64, err error) {
	stream, err := dev.NewStream()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	blas, err := dev.NewBLAS(stream)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, blas.Close()) }()
	// Power, and with it the clock, hangs on the numbers: normal ones, some over and over.
	some := conform.RandomHalves(rand.New(rand.NewPCG(1, 1)), 1<<18, t)
	var at [3]driver.Ptr // of X, the weights and Y, of which the last need not be filled
	for i, size := range []int{m * k, n * k, m * n} {
		if at[i], err = dev.Alloc(2 * size); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, dev.Free(at[i])) }()
		for done := 0; done < size && i < 2; done += len(some) {
			if err := dev.Write(at[i]+driver.Ptr(2*done), driver.Bytes(some[:min(len(some), size-done)])); err != nil {
				return 0, err
			}
		}
	}
	product := &timing.Arm{Ring: 1, Call: func(int) error { return blas.MatMul(at[2], at[0], at[1], m, n, k, t, t) }}
	const replays = 5
	if err := timing.Measure(dev, stream, []*timing.Arm{product}, replays); err != nil {
		return 0, err
	}
	return 2 * float64(m) * float64(n) * float64(k) / product.Median() * 1e6, nil
}
