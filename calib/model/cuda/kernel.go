package cuda

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

var (
	//go:embed prelude.cuh
	preludeSource string
	//go:embed inputs.cuh
	inputsSource string
	//go:embed elements.cu
	elementsSource string
	//go:embed delta.cu
	deltaSource string
	//go:embed mixers.cu
	mixersSource string
	//go:embed statespace.cu
	stateSpaceSource string
	//go:embed cache.cu
	cacheSource string
	//go:embed latent.cu
	latentSource string
	//go:embed tiles.cuh
	tilesSource string
	//go:embed flash.cu
	flashSource string
	//go:embed attend.cu
	attendSource string
	//go:embed step.cu
	stepSource string
	//go:embed next.cu
	nextSource string
	//go:embed mixture.cu
	mixtureSource string
	//go:embed rows.cu
	rowsSource string
	//go:embed vectors.cuh
	vectorsSource string
	//go:embed grad.cu
	gradSource string
	//go:embed train.cu
	trainSource string
	//go:embed stats.cu
	statsSource string
	//go:embed solve.cu
	solveSource string
	//go:embed columns.cu
	columnsSource string
	//go:embed search.cu
	searchSource string
	//go:embed rings.cu
	ringsSource string
	//go:embed trellis.cu
	trellisSource string
)

// actsDefine is what ACTS is in the kernels.
var actsDefine = map[driver.DType]int{driver.F32: 0, driver.F16: 1, driver.BF16: 2}

// Kernels returns the sources of all kernels for a type of activations, a module each.
func Kernels(acts driver.DType) []driver.Kernel {
	all := modules(acts)
	if acts == driver.F32 {
		return all
	}
	for _, s := range flashShapes() {
		all = append(all, s.kernel(acts))
	}
	return all
}

// modules returns the kernels of which any may be asked for by its name. Those that a model is run by
// have PTX for where there is no compiler; to learn takes one.
func modules(acts driver.DType) []driver.Kernel {
	var all []driver.Kernel
	for _, f := range []struct {
		name, source string
		prebuilt     bool
	}{
		{"elements", inputs() + elementsSource, true},
		{"rows", inputs() + rowsSource, true},
		{"mixers", inputs() + mixersSource, true},
		{"delta", inputs() + deltaSource, true},
		{"statespace", inputs() + stateSpaceSource, true},
		{"cache", cacheSource, true},
		{"latent", latentSource, true},
		{"step", inputs() + stepSource, true},
		{"attend", tiles() + ptx.Rotated() + attendSource, true},
		{"next", nextSource, true},
		{"mixture", mixtureSource, true},
		{"grad", vectorsSource + gradSource, false},
		{"train", vectorsSource + trainSource, false},
		{"stats", statsSource, false},
		{"solve", solveSource, false},
		{"columns", columnsSource, false},
	} {
		if f.name == "attend" && acts == driver.F32 { // which tensor cores do not multiply
			continue
		}
		k := driver.Kernel{
			Name:    fmt.Sprintf("%s.%v.cu", f.name, acts),
			Source:  prelude() + f.source,
			Options: driver.CompileOptions{Defines: []string{fmt.Sprintf("ACTS=%d", actsDefine[acts])}},
		}
		if f.prebuilt && acts != driver.F32 {
			k.PTX = builtAhead(k)
		}
		all = append(all, k)
	}
	return all
}

// loading returns them in the order in which they are loaded until a kernel is found: last those that one learns by, which take a
// compiler as long as all others.
func loading(acts driver.DType) []driver.Kernel {
	all := append(modules(acts), SearchKernel(), ringsKernel())
	learns := func(k driver.Kernel) int {
		if strings.HasPrefix(k.Name, "grad.") || strings.HasPrefix(k.Name, "train.") {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b driver.Kernel) int { return cmp.Compare(learns(a), learns(b)) })
	return all
}

// prelude is what all kernels begin with.
func prelude() string { return ptx.GLU() + preludeSource }

// tiles is what kernels have that multiply tiles of activations, and write what products read.
func tiles() string { return ptx.Instructions() + ptx.Prepared() + tilesSource }

// inputs is what kernels have that write what products read.
func inputs() string { return ptx.Instructions() + ptx.Prepared() + ptx.Rotated() + inputsSource }

// load loads the next module.
func (o *Ops) load() error {
	m, err := o.dev.LoadKernel(o.kernels[0])
	if err != nil {
		return err
	}
	o.kernels, o.modules = o.kernels[1:], append(o.modules, m)
	return nil
}

// function returns a kernel by its name: what a model needs to compute lies in the
// first modules, and what it needs to learn in the last.
func (o *Ops) function(name string) (*driver.Function, error) {
	if f, ok := o.functions[name]; ok {
		return f, nil
	}
	if o.main != nil {
		err := o.main.dev.Do(func() (err error) {
			o.functions[name], err = o.main.function(name)
			return err
		})
		return o.functions[name], err
	}
	var first error
	for i := 0; ; i++ {
		if i == len(o.modules) {
			if len(o.kernels) == 0 {
				return nil, first
			}
			if err := o.load(); err != nil {
				return nil, err
			}
		}
		f, err := o.modules[i].Function(name)
		if err == nil {
			o.functions[name] = f
			return f, nil
		}
		first = cmp.Or(first, err)
	}
}

func addArg(a *driver.Args, v any) {
	switch v := v.(type) {
	case nil:
		a.Ptr(0)
	case model.Array:
		a.Ptr(ptr(v))
	case driver.Ptr:
		a.Ptr(v)
	case []byte:
		a.Struct(v)
	case int:
		a.Int(v)
	case int64:
		a.I64(v)
	case uint32:
		a.U32(v)
	case float32:
		a.F32(v)
	case float64:
		a.U64(math.Float64bits(v))
	default:
		panic(fmt.Sprintf("cuda: a kernel's argument of type %T", v))
	}
}

// of returns the kernel of a family for the types of some arrays: kernels are named
// family_xy with x and y 'f' for floats and 'a' for activations.
func (o *Ops) of(family string, arrays ...model.Array) string {
	name := []byte(family + "_")
	for _, a := range arrays {
		if a.(*array).dtype == driver.F32 {
			name = append(name, 'f')
		} else {
			name = append(name, 'a')
		}
	}
	return string(name)
}

// The block size of kernels that treat every element alike, and the number of
// elements that a thread of them takes.
const (
	elementThreads = 256
	elementEach    = 8
)

// elements returns grid and block for n elements.
func elements(n int) (grid, block driver.Dim) {
	return driver.Dim{X: uint32(ceil(n, elementThreads*elementEach))}, driver.Dim{X: elementThreads}
}

// ofHeads returns grid and block for n heads, of each of which a thread has a part of so many elements.
func ofHeads(n, each int) (grid, block driver.Dim) {
	threads := n * ceil(each, elementEach)
	check(threads < 1<<32-elementThreads, "%d heads of %d elements", n, each)
	return driver.Dim{X: uint32(ceil(threads, elementThreads))}, driver.Dim{X: elementThreads}
}

// overAll returns grid and block for a thread each of n.
func overAll(n int) (grid, block driver.Dim) {
	check(n < 1<<32-elementThreads, "%d elements", n)
	return driver.Dim{X: uint32(ceil(n, elementThreads))}, driver.Dim{X: elementThreads}
}

// perRow returns grid and block for a block a row of cols elements.
func perRow(rows, cols int) (grid, block driver.Dim) {
	threads := 32
	for threads < 1024 && threads*elementEach < cols {
		threads *= 2
	}
	return driver.Dim{X: uint32(rows)}, driver.Dim{X: uint32(threads)}
}
