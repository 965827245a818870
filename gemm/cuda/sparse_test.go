package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// TestCompileSparse compiles lutsparse.cu, some of it or with -long all.
func TestCompileSparse(t *testing.T) {
	c := kerneltest.Compiler(t, *long || *cover)
	var variants []kerneltest.Variant
	for i, f := range SparseFormats() {
		for j, config := range append(lutsparse{}.variants(f, 1), lutsparse{}.variants(f, MaxRows)...) {
			if !*long && (f.Group != 64 || f.Scale != weight.F16 || f.Type != driver.F16 || (f.Bits+j)%3 != 0) {
				continue
			}
			k := f.Kernel(config)
			k.Options.Arch = []string{"sm_90a", "sm_80"}[(i+j)%16/15]
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d bits, %v", f.Bits, config), Kernel: k, Spills: someSpills})
		}
	}
	kerneltest.Compile(t, c, variants)
}

// TestCompileSparseMany compiles lutmany.cu for what is kept: a format's variants, with -covering those of formats that take the most
// registers, and with -long all.
func TestCompileSparseMany(t *testing.T) {
	c := kerneltest.Compiler(t, *long || *cover)
	formats := []Format{{4, 64, weight.F16, driver.F16}}
	switch {
	case *long:
		formats = SparseFormats()
	case *cover:
		formats = append(formats, Format{4, 32, weight.BF16, driver.BF16}, Format{5, 128, weight.F16, driver.BF16})
	}
	var variants []kerneltest.Variant
	for _, f := range formats {
		for _, v := range f.sparseManyVariants() {
			k := sparseManyKernel{f, v}.kernel()
			k.Options.Arch = "sm_90a"
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d bits in groups of %d, %v", f.Bits, f.Group, v), Kernel: k})
		}
	}
	kerneltest.Compile(t, c, variants)
}

// TestPackSparse has a matrix kept dense where there is no kernel for it: without a compiler, on a GPU of little shared memory,
// and in groups or a type that none is compiled for.
func TestPackSparse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	good := limits{132, 227 << 10}
	for _, test := range []struct {
		name  string
		e     Engine
		group int
		k     int
		dtype driver.DType
		packs bool // whether there is a layout
	}{
		{"no compiler", Engine{limits: good, noCompiler: errors.New("no compiler")}, 256, 512, driver.F16, true},
		{"little shared memory", Engine{limits: limits{80, 48 << 10}}, 128, 512, driver.F16, true},
		{"groups of 32", Engine{limits: good}, 32, 512, driver.F16, false},
		{"columns", Engine{limits: good}, 128, 520, driver.F16, false},
		{"type", Engine{limits: good}, 128, 512, driver.F32, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			upload, err := Pack(conform.RandomSparse(r, 32, test.k, 4, test.group, weight.F16), test.dtype)
			if err != nil || (upload != nil) != test.packs {
				t.Fatalf("packs %v, %v: want %v", upload != nil, err, test.packs)
			}
			if upload == nil {
				return
			}
			if w, err := upload(&test.e); w != nil || err != nil {
				t.Errorf("uploads %v, %v: want nothing", w, err)
			}
		})
	}
}

// sparseTestFormats covers every width, group, scale type and type of X, if not every combination.
func sparseTestFormats() []Format {
	return slices.DeleteFunc(testFormats(), func(f Format) bool { return !(lutsparse{}).has(f, 1) })
}

// sparseHost is a case's matrix in the memory of the host.
type sparseHost struct {
	*conform.Case
	t        *testing.T
	f        Format
	tiles    *repack.SparseTiles
	kernels  []hostKernel
	launches int
}

// TestSparseHost runs lutsparse.cu on the host's processor, which besides finds what it does beyond its memory.
func TestSparseHost(t *testing.T) {
	for i, f := range sparseTestFormats() {
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			var kernels []hostKernel
			configs := append(lutsparse{}.variants(f, 1), lutsparse{}.variants(f, MaxRows)...)
			for j, config := range configs {
				if *long || j == i%len(configs) {
					k := hostKernel{Config: config, arch: []int{900, 800}[(i+j)%2]}
					k.host = kerneltest.OnHost(t, f.Kernel(config), k.arch)
					kernels = append(kernels, k)
				}
			}
			cases := 1
			if *long {
				cases = len(conform.Sizes())
			}
			for j := range cases {
				c := conform.DrawSparse(1, i*cases+j, conform.Format(f))
				c.Rows = slices.DeleteFunc(c.Rows, func(rows int) bool { return rows > MaxRows })
				if !*long {
					c.Rows = []int{kernels[0].rowsOfX() - i%4}
				}
				c.Fill()
				m := &sparseHost{Case: c, t: t, f: f, tiles: must(repack.SparseCUDA(c.Sparse))(t), kernels: kernels}
				res, err := conform.Check(context.Background(), c, m)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range res.Failures {
					t.Error(f)
				}
				if res.Checks == 0 {
					t.Errorf("%v: nothing was checked", c)
				}
			}
		})
	}
}

func (m *sparseHost) Configs(rows int) []hostConfig {
	var all []hostConfig
	for _, k := range m.kernels {
		if rows <= k.rowsOfX() && (rows > rowsOfB || k.rowsOfX() == rowsOfB) {
			all = append(all, hostConfig{k, k.splits()[0]})
		}
	}
	return all
}

func (m *sparseHost) Slices(c hostConfig, _ int) int { return c.slices }

// MatMul turns the order of threads around every other time, with Y and the bias aligned to a number of theirs, and takes
// the tiles of a block in several runs for every other configuration.
func (m *sparseHost) MatMul(c hostConfig, p *conform.Product, blocks int, y []uint16) error {
	const sms = 3
	args, launch, err := shape{Format: m.f, n: m.N, k: m.K, m: p.Rows, slices: c.slices}.plan(c.Config, limits{sms: min(blocks, sms), sharedBlock: 227 << 10})
	if err != nil {
		return err
	}
	if m.launches/2%2 == 1 {
		args.run = min(args.run, args.groups)
	}
	reverse, alignment := m.launches%2 == 1, 16
	if reverse {
		alignment = 2
	}
	m.launches++
	var mem kerneltest.Memory
	args.codes, args.scales = uint64(mem.Upload(interleaved(m.tiles))), uint64(mem.Upload(m.f.scales(m.tiles.Kept)))
	args.codebook = must(m.f.table(m.tiles.Kept.Codebook))(m.t)
	args.x = uint64(mem.Upload(driver.Bytes(p.X)))
	if p.Bias != nil {
		args.bias = uint64(mem.UploadAligned(driver.Bytes(p.Bias), alignment))
	}
	result := driver.Bytes(y[:p.Rows*m.N])
	at := mem.UploadAligned(result, alignment)
	args.y = uint64(at)
	if m.launches == 1 {
		c.host.Launch(m.t, &mem, readName, launch, reverse, kerneltest.Struct(args.bytes()))
		if !slices.Equal(mem.Read(at), result) {
			return fmt.Errorf("the twin that only reads writes")
		}
	}
	c.host.Launch(m.t, &mem, gemmName, launch, reverse, kerneltest.Struct(args.bytes()))
	copy(result, mem.Read(at))
	return nil
}

// sparseGPU is a matrix on the GPU.
type sparseGPU struct {
	e *Engine
	s *driver.Stream
	w *SparseMatrix
}

// TestGPUSparse holds the engine to the suite, in some formats or many.
func TestGPUSparse(t *testing.T) {
	for i, f := range sparseTestFormats() {
		if !*long && i%3 != 0 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			onGPU(t, func(e *Engine, s *driver.Stream) {
				c := conform.DrawSparse(1, i, conform.Format(f))
				c.Fill()
				w, err := e.UploadSparse(must(repack.SparseCUDA(c.Sparse))(t), f.Type)
				skipMissing(t, err)
				if err != nil {
					t.Fatal(err)
				}
				res, err := conform.Check(t.Context(), c, sparseGPU{e, s, w})
				if err = errors.Join(err, w.Close()); err != nil {
					t.Fatal(err)
				}
				for _, failure := range res.Failures {
					t.Error(failure)
				}
			})
		})
	}
}

func (m sparseGPU) Configs(rows int) []Config { return m.e.SparseConfigs(m.w, rows, true) }

func (m sparseGPU) Slices(c Config, _ int) int { return c.splits()[0] }

func (m sparseGPU) MatMul(c Config, p *conform.Product, blocks int, y []uint16) (err error) {
	o := Operands{M: p.Rows}
	var errs []error
	keep := func(p driver.Ptr, err error) driver.Ptr {
		errs = append(errs, err)
		return p
	}
	o.X, o.Y = keep(m.e.dev.Upload(driver.Bytes(p.X))), keep(m.e.dev.Upload(driver.Bytes(y)))
	if p.Bias != nil {
		o.Bias = keep(m.e.dev.Upload(driver.Bytes(p.Bias)))
	}
	m.e.LimitBlocks(blocks)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	errs = append(errs, m.e.MatMulSparseWith(m.s, m.w, o, c), m.s.Sync(), m.e.dev.Read(driver.Bytes(y), o.Y))
	for _, p := range []driver.Ptr{o.X, o.Y, o.Bias} {
		if p != 0 {
			errs = append(errs, m.e.dev.Free(p))
		}
	}
	return errors.Join(errs...)
}

// TestSparseRows compares every number that sparserows.cu writes on the host's processor with the product of table value and
// scale, and with 0.
func TestSparseRows(t *testing.T) {
	for i, f := range sparseTestFormats() {
		if !*long && i%3 != 1 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			c := conform.DrawSparse(3, i, conform.Format(f))
			c.Rows = nil
			c.Fill()
			n, k := c.N, c.K
			held := *c.Matrix
			held.Codebook = conform.RoundedTable(c.Matrix.Codebook, f.Type)
			want := held.Dequantize()
			tiles := must(repack.SparseCUDA(c.Sparse))(t)
			index := []int32{int32(n - 1), 0, int32(n / 2), 0}
			for _, out := range []driver.DType{f.Type, driver.F32} {
				host := kerneltest.OnHost(t, sparseRows{f, out}.kernel(), []int{900, 800}[i%2])
				for _, rows := range [][]int32{index, nil} {
					first, count := 0, len(rows)
					if rows == nil {
						first, count = n/3, n-n/3
						for r := first; r < n; r++ {
							rows = append(rows, int32(r))
						}
					}
					var mem kerneltest.Memory
					m := SparseMatrix{N: n, K: k, Format: f, codes: mem.Upload(interleaved(tiles)), scales: mem.Upload(f.scales(tiles.Kept))}
					m.codebook = must(f.table(tiles.Kept.Codebook))(t)
					var at driver.Ptr
					if count == len(index) {
						at = mem.Upload(driver.Bytes(rows))
					}
					dst := mem.Upload(make([]byte, count*k*out.Size()))
					l, p := m.rowsPlan(dst, at, first, count, 2)
					host.Launch(t, &mem, sparseRowsName, l, i%2 == 0, kerneltest.Struct(p.bytes()))
					got := mem.Read(dst)
					for j, row := range rows {
						for col := range k {
							v := want[int(row)*k+col]
							b := got[(j*k+col)*out.Size():]
							if out == driver.F32 {
								if g := math.Float32frombits(binary.LittleEndian.Uint32(b)); g != v {
									t.Fatalf("row %d, column %d: got %g, want %g", row, col, g, v)
								}
							} else if g := binary.LittleEndian.Uint16(b); g != conform.ToHalf(f.Type, v) && (v != 0 || g<<1 != 0) {
								t.Fatalf("row %d, column %d: got %g, want %g", row, col, conform.FromHalf(f.Type, g), v)
							}
						}
					}
				}
			}
		})
	}
}
