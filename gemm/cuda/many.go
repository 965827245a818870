package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/timing"
)

// Way is how many rows of X, more than [MaxRows], are multiplied: a value that can be compared. The zero Way is a
// kernel for every 32 rows, or for every 16.
type Way struct {
	unpacked bool
	many     manyVariant // of the kernel for all rows, or the zero value
	fp8      fp8Variant  // of that in E4M3
	sparse   sparseMany  // of that by what is kept where every four columns keep two
}

// Unpacked reports whether it is that of [Unpacked.MatMul]; others are [Engine.MatMul]'s.
func (w Way) Unpacked() bool { return w.unpacked }

// FP8 reports whether X and the table are rounded to E4M3.
func (w Way) FP8() bool { return w.fp8 != fp8Variant{} }

// ScratchBytes returns the scratch memory for m rows of K numbers, 0 for a way that does without: what the sums take, and X where
// it has to be prepared.
func (w Way) ScratchBytes(m, k int) int {
	if f := w.Form(); f != RowByRow {
		return w.sumBytes() + f.Bytes(m, k)
	}
	return 0
}

// sumBytes returns what workers take to leave sums for each other.
func (w Way) sumBytes() int {
	switch {
	case w.many != manyVariant{}:
		return w.many.sumBytes(manyWorkers)
	case w.FP8():
		return w.fp8.sumBytes(manyWorkers)
	case w.sparse != sparseMany{}:
		return w.sparse.sumBytes(manyWorkers)
	}
	return 0
}

func (w Way) String() string {
	switch {
	case w.unpacked:
		return "unpacked"
	case w.many != manyVariant{}:
		return w.many.String()
	case w.FP8():
		return w.fp8.String()
	case w.sparse != sparseMany{}:
		return w.sparse.String()
	}
	return "packed"
}

// manyBuckets are the rows of X up to which they are treated alike: those behind the last as those before.
var manyBuckets = [...]int{24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 2048, 4096}

// manyBucket returns the largest number of rows, above MaxRows, that is treated like m.
func manyBucket(m int) int {
	for _, b := range manyBuckets {
		if m <= b {
			return b
		}
	}
	return manyBuckets[len(manyBuckets)-1]
}

// mostPacked are the rows of X above which a kernel for every 32 is never the fastest.
const mostPacked = 256

// Ways returns what is worth trying for m rows of X, more than [MaxRows], the best guess first. Those in E4M3 and those
// in 16 bits are never both among them: what results are rounded to does not hang on what was found to be faster.
func (e *Engine) Ways(w *Matrix, m int) []Way {
	if all := e.fp8Ways(w, m); len(all) > 0 {
		return all
	}
	return e.halfWays(w, m)
}

// halfWays returns those that multiply in 16 bits.
func (e *Engine) halfWays(w *Matrix, m int) []Way {
	if w.Format.Bits < 5 && e.rowsAtOnce(w.Format, w.N, w.K, m) == m {
		return []Way{{}} // in one launch, for which others take half as long again at least
	}
	var all []Way
	if e.dev.Info.Major == 9 && e.noCompiler == nil {
		for _, v := range w.Format.manyVariants() {
			if v.shared(w.Format) <= e.limits.sharedBlock {
				all = append(all, Way{many: v})
			}
		}
		all = withLookups(shortlist(all, func(a Way) float64 { return a.many.guess(w.N, w.K, m) }), w)
	}
	all = append(all, Way{unpacked: true})
	if m <= mostPacked {
		all = append(all, Way{})
	}
	first := slices.Index(all, Way{unpacked: true})
	switch {
	case all[0].many != manyVariant{} && w.Format.manyRows(w.N, w.K).holds(m):
		first = 0
	case m <= packedRows(w.N, w.K):
		first = slices.Index(all, Way{})
	}
	all[0], all[first] = all[first], all[0]
	return all
}

// withLookups returns ways of lutmany.cu with the lookups that a matrix may be multiplied by, each behind the table's.
func withLookups(ways []Way, w *Matrix) []Way {
	if !w.integers || w.lookup != chosen && w.lookup != Integers {
		return ways
	}
	var all []Way
	for _, way := range ways {
		if w.lookup == chosen {
			all = append(all, way)
		}
		all = append(all, Way{many: way.many.with(Integers)})
	}
	return all
}

// tunedMany is how many variants of lutmany.cu are tried at most, and tunedWithin what they are taken to take at most in terms of the
// fastest: guesses are within 15 % of what was measured.
const (
	tunedMany   = 3
	tunedWithin = 1.3
)

// shortlist returns what is worth trying of ways that take about so long, the best guess first.
func shortlist(all []Way, guess func(Way) float64) []Way {
	slices.SortStableFunc(all, func(a, b Way) int { return cmp.Compare(guess(a), guess(b)) })
	for i := range all {
		if i == tunedMany || guess(all[i]) > tunedWithin*guess(all[0]) {
			return all[:i]
		}
	}
	return all
}

// manyRows returns the rows of X for which lutmany.cu is the fastest where nothing was measured, as an H200 has it over the layers of
// known models at 4 bits, with X prepared. Smaller matrices have too few fields, and at 5 bits the table leaves room for little X.
func (f Format) manyRows(n, k int) span {
	switch weights := n * k; {
	case f.Bits == 5 && weights >= 64<<20:
		return span{32, 512}
	case f.Bits == 5 && weights >= 32<<20:
		return span{48, 512}
	case f.Bits == 5 && weights >= 16<<20:
		return span{80, 512}
	case f.Bits == 5 || weights < 5<<20:
	case n < 2048:
		return span{320, 0}
	case weights >= 32<<20:
		return span{32, 0}
	case weights >= 7<<20:
		return span{48, 0}
	default:
		return span{80, 0}
	}
	return span{math.MaxInt, 0}
}

// packedRows returns up to how many rows of X a kernel for every 16 is faster than unpacking, where nothing was measured: as
// an H200 has it to within a tenth, but for 5 bits, which it unpacks from fewer on. NOTES.md has the times.
func packedRows(n, k int) int {
	switch weights := n * k; {
	case weights >= 32<<20:
		return 128
	case n < 2048:
	case weights >= 8<<20:
		return 80
	case weights >= 3<<20:
		return 64
	}
	return 48
}

// Kernels returns the sources of the kernels for all rows for a format, if that is the way: what prepares X and what multiplies, or what
// unpacks.
func (w Way) Kernels(f Format) []driver.Kernel {
	switch {
	case w.many != manyVariant{}:
		return []driver.Kernel{lutcolumns{w.many.form()}.kernel(), manyKernel{f, w.many}.kernel()}
	case w.FP8():
		return []driver.Kernel{lutbytes{f.Type}.kernel(), fp8Kernel{f, w.fp8}.kernel()}
	case w.sparse != sparseMany{}:
		return []driver.Kernel{lutcolumns{InOrder}.kernel(), sparseManyKernel{f, w.sparse}.kernel()}
	case w.unpacked:
		return []driver.Kernel{lutdense{f}.kernel()}
	}
	return nil
}

// Way returns how m rows of X are multiplied: as [Engine.TuneMany] found, in this process or before, or by a rule of thumb.
// The results of ways differ in how weights are rounded, and sums added.
func (e *Engine) Way(w *Matrix, m int) Way {
	if m <= MaxRows {
		return Way{}
	}
	return e.wayOf(w, w.tuningKey(manyBucket(m)), func(rows int) []Way { return e.Ways(w, rows) })
}

// wayOf returns the way that is chosen for a key, of those for its rows of X: as it was found to be the fastest, or the best guess.
func (e *Engine) wayOf(w tunable, key tuningKey, ways func(rows int) []Way) Way {
	way, ok := e.many[key]
	if !ok {
		all := ways(key.rows)
		way = all[0]
		kept := e.kept(ofWay, w, key)
		if i := slices.IndexFunc(all, func(w Way) bool { return w.String() == kept }); i >= 0 {
			way = all[i]
		}
		e.many[key] = way
	}
	return way
}

// Prefer has m rows of X, and as many as are treated alike, multiplied in one of the [Engine.Ways] from now on, by w and matrices
// of its shape and format.
func (e *Engine) Prefer(w *Matrix, m int, way Way) { e.many[w.tuningKey(manyBucket(m))] = way }

// Unpacks reports whether a product of m rows of X is taken to be faster by [Unpacked.MatMul] than by
// [Engine.MatMul].
func (e *Engine) Unpacks(w *Matrix, m int) bool { return e.Way(w, m).Unpacked() }

// ScratchBytes returns the scratch memory that [Engine.MatMul] wants for m rows of X, 0 if it does without.
func (e *Engine) ScratchBytes(w *Matrix, m int) int {
	return e.Way(w, m).ScratchBytes(m, w.K)
}

// SumBytes is ScratchBytes for X that is prepared.
func (m *Matrix) SumBytes(rows int) int { return m.engine.Way(m, rows).sumBytes() }

// MostScratch returns the scratch memory that [Engine.TuneMany] wants: what any of the ways does, and X as it is written for some.
func (e *Engine) MostScratch(w *Matrix, m int) int {
	ways := e.Ways(w, m)
	most := mostScratch(ways, m, w.K)
	if written(ways, w.K) {
		most += Columns.Bytes(m, w.K)
	}
	return most
}

// mostScratch returns the scratch memory that any of some ways wants.
func mostScratch(ways []Way, m, k int) int {
	most := 0
	for _, way := range ways {
		most = max(most, way.ScratchBytes(m, k))
	}
	return most
}

// written reports whether some of some ways read k columns of X in a form that is written.
func written(ways []Way, k int) bool {
	return slices.ContainsFunc(ways, func(w Way) bool { return w.Form().Written(k) })
}

// MatMulWay is MatMul in one of the [Engine.Ways] but that of [Unpacked], with scratch memory of [Engine.MostScratch].
func (e *Engine) MatMulWay(s *driver.Stream, w *Matrix, o Operands, way Way) error {
	switch {
	case way.unpacked:
		return errors.New("unpacked products are not the engine's")
	case way.sparse != sparseMany{}:
		return fmt.Errorf("%v by a matrix of which all columns are kept", way)
	case way.Form() == RowByRow:
		return e.matMulPacked(s, w, o)
	case way.many.lookup == Integers && !w.integers:
		return fmt.Errorf("%v by a table that is not the integers", way)
	}
	o, flags, err := e.inForm(s, o, way, w.codes, w.Format.Type, w.K)
	if err != nil {
		return err
	}
	if way.FP8() {
		return e.matMulFP8(s, w, o, way.fp8, flags)
	}
	v := way.many
	launch, p, share := v.manyPlan(w, o, flags, manyWorkers, e.limits.sms)
	return e.launchMany(s, manyKernel{w.Format, v}, launch, p, share)
}

// inForm returns operands with X in the form of a way by a matrix of k columns, which queues its preparing unless it is so, and
// the stream's flags.
func (e *Engine) inForm(s *driver.Stream, o Operands, way Way, codes driver.Ptr, t driver.DType, k int) (Operands, driver.Ptr, error) {
	prepared := o.Form == way.Form()
	if prepared {
		o.Form = RowByRow // as all others are
	}
	if err := o.checkFor(codes); err != nil {
		return o, 0, err
	}
	if o.Scratch == 0 {
		return o, 0, fmt.Errorf("no scratch memory for %d rows of X", o.M)
	}
	if !prepared {
		to := o.Scratch + driver.Ptr(way.sumBytes())
		if err := e.Prepare(s, way.Form(), t, to, o.X, o.M, k); err != nil {
			return o, 0, err
		}
		o.X = to
	}
	flags, err := e.flagsOf(s)
	return o, flags, err
}

// launchMany launches lutmany.cu.
func (e *Engine) launchMany(s *driver.Stream, k compiled, l driver.Launch, p params, share work) error {
	multiply, err := e.others.function(k, manyName, l.Shared)
	if err != nil {
		return err
	}
	return multiply.Launch(s, l, e.args.Reset().Struct(p.bytes()).Struct(share.bytes()))
}

// WayTiming is how long a product takes in a way, in microseconds.
type WayTiming struct {
	Way Way
	Us  float64
}

// TuneMany times the ways to multiply o.M rows, more than 16, as [Engine.Tune] does, with scratch memory of
// [Engine.MostScratch], and keeps the fastest. It returns the times, the shortest first. Where u is nil unpacking is left out.
//
// Where norms, gates and attention of a model write X as a way reads it, it is prepared before, which is no part of the time.
func (e *Engine) TuneMany(s *driver.Stream, ring []*Matrix, o Operands, u *Unpacked) ([]WayTiming, error) {
	if len(ring) == 0 || o.M <= MaxRows {
		return nil, fmt.Errorf("tuning for %d rows with %d matrices: want more than %d, and one matrix", o.M, len(ring), MaxRows)
	}
	w := ring[0]
	tried := e.Ways(w, o.M)
	e.dev.Prepare(e.wayKernels(w, o.M, tried))
	key := w.tuningKey(manyBucket(o.M))
	tried = usable(tried, o, w.K, u)
	columns := o
	if written(tried, w.K) {
		columns.X, columns.Form = o.Scratch+driver.Ptr(mostScratch(tried, o.M, w.K)), Columns
		if err := e.Prepare(s, Columns, w.Format.Type, columns.X, o.X, o.M, w.K); err != nil {
			return nil, err
		}
	}
	all, err := e.timeWays(s, key, tried, len(ring), func(way Way, i int) error {
		switch {
		case way.unpacked:
			return u.MatMul(s, ring[i], o, w.Format.Type, false)
		case way.Form().Written(w.K):
			return e.MatMulWay(s, ring[i], columns, way)
		}
		return e.MatMulWay(s, ring[i], o, way)
	})
	if err != nil {
		return nil, err
	}
	e.keep(ofWay, w, key, all[0].Way.String())
	return all, nil
}

// usable returns those of some ways for which there is what they take: scratch memory, or what unpacks.
func usable(ways []Way, o Operands, k int, u *Unpacked) []Way {
	return slices.DeleteFunc(ways, func(way Way) bool { return way.unpacked && u == nil || way.ScratchBytes(o.M, k) > 0 && o.Scratch == 0 })
}

// timeWays times a product in some ways by a ring of so many matrices, and chooses the fastest.
func (e *Engine) timeWays(s *driver.Stream, key tuningKey, ways []Way, ring int, multiply func(way Way, i int) error) ([]WayTiming, error) {
	if len(ways) == 0 {
		return nil, errors.New("no way to multiply is left")
	}
	var arms []*timing.Arm
	for _, way := range ways {
		arms = append(arms, &timing.Arm{Ring: ring, Call: func(i int) error { return multiply(way, i%ring) }})
	}
	if err := timing.Measure(e.dev, s, arms, tuneReplays); err != nil {
		return nil, err
	}
	var all []WayTiming
	for i, a := range arms {
		all = append(all, WayTiming{ways[i], a.Median()})
	}
	slices.SortStableFunc(all, func(a, b WayTiming) int { return cmp.Compare(a.Us, b.Us) })
	e.many[key] = all[0].Way
	return all, nil
}
