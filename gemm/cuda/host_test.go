package cuda

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
)

// hostCase is a kernel that the host runs, and what it multiplies.
type hostCase struct {
	f      Format
	c      Config
	arch   int
	shapes [][4]int // N, K, M and slices of K
}

func (c hostCase) String() string {
	return fmt.Sprintf("%s %v to %d rows sm_%d", c.f.name(), c.c, c.c.rowsOfX(), c.arch/10)
}

// bound is how far Y may be from float64 in ‖difference‖/‖Y‖.
func (f Format) bound() float64 {
	if f.Type == driver.BF16 {
		return 2.5e-3
	}
	return 3e-4
}

// hostCases covers what the kernel's source distinguishes, if not every combination: one
// format in every configuration, for the bits to be compared; with -long it is every width
// and group in every configuration.
func hostCases() []hostCase {
	var all []hostCase
	for i, f := range testFormats() {
		// Features: with a part of a tile, and so many that a warp has several tiles.
		// Columns: two steps for some slices, none for some, and less than a unit or little
		// more. Rows of X: one, some, a whole tile and more. Slices of K, as far as there are
		// warps.
		some := 2 + i%7
		shapes := [][4]int{
			{201 + 32*(i%7), 2080 + 32*(i%5), 1, 8},
			{33 + i%20, 4352 + 32*(i%3), some, 16},
			{16 * (1 + i%6), f.Group + 32*(1+i%7), 8, 8 << (i % 2)},
			{401, 256 + 32*(i%9), 9 + i%8, 2 << (i / 2 % 4)},
			{417 + 16*(i%3), 3104 + 32*(i%4), 16 - i%3, 4 << (i % 2)},
		}
		for tiles := 1; tiles <= 2; tiles++ {
			configs := f.variants(rowsOfB * tiles)
			for j, c := range configs {
				if *long || i == 4*(tiles-1) || i%4 < 2 && i/4%2 == tiles-1 && (i/2+i+1+j)%len(configs) == 0 {
					all = append(all, hostCase{f, c, []int{900, 800}[(i+j)%2], shapes[:1+2*tiles]})
				}
			}
		}
	}
	return all
}

// TestHost runs the kernel that multiplies on the host's processor. The product must agree
// with float64, be there as a whole with nothing beside it, and be the same in
// either order of the threads and under every configuration.
func TestHost(t *testing.T) {
	var results sharedBits
	for _, c := range hostCases() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			k := c.f.Kernel(c.c)
			h := kerneltest.OnHost(t, k, c.arch)
			for i := range c.shapes {
				c.run(t, h, i, &results)
			}
		})
	}
}

// run multiplies shape i.
func (c hostCase) run(t *testing.T, h *kerneltest.Host, i int, results *sharedBits) {
	n, k, rows, split := c.shapes[i][0], c.shapes[i][1], c.shapes[i][2], c.shapes[i][3]
	if c.c.kernel() == (lutwide{}) && rows <= rowsOfB && c.c.rowsOfX() == MaxRows {
		return
	}
	if can := c.c.splits(); !slices.Contains(can, split) {
		split = can[0]
	}
	name := fmt.Sprintf("%s, %d×%d in %d slices, %d rows", c.f.name(), n, k, split, rows)
	group := c.f.Group
	if group == 0 {
		group = k
	}
	m := randomMatrix(uint64(n+k), n, k, c.f.Bits, group, c.f.Scale)
	tiles := must(repack.CUDA(m))(t)
	x, bias := randomX(uint64(rows), rows*k, c.f.Type), randomX(2, n, c.f.Type)
	rm, rx := rounded(m, x, c.f)
	want := product(rm, rx, rows)

	// Few multiprocessors, so that blocks have many tiles; in the last shape as many as registers
	// can hold the sums of, or one more.
	p, launch, err := shape{c.f, n, k, rows, split}.plan(c.c, limits{sms: []int{2, 3, 2, 3, 1}[i], sharedBlock: 227 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range tiles.Codebook {
		p.codebook = append(p.codebook, uint32(c.f.convert(v)))
	}
	if 0 < i && i < 4 {
		p.run = min(p.run, uint32(i)*p.groups) // several runs
	}
	var mem kerneltest.Memory
	p.codes, p.scales = uint64(mem.Upload(tiles.Codes)), uint64(mem.Upload(tiles.Scales))
	p.x = uint64(mem.Upload(driver.Bytes(x)))
	if i%2 == 0 {
		p.bias = uint64(mem.Upload(driver.Bytes(bias)))
		for j, b := range floats(bias, c.f.Type) {
			for r := range rows {
				want[r*n+j] += float64(b)
			}
		}
	}
	y := make([]uint16, rows*n)
	clean := slices.Repeat([]uint16{0xffff}, len(y))
	at := mem.Upload(driver.Bytes(clean))
	p.y = uint64(at)
	run := func(kernel string, reverse bool) {
		h.Launch(t, &mem, kernel, launch, reverse, kerneltest.Struct(p.bytes()))
		copy(driver.Bytes(y), mem.Read(at))
	}
	if c.c.kernel().twin() {
		run(readName, false)
		if !slices.Equal(y, clean) {
			t.Errorf("%s: the twin that only reads writes", name)
		}
	}
	for _, reverse := range []bool{false, true} {
		run(gemmName, reverse)
		if err := ref.RelErr(floats(y, c.f.Type), want); !(err <= c.f.bound()) {
			t.Errorf("%s: relative error %g", name, err)
		}
		results.compare(t, name, y)
		copy(mem.Read(at), driver.Bytes(clean))
	}
}

// sharedBits are the first results of products.
type sharedBits struct {
	sync.Mutex
	of map[string][]uint16
}

// compare holds a product to the bits of the first one of its name.
func (r *sharedBits) compare(t *testing.T, name string, y []uint16) {
	t.Helper()
	r.Lock()
	defer r.Unlock()
	if r.of == nil {
		r.of = map[string][]uint16{}
	}
	if r.of[name] == nil {
		r.of[name] = slices.Clone(y)
	}
	if !slices.Equal(r.of[name], y) {
		t.Errorf("%s: other bits than under another configuration", name)
	}
}

// TestHostEngine runs the engine on the host.
func TestHostEngine(t *testing.T) {
	if !*long {
		t.Skip("with -long")
	}
	kerneltest.HostGPU(t, 9, true)
	t.Run("Identity", TestGPUIdentity)
}
