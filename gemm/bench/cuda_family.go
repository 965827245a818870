package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/families"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/timing"
	"github.com/lutq/lutq/gemm/fp8"
)

// choice is how some rows of X are multiplied by a ring.
type choice struct {
	kernel    string
	multiply  func(i int) error
	prepare   func(i int) error // writes X as multiply reads it, if that is not row by row
	read      func(i int) error // the read-only twin
	reference newReference
}

// kernelsOf lists the kernels of a kind that can be asked for: by families, if there are several, or by ways to multiply.
func kernelsOf(kind string) []string {
	var all []string
	several := 0
	for _, f := range families.All() {
		if f.Kind() != kind {
			continue
		}
		if several++; several == 1 {
			if n, ok := f.(cuda.Namer); ok {
				return n.Names()
			}
		}
		all = append(all, f.Name())
	}
	if several == 1 {
		return nil
	}
	return all
}

// familyOf returns that of a kind, "" for that of tables, which a kernel is asked for of, and whether that is one of its ways to multiply.
func familyOf(kind, kernel string) (of cuda.Family, named bool, err error) {
	k, err := kindOf(kind)
	if err != nil {
		return nil, false, err
	}
	kind = k.Name()
	first := families.Of(kind)
	if first == nil {
		return nil, false, fmt.Errorf("no kernels on a GPU for kind %s", kind)
	}
	if kernel == "" {
		return first, false, nil
	}
	if !slices.Contains(kernelsOf(kind), kernel) {
		return nil, false, fmt.Errorf("kernel %q of kind %s: want %s", kernel, kind, strings.Join(kernelsOf(kind), ", "))
	}
	for _, f := range families.All() {
		if f.Kind() == kind && f.Name() == kernel {
			return f, false, nil
		}
	}
	return first, true, nil
}

// pack lays a layer out for a family and activations of a type, unless it is so already.
func pack(f cuda.Family, l Layer, t driver.DType) (tiles cuda.Tiles, parts [][]byte, err error) {
	if l.Layout != nil {
		if tiles, parts, err = families.PackLayout(l.Layout, t); tiles != nil || err != nil {
			return tiles, parts, err
		}
	}
	if tiles, parts, err = f.Pack(l.Matrix, t); tiles != nil || err != nil {
		return tiles, parts, err
	}
	if _, k := l.Matrix.Shape(); k%32 != 0 { // as all kernels want
		return nil, nil, fmt.Errorf("%d input features: the kernel wants a multiple of 32", k)
	}
	return nil, nil, fmt.Errorf("no kernel %s for it", f.Name())
}

// turn is a ring with a lookup, if one is asked for, of which rows are measured from some rows of X on.
type turn struct {
	ring   []*cuda.Matrix
	lookup string
	least  int
	own    bool // the ring has memory of its own, beside what it has in common with others
}

// turns returns what is measured of a ring: as it is, rounded to E4M3 and with lookups, as they are asked for. It compiles what
// the first two take, on all processors.
func (b *cudaBench) turns(ring []*cuda.Matrix) ([]turn, error) {
	var all []turn
	var like []cuda.Tiles
	add := func(lookup string, least int, change func(w *cuda.Matrix) (*cuda.Matrix, error)) error {
		of := make([]*cuda.Matrix, len(ring))
		for i, w := range ring {
			var err error
			if of[i], err = change(w); err != nil {
				return err
			}
		}
		if all = append(all, turn{ring: of, lookup: lookup, least: least}); lookup == "" {
			like = append(like, of[0].Tiles)
		}
		return nil
	}
	var err error
	if len(b.Lookups) == 0 {
		err = add("", 0, func(w *cuda.Matrix) (*cuda.Matrix, error) { return w, nil })
	}
	if b.FP8 {
		err = errors.Join(err, add("", fp8.FewestRows, func(w *cuda.Matrix) (*cuda.Matrix, error) {
			r := w.As(w.Tiles) // with the same memory
			if !b.engine.RoundToFP8(r) {
				return nil, fmt.Errorf("no kernel in fp8 on %s for groups of %d: want Hopper, a compiler and groups of 64, 128, 256 or a row", b.dev.Info.Name, w.Format().Group)
			}
			return r, nil
		}))
	}
	if n := len(all); b.FP8 && err == nil && b.engine.Folds(all[n-1].ring[0].Tiles, fp8.FoldedRows) {
		err = add("", fp8.FoldedRows, func(w *cuda.Matrix) (*cuda.Matrix, error) {
			r := w.As(w.Tiles)
			b.engine.RoundToFP8(r)
			return r, r.Keep(b.stream, driver.E4M3)
		})
		all[n-1].own, all[len(all)-1].own = true, true
	}
	for _, l := range b.Lookups {
		if of := add(l.String(), 0, func(w *cuda.Matrix) (*cuda.Matrix, error) { return table.With(b.engine.GPU(), w, l) }); of != nil {
			err = errors.Join(err, fmt.Errorf("lookup %v: %w", l, of))
		}
	}
	if err != nil {
		return nil, err
	}
	b.engine.Compile(like, !b.NoTune, b.M...)
	return all, nil
}

// tunes reports whether there is something to choose for m rows of X.
func (b *cudaBench) tunes(t cuda.Tiles, m int) bool {
	return len(b.engine.Configs(t, m)) > 1 || m > cuda.MaxRows && len(b.engine.Ways(t, m)) > 1
}

// choose returns how rows of X are multiplied by a ring, tuned unless that is not to be, or in a way that is asked for.
func (b *cudaBench) choose(f cuda.Family, asked string, ring []*cuda.Matrix, o cuda.Operands, mem *memory) (c choice, err error) {
	t := ring[0].Tiles
	u := b.unpacked(t, o.M, mem)
	by, err := b.way(ring, &o, u, mem)
	if asked != "" && err == nil {
		if by = f.(cuda.Namer).Named(asked, t.Format()); by == nil {
			err = fmt.Errorf("no kernel %q for %s", asked, t.Format().Name())
		}
	}
	if err != nil {
		return c, err
	}
	switch by {
	case cuda.InTurns:
		config, err := b.engine.Chosen(t, o.M)
		if err != nil {
			return c, err
		}
		c.kernel = cuda.Label(config)
	case cuda.AsNumbers:
		c.kernel = unpackedKernel
	case cuda.InFP8:
		if c.kernel = foldedKernel; ring[0].Kept() {
			c.kernel = keptFolded
		}
	default:
		c.kernel = cuda.Label(by)
	}
	_, k := t.Shape()
	needs := b.engine.NeedsOf(t, by, o.M)
	if size := needs.Scratch(o.M, k); size > 0 && o.Scratch == 0 {
		o.Scratch = mem.alloc(size)
	}
	if form := needs.Form; form != nil && (form.Written(k) || by == cuda.InTurns) { // as a model has it, once for all that read it
		x := o.X
		o.X, o.Form = mem.alloc(form.Bytes(o.M, k)), form
		c.prepare = func(int) error { return b.engine.Prepare(b.stream, form, b.dtype, o.X, x, o.M, k) }
		if mem.err == nil {
			err = c.prepare(0)
		}
	}
	if err = errors.Join(err, mem.err); err != nil {
		return c, err
	}
	var folded cuda.Folded
	if by == cuda.InFP8 {
		if folded, err = b.folded(ring[0], mem); err != nil {
			return c, err
		}
	}
	c.multiply = func(i int) error {
		if by == cuda.InFP8 {
			in := o
			in.X, in.Form = o.Scratch, needs.Form
			err := b.engine.Prepare(b.stream, needs.Form, b.dtype, in.X, o.X, o.M, k)
			return errors.Join(err, folded.MatMul(b.stream, ring[i%len(ring)], in, b.dtype, false))
		}
		if by == cuda.AsNumbers {
			return u.MatMul(b.stream, ring[i%len(ring)], o, b.dtype, false)
		}
		return b.engine.MatMulWay(b.stream, ring[i%len(ring)], o, by)
	}
	c.reference = referenceOf(f, by)
	c.read, err = b.fastestRead(ring, o)
	return c, err
}

// way returns the way to multiply rows of X, tuned unless that is not to be, and fills in scratch memory for that. A kernel that is asked
// for takes turns.
func (b *cudaBench) way(ring []*cuda.Matrix, o *cuda.Operands, u *cuda.Unpacked, mem *memory) (cuda.Way, error) {
	t := ring[0].Tiles
	ways := []cuda.Way{cuda.InTurns}
	most := b.engine.TuneScratch(t, o.M)
	if o.M > cuda.MaxRows && b.Kernel == "" {
		ways = b.engine.Ways(t, o.M)
		most = max(most, b.engine.MostScratch(t, o.M))
	}
	if most > 0 {
		o.Scratch = mem.alloc(most)
	}
	if mem.err != nil {
		return nil, mem.err
	}
	if !b.NoTune && slices.Contains(ways, cuda.Way(cuda.InTurns)) && len(b.engine.Configs(t, o.M)) > 1 {
		if _, err := b.engine.Tune(b.stream, ring, *o); err != nil {
			return nil, err
		}
	}
	by := ways[0]
	switch {
	case len(ways) == 1:
	case b.NoTune:
		by = b.engine.Way(t, o.M)
	default:
		timings, err := b.engine.TuneWays(b.stream, ring, *o, u)
		if err != nil {
			return nil, err
		}
		by = timings[0].Way
	}
	if by == cuda.AsNumbers && u == nil {
		by = cuda.InTurns
	}
	return by, nil
}

// unpacked returns what unpacks a matrix for m rows of X and cuBLAS, or nil where that is missing or those are few.
func (b *cudaBench) unpacked(t cuda.Tiles, m int, mem *memory) *cuda.Unpacked {
	if b.dense.blas == nil || m <= cuda.MaxRows {
		return nil
	}
	size := cuda.UnpackedScratch(t)
	return &cuda.Unpacked{BLAS: b.dense.blas, Scratch: mem.alloc(size), Bytes: size}
}

// folded returns what folds a matrix and multiplies in E4M3.
func (b *cudaBench) folded(w *cuda.Matrix, mem *memory) (f cuda.Folded, err error) {
	if b.fp8 == nil {
		if b.fp8, err = b.dev.NewFP8BLAS(); err != nil {
			return f, err
		}
	}
	f = cuda.Folded{BLAS: b.fp8, Bytes: cuda.FoldedScratch(w)}
	f.Scratch = mem.alloc(f.Bytes)
	return f, mem.err
}

// fastestRead returns the call of the read-only twin, for as many rows or for one, under the
// configuration that it is fastest in. It reads the weights once, whatever M is.
func (b *cudaBench) fastestRead(ring []*cuda.Matrix, o cuda.Operands) (func(i int) error, error) {
	var candidates []*timing.Arm
	for _, m := range []int{min(o.M, cuda.MaxRows), 1} {
		of := o
		of.M, of.Form = m, nil
		for _, by := range b.engine.Twins(ring[0].Tiles, m) {
			candidates = append(candidates, &timing.Arm{Ring: len(ring), Call: func(i int) error {
				return b.engine.MatMulWay(b.stream, ring[i%len(ring)], of, by)
			}})
		}
	}
	const replays = 7
	if err := timing.Measure(b.dev, b.stream, candidates, replays); err != nil {
		return nil, err
	}
	best := slices.MinFunc(candidates, func(a, b *timing.Arm) int { return cmp.Compare(a.Median(), b.Median()) })
	return best.Call, nil
}

// newReference makes what results are held against.
type newReference = func(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference

// referenceOf returns that of products in a way by the matrices of a family, as kernels hold them.
func referenceOf(f cuda.Family, by cuda.Way) newReference {
	return func(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference {
		if l, ok := w.(*lut.Matrix); ok {
			if by == cuda.InFP8 {
				return conform.NewFoldedReference(r, l, x, bias, m, share, t)
			}
			if cuda.RoundsToFP8(by) {
				return conform.NewFP8Reference(r, l, x, bias, m, share, t)
			}
			return conform.NewReference(r, l, x, bias, m, share, t)
		}
		if h, ok := f.(cuda.Holder); ok {
			w = h.Held(w, t)
		}
		return conform.NewRowReference(r, w, x, bias, m, share, t)
	}
}
