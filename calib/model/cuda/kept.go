package cuda

import (
	"errors"
	"slices"

	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// PrefillCache says which packed weights are kept as numbers beside what they are packed in, for products of many rows not to
// unpack them each time.
type PrefillCache int

const (
	// KeepFP8 keeps those that products in fp8 multiply by, a byte a weight. It changes no result.
	KeepFP8 PrefillCache = iota
	// KeepNone keeps none.
	KeepNone
	// KeepAll keeps others as well, in the type of activations, and products of 256 rows and more are by cuBLAS. Those round weights
	// where others multiply sums by scales.
	KeepAll
)

// keptRows is from how many rows on products are by weights that are kept in the type of activations.
const keptRows = 256

// kept are the packed weights that are kept as numbers, those that were multiplied by first.
type kept struct {
	cache PrefillCache
	all   []*gemmcuda.Matrix
	bytes int64
	full  bool // there was no room for another
}

// asNumbers reports whether products of some rows in the type of activations are by weights that are kept, or would be with more memory.
func (k *kept) asNumbers(rows int) bool { return k.cache == KeepAll && rows >= keptRows }

// forget is called before a weight is closed.
func (k *kept) forget(m *gemmcuda.Matrix) {
	if i := slices.Index(k.all, m); i >= 0 {
		k.all = slices.Delete(k.all, i, i+1)
		n, wide := m.Shape()
		k.bytes -= int64(n * wide * m.KeptType().Size())
	}
}

// PrefillCache sets which weights are kept from now on.
func (o *Ops) PrefillCache(c PrefillCache) { o.kept.cache = c }

// KeptWeights returns how many weights are kept as numbers and what they take, and whether there was no room for more.
func (o *Ops) KeptWeights() (count int, bytes int64, full bool) {
	return len(o.kept.all), o.kept.bytes, o.kept.full
}

// keepReserve is the part of the GPU's memory that is left free of weights that are kept, for what comes.
const keepReserve = 8

// keeps reports whether a weight is kept in a type, and keeps it where there is memory. It is called inside do.
func (o *Ops) keeps(m *gemmcuda.Matrix, t driver.DType) bool {
	k := &o.kept
	switch {
	case m.Kept():
		return m.KeptType() == t
	case k.cache == KeepNone || k.full || o.err != nil:
		return false
	}
	n, wide := m.Shape()
	bytes := int64(n * wide * t.Size())
	free, total, err := o.dev.Memory()
	if k.full = err == nil && free-bytes < total/keepReserve+o.reserve; k.full {
		return false
	}
	if err == nil {
		err = m.Keep(o.stream, t)
	}
	if k.full = driver.IsOutOfMemory(err); k.full {
		return false
	}
	if o.fail(err); err != nil {
		return false
	}
	k.all, k.bytes = append(k.all, m), k.bytes+bytes
	return true
}

// dropKept gives back what is kept, for memory that is needed otherwise, and keeps no more. It reports whether there was any.
func (o *Ops) dropKept() (bool, error) {
	if len(o.kept.all) == 0 {
		return false, nil
	}
	errs := []error{o.dev.Sync()}
	for _, m := range o.kept.all {
		errs = append(errs, m.Drop())
	}
	o.kept = kept{cache: o.kept.cache, full: true}
	return true, errors.Join(errs...)
}
