package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// TestSparseCompile compiles lutsparse.cu, some of it or with -long all.
func TestSparseCompile(t *testing.T) {
	c := kerneltest.Compiler(t, *long || *cover)
	var variants []kerneltest.Variant
	for i, f := range SparseFormats() {
		for j, config := range append(lutsparse{}.variants(f, 1), lutsparse{}.variants(f, MaxRows)...) {
			if !*long && (f.Group != 64 || f.Scale != 1 || f.Type.String() != "f16" || f.Bits == lut.MaxBits && j%2 == 0) {
				continue
			}
			k := f.Kernel(config)
			k.Options.Arch = []string{"sm_90a", "sm_80"}[(i+j)%16/15]
			variants = append(variants, kerneltest.Variant{Group: config.String() + " " + f.name(), Kernel: k, Spills: 0})
		}
	}
	kerneltest.Compile(t, c, variants)
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
			for j, config := range append(lutsparse{}.variants(f, 1), lutsparse{}.variants(f, MaxRows)...) {
				if *long || (3*i+j)%7 == 0 {
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
				at := 0
				c.Rows = slices.DeleteFunc(c.Rows, func(rows int) bool {
					at++
					return rows > MaxRows || !*long && (at+i)%2 == 0
				})
				c.Fill()
				m := &sparseHost{Case: c, t: t, f: f, tiles: must(repack.SparseCUDA(c.Sparse))(t), kernels: kernels}
				res, err := conform.Check(context.Background(), c, m)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range res.Failures {
					t.Error(f)
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
