package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/fp8"
)

// engineWay is one of the ways that the engine has for every matrix.
type engineWay string

const (
	// InTurns multiplies as many rows of X at a time as one launch takes, under one configuration.
	InTurns engineWay = "packed"
	// AsNumbers is [Unpacked.MatMul], for who asks for it.
	AsNumbers engineWay = "unpacked"
	// InFP8 is [Folded.MatMul], for who asks for it.
	InFP8 engineWay = "fp8 folded, cuBLASLt"
)

// String implements [Way].
func (w engineWay) String() string { return string(w) }

// Rows implements [Way].
func (engineWay) Rows() int { return 0 }

// Needs implements [Way].
func (w engineWay) Needs(int, int, int) Needs {
	if w == InFP8 {
		return Needs{Form: InE4M3}
	}
	return Needs{}
}

// FP8 says whether X and what it is multiplied by are rounded to E4M3.
func (w engineWay) FP8() bool { return w == InFP8 }

// What choices are of. Up to 32 rows both are kept.
const (
	ofConfig = "configuration"
	ofWay    = "way"
)

// choice is what a choice is of and what it holds for.
type choice struct {
	what string
	key  any // of [Tiles]
}

// manyBuckets are the rows of X up to which they are treated alike: those behind the last as those before.
var manyBuckets = [...]int{24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 2048, 4096}

// Alike returns the largest number of rows, above [MaxRows], that is treated like m, which is above it.
func Alike(m int) int {
	for _, b := range manyBuckets {
		if m <= b {
			return b
		}
	}
	return manyBuckets[len(manyBuckets)-1]
}

// bucket returns the largest number of rows of a launch that is treated like m.
func bucket(m int) int {
	for _, b := range []int{2, 4, 8, MaxRows, 24} {
		if m <= b {
			return b
		}
	}
	return 32
}

// Configs returns the configurations that m rows of X can be multiplied under, the best guess first. For more rows than one
// launch multiplies they are those of the first launch. Without a compiler they are those that
// a prebuilt kernel stands in for.
func (e *Engine) Configs(t Tiles, m int) []Way {
	all, _ := t.Configs(e.gpu, t.AtOnce(e.gpu, m))
	return all
}

// Others returns the configurations that Configs leaves out though they can multiply so, for tests: they add up in another order, or
// are slower.
func (e *Engine) Others(t Tiles, m int) []Way { return t.Others(e.gpu, t.AtOnce(e.gpu, m)) }

// Twins returns read-only twins of the configurations for m rows of X, at most [MaxRows]: the same grids and launch attributes, and the
// same bytes of the matrix read in the same order. They bound what a product could reach.
func (e *Engine) Twins(t Tiles, m int) []Way { return t.Twins(e.gpu, t.AtOnce(e.gpu, m)) }

// Ways returns what is worth trying for m rows of X, more than [MaxRows], the best guess first. Those that round to E4M3 and those
// that do not are never both among them: what results are rounded to does not hang on what was found to be faster.
func (e *Engine) Ways(t Tiles, m int) []Way {
	if e.Folds(t, m) {
		return []Way{InFP8}
	}
	return t.Ways(e.gpu, m)
}

// Order tells in which order sums are added for m rows of X under a configuration, or under what is chosen if that is nil. Configurations
// of the same order give the same bits.
func (e *Engine) Order(t Tiles, by Way, m int) int { return t.Order(e.gpu, by, t.AtOnce(e.gpu, m)) }

// Chosen returns the configuration that m rows of X are multiplied under, or of more than one launch multiplies those of
// the first: as [Engine.Tune] found, in this process or before, or the best guess.
func (e *Engine) Chosen(t Tiles, m int) (Way, error) { return e.choice(t, t.AtOnce(e.gpu, m)) }

// choice is Chosen for as many rows as one launch multiplies.
func (e *Engine) choice(t Tiles, m int) (Way, error) {
	rows := bucket(m)
	key := choice{ofConfig, t.Key(e.gpu, rows)}
	if by, ok := e.choices[key]; ok {
		return by, nil
	}
	all, err := t.Configs(e.gpu, m)
	if err != nil {
		return nil, err
	}
	return e.chosen(key, t, rows, all), nil
}

// Way returns how m rows of X are multiplied: as [Engine.TuneWays] found, in this process or before, or the best guess.
// The results of ways differ in how weights are rounded, and sums added.
func (e *Engine) Way(t Tiles, m int) Way {
	switch {
	case m <= MaxRows:
		return InTurns
	case e.Folds(t, m): // which hangs on m itself
		return InFP8
	}
	rows := Alike(m)
	key := choice{ofWay, t.Key(e.gpu, rows)}
	if by, ok := e.choices[key]; ok {
		return by
	}
	return e.chosen(key, t, rows, t.Ways(e.gpu, rows))
}

// chosen chooses of some ways the one that was kept, or the first.
func (e *Engine) chosen(key choice, t Tiles, rows int, all []Way) Way {
	by := all[0]
	if len(all) > 1 {
		kept := e.kept(key, t, rows)
		if i := slices.IndexFunc(all, func(w Way) bool { return w.String() == kept }); i >= 0 {
			by = all[i]
		}
	}
	e.choices[key] = by
	return by
}

// Prefer has m rows of X, and as many as are treated alike, multiplied in one of the [Engine.Ways] from now on, by matrices like some.
func (e *Engine) Prefer(t Tiles, m int, by Way) {
	e.choices[choice{ofWay, t.Key(e.gpu, Alike(m))}] = by
}

// Unpacks reports whether a product of m rows of X is taken to be faster by [Unpacked.MatMul] than by
// [Engine.MatMul].
func (e *Engine) Unpacks(t Tiles, m int) bool { return e.Way(t, m) == AsNumbers }

// Folds reports whether a product of m rows of X is taken by [Folded.MatMul].
func (e *Engine) Folds(t Tiles, m int) bool {
	f, ok := t.(Folder)
	return ok && m >= fp8.FoldedRows && f.Folds()
}

// NeedsOf returns what m rows of X need in a way. Of several turns each prepares its own rows, if they are to be.
func (e *Engine) NeedsOf(t Tiles, by Way, m int) Needs {
	n, k := t.Shape()
	if by != InTurns {
		return by.Needs(n, k, m)
	}
	once := t.AtOnce(e.gpu, m)
	config, err := e.choice(t, once)
	if err != nil {
		return Needs{} // the product fails
	}
	needs := config.Needs(n, k, once)
	if once < m && needs.Form != nil {
		needs.Form, needs.Sums = nil, needs.Scratch(once, k)
	}
	return needs
}

// Needs returns what [Engine.MatMul] needs for m rows of X: with scratch memory it reads them in the form, which it prepares unless
// they are in it.
func (e *Engine) Needs(t Tiles, m int) Needs { return e.NeedsOf(t, e.Way(t, m), m) }

// ScratchBytes returns the scratch memory that [Engine.MatMul] wants for m rows of X that lie row by row, 0 if it does without.
func (e *Engine) ScratchBytes(t Tiles, m int) int {
	_, k := t.Shape()
	return e.Needs(t, m).Scratch(m, k)
}

// MostScratch returns the scratch memory that [Engine.TuneWays] wants for m rows of X: what any of the ways does, and X as it is written
// for some.
func (e *Engine) MostScratch(t Tiles, m int) int {
	ways := e.Ways(t, m)
	most := e.mostScratch(t, m, ways)
	if f := e.written(t, m, ways); f != nil {
		_, k := t.Shape()
		most += f.Bytes(m, k)
	}
	return most
}

// mostScratch returns the scratch memory that any of some ways wants for m rows of X.
func (e *Engine) mostScratch(t Tiles, m int, ways []Way) int {
	_, k := t.Shape()
	most := 0
	for _, by := range ways {
		most = max(most, e.NeedsOf(t, by, m).Scratch(m, k))
	}
	return most
}

// written returns the form in which some of some ways read X and norms, gates and attention of a model write it, or nil.
func (e *Engine) written(t Tiles, m int, ways []Way) Form {
	_, k := t.Shape()
	for _, by := range ways {
		if f := e.NeedsOf(t, by, m).Form; f != nil && f.Written(k) {
			return f
		}
	}
	return nil
}

// choosable is implemented by tiles of which a choice holds until any kernel changes that may be chosen, whatever the shape. Of others
// it holds until one of those changes that it was chosen from.
type choosable interface {
	Choosable(g GPU, rows int) []driver.Kernel
}

// sources returns the kernels that a choice for so many rows hangs on.
func (e *Engine) sources(key choice, t Tiles, rows int) []driver.Kernel {
	if c, ok := t.(choosable); ok {
		return c.Choosable(e.gpu, rows)
	}
	if key.what == ofConfig {
		all, _ := t.Configs(e.gpu, rows)
		return e.kernels(t, rows, all)
	}
	return e.kernels(t, rows, t.Ways(e.gpu, rows))
}

// kernels returns the kernels of some ways to multiply m rows of X.
func (e *Engine) kernels(t Tiles, m int, ways []Way) []driver.Kernel {
	var all []driver.Kernel
	for _, by := range ways {
		all = append(all, t.Kernels(e.gpu, by, m)...)
		if by == InTurns {
			rows := t.AtOnce(e.gpu, m)
			all = append(all, e.kernels(t, rows, e.Configs(t, rows))...)
		}
	}
	return all
}

// Compile compiles, on all processors, what the cache does not have of the kernels that numbers of rows of X are tried with by
// matrices like some: those of [Engine.Twins], and of [Engine.Tune] and [Engine.TuneWays], or without tuning of what is chosen.
// Else they are compiled as they are needed.
func (e *Engine) Compile(like []Tiles, tune bool, rows ...int) {
	var all []driver.Kernel
	for _, t := range like {
		for _, m := range rows {
			if m > MaxRows {
				ways := e.Ways(t, m)
				if !tune {
					ways = []Way{e.Way(t, m)}
				}
				all = append(all, e.kernels(t, m, ways)...)
			} else if configs := e.Configs(t, m); len(configs) > 0 { // else the product fails
				if c, err := e.Chosen(t, m); err == nil && !tune {
					configs = []Way{c}
				}
				all = append(all, e.kernels(t, m, configs)...)
			}
			for _, read := range []int{min(m, MaxRows), 1} {
				all = append(all, e.kernels(t, read, e.Twins(t, read))...)
			}
		}
	}
	e.dev.Prepare(all)
}

// cacheKey digests what a choice is of, what it is for, the GPU and the kernels.
func (e *Engine) cacheKey(key choice, kernels []driver.Kernel) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %d %+v\n", key.what, e.device.Name, e.device.SMs, key.key)
	seen := make(map[string]bool)
	for _, k := range kernels {
		fmt.Fprintf(h, "%s %q\n", k.Name, k.Options.Defines)
		if !seen[k.Source] {
			seen[k.Source] = true
			fmt.Fprintf(h, "%d:", len(k.Source))
			io.WriteString(h, k.Source)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// kept returns the choice that the cache has, or the empty string.
func (e *Engine) kept(key choice, t Tiles, rows int) string {
	if e.cache == nil {
		return ""
	}
	kept, _ := e.cache.Get(e.cacheKey(key, e.sources(key, t, rows)))
	return string(kept)
}

// keep makes a choice, and puts it into the cache. Where nothing can be kept, tuning is done again next time.
func (e *Engine) keep(key choice, t Tiles, rows int, by Way) {
	e.choices[key] = by
	_ = e.cache.Put(e.cacheKey(key, e.sources(key, t, rows)), []byte(by.String()))
}
