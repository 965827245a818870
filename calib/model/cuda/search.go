package cuda

import (
	"math"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/rounding"
)

// How many numbers of each kind the kernels that search have room for: values of a table and what is between them, multiples,
// and bytes.
const (
	searchValues = 32
	searchFine   = 4
	searchCoarse = 128
	searchBytes  = 256
	searchTried  = 64 // at a time
)

// SearchKernel returns the source of the kernels that search scales, for all types of activations. They round as the host does.
func SearchKernel() driver.Kernel {
	return driver.Kernel{
		Name: "search.cu", Source: prelude() + searchSource,
		Options: driver.CompileOptions{Defines: []string{"ACTS=0"}, Flags: []string{"--fmad=false"}},
	}
}

// searchable reports whether the kernels can do a search.
func searchable(s *rounding.Search) bool {
	tried := max(s.First, s.More)
	if s.Signed {
		tried *= 2
	}
	return len(s.Values) <= searchValues && len(s.Fine) == searchFine && len(s.Coarse) <= searchCoarse && len(s.Bytes) <= searchBytes &&
		tried <= searchTried && s.First <= len(s.Coarse)
}

// uploadSearch queues a search's lists, and returns where they are and the rest of it. It is called inside do.
func (o *Ops) uploadSearch(s *rounding.Search) (lists driver.Ptr, rest []byte) {
	var all []float32
	list := func(v []float32, n int, beyond float32) {
		all = append(all, v...)
		for range n - len(v) {
			all = append(all, beyond)
		}
	}
	list(s.Values, searchValues, 0)
	list(s.Mids, searchValues, float32(math.Inf(1)))
	list(s.Fine, searchFine, 0)
	list(s.Coarse, searchCoarse, 0)
	list(s.Bytes, searchBytes, 0)
	list(s.Least, searchBytes, 0)
	is := func(yes bool) uint32 {
		if yes {
			return 1
		}
		return 0
	}
	types := map[weight.ScaleType]uint32{weight.F32: 0, weight.F16: 1, weight.BF16: 2, weight.E4M4: 3, weight.S1E4M3: 3, weight.E8M0: 3}
	words := []uint32{
		types[s.Type], uint32(len(s.Bytes)), is(s.Absmax), is(s.Signed), is(s.UpperEnd),
		uint32(len(s.Coarse)), uint32(s.First), uint32(s.More), uint32(s.Refine), math.Float32bits(s.Max), math.Float32bits(s.Reach),
	}
	return o.uploadFloats(all), driver.Bytes(words)
}

// searchScales queues the search of scales of n rows of w, floats [n, k]: as they are wanted, as they are stored, and the bits of the
// largest magnitudes, [n, groups]. It is called inside do.
func (o *Ops) searchScales(s *rounding.Search, lists driver.Ptr, rest []byte, wanted, stored, tops driver.Ptr, w model.Array, n, k int) {
	name := "search_scales_all"
	switch {
	case s.Group <= 64:
		name = "search_scales_64"
	case s.Group <= 128:
		name = "search_scales_128"
	}
	grid := driver.Dim{X: uint32(ceil(n*ceil(k, s.Group), gradThreads/32))}
	o.launch(name, grid, driver.Dim{X: gradThreads}, wanted, stored, tops, w, lists, rest, n, k, s.Group)
}

// Tables implements [rounding.Feedback].
func (f *feedback) Tables(t rounding.Tables, w []float32) (bool, error) {
	if !searchable(t.Search) {
		return false, nil
	}
	o, back := f.main.lane()
	defer back()
	o.Queue(func() { f.tables(o, t, w) })
	return true, o.Err()
}

// tables is Tables by some operations, inside do.
func (f *feedback) tables(o *Ops, t rounding.Tables, w []float32) {
	n, k, s := len(t.Sums), f.k, t.Search
	groups, count := n*ceil(k, s.Group), len(s.Values)
	check(len(w) == n*k && len(t.Codes) == n*k && len(t.Tops) == groups && len(t.Wanted) == groups, "%d weights of %d rows of %d to %d codes", len(w), n, k, len(t.Codes))
	r := f.newRows(o, n, s.Group, count)
	defer r.free()
	own := r.in
	if f.retargets() {
		own = o.Floats(n * k)
		defer o.Free(own)
	}
	// What is read back, one behind the other: sums of 8 bytes first.
	const sums = 4
	found := o.Floats(n*(2*sums+3) + 2*groups)
	defer o.Free(found)
	part := func(from, n int) model.Array { return found.Slice(from, from+n) }
	losses := n * 2 * sums
	fed, nearest, none := part(losses, n), part(losses+n, n), part(losses+2*n, n)
	wanted, tops := part(losses+3*n, groups), part(losses+3*n+groups, groups)
	stored := o.Floats(groups)
	defer o.Free(stored)
	o.Write(own, w)
	each, threads := driver.Dim{X: uint32(n)}, driver.Dim{X: gradThreads}
	back := make([]float32, found.Len())
	o.do(func() {
		lists, rest := o.uploadSearch(s)
		codes, others := o.scratch(n*k), o.scratch(n*k)
		defer func() {
			for _, at := range []driver.Ptr{lists, codes, others} {
				o.release(at)
			}
		}()
		if own != r.in {
			o.Copy(r.in, own)
			f.retarget(o, r.in, own, n)
			o.launch("keep_finite", each, threads, r.in, own, k)
		}
		o.searchScales(s, lists, rest, ptr(wanted), ptr(stored), ptr(tops), r.in, n, k)
		o.launch("make_levels", driver.Dim{X: uint32(ceil(groups*count, gradThreads))}, threads, r.level, stored, lists, groups, count)
		r.feed(codes, fed)
		r.nearest(others, nearest)
		r.weigh(none, r.goal)
		o.launch("choose_codes", driver.Dim{X: uint32(ceil(n, columnRows))}, threads, codes, others, fed, nearest, r.level, own, r.in, found, n, k, s.Group, count)
		o.fetch(t.Codes, codes)
		o.fetch(driver.Bytes(back), ptr(found))
	})
	copy(t.Wanted, back[losses+3*n:])
	for i, v := range back[losses+3*n+groups:] {
		t.Tops[i] = math.Float32bits(v)
	}
	for i := range t.Sums {
		at := func(j int) float64 {
			of := back[2*(sums*i+j):]
			return math.Float64frombits(uint64(math.Float32bits(of[0])) | uint64(math.Float32bits(of[1]))<<32)
		}
		t.Sums[i] = rounding.TableSums{
			Energy: at(0), Squared: at(1), Goal: at(2), Missed: at(3),
			Fed: back[losses+i], NearestLoss: back[losses+n+i], Loss0: back[losses+2*n+i],
		}
	}
}
