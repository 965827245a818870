package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/timing"
	"github.com/lutq/lutq/repack"
)

// ReadRate returns how many bytes a second the processors read from memory: the best of some turns. Of the options it looks at
// Threads and at what bounds the size of a ring, which is read.
func ReadRate(ctx context.Context, o Options) (float64, error) {
	e, err := cpu.New(cpu.Options{Threads: o.Threads})
	if err != nil {
		return 0, err
	}
	defer e.Close()
	size := o.pastCaches()
	if o.Memory > 0 {
		size = min(size, max(int(o.Memory/memoryPart), 1))
	}
	pool := make([]byte, size)
	for i := 0; i < len(pool); i += 4096 {
		if i%(1<<20) == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		pool[i] = 1 // pages that nothing was written to are one page of zeros
	}
	const piece = 256 << 20 // that takes less than a second to read
	var best float64
	for range Repetitions {
		start := time.Now()
		for part := range slices.Chunk(pool, piece) {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			e.ReadOnly(part)
		}
		best = max(best, float64(size)/time.Since(start).Seconds())
	}
	return best, nil
}

// readShape is that of the matrix by which a GPU's rate is found: large, so that what a launch takes counts little.
func readShape() Shape { return Shape{28672, 8192} }

// ReadRateCUDA returns how many bytes a second the first GPU reads of packed weights, by the fastest of the
// kernels that do nothing else.
func ReadRateCUDA(ctx context.Context) (float64, error) {
	c, err := driver.OpenGPU()
	if err != nil {
		return 0, err
	}
	var rate float64
	err = onGPU(c, func(g *gpu) (err error) {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := cudaBench{gpu: g}
		rate, err = b.readRate(readShape(), 4*g.dev.Info.L2)
		return err
	})
	return rate, err
}

// readRate reads matrices of a shape, at least two and so many bytes.
func (b *cudaBench) readRate(s Shape, ringBytes int) (_ float64, err error) {
	t := &repack.CUDATiles{N: s.N, K: s.K, Bits: 4, Group: 128, ScaleType: weight.F16, Codebook: make([]float32, 16)}
	t.Codes, t.Scales = make([]byte, t.Tiles()*t.TileBytes()), make([]byte, t.Tiles()*t.TileScaleBytes())
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(t.Codes) // which does not fail

	mem := memory{dev: b.dev}
	var ring []*cuda.Matrix
	defer func() {
		for _, w := range ring {
			err = errors.Join(err, w.Close())
		}
		err = errors.Join(err, mem.free())
	}()
	tiles, parts, err := table.Of(t, driver.F16)
	if err != nil {
		return 0, err
	}
	for !ringIsLong(len(ring), int(t.Bytes()), ringBytes) {
		w, err := b.engine.Upload(tiles, parts)
		if err != nil {
			return 0, err
		}
		ring = append(ring, w)
	}
	o := cuda.Operands{M: 1, X: mem.alloc(2 * s.K), Y: mem.alloc(2 * s.N)}
	if mem.err != nil {
		return 0, mem.err
	}
	read, err := b.fastestRead(ring, o)
	if err != nil {
		return 0, err
	}
	probe := &timing.Arm{Call: read, Ring: len(ring)}
	const replays = 7
	if err := timing.Measure(b.dev, b.stream, []*timing.Arm{probe}, replays); err != nil {
		return 0, err
	}
	return float64(ring[0].Bytes()) / probe.Median() * 1e6, nil
}
