package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Compile compiles, on all processors, what the cache does not have of the kernels that numbers of rows of X are tried with by
// matrices like some: those of [Engine.Read], and of [Engine.Tune] and [Engine.TuneMany], or without tuning of what is chosen. Of such a
// matrix only N, K, the format and how it is multiplied count. Else they are compiled as they are needed.
func (e *Engine) Compile(like []*Matrix, tune bool, rows ...int) {
	var all []driver.Kernel
	for _, w := range like {
		for _, m := range rows {
			if m > MaxRows {
				ways := e.Ways(w, m)
				if !tune {
					ways = []Way{e.Way(w, m)}
				}
				all = append(all, e.wayKernels(w, m, ways)...)
			} else if configs, err := e.tried(w.shape(m)); err == nil { // else the product fails
				if c, err := e.choice(w, m); err == nil && !tune {
					configs = []Config{c}
				}
				all = append(all, w.configKernels(m, configs)...)
			}
			for _, read := range []int{min(m, MaxRows), 1} {
				all = append(all, w.configKernels(read, e.ReadConfigs(w.Format, w.N, w.K, read))...)
			}
		}
	}
	e.dev.Prepare(all)
}

// configKernels returns the kernels of some configurations for m rows of X.
func (w *Matrix) configKernels(m int, configs []Config) []driver.Kernel {
	var all []driver.Kernel
	for _, c := range configs {
		all = append(all, moduleKey{format: w.Format, config: c, lookup: w.lookupIn(c, m)}.kernel())
	}
	return all
}

// wayKernels returns the kernels of some ways to multiply m rows of X.
func (e *Engine) wayKernels(w *Matrix, m int, ways []Way) []driver.Kernel {
	var all []driver.Kernel
	for _, way := range ways {
		all = append(all, way.Kernels(w.Format)...)
		if way == (Way{}) {
			rows := e.rowsAtOnce(w.Format, w.N, w.K, m)
			configs, _ := e.tried(w.shape(rows))
			all = append(all, w.configKernels(rows, configs)...)
		}
	}
	return all
}

// choosable returns all kernels that a choice for a number of rows may be of, whatever the shape.
func (w *Matrix) choosable(key tuningKey) []driver.Kernel {
	var all []driver.Kernel
	configs := w.Format.variants(min(key.rows, mostRows))
	if key.rows > MaxRows {
		configs = append(configs, w.Format.variants(MaxRows)...) // which takes turns where no kernel takes more
	}
	for _, c := range configs {
		for _, l := range []Lookup{Replicated, Integers, max(key.lookup, Replicated)} {
			if l.has(c.kernel()) {
				all = append(all, moduleKey{format: w.Format, config: c, lookup: l}.kernel())
			}
		}
	}
	if key.rows <= MaxRows {
		return all
	}
	ways := []Way{{unpacked: true}}
	for _, v := range w.Format.manyVariants() {
		ways = append(ways, Way{many: v})
		if w.Format.Bits == 4 {
			ways = append(ways, Way{many: v.with(Integers)})
		}
	}
	for _, v := range w.Format.fp8Variants() {
		ways = append(ways, Way{fp8: v})
	}
	for _, way := range ways {
		all = append(all, way.Kernels(w.Format)...)
	}
	return all
}

// cacheKey digests what a choice is of, what it is for, the GPU and the kernels.
func (e *Engine) cacheKey(what string, key tuningKey, kernels []driver.Kernel) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %d %+v\n", what, e.dev.Info.Name, e.dev.Info.SMs, key)
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

// What choices are of. Up to 32 rows both are kept.
const (
	ofConfig = "configuration"
	ofWay    = "way"
)

// tunable is a matrix of which choices are kept.
type tunable interface {
	choosable(key tuningKey) []driver.Kernel // all kernels that a choice may be of
}

// kept returns the choice that the cache has, or the empty string.
func (e *Engine) kept(what string, w tunable, key tuningKey) string {
	kept, _ := e.cache.Get(e.cacheKey(what, key, w.choosable(key)))
	return string(kept)
}

// keep puts a choice into the cache. Where nothing can be kept, tuning is done again next time.
func (e *Engine) keep(what string, w tunable, key tuningKey, choice string) {
	_ = e.cache.Put(e.cacheKey(what, key, w.choosable(key)), []byte(choice))
}
