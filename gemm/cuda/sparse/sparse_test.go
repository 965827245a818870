package sparse

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
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// mostSpills is what a thread of lutsparse.cu may spill, in bytes.
const mostSpills = 40

// TestCompileSparse compiles lutsparse.cu, some of it or with -long all.
func TestCompileSparse(t *testing.T) {
	c := kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover)
	var compiled []kerneltest.Variant
	for i, f := range Formats() {
		for j, config := range append(variants(f, 1), variants(f, cuda.MaxRows)...) {
			if !*cudatest.Long && (f.Group != 64 || f.Scale != weight.F16 || f.Type != driver.F16 || (f.Bits+j)%3 != 0) {
				continue
			}
			k := kernel{f, config}.Kernel()
			k.Options.Arch = []string{"sm_90a", "sm_80"}[(i+j)%16/15]
			compiled = append(compiled, kerneltest.Variant{Group: fmt.Sprintf("%d bits, %v", f.Bits, config), Kernel: k, Spills: mostSpills})
		}
	}
	kerneltest.Compile(t, c, compiled)
}

// TestCompileSparseMany compiles lutmany.cu for what is kept: a format's variants, with -covering those of formats that take the most
// registers, and with -long all.
func TestCompileSparseMany(t *testing.T) {
	c := kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover)
	formats := []table.Format{{Bits: 4, Group: 64, Scale: weight.F16, Type: driver.F16}}
	switch {
	case *cudatest.Long:
		formats = Formats()
	case *cudatest.Cover:
		formats = append(formats, table.Format{Bits: 4, Group: 32, Scale: weight.BF16, Type: driver.BF16}, table.Format{Bits: 5, Group: 128, Scale: weight.F16, Type: driver.BF16})
	}
	var compiled []kerneltest.Variant
	for _, f := range formats {
		for _, v := range manyVariants(f) {
			k := manyKernel{f, v}.Kernel()
			k.Options.Arch = "sm_90a"
			compiled = append(compiled, kerneltest.Variant{Group: fmt.Sprintf("%d bits in groups of %d, %v", f.Bits, f.Group, v), Kernel: k})
		}
	}
	kerneltest.Compile(t, c, compiled)
}

// TestPack has a matrix kept dense where there is no kernel for it: without a compiler, on a GPU of little shared memory,
// and in groups or a type that none is compiled for.
func TestPack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h200 := cuda.GPUs()[0]
	small := driver.DeviceInfo{SMs: 80, SharedPerBlock: 48 << 10}
	for _, test := range []struct {
		name  string
		g     cuda.GPU
		group int
		k     int
		dtype driver.DType
		packs bool // whether there is a layout
	}{
		{"no compiler", cuda.GPU{DeviceInfo: h200, NoCompiler: errors.New("no compiler")}, 256, 512, driver.F16, true},
		{"little shared memory", cuda.GPU{DeviceInfo: small}, 128, 512, driver.F16, true},
		{"groups of 32", cuda.GPU{DeviceInfo: h200}, 32, 512, driver.F16, false},
		{"columns", cuda.GPU{DeviceInfo: h200}, 128, 520, driver.F16, false},
		{"type", cuda.GPU{DeviceInfo: h200}, 128, 512, driver.F32, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			tiles, parts, err := Family{}.Pack(conform.RandomSparse(r, 32, test.k, 4, test.group, weight.F16), test.dtype)
			if err != nil || (tiles != nil) != test.packs {
				t.Fatalf("packs %v, %v: want %v", tiles != nil, err, test.packs)
			}
			if tiles == nil {
				return
			}
			for i, size := range tiles.Sizes() {
				if len(parts[i]) != size {
					t.Errorf("part %d has %d bytes: want %d", i, len(parts[i]), size)
				}
			}
			if err := tiles.Runs(test.g); !errors.Is(err, cuda.ErrNoKernel) {
				t.Errorf("got %v, want that there is no kernel", err)
			}
		})
	}
}

// sparseTestFormats covers every width, group, scale type and type of X, if not every combination.
func sparseTestFormats() []table.Format {
	var all []table.Format
	for _, f := range cudatest.Formats() {
		if has(table.Format(f)) {
			all = append(all, table.Format(f))
		}
	}
	return all
}

// sparseHost is a case's matrix in the memory of the host.
type sparseHost struct {
	*conform.Case
	t        *testing.T
	f        table.Format
	tiles    *repack.SparseTiles
	kernels  []hostKernel
	launches int
}

// TestSparseHost runs lutsparse.cu on the host's processor, which besides finds what it does beyond its memory.
func TestSparseHost(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range sparseTestFormats() {
		t.Run(cuda.Format(f).Name(), func(t *testing.T) {
			t.Parallel()
			var kernels []hostKernel
			var modules []kerneltest.Module
			configs := append(variants(f, 1), variants(f, cuda.MaxRows)...)
			for j, config := range configs {
				if *cudatest.Long || j == i%len(configs) {
					k := hostKernel{variant: config, arch: []int{900, 800}[(i+j)%2]}
					kernels = append(kernels, k)
					modules = append(modules, kerneltest.Modules(k.arch, kernel{f, config}.Kernel())...)
				}
			}
			stamps.Due(t, modules...)
			for j, m := range modules {
				kernels[j].host = stamps.OnHost(t, m.Kernel, m.Arch)
			}
			cases := 1
			if *cudatest.Long {
				cases = len(conform.Sizes())
			}
			for j := range cases {
				c := conform.DrawSparse(1, i*cases+j, conform.Format(f))
				c.Rows = slices.DeleteFunc(c.Rows, func(rows int) bool { return rows > cuda.MaxRows })
				if !*cudatest.Long {
					c.Rows = []int{kernels[0].rows - i%4}
				}
				c.Fill()
				m := &sparseHost{Case: c, t: t, f: f, tiles: cudatest.Must(repack.SparseCUDA(c.Sparse))(t), kernels: kernels}
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

// hostKernel is a variant compiled for the host.
type hostKernel struct {
	variant
	arch int
	host *kerneltest.Host
}

func (k hostKernel) String() string {
	return fmt.Sprintf("%v to %d rows sm_%d", k.variant, k.rows, k.arch/10)
}

func (m *sparseHost) Configs(rows int) []hostKernel {
	var all []hostKernel
	for _, k := range m.kernels {
		if rows <= k.rows && (rows > fewRows || k.rows == fewRows) {
			all = append(all, k)
		}
	}
	return all
}

func (m *sparseHost) Slices(k hostKernel, _ int) int { return k.slices }

// MatMul turns the order of threads around every other time, with Y and the bias aligned to a number of theirs, and takes
// the tiles of a block in several runs for every other configuration.
func (m *sparseHost) MatMul(c hostKernel, p *conform.Product, blocks int, y []uint16) error {
	const sms = 3
	s := table.NewShape(m.f, m.N, m.K, p.Rows, c.slices)
	args, launch, err := s.Plan(c.variant, table.Limits{SMs: min(blocks, sms), Shared: 227 << 10})
	if err != nil {
		return err
	}
	if m.launches/2%2 == 1 {
		args.ShortenRuns()
	}
	reverse, alignment := m.launches%2 == 1, 16
	if reverse {
		alignment = 2
	}
	m.launches++
	var mem kerneltest.Memory
	at := []driver.Ptr{mem.Upload(interleaved(m.tiles)), mem.Upload(m.f.Scales(m.tiles.Kept))}
	o := cuda.Operands{X: mem.Upload(driver.Bytes(p.X)), M: p.Rows}
	if p.Bias != nil {
		o.Bias = mem.UploadAligned(driver.Bytes(p.Bias), alignment)
	}
	result := driver.Bytes(y[:p.Rows*m.N])
	o.Y = mem.UploadAligned(result, alignment)
	l := cuda.Launch{Launch: launch, Function: gemmName, Args: [][]byte{args.With(at, o, cudatest.Must(m.f.Table(m.tiles.Kept.Codebook))(m.t))}}
	if m.launches == 1 {
		l.Function = readName
		cudatest.Launch(m.t, c.host, &mem, l, reverse)
		if !slices.Equal(mem.Read(o.Y), result) {
			return fmt.Errorf("the twin that only reads writes")
		}
		l.Function = gemmName
	}
	cudatest.Launch(m.t, c.host, &mem, l, reverse)
	copy(result, mem.Read(o.Y))
	return nil
}

// sparseGPU is a matrix on the GPU.
type sparseGPU struct {
	*cudatest.GPU
	t *testing.T
	w *cuda.Matrix
}

// TestGPUSparse holds the engine to the suite, in some formats or many.
func TestGPUSparse(t *testing.T) {
	for i, f := range sparseTestFormats() {
		if !*cudatest.Long && i%3 != 0 {
			continue
		}
		t.Run(cuda.Format(f).Name(), func(t *testing.T) {
			cudatest.OnGPU(t, func(g *cudatest.GPU) {
				c := conform.DrawSparse(1, i, conform.Format(f))
				c.Fill()
				w := upload(t, g, c.Sparse, f.Type)
				res, err := conform.Check(t.Context(), c, sparseGPU{g, t, w})
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

// upload uploads a matrix.
func upload(t testing.TB, g *cudatest.GPU, m *lut24.Matrix, dtype driver.DType) *cuda.Matrix {
	t.Helper()
	tiles, parts, err := Family{}.Pack(m, dtype)
	if err != nil {
		t.Fatal(err)
	}
	return g.Upload(t, tiles, parts)
}

func (m sparseGPU) Configs(rows int) []cuda.Way {
	return slices.Concat(m.Engine.Configs(m.w.Tiles, rows), m.Others(m.w.Tiles, rows))
}

func (m sparseGPU) Slices(c cuda.Way, rows int) int { return m.Order(m.w.Tiles, c, rows) }

func (m sparseGPU) MatMul(c cuda.Way, p *conform.Product, blocks int, y []uint16) error {
	o := m.Operands(m.t, p, y)
	m.LimitBlocks(blocks)
	err := errors.Join(m.MatMulWay(m.Stream, m.w, o, c), m.Stream.Sync(), m.Dev.Read(driver.Bytes(y), o.Y))
	m.Free(m.t, o)
	return err
}

// TestSparseRows compares every number that sparserows.cu writes on the host's processor with the product of table value and
// scale, and with 0.
func TestSparseRows(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range sparseTestFormats() {
		if !*cudatest.Long && i%3 != 1 {
			continue
		}
		t.Run(cuda.Format(f).Name(), func(t *testing.T) {
			t.Parallel()
			arch := []int{900, 800}[i%2]
			stamps.Due(t, kerneltest.Modules(arch, rowsKernel{f, f.Type}.Kernel(), rowsKernel{f, driver.F32}.Kernel())...)
			c := conform.DrawSparse(3, i, conform.Format(f))
			c.Rows = nil
			c.Fill()
			n, k := c.N, c.K
			held := *c.Matrix
			held.Codebook = conform.RoundedTable(c.Matrix.Codebook, f.Type)
			want := held.Dequantize()
			tiles := cudatest.Must(repack.SparseCUDA(c.Sparse))(t)
			index := []int32{int32(n - 1), 0, int32(n / 2), 0}
			for _, out := range []driver.DType{f.Type, driver.F32} {
				host := stamps.OnHost(t, rowsKernel{f, out}.Kernel(), arch)
				for _, rows := range [][]int32{index, nil} {
					first, count := 0, len(rows)
					if rows == nil {
						first, count = n/3, n-n/3
						for r := first; r < n; r++ {
							rows = append(rows, int32(r))
						}
					}
					var mem kerneltest.Memory
					m := &Tiles{n: n, k: k, format: f, codebook: cudatest.Must(f.Table(tiles.Kept.Codebook))(t)}
					at := []driver.Ptr{mem.Upload(interleaved(tiles)), mem.Upload(f.Scales(tiles.Kept))}
					r := cuda.Rows{Type: out, First: first, Count: count}
					if count == len(index) {
						r.Index = mem.Upload(driver.Bytes(rows))
					}
					r.To = mem.Upload(make([]byte, count*k*out.Size()))
					l := cudatest.Must(m.Rows(cuda.GPU{DeviceInfo: driver.DeviceInfo{SMs: 2}}, at, r))(t)
					cudatest.Launch(t, host, &mem, l, i%2 == 0)
					got := mem.Read(r.To)
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
