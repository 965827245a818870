package table

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// hostKernel is a kernel compiled for the host.
type hostKernel struct {
	config
	lookup Lookup
	arch   int
	host   *kerneltest.Host
}

func (k hostKernel) String() string {
	return fmt.Sprintf("%v to %d rows sm_%d %v", k.config, k.Rows(), k.arch/10, k.lookup)
}

// hostKernels returns the kernels of format i: together they are what the kernels' source
// distinguishes, if not every combination, and one format has every configuration, for the bits
// to be compared. With -long it is every configuration of every format.
func hostKernels(i int, f Format) []hostKernel {
	var all []hostKernel
	for tiles := 1; tiles <= mostRows/rowsOfB; tiles++ {
		configs := f.variants(rowsOfB * tiles)
		for j, c := range configs {
			some := tiles <= 2 && (i == 4*(tiles-1) || i%4 < 2 && i/4%2 == tiles-1 && (i/2+i+1+j)%len(configs) == 0)
			if tiles > 2 {
				some = c.Rows() == rowsOfB*tiles && (7*i+3*j+tiles)%29 == 0
			}
			if !*cudatest.Long && !some {
				continue
			}
			k := hostKernel{config: c, arch: []int{900, 800}[(i+j)%2]}
			all = append(all, k)
			if f.Bits == 4 && (*cudatest.Long || i%2 == 0 || c.kernel() == (lutwide{}) && tiles == 1) {
				k.lookup = Integers
				all = append(all, k)
			}
		}
	}
	return all
}

// compileOnHost compiles a test's kernels where it is due.
func compileOnHost(t *testing.T, stamps *kerneltest.Stamps, f Format, kernels []hostKernel) {
	t.Helper()
	var modules []kerneltest.Module
	for _, k := range kernels {
		modules = append(modules, kerneltest.Modules(k.arch, source{format: f, config: k.config, lookup: k.lookup}.Kernel())...)
	}
	stamps.Due(t, modules...)
	for j, m := range modules {
		kernels[j].host = stamps.OnHost(t, m.Kernel, m.Arch)
	}
}

// TestHost runs the kernels that multiply on the host's processor, which besides finds what they
// do beyond their memory.
func TestHost(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, f := range testFormats() {
		kernels := hostKernels(i, f)
		if len(kernels) == 0 {
			continue
		}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			compileOnHost(t, stamps, f, kernels)
			cases := 1
			if *cudatest.Long {
				cases = len(conform.Sizes())
			}
			for j := range cases {
				c := conform.Draw(1, i*cases+j, conform.Format(f))
				at := 0
				c.Rows = slices.DeleteFunc(c.Rows, func(int) bool { at++; return (at+j)%2 == 0 }) // every other one
				newHostMatrix(t, c, kernels).check(t)
			}
		})
	}
}

// hostMatrix is a case's matrix in the memory of the host.
type hostMatrix struct {
	*conform.Case
	t        *testing.T
	f        Format
	tiles    *repack.CUDATiles
	kernels  []hostKernel
	launches int
}

func newHostMatrix(t *testing.T, c *conform.Case, kernels []hostKernel) *hostMatrix {
	most := 0
	for _, k := range kernels {
		most = max(most, k.Rows())
	}
	c.Rows = slices.DeleteFunc(c.Rows, func(rows int) bool { return rows > most })
	c.Fill()
	kernels = slices.DeleteFunc(slices.Clone(kernels), func(k hostKernel) bool {
		return k.lookup == Integers && !Format(c.Format).areIntegers(roundedTable(c))
	})
	return &hostMatrix{Case: c, t: t, f: Format(c.Format), tiles: cudatest.Must(repack.CUDA(c.Matrix))(t), kernels: kernels}
}

func roundedTable(c *conform.Case) []uint32 {
	var all []uint32
	for _, v := range c.Matrix.Codebook {
		all = append(all, uint32(Format(c.Format).convert(v)))
	}
	return all
}

func (m *hostMatrix) check(t *testing.T) {
	res, err := conform.Check(context.Background(), m.Case, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range res.Failures {
		t.Error(f)
	}
	if res.Checks == 0 {
		t.Errorf("%v: nothing was checked", m.Case)
	}
}

// hostConfig is a kernel with a number of slices of K that it can have.
type hostConfig struct {
	hostKernel
	slices int
}

// Configs returns kernels in all numbers of slices that they can have, but one that is alone with a
// number of rows in one: there is nothing to compare its bits with.
func (m *hostMatrix) Configs(rows int) []hostConfig {
	kernels := slices.DeleteFunc(slices.Clone(m.kernels), func(k hostKernel) bool {
		return rows > k.Rows() || k.kernel() == (lutwide{}) && rows <= min(k.Rows()-rowsOfB, rowsOfB)
	})
	var all []hostConfig
	for _, k := range kernels {
		can := k.Splits()
		if len(kernels) == 1 {
			i := rows % len(can)
			can = can[i : i+1]
		}
		for _, s := range can {
			all = append(all, hostConfig{k, s})
		}
	}
	return all
}

func (m *hostMatrix) Slices(c hostConfig, _ int) int { return c.slices }

// MatMul turns the order of threads around every other time, with Y and the bias aligned to a number
// of theirs, so that they end where memory does, and takes the tiles of a block in several runs for
// every other configuration.
func (m *hostMatrix) MatMul(c hostConfig, p *conform.Product, blocks int, y []uint16) error {
	const sms = 3 // as filling the tables of many blocks takes long
	args, launch, err := Shape{Format: m.f, n: m.N, k: m.K, m: p.Rows, slices: c.slices, lookup: c.lookup}.Plan(c.config, Limits{SMs: min(blocks, sms), Shared: 227 << 10})
	if err != nil {
		return err
	}
	if m.launches/2%2 == 1 {
		args.ShortenRuns()
	}
	reverse := m.launches%2 == 1
	m.launches++
	alignment := 16
	if reverse {
		alignment = 2
	}
	var mem kerneltest.Memory
	args.codes, args.scales = uint64(mem.Upload(m.tiles.Codes)), uint64(mem.Upload(m.f.Scales(m.tiles)))
	args.codebook = roundedTable(m.Case)
	args.x = uint64(mem.Upload(driver.Bytes(p.X)))
	if p.Bias != nil {
		args.bias = uint64(mem.UploadAligned(driver.Bytes(p.Bias), alignment))
	}
	result := driver.Bytes(y[:p.Rows*m.N])
	at := mem.UploadAligned(result, alignment)
	args.y = uint64(at)
	if c.kernel().twin() && m.launches == 1 {
		c.host.Launch(m.t, &mem, readName, launch, reverse, kerneltest.Struct(args.Bytes()))
		if !slices.Equal(mem.Read(at), result) {
			return fmt.Errorf("the twin that only reads writes")
		}
	}
	c.host.Launch(m.t, &mem, gemmName, launch, reverse, kerneltest.Struct(args.Bytes()))
	copy(result, mem.Read(at))
	return nil
}

// TestHostEngine runs the engine on the host, in a format of few kernels.
func TestHostEngine(t *testing.T) {
	if !*cudatest.Long {
		t.Skip("with -long")
	}
	kerneltest.HostGPU(t, 9, true)
	checkOnGPU(t, 0, Format{2, 0, weight.BF16, driver.F16})
}
