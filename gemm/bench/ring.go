package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
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
	pool                      int // least size of a ring
	short                     bool
	f32, f16, packed, rounded int // rings
	x, y                      int // activations and results, also for BLAS
	rest                      int // a matrix, what it is packed into, and what goes with the copies and the activations
}

func (p *plan) total() int { return p.f32 + p.f16 + p.packed + p.rounded + p.x + p.y + p.rest }

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
	add := func(f form, optional bool, stored int) error {
		one := p.of(f, cpu.MemoryFor(f.spec(), f.n, f.k, optional, fixes), stored, rows, o.BLAS != "")
		if need := one.total(); o.Memory > 0 && int64(need) > o.Memory {
			return fmt.Errorf("%d×%d, m %d: needs %.3g GB of memory: %.3g GB are available", f.n, f.k, rows, float64(need)/1e9, float64(o.Memory)/1e9)
		}
		p.f32, p.f16, p.packed, p.rounded = max(p.f32, one.f32), max(p.f16, one.f16), max(p.packed, one.packed), max(p.rounded, one.rounded)
		p.x, p.y, p.rest = max(p.x, one.x), max(p.y, one.y), max(p.rest, one.rest)
		return nil
	}
	for _, l := range o.Layers {
		f, err := formOf(l.Matrix)
		if err != nil {
			return p, fmt.Errorf("%s: %w", l.Name, err)
		}
		optional := !slices.ContainsFunc(l.Matrix.Parts(), func(part []byte) bool { return part == nil })
		if err := add(f, optional, 0); err != nil {
			return p, fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	kind, err := kindOf(o.Kind)
	if err != nil {
		return p, err
	}
	for _, s := range o.Shapes {
		for _, bits := range o.Bits {
			f := form{kind.Name(), s.N, s.K, bits, min(o.Group, s.K), weight.F16}
			stored, err := storedBytes(kind, f)
			if err == nil {
				err = add(f, true, stored)
			}
			if err != nil {
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

// storedBytes returns what a random matrix takes as it is stored, with the float32 that its scales are made from.
func storedBytes(kind weight.Kind, f form) (size int, err error) {
	parts, err := kind.Parts(f.spec(), f.n, f.k)
	for _, p := range parts {
		if !p.Rows {
			continue // a table
		}
		n := 1
		for _, d := range p.Shape {
			n *= d
		}
		if p.DType == f.scale.DType() {
			n *= f.scale.Size() + 4
		}
		size += n
	}
	return size, err
}

// of returns what measuring so many rows on a matrix takes, which is there already or to be made at random, from what it takes in
// memory and what is stored of it anew.
func (p *plan) of(f form, m cpu.Memory, stored, rows int, blas bool) plan {
	const (
		head     = 512      // bytes beside a copy's numbers, in all rings
		scratch  = 2 << 20  // of workers, and of the reference
		mostPart = 64 << 20 // of packed activations
	)
	one := plan{x: 4 * rows * f.k, y: 4 * rows * f.n}
	if blas {
		one.y *= 2
	}
	size := 4 * f.n * f.k
	n := p.copies(size)
	one.f32, one.rest = n*size, n*head/4
	n = p.copies(size / 2)
	one.f16, one.rest = n*size/2, one.rest+n*head/4
	for _, packed := range []struct {
		to   *int
		size int
	}{{&one.packed, m.Packed}, {&one.rounded, m.Rounded}} {
		if size := packed.size; size > 0 {
			n = p.copies(size)
			*packed.to, one.rest = n*size, one.rest+n*head/2+size
		}
	}
	one.rest += stored + scratch + min(4*rows*f.k, mostPart) + m.Column*rows*f.k
	return one
}

// rings are the memory of the copies of a matrix and of the activations. It is taken once for all matrices.
type rings struct {
	f32, f16, packed, rounded []byte
	x, y, blasY               []float32
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

// pool is a ring of copies of a matrix in one form.
type pool struct {
	weights []cpu.Weights
	parts   [][]byte // their memory
}

func (p pool) last() cpu.Weights { return p.weights[len(p.weights)-1] }

// pools are the copies of a matrix that the measurements rotate through.
type pools struct {
	f32, f16, packed pool
	kernel           string       // of packed
	how              *cpu.Rounded // if products round more as well
	rounded          pool         // by which
}

// pools returns copies of a layer's matrix in every form that is measured.
func (b *bench) pools(ctx context.Context, l Layer) (w pools, err error) {
	if w.f32, err = b.densePool(ctx, l.Matrix, "F32"); err != nil {
		return w, err
	}
	if w.f16, err = b.densePool(ctx, l.Matrix, "F16"); err != nil {
		return w, err
	}
	var packed cpu.Packed
	if panels, ok := l.Layout.(*repack.CPUPanels); ok {
		packed, err = cpu.NewLUT(panels)
	} else {
		packed, err = cpu.Pack(l.Matrix)
	}
	if err != nil {
		return w, err
	}
	if packed == nil { // as in models
		w.packed, w.kernel = w.f32, "dense"
		return w, nil
	}
	err = b.packedPools(ctx, &w, packed)
	return w, err
}

// packedPools adds copies of a matrix that is laid out, and of what products round more by.
func (b *bench) packedPools(ctx context.Context, w *pools, p cpu.Packed) (err error) {
	w.kernel = p.Kernel()
	if w.packed, err = b.packedPool(ctx, &b.rings.packed, b.plan.packed, p); err != nil {
		return err
	}
	how := p.Rounded()
	if how == nil || !how.Serves(b.engine) {
		return nil
	}
	w.how, w.rounded = how, w.packed
	if how.Weights != p {
		w.rounded, err = b.packedPool(ctx, &b.rings.rounded, b.plan.rounded, how.Weights)
	}
	return err
}

// copyAll fills a ring with copies of a matrix that lie one after another, and returns them: of has one in some memory, and
// fill writes the first.
func (b *bench) copyAll(ctx context.Context, r *[]byte, most, size int, fill func(first []byte) error, of func(part []byte) (cpu.Weights, error)) (p pool, err error) {
	n := b.plan.copies(size)
	all := ring(r, most, n*size)
	p = pool{make([]cpu.Weights, n), make([][]byte, n)}
	for i := range n {
		if ctx.Err() != nil {
			return p, context.Cause(ctx)
		}
		p.parts[i] = all[i*size:][:size:size]
		if i > 0 {
			copy(p.parts[i], p.parts[0])
		} else if err := fill(p.parts[0]); err != nil {
			return p, err
		}
		if p.weights[i], err = of(p.parts[i]); err != nil {
			return p, err
		}
	}
	return p, nil
}

// packedPool returns copies of a matrix that is laid out, in a ring that takes most bytes.
func (b *bench) packedPool(ctx context.Context, r *[]byte, most int, p cpu.Packed) (pool, error) {
	size := 0
	for _, part := range p.Parts() {
		size += len(part)
	}
	return b.copyAll(ctx, r, most, size, func(first []byte) error {
		for _, part := range p.Parts() {
			first = first[copy(first, part):]
		}
		return nil
	}, func(part []byte) (cpu.Weights, error) { return p.Over(part), nil })
}

// densePool returns copies of the dequantized matrix in the given type.
func (b *bench) densePool(ctx context.Context, m weight.Matrix, dtype string) (pool, error) {
	rows, k := m.Shape()
	r, most, width, encode := &b.rings.f32, b.plan.f32, 4, num.EncodeF32
	if dtype == "F16" {
		r, most, width, encode = &b.rings.f16, b.plan.f16, 2, num.EncodeF16
	}
	return b.copyAll(ctx, r, most, width*rows*k, func(first []byte) error {
		read := weight.NewReader(m)
		for n := range rows {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			encode(first[width*k*n:][:width*k], read.Row(n))
		}
		return nil
	}, func(part []byte) (cpu.Weights, error) { return cpu.NewDense(rows, k, dtype, part) })
}
