package table

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// gatedCase is a product with gates on the host, under a configuration in a number of slices.
type gatedCase struct {
	f       Format
	config  config
	slices  int
	n, k, m int
	blocks  int
	run     int // tiles at a time at most; 0: all that fit
	act     string
}

func (c gatedCase) String() string {
	return fmt.Sprintf("%s %v in %d, %dx%d of %d, %d blocks, %s", c.f.name(), c.config, c.slices, c.n, c.k, c.m, c.blocks, c.act)
}

func gatedCases() []gatedCase {
	four, three, whole := Format{4, 64, weight.F16, driver.F16}, Format{3, 128, weight.F16, driver.BF16}, Format{5, 0, weight.F16, driver.F16}
	few, short, many := gemmVariant{rows: 8, atoms: 2, depth: 4}, gemmVariant{rows: 8, atoms: 2, depth: 2}, gemmVariant{rows: 16, atoms: 1, depth: 2}
	wide := func(slices, warps, tiles, depth, rows int) wideVariant {
		return wideVariant{rows, slices, warps, tiles, depth}
	}
	return []gatedCase{
		{four, few, 16, 160, 4352, 1, 2, 0, "silu"},
		{four, few, 16, 160, 4352, 2, 2, 2, "gelu_tanh"},
		{four, few, 8, 96, 544, 4, 3, 0, "silu"},  // a block has a gate's tile
		{four, few, 8, 320, 544, 3, 3, 4, "silu"}, // and odd numbers of them
		{three, few, 8, 96, 800, 4, 3, 0, "silu"},
		{whole, short, 16, 64, 544, 2, 1, 0, "silu"},
		{four, many, 2, 416, 544, 9, 2, 0, "silu"},
		{four, many, 3, 224, 800, 16, 2, 0, "relu"},

		{four, wide(8, 8, 7, 7, 16), 8, 416, 544, 16, 3, 0, "silu"},
		{four, wide(8, 8, 4, 8, 16), 8, 416, 544, 13, 3, 0, "silu"},
		{four, wide(4, 8, 5, 10, 16), 4, 448, 1056, 16, 3, 0, "swiglu_oai"},
		{four, wide(2, 8, 7, 7, 16), 2, 832, 544, 10, 3, 0, "gelu"},
		{four, wide(16, 16, 3, 6, 8), 16, 96, 544, 5, 2, 0, "silu"},
		{whole, wide(8, 8, 7, 7, 16), 8, 416, 544, 16, 3, 0, "silu"},
	}
}

// TestHostGated compares products with gates with what is made of those without on the host.
func TestHostGated(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, c := range gatedCases() {
		if !*cudatest.Long && i%2 == 1 {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			stamps.Due(t, kerneltest.Modules(900, c.kernel(false), c.kernel(true))...)
			r := rand.New(rand.NewPCG(uint64(i), 2))
			tiles := cudatest.Must(repack.CUDA(testMatrix(uint64(i), c.n, c.k, c.f)))(t)
			x, bias := normalOperand(r, c.f, c.m*c.k), normalOperand(r, c.f, c.n)
			compareGated(t, c.f, c.act, c.m, c.launch(t, stamps, tiles, false, x, bias), c.launch(t, stamps, tiles, true, x, bias))
		})
	}
}

func normalOperand(r *rand.Rand, f Format, n int) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = f.convert(float32(r.NormFloat64()))
	}
	return v
}

// The numbers of swiglu_oai in tests.
const gateAlpha, gateLimit = 1.5, 2

// compareGated compares with the product without gates.
func compareGated(t *testing.T, f Format, act string, m int, plain, gated []uint16) {
	t.Helper()
	width := len(gated) / m
	var diff, size float64
	for row := range m {
		for n := range width {
			g, u := valueOf(f, plain[2*row*width+n]), valueOf(f, plain[(2*row+1)*width+n])
			want := gatedBy(act, g, u)
			diff += math.Pow(valueOf(f, gated[row*width+n])-want, 2)
			size += want * want
		}
	}
	tolerance := 5e-4 // of a rounding
	if f.Type == driver.BF16 {
		tolerance = 4e-3
	}
	if e := math.Sqrt(diff / size); !(e <= tolerance) {
		t.Errorf("results differ by %.2g, want at most %.2g", e, tolerance)
	}
}

func valueOf(f Format, h uint16) float64 {
	if f.Type == driver.BF16 {
		return float64(num.BF16ToF32(h))
	}
	return float64(num.F16ToF32(h))
}

// gatedBy is what glu.cuh says.
func gatedBy(act string, g, u float64) float64 {
	switch act {
	case "silu":
		return g / (1 + math.Exp(-g)) * u
	case "gelu":
		return g / 2 * (1 + math.Erf(g/math.Sqrt2)) * u
	case "gelu_tanh":
		return g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g))) * u
	case "relu":
		return max(g, 0) * u
	}
	g, u = min(g, gateLimit), min(max(u, -gateLimit), gateLimit)
	return g / (1 + math.Exp(-gateAlpha*g)) * (u + 1)
}

// kernel is the case's, with gates or without.
func (c gatedCase) kernel(gated bool) driver.Kernel {
	s := source{format: c.f, config: c.config}
	if gated {
		s.gates = c.act
	}
	return s.Kernel()
}

// launch runs it.
func (c gatedCase) launch(t *testing.T, stamps *kerneltest.Stamps, tiles *repack.CUDATiles, gated bool, x, bias []uint16) []uint16 {
	return c.launchAs(t, stamps, c.kernel(gated), tiles, gated, x, bias, nil)
}

// launchAs runs a kernel of it, with what else is to be done to its arguments.
func (c gatedCase) launchAs(t *testing.T, stamps *kerneltest.Stamps, k driver.Kernel, tiles *repack.CUDATiles, gated bool, x, bias []uint16, also func(s Shape, p *Params, blocks int)) []uint16 {
	s := Shape{Format: c.f, n: c.n, k: c.k, m: c.m, slices: c.slices, gated: gated}
	p, launch, err := s.Plan(c.config, Limits{SMs: c.blocks, Shared: 227 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if c.run != 0 {
		p.run = min(p.run, uint32(c.run))
	}
	var mem kerneltest.Memory
	p.codes, p.scales = uint64(mem.Upload(tiles.Codes)), uint64(mem.Upload(c.f.Scales(tiles)))
	for _, v := range tiles.Codebook {
		p.codebook = append(p.codebook, uint32(c.f.convert(v)))
	}
	p.x, p.bias = uint64(mem.Upload(driver.Bytes(x))), uint64(mem.Upload(driver.Bytes(bias)))
	p.alpha, p.limit = gateAlpha, gateLimit
	y := make([]uint16, c.m*c.n)
	if gated {
		y = y[:c.m*c.n/2]
	}
	at := mem.Upload(driver.Bytes(y))
	p.y = uint64(at)
	if also != nil {
		also(s, &p, int(launch.Grid.X))
	}
	host := stamps.OnHost(t, k, 900)
	host.Launch(t, &mem, gemmName, launch, false, kerneltest.Struct(p.Bytes()))
	copy(driver.Bytes(y), mem.Read(at))
	return y
}

// TestHostGatedMany does so with many rows, and holds results that are written for another product to those that are row by row.
func TestHostGatedMany(t *testing.T) {
	stamps := cudatest.Stamps(t)
	four, three, whole := Format{4, 64, weight.F16, driver.F16}, Format{3, 128, weight.F16, driver.BF16}, Format{5, 0, weight.F16, driver.F16}
	for i, c := range []struct {
		f                Format
		v                Many
		n, k, m, workers int
		act              string
	}{
		{four, Many{64, 4, Replicated}, 512, 544, 72, 3, "silu"},          // two fields, shared
		{four, Many{48, 4, Replicated}, 512, 416, 48, 2, "gelu_tanh"},     // whole ones
		{three, Many{128, 3, Replicated}, 352, 800, 136, 5, "swiglu_oai"}, // of which the last have fewer tiles, an odd number
		{whole, Many{128, 2, Replicated}, 96, 320, 33, 1, "silu"},         // fewer than a half
		{four, Many{64, 4, Replicated}, 32, 1056, 7, 4, "relu"},
	} {
		into := Columns.Written(c.n / 2)
		by := manyGated{c.v, c.act, false}
		t.Run(fmt.Sprintf("%s %v, %dx%d of %d, %d workers, %s", c.f.name(), c.v, c.n, c.k, c.m, c.workers, c.act), func(t *testing.T) {
			t.Parallel()
			prepare, plain, gated := lutcolumns{Columns}.Kernel(), manyKernel{c.f, c.v}.Kernel(), manyGatedKernel{c.f, by}.Kernel()
			kernels := []driver.Kernel{prepare, plain, gated}
			if into {
				kernels = append(kernels, manyGatedKernel{c.f, manyGated{c.v, c.act, true}}.Kernel())
			}
			stamps.Due(t, kerneltest.Modules(900, kernels...)...)
			tiles := cudatest.Must(repack.CUDA(testMatrix(uint64(i), c.n, c.k, c.f)))(t)
			scales := c.f.Scales(tiles)
			w := cudatest.Must(New(c.f, c.n, c.k, tiles.Codebook, scales))(t)
			r := rand.New(rand.NewPCG(uint64(i), 3))
			x, bias := normalOperand(r, c.f, c.m*c.k), normalOperand(r, c.f, c.n)
			for _, reverse := range []bool{false, true} {
				var mem kerneltest.Memory
				filled := func(bytes int) driver.Ptr { return mem.Upload(slices.Repeat([]byte{0xff}, bytes)) }
				at := []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
				inColumns := func(from driver.Ptr, m, k int) driver.Ptr {
					to := filled(Columns.Bytes(m, k))
					cudatest.Launch(t, stamps.OnHost(t, prepare, 900), &mem, lutcolumns{Columns}.launch(from, to, m, k, 2), reverse)
					return to
				}
				flags := mem.Upload(make([]byte, 4*c.workers*c.v.Tiles()))
				o := cuda.Operands{X: inColumns(mem.Upload(driver.Bytes(x)), c.m, c.k), M: c.m, Scratch: filled(c.v.SumBytes(c.workers)), Flags: flags, Bias: mem.Upload(driver.Bytes(bias))}
				o.Y = filled(2 * c.m * c.n)
				cudatest.Launch(t, stamps.OnHost(t, plain, 900), &mem, w.many(at, c.v, o, c.workers, c.workers), reverse)
				want := numbers(mem.Read(o.Y))

				o.Gates, o.Y = cuda.Gates{Activation: c.act, Alpha: gateAlpha, Limit: gateLimit}, filled(c.m*c.n)
				cudatest.Launch(t, stamps.OnHost(t, gated, 900), &mem, w.manyWithGates(at, by, o, c.workers, (c.workers+1)/2), reverse)
				compareGated(t, c.f, c.act, c.m, want, numbers(mem.Read(o.Y)))
				if slices.Max(mem.Read(flags)) != 0 {
					t.Error("flags are not left 0")
				}
				if !into {
					continue
				}
				rows := mem.Read(inColumns(o.Y, c.m, c.n/2))
				o.Gates.Into, o.Y = Columns, filled(len(rows))
				cudatest.Launch(t, stamps.OnHost(t, kernels[3], 900), &mem, w.manyWithGates(at, manyGated{c.v, c.act, true}, o, c.workers, c.workers), reverse)
				if !slices.Equal(mem.Read(o.Y), rows) {
					t.Error("results written for another product are not those that are row by row")
				}
			}
		})
	}
}

// numbers returns 16-bit numbers out of a GPU's memory.
func numbers(b []byte) []uint16 {
	v := make([]uint16, len(b)/2)
	copy(driver.Bytes(v), b)
	return v
}

// TestGPUGated does the same on a GPU, with shapes of models and small ones.
func TestGPUGated(t *testing.T) {
	f := Format{4, 64, weight.F16, driver.F16}
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		for i, size := range [][2]int{{28672, 4096}, {6144, 1024}, {96, 544}} {
			n, k := size[0], size[1]
			w := upload(t, g, testMatrix(uint64(i), n, k, f), f.Type)
			for _, m := range []int{1, 2, 4, 7, 9, 16, 40, 64} {
				if !g.CanGate(w.Tiles, m, cuda.Gates{Activation: "silu"}) && m > cuda.MaxRows { // small ones
					continue
				}
				x := normalOperand(rand.New(rand.NewPCG(uint64(m), 2)), f, m*k)
				plain, gated := make([]uint16, m*n), make([]uint16, m*n/2)
				o := cuda.Operands{Y: cudatest.Must(g.Dev.Alloc(2 * m * n))(t), X: cudatest.Must(g.Dev.Upload(driver.Bytes(x)))(t), M: m}
				if bytes := g.ScratchBytes(w.Tiles, m); bytes > 0 {
					o.Scratch = cudatest.Must(g.Dev.Alloc(bytes))(t)
				}
				err := errors.Join(g.MatMul(g.Stream, w, o), g.Stream.Sync(), g.Dev.Read(driver.Bytes(plain), o.Y))
				o.Gates.Activation = "silu"
				err = errors.Join(err, g.MatMul(g.Stream, w, o), g.Stream.Sync(), g.Dev.Read(driver.Bytes(gated), o.Y))
				if g.Free(t, o); err != nil {
					t.Fatalf("%d×%d, %d rows: %v", n, k, m, err)
				}
				compareGated(t, f, "silu", m, plain, gated)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
