package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/quantize/weight"
	"github.com/lutq/lutq/repack"
)

// fusedCase is a product that is fused on the host, under a configuration in a number of slices.
type fusedCase struct {
	f       Format
	config  Config
	slices  int
	n, k, m int
	blocks  int
	run     int // tiles at a time at most; 0: all that fit
	fusion  Fusion
}

func (c fusedCase) String() string {
	return fmt.Sprintf("%s %v in %d, %dx%d of %d, %d blocks, %+v", c.f.name(), c.config, c.slices, c.n, c.k, c.m, c.blocks, c.fusion)
}

func fusedCases() []fusedCase {
	four, three, whole := Format{4, 64, weight.F16, driver.F16}, Format{3, 128, weight.F16, driver.BF16}, Format{5, 0, weight.F16, driver.F16}
	few, many := gemmVariant{rows: 8, atoms: 2, depth: 4}, gemmVariant{rows: 16, atoms: 1, depth: 2}
	gates, adds, norms := Fusion{Gates: "silu"}, Fusion{Adds: true}, Fusion{Norms: true}
	both := Fusion{Gates: "gelu_tanh", Norms: true}
	wide := func(slices, warps, tiles, depth, rows int) wideVariant {
		return wideVariant{rows, slices, warps, tiles, depth}
	}
	return []fusedCase{
		{four, few, 16, 160, 4352, 1, 2, 0, gates},
		{four, few, 16, 160, 4352, 2, 2, 2, both},
		{four, few, 8, 96, 544, 4, 3, 0, both},   // a block has a pair
		{four, few, 8, 320, 544, 3, 3, 4, gates}, // and pairs of odd numbers
		{three, few, 8, 70, 800, 4, 3, 0, norms},
		{three, gemmVariant{rows: 8, atoms: 2, depth: 2}, 16, 70, 800, 3, 2, 0, adds},
		{whole, gemmVariant{rows: 8, atoms: 2, depth: 2}, 16, 64, 544, 2, 1, 0, gates},
		{four, many, 2, 416, 544, 9, 2, 0, gates},
		{four, many, 3, 224, 800, 16, 2, 0, Fusion{Gates: "relu"}},
		{four, many, 8, 70, 800, 11, 2, 0, adds},

		{four, wide(8, 8, 7, 7, 16), 8, 416, 544, 16, 3, 0, gates},
		{four, wide(8, 8, 4, 8, 16), 8, 416, 544, 13, 3, 0, gates},
		{four, wide(4, 8, 5, 10, 16), 4, 448, 1056, 16, 3, 0, Fusion{Gates: "swiglu_oai"}},
		{four, wide(2, 8, 7, 7, 16), 2, 832, 544, 10, 3, 0, Fusion{Gates: "gelu"}},
		{four, wide(16, 16, 3, 6, 8), 16, 96, 544, 5, 2, 0, gates},
		{whole, wide(8, 8, 7, 7, 16), 8, 416, 544, 16, 3, 0, gates},
		{four, wide(8, 8, 2, 4, 8), 8, 70, 544, 7, 3, 0, adds},
		{four, wide(2, 8, 7, 7, 16), 2, 200, 544, 16, 3, 0, adds},
	}
}

// TestHostFused compares what kernels do beside multiplying with what is made of their products on the host.
func TestHostFused(t *testing.T) {
	for i, c := range fusedCases() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			c.check(t, uint64(i))
		})
	}
}

func (c fusedCase) check(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	tiles := must(repack.CUDA(testMatrix(seed, c.n, c.k, c.f)))(t)
	h, norm := make([]float32, c.m*c.k), make([]float32, c.k)
	for i := range h {
		h[i] = float32(r.NormFloat64())
	}
	for i := range norm {
		norm[i] = float32(1 + r.NormFloat64()/4)
	}
	const eps = 1e-3
	x := make([]uint16, c.m*c.k)
	for row := range c.m {
		scale := 1.0
		if c.fusion.Norms {
			sum := 0.0
			for _, v := range h[row*c.k:][:c.k] {
				sum += float64(v) * float64(v)
			}
			scale = 1 / math.Sqrt(sum/float64(c.k)+eps)
		}
		for col := range c.k {
			v := float64(h[row*c.k+col]) * scale
			if c.fusion.Norms {
				v *= float64(norm[col])
			}
			x[row*c.k+col] = c.f.convert(float32(v))
		}
	}
	bias := make([]uint16, c.n)
	for i := range bias {
		bias[i] = c.f.convert(float32(r.NormFloat64()))
	}
	before := make([]float32, c.m*c.n)
	for i := range before {
		before[i] = float32(r.NormFloat64() * 100)
	}
	product := c.launch(t, tiles, Fusion{}, driver.Bytes(x), bias, nil, nil, make([]byte, 2*c.m*c.n))
	y := func(row, n int) float32 {
		return c.value(uint16(product[2*(row*c.n+n)]) | uint16(product[2*(row*c.n+n)+1])<<8)
	}

	in := driver.Bytes(x)
	if c.fusion.Norms {
		in = driver.Bytes(h)
	}
	out, width := make([]byte, 2*c.m*c.n), c.n
	switch {
	case c.fusion.Adds:
		out = slices.Clone(driver.Bytes(before))
	case c.fusion.Gates != "":
		width = c.n / 2
		out = out[:2*c.m*width]
	}
	got := c.launch(t, tiles, c.fusion, in, bias, driver.Bytes(norm), []float32{eps, 1.5, 2}, out)
	var diff, size float64
	for row := range c.m {
		for n := range width {
			var v, want float64
			switch at := row*width + n; {
			case c.fusion.Adds:
				v = float64(math.Float32frombits(uint32(got[4*at]) | uint32(got[4*at+1])<<8 | uint32(got[4*at+2])<<16 | uint32(got[4*at+3])<<24))
				want = float64(before[at] + y(row, n))
				if v != want {
					t.Fatalf("row %d, %d: got %v, want %v", row, n, v, want)
				}
			default:
				v, want = float64(c.value(uint16(got[2*at])|uint16(got[2*at+1])<<8)), float64(y(row, n))
				if c.fusion.Gates != "" {
					want = gatedBy(c.fusion.Gates, want, float64(y(row, n+width)))
				}
			}
			diff += (v - want) * (v - want)
			size += want * want
		}
	}
	tolerance := 3e-4 // of a rounding
	if c.f.Type == driver.BF16 {
		tolerance = 2e-3
	}
	if c.fusion.Norms {
		tolerance *= 2
	}
	if e := math.Sqrt(diff / size); !(e <= tolerance) {
		t.Errorf("results differ by %.2g, want at most %.2g", e, tolerance)
	}
}

// value is the number that 16 bits are.
func (c fusedCase) value(h uint16) float32 {
	if c.f.Type == driver.BF16 {
		return num.BF16ToF32(h)
	}
	return num.F16ToF32(h)
}

// gatedBy is what glu.cuh says.
func gatedBy(act string, g, u float64) float64 {
	const alpha, limit = 1.5, 2
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
	g, u = min(g, limit), min(max(u, -limit), limit)
	return g / (1 + math.Exp(-alpha*g)) * (u + 1)
}

// launch runs the kernel, fused or not.
func (c fusedCase) launch(t *testing.T, tiles *repack.CUDATiles, f Fusion, x []byte, bias []uint16, norm []byte, numbers []float32, y []byte) []byte {
	s := shape{Format: c.f, n: c.n, k: c.k, m: c.m, slices: c.slices, Fusion: f}
	p, launch, err := s.plan(c.config, limits{sms: c.blocks, sharedBlock: 227 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if c.run != 0 {
		p.run = min(p.run, uint32(c.run))
	}
	var mem kerneltest.Memory
	p.codes, p.scales = uint64(mem.Upload(tiles.Codes)), uint64(mem.Upload(c.f.scales(tiles)))
	for _, v := range tiles.Codebook {
		p.codebook = append(p.codebook, uint32(c.f.convert(v)))
	}
	p.x, p.bias = uint64(mem.Upload(x)), uint64(mem.Upload(driver.Bytes(bias)))
	if f.Norms {
		p.norm, p.eps = uint64(mem.Upload(norm)), numbers[0]
	}
	if f.Gates != "" {
		p.alpha, p.limit = numbers[1], numbers[2]
	}
	at := mem.Upload(y)
	p.y = uint64(at)
	host := kerneltest.OnHost(t, f.kernel(c.f, c.config), 900)
	host.Launch(t, &mem, gemmName, launch, false, kerneltest.Struct(p.bytes()))
	return mem.Read(at)
}
