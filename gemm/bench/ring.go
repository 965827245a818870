package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/repack"
)

// maxCopies is the most copies of a matrix in a ring. What is smaller than the ring's share of so
// many, some 16 KB, is read from the caches: to time a call of a microsecond from memory would take
// longer to prepare than to measure.
const maxCopies = 1 << 14

// memoryPart is the part of the memory that is free that rings take at most in all, but for one copy of each.
const memoryPart = 4

// pastCaches returns how many bytes, read in turn, are not found in the caches.
func (o *Options) pastCaches() int {
	size := o.LastCache
	if size == 0 {
		size = lastCache()
	}
	return 8*size + 1<<20
}

// plan is the memory that measuring takes of the host, in bytes: what its matrices take at most.
type plan struct {
	pool                    int // least size of a ring
	short                   bool
	f32, f16, packed, fixed int // rings
	x, y                    int // activations and results, also for BLAS
	rest                    int // a matrix, what it is packed into, and what goes with the copies and the activations
}

func (p *plan) total() int { return p.f32 + p.f16 + p.packed + p.fixed + p.x + p.y + p.rest }

// copies returns how many matrices of so many bytes make a ring, one at least.
func (p *plan) copies(size int) int {
	return min(max(1, (p.pool+size-1)/size), maxCopies)
}

// plan returns what measuring takes, with products in fixed point or none. It fails where that is more than there is.
func (o *Options) plan(fixes bool) (plan, error) {
	rings := 3
	if fixes {
		rings++
	}
	p := plan{pool: o.PoolBytes}
	if most := int(o.Memory) / memoryPart / rings; most > 0 && most < p.pool {
		p.pool, p.short = most, true
	}
	rows := slices.Max(o.M)
	add := func(f form, offsets, given bool) error {
		one := p.of(f, offsets, given, fixes, rows, o.BLAS != "")
		if need := one.total(); o.Memory > 0 && int64(need) > o.Memory {
			return fmt.Errorf("%d×%d, m %d: needs %.3g GB of memory: %.3g GB are available", f.n, f.k, rows, float64(need)/1e9, float64(o.Memory)/1e9)
		}
		p.f32, p.f16, p.packed, p.fixed = max(p.f32, one.f32), max(p.f16, one.f16), max(p.packed, one.packed), max(p.fixed, one.fixed)
		p.x, p.y, p.rest = max(p.x, one.x), max(p.y, one.y), max(p.rest, one.rest)
		return nil
	}
	for _, l := range o.Layers {
		f, err := formOf(l.Matrix)
		if err != nil {
			return p, fmt.Errorf("%s: %w", l.Name, err)
		}
		codes, ok := l.Matrix.(*bcq.Matrix)
		if err := add(f, ok && codes.Offsets != nil, true); err != nil {
			return p, fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	kind := o.Kind
	if kind == "" {
		kind = lut.Name
	}
	for _, s := range o.Shapes {
		for _, bits := range o.Bits {
			f := form{kind, s.N, s.K, bits, min(o.Group, s.K), weight.F16}
			if err := add(f, true, false); err != nil {
				return p, err
			}
		}
	}
	// Rings that one matrix needs long and another does not add up to more than either took.
	if need := p.total(); o.Memory > 0 && int64(need) > o.Memory {
		return p, fmt.Errorf("needs %.3g GB of memory for all shapes: %.3g GB are available", float64(need)/1e9, float64(o.Memory)/1e9)
	}
	return p, nil
}

// of returns what measuring so many rows on a matrix takes, which is there already or to be made at random.
func (p *plan) of(f form, offsets, given, fixes bool, rows int, blas bool) plan {
	const (
		scale    = 2 + 4    // bytes of a random one, with the float32 it is made from
		head     = 512      // bytes beside a copy's numbers, in all rings
		scratch  = 2 << 20  // of workers, and of the reference
		mostPart = 64 << 20 // of packed activations
		table    = 10       // bytes for a column of x in tables of binary codes
	)
	stored, packed := 0, 0
	perX := 0
	switch f.kind {
	case lut.Name:
		to := repack.CPUPanels{N: f.n, K: f.k, Bits: f.bits, Group: f.group, ScaleType: f.scale}
		packed = to.PanelCount() * (to.PanelBytes() + to.PanelScaleBytes())
		stored = f.n * (lut.RowBytes(f.k, f.bits) + scale*to.Groups())
	case bcq.Name:
		to := repack.CPUPlanes{N: f.n, K: f.k, Bits: f.bits, Group: f.group, ScaleType: f.scale, Offsets: offsets}
		packed = to.PanelCount() * (to.PanelBytes() + to.PanelFactorBytes())
		stored = f.n * (f.bits*((f.k+7)/8) + scale*to.Groups()*(f.bits+1))
		perX = table
	case lut24.Name:
		stored = f.n * (lut.RowBytes(f.k/2, f.bits) + scale*weight.GroupsIn(f.k, f.group) + lut24.PatternBytes(f.k))
	}
	if given {
		stored = 0
	}
	one := plan{x: 4 * rows * f.k, y: 4 * rows * f.n}
	if blas {
		one.y *= 2
	}
	size := 4 * f.n * f.k
	n := p.copies(size)
	one.f32, one.rest = n*size, n*head/4
	n = p.copies(size / 2)
	one.f16, one.rest = n*size/2, one.rest+n*head/4
	if packed > 0 {
		n = p.copies(packed)
		one.packed, one.rest = n*packed, one.rest+n*head/2+packed
		if fixes && f.kind == lut.Name {
			one.fixed, one.rest = n*packed, one.rest+n*head/2+packed
		}
	}
	if one.fixed > 0 {
		perX += 2
	}
	one.rest += stored + scratch + min(4*rows*f.k, mostPart) + perX*rows*f.k
	return one
}

// rings are the memory of the copies of a matrix and of the activations. It is taken once for all matrices.
type rings struct {
	f32, f16, packed, fixed []byte
	x, y, blasY             []float32
}

// ring returns n bytes of a ring that takes size bytes at most.
func ring(r *[]byte, size, n int) []byte {
	if *r == nil {
		*r = make([]byte, size)
	}
	return (*r)[:n]
}

// floats returns n of the activations or results that take size bytes at most.
func floats(r *[]float32, size, n int) []float32 {
	if *r == nil {
		*r = make([]float32, size/4)
	}
	return (*r)[:n]
}

// pools are the copies of a matrix that the measurements rotate through.
type pools struct {
	packed   []cpu.Weights
	fixed    []cpu.Weights // none: not in fixed point
	bytes    [][]byte      // of packed
	f32, f16 []cpu.Weights
	f32Bytes [][]byte // of f32
}

// pools returns copies of a layer's matrix in every form that is measured, and fills in the kernel.
func (b *bench) pools(ctx context.Context, s *subject, l Layer) (w pools, err error) {
	if w.f32, w.f32Bytes, err = b.densePool(ctx, s.Matrix, "F32"); err != nil {
		return w, err
	}
	if w.f16, _, err = b.densePool(ctx, s.Matrix, "F16"); err != nil {
		return w, err
	}
	switch m := s.Matrix.(type) {
	case *lut.Matrix:
		panels, ok := l.Layout.(*repack.CPUPanels)
		if !ok {
			if panels, err = repack.CPU(m); err != nil {
				return w, err
			}
		}
		s.kernel = "lut-"
		w.packed, w.fixed, w.bytes, err = b.packedPool(ctx, panels)
	case *bcq.Matrix:
		s.kernel = "planes-"
		w.packed, w.bytes, err = b.planesPool(ctx, m)
	default: // as in models
		s.kernel = "dense-"
		w.packed, w.bytes = w.f32, w.f32Bytes
	}
	return w, err
}

// copyAll fills a ring with copies of a matrix that lie one after another, and returns them: of has one in some memory, and
// fill writes the first.
func (b *bench) copyAll(ctx context.Context, r *[]byte, most, size int, fill func(first []byte) error, of func(part []byte) (cpu.Weights, error)) (weights []cpu.Weights, parts [][]byte, err error) {
	n := b.plan.copies(size)
	all := ring(r, most, n*size)
	weights, parts = make([]cpu.Weights, n), make([][]byte, n)
	for i := range n {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		parts[i] = all[i*size:][:size:size]
		if i > 0 {
			copy(parts[i], parts[0])
		} else if err := fill(parts[0]); err != nil {
			return nil, nil, err
		}
		if weights[i], err = of(parts[i]); err != nil {
			return nil, nil, err
		}
	}
	return weights, parts, nil
}

// packedPool returns copies of p, and their memory; and the same in fixed point where products can be.
func (b *bench) packedPool(ctx context.Context, p *repack.CPUPanels) (weights, fixed []cpu.Weights, pool [][]byte, err error) {
	copies := func(r *[]byte, most int, p *repack.CPUPanels, of func(c *repack.CPUPanels) (cpu.Weights, error)) ([]cpu.Weights, [][]byte, error) {
		codes := len(p.Panels)
		return b.copyAll(ctx, r, most, codes+len(p.Scales), func(first []byte) error {
			copy(first, p.Panels)
			copy(first[codes:], p.Scales)
			return nil
		}, func(part []byte) (cpu.Weights, error) {
			c := *p
			c.Panels, c.Scales = part[:codes:codes], part[codes:]
			return of(&c)
		})
	}
	weights, pool, err = copies(&b.rings.packed, b.plan.packed, p, func(c *repack.CPUPanels) (cpu.Weights, error) { return cpu.NewLUT(c) })
	if err != nil || !b.engine.Fixes() {
		return weights, nil, pool, err
	}
	one, err := cpu.NewLUT(p)
	if err != nil {
		return nil, nil, nil, err
	}
	if one.Fix() {
		fixed, _, err = copies(&b.rings.fixed, b.plan.fixed, one.Panels(), func(c *repack.CPUPanels) (cpu.Weights, error) { return one.Of(c), nil })
	}
	return weights, fixed, pool, err
}

// planesPool returns copies of binary codes, and their memory.
func (b *bench) planesPool(ctx context.Context, m *bcq.Matrix) (weights []cpu.Weights, pool [][]byte, err error) {
	panels, err := repack.Planes(m)
	if err != nil {
		return nil, nil, err
	}
	codes := len(panels.Planes)
	return b.copyAll(ctx, &b.rings.packed, b.plan.packed, int(panels.Bytes()), func(first []byte) error {
		copy(first, panels.Planes)
		copy(first[codes:], panels.Factors)
		return nil
	}, func(part []byte) (cpu.Weights, error) {
		c := *panels
		c.Planes, c.Factors = part[:codes:codes], part[codes:]
		return cpu.NewPlanes(&c)
	})
}

// densePool returns copies of the dequantized matrix in the given type, and their
// memory.
func (b *bench) densePool(ctx context.Context, m weight.Matrix, dtype string) (weights []cpu.Weights, pool [][]byte, err error) {
	rows, k := m.Shape()
	r, most, width, encode := &b.rings.f32, b.plan.f32, 4, num.EncodeF32
	if dtype == "F16" {
		r, most, width, encode = &b.rings.f16, b.plan.f16, 2, num.EncodeF16
	}
	return b.copyAll(ctx, r, most, width*rows*k, func(first []byte) error {
		row := make([]float32, k)
		for n := range rows {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			m.Row(row, n)
			encode(first[width*k*n:][:width*k], row)
		}
		return nil
	}, func(part []byte) (cpu.Weights, error) { return cpu.NewDense(rows, k, dtype, part) })
}
