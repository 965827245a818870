package families

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// rowsOf are numbers of rows of X for which families have kernels of their own.
func rowsOf() []int { return []int{1, 2, 8, 9, 16, 24, 32, 64, 1024} }

// kernelsOf returns what a GPU launches for an n×k matrix of a format, to multiply and to write rows.
func kernelsOf(f cuda.Family, of cuda.Format, n, k int, g cuda.GPU) []driver.Kernel {
	like := f.Like(of, n, k)
	if like.Runs(g) != nil {
		return nil
	}
	all := like.RowKernels()
	for _, m := range rowsOf() {
		once := like.AtOnce(g, m)
		configs, _ := like.Configs(g, once)
		for _, by := range slices.Concat(configs, like.Others(g, once), like.Twins(g, once)) {
			all = append(all, like.Kernels(g, by, once)...)
		}
		if m > cuda.MaxRows {
			for _, by := range like.Ways(g, m) {
				all = append(all, like.Kernels(g, by, m)...)
			}
		}
	}
	return all
}

// spread returns some of a family's formats that have every width, group, scale and type.
func spread(f cuda.Family) []cuda.Format { return conform.Covering(f.Formats(), cuda.Format.Traits) }

// TestNames holds families to names of their own, and to the kinds that they are listed for.
func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range All() {
		if seen[f.Name()] {
			t.Errorf("two families are called %s", f.Name())
		}
		seen[f.Name()] = true
		if !slices.Contains(Kinds(), f.Kind()) || Of(f.Kind()) == nil {
			t.Errorf("%s: no family of kind %s", f.Name(), f.Kind())
		}
	}
	if Of("none") != nil {
		t.Error("there is a family of no kind")
	}
}

// TestPack holds what families lay out to what they say of it: the format, and what its parts take. What is like it has the same ways.
func TestPack(t *testing.T) {
	g := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	for _, f := range All() {
		for i, of := range spread(f) {
			const n, k = 70, 768
			group := cuda.Columns(f, of)
			if group == 0 {
				group = k
			}
			m := conform.KindOf(f.Kind()).Random(rand.New(rand.NewPCG(1, uint64(i))), n, k, of.Bits, group, of.Scale)
			tiles, parts, err := f.Pack(m, of.Type)
			if err != nil || tiles == nil {
				t.Fatalf("%s of %s: %v, %v", f.Name(), of.Name(), tiles, err)
			}
			n2, k2 := tiles.Shape()
			if tiles.Format() != of || n2 != n || k2 != k || m.Kind() != f.Kind() {
				t.Errorf("%s of %s: %s of %d×%d of kind %s", f.Name(), of.Name(), tiles.Format().Name(), n2, k2, m.Kind())
			}
			for j, size := range tiles.Sizes() {
				if len(parts[j]) != size {
					t.Errorf("%s of %s: part %d has %d bytes, want %d", f.Name(), of.Name(), j, len(parts[j]), size)
				}
			}
			like := f.Like(of, n, k)
			for _, rows := range rowsOf() {
				once := tiles.AtOnce(g, rows)
				got, err := tiles.Configs(g, once)
				want, _ := like.Configs(g, once)
				if err != nil || len(got) == 0 || !slices.Equal(got, want) || like.AtOnce(g, rows) != once || once < 1 || once > rows {
					t.Errorf("%s of %s, %d rows: %d at once, %v, %v: want %v", f.Name(), of.Name(), rows, once, got, err, want)
				}
				if rows > cuda.MaxRows && len(tiles.Ways(g, rows)) == 0 {
					t.Errorf("%s of %s, %d rows: no way", f.Name(), of.Name(), rows)
				}
			}
			if _, _, err := f.Pack(m, driver.F32); err != nil {
				t.Errorf("%s of %s in float32: %v", f.Name(), of.Name(), err)
			}
		}
	}
	if tiles, _, err := Pack(conform.RandomMatrix(rand.New(rand.NewPCG(1, 1)), 8, 96, 4, 32, weight.F16), driver.F16); tiles == nil || err != nil {
		t.Errorf("packed %v, %v", tiles, err)
	}
}

// TestLaunches plans every launch of every family, within what GPUs have.
func TestLaunches(t *testing.T) {
	for _, info := range cuda.GPUs() {
		g := cuda.GPU{DeviceInfo: info}
		for _, f := range All() {
			for _, of := range spread(f) {
				for _, shape := range [][2]int{{17, 352}, {4096, 4096}} {
					like := f.Like(of, shape[0], shape[1])
					if like.Runs(g) != nil {
						continue
					}
					at := make([]driver.Ptr, len(like.Sizes()))
					for _, rows := range rowsOf() {
						once := like.AtOnce(g, rows)
						configs, _ := like.Configs(g, once)
						checkLaunches(t, g, like, at, once, slices.Concat(configs, like.Others(g, once), like.Twins(g, once)))
						if rows > cuda.MaxRows {
							checkLaunches(t, g, like, at, rows, like.Ways(g, rows))
						}
					}
				}
			}
		}
	}
}

func checkLaunches(t *testing.T, g cuda.GPU, like cuda.Tiles, at []driver.Ptr, rows int, ways []cuda.Way) {
	t.Helper()
	for _, by := range ways {
		if by == cuda.InTurns || by == cuda.AsNumbers {
			continue
		}
		m := rows
		if most := by.Rows(); most > 0 {
			m = min(m, most)
		}
		all, err := like.Launch(g, at, by, cuda.Operands{M: m})
		if err != nil || len(all) == 0 {
			t.Errorf("%s: %s, %v, %d rows: %v", g.Name, like.Format().Name(), by, m, err)
		}
		for _, l := range all {
			if l.Grid.X < 1 || l.Block.X < 32 || l.Block.X > 1024 || l.Shared > g.SharedPerBlock || !strings.Contains(l.Of.Kernel().Source, l.Function) {
				t.Errorf("%s: %s, %v, %d rows: launched as %+v", g.Name, like.Format().Name(), by, m, l.Launch)
			}
		}
		if _, err := like.Launch(g, at, foreign{}, cuda.Operands{M: m}); err == nil {
			t.Errorf("%s is multiplied in a way of another family", like.Format().Name())
		}
	}
}

// foreign is no family's way.
type foreign struct{ cuda.Way }

// TestCompile compiles kernels of every family: of a format those that are the best guess for few rows and for many, and with -long all of
// formats that have every width, group and type.
func TestCompile(t *testing.T) {
	c := kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover)
	g := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	var variants []kerneltest.Variant
	seen := make(map[string]bool)
	for _, f := range All() {
		formats := spread(f)
		if !*cudatest.Long {
			formats = formats[:1]
		}
		for _, of := range formats {
			kernels := kernelsOf(f, of, 4096, 4096, g)
			if !*cudatest.Long {
				like := f.Like(of, 4096, 4096)
				configs := cudatest.Must(like.Configs(g, 1))(t)
				kernels = slices.Concat(like.RowKernels(), like.Kernels(g, configs[0], 1), like.Kernels(g, like.Ways(g, 40)[0], 40))
			}
			for _, k := range kernels {
				if key := fmt.Sprint(k.Name, k.Options.Defines); !seen[key] {
					seen[key] = true
					k.Options.Arch = g.Arch()
					variants = append(variants, kerneltest.Variant{Group: f.Name(), Kernel: k, Spills: mostSpills})
				}
			}
		}
	}
	kerneltest.Compile(t, c, variants)
}

// mostSpills is what a thread of any family's kernels may spill, in bytes; tests of the families know more.
const mostSpills = 160

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	for _, f := range All() {
		for _, k := range kernelsOf(f, f.Formats()[0], 4096, 4096, cuda.GPU{DeviceInfo: cuda.GPUs()[0]}) {
			if strings.Contains(k.Source, "#include") {
				t.Errorf("%s includes a header", k.Name)
			}
		}
	}
}

// prebuilder is implemented by families with kernels that are built ahead of time.
type prebuilder interface {
	// Prebuilt returns them, each for an architecture.
	Prebuilt() []driver.Kernel
}

// TestPrebuilt checks, and with -update writes, the PTX that stands in where there
// is no compiler.
func TestPrebuilt(t *testing.T) {
	var wanted []driver.Kernel
	for _, f := range All() {
		if p, ok := f.(prebuilder); ok {
			wanted = append(wanted, p.Prebuilt()...)
		}
	}
	kerneltest.Prebuilt(t, "../prebuilt.gz", wanted, *cudatest.Update, *cudatest.Long)
}

// TestPrebuiltCovers holds what products take without a compiler to kernels that are built ahead of time, on every GPU that is known: for
// all numbers of rows and shapes of which a block has few and many tiles.
func TestPrebuiltCovers(t *testing.T) {
	for _, info := range cuda.GPUs() {
		g := cuda.GPU{DeviceInfo: info, NoCompiler: errors.New("no compiler")}
		for _, f := range All() {
			runs := 0
			for _, of := range f.Formats() {
				for _, shape := range [][2]int{{64, 512}, {4096, 4096}, {28672, 4096}, {4096, 14336}} {
					like := f.Like(of, shape[0], shape[1])
					if like.Runs(g) != nil {
						continue
					}
					runs++
					kernels := like.RowKernels()
					for rows := 1; rows <= cuda.MaxRows; rows += 5 {
						once := like.AtOnce(g, rows)
						configs, err := like.Configs(g, once)
						if err != nil {
							t.Fatal(err)
						}
						for _, by := range slices.Concat(configs, like.Others(g, once), like.Twins(g, once)) {
							kernels = append(kernels, like.Kernels(g, by, once)...)
						}
					}
					for _, k := range kernels {
						if _, err := k.PTX(info); err != nil {
							t.Fatalf("%s: %s: %v", info.Name, k.Name, err)
						}
					}
				}
			}
			if _, ok := f.(prebuilder); ok != (runs > 0) {
				t.Errorf("%s: %d matrices of %s can be multiplied by without a compiler", info.Name, runs, f.Name())
			}
		}
	}
}

// TestGPUPrebuilt multiplies by matrices of every family with the kernels that need no compiler, and reads rows.
func TestGPUPrebuilt(t *testing.T) {
	const n, k = 200, 1088
	cudatest.OnGPUWith(t, driver.Options{CacheDir: t.TempDir(), NoCompiler: true}, func(g *cudatest.GPU) {
		for _, f := range All() {
			for i, of := range f.Formats() {
				if f.Like(of, n, k).Runs(g.Engine.GPU()) != nil || !*cudatest.Long && i%3 != 0 {
					continue
				}
				m := conform.KindOf(f.Kind()).Random(rand.New(rand.NewPCG(uint64(i), 24)), n, k, of.Bits, cuda.Columns(f, of), of.Scale)
				tiles, parts, err := f.Pack(m, of.Type)
				if err != nil {
					t.Fatal(err)
				}
				if h, ok := f.(cuda.Holder); ok {
					m = h.Held(m, of.Type)
				}
				w := g.Upload(t, tiles, parts)
				for _, rows := range []int{1, 8, 9, 16, 37} {
					p := cudatest.Product(n, k, rows, of.Type, rows%2 == 1)
					ref := conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), m, p.X, p.Bias, rows, 1, of.Type)
					what := fmt.Sprintf("%s of %s, %d rows", f.Name(), of.Name(), rows)
					g.Check(t, what, w, p, ref, conform.Bound(of.Type), func(o cuda.Operands) error { return g.MatMulWay(g.Stream, w, o, cuda.InTurns) })
				}
				got, want, largest, worst := make([]float32, n*k), make([]float32, k), 0.0, 0.0
				dst := cudatest.Must(g.Dev.Alloc(4 * n * k))(t)
				if err := errors.Join(w.Rows(g.Stream, cuda.Rows{To: dst, Type: driver.F32, Count: n}), g.Stream.Sync(), g.Dev.Read(driver.Bytes(got), dst), g.Dev.Free(dst), w.Close()); err != nil {
					t.Fatalf("rows of %s: %v", of.Name(), err)
				}
				for i := range n {
					m.Row(want, i)
					for j, v := range want {
						largest, worst = max(largest, math.Abs(float64(v))), max(worst, math.Abs(float64(got[i*k+j]-v)))
					}
				}
				if !(worst <= 1e-6*largest) {
					t.Errorf("rows of %s are off by %.3g of %.3g", of.Name(), worst, largest)
				}
			}
		}
	})
}
