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

// small is a GPU of few multiprocessors, whose blocks have several tiles each.
var small = limits{sms: 2, sharedBlock: 227 << 10, sharedSM: 228 << 10}

// hostCase is a kernel that the host runs, and the shapes that it multiplies.
type hostCase struct {
	f      Format
	c      Config
	tiles  int // of 8 rows of X, that the kernel is compiled for
	arch   int
	shapes [][3]int // N, K and M
}

func (c hostCase) String() string {
	return fmt.Sprintf("%s %v t%d sm_%d", c.f.name(), c.c, c.tiles, c.arch/10)
}

// bound is how far Y may be from float64 in ‖difference‖/‖Y‖.
func (f Format) bound() float64 {
	if f.Type == driver.BF16 {
		return 2.5e-3
	}
	return 3e-4
}

// hostCases covers what the kernel's source distinguishes, with -long in every
// combination of width, group and configuration.
func hostCases() []hostCase {
	var all []hostCase
	add := func(i int, f Format, c Config, tiles int) {
		// Rows: odd numbers and whole tiles, an odd pair. Columns: less than a unit, a
		// part of one, and more than eight, so that slices take several steps.
		rows := [][]int{{1, 3, 5}, {2, 7, 8}, {4, 1, 6}}[i%3]
		if tiles == 2 {
			rows = [][]int{{9, 16, 11}, {14, 10, 13}, {12, 15, 3}}[i%3]
		}
		all = append(all, hostCase{f, c, tiles, []int{900, 800}[i%2], [][3]int{
			{1 + 200*(1+i%2), 2080 + 32*(i%5), rows[0]}, {33 + i%20, 1024, rows[1]}, {16 * (i%6 + 1), 96 + 32*(i%7), rows[2]},
		}})
	}
	for i, f := range testFormats() {
		for tiles := 1; tiles <= 2; tiles++ {
			configs := f.configs(8 * tiles)
			for j, c := range configs {
				if *long || (i+j)%(2*len(configs)) == 0 && i%2 == tiles-1 {
					add(i+j, f, c, tiles)
				}
			}
		}
	}
	return all
}

// TestHost runs the kernel that multiplies on the host's processor. The product must agree
// with float64, be there as a whole with nothing beside it, and be the same in
// either order of the threads, in shorter runs and under the other configurations.
func TestHost(t *testing.T) {
	var results sharedBits
	for _, c := range hostCases() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			k := c.f.Kernel(c.c, 8*c.tiles)
			h := kerneltest.OnHost(t, k, c.arch, gemmName, readName)
			for i, s := range c.shapes {
				c.run(t, h, s[0], s[1], s[2], i, &results)
			}
		})
	}
}

func (c hostCase) run(t *testing.T, h *kerneltest.Host, n, k, rows, i int, results *sharedBits) {
	group := c.f.Group
	if group == 0 {
		group = k
	}
	m := randomMatrix(uint64(n+k), n, k, c.f.Bits, group, c.f.Scale)
	tiles := must(repack.CUDA(m))(t)
	if tiles.RowScale() && c.f.Group != 0 {
		return // a group as long as the row is another format
	}
	x, bias := randomX(uint64(rows), rows*k, c.f.Type), randomX(2, n, c.f.Type)
	rm, rx := rounded(m, x, c.f)
	want := product(rm, rx, rows)

	p, launch, err := c.f.plan(c.c, n, k, rows, small)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range tiles.Codebook {
		p.codebook = append(p.codebook, uint32(c.f.convert(v)))
	}
	if i%2 == 1 && p.run > uint32(c.c.TileWarps) {
		p.run = uint32(c.c.TileWarps) // many runs
	}
	var mem kerneltest.Memory
	codes, scales, xs := mem.Upload(tiles.Codes), mem.Upload(tiles.Scales), mem.Upload(driver.Bytes(x))
	p.codes, p.scales, p.x = uint64(codes), uint64(scales), uint64(xs)
	if i%2 == 0 {
		p.bias = uint64(mem.Upload(driver.Bytes(bias)))
		for j, b := range floats(bias, c.f.Type) {
			for r := range rows {
				want[r*n+j] += float64(b)
			}
		}
	}
	untouched := slices.Repeat([]uint16{0xffff}, rows*n)
	y := mem.Upload(driver.Bytes(untouched))
	p.y = uint64(y)
	h.Launch(t, &mem, readName, launch, false, kerneltest.Struct(p.bytes()))
	got := halves(mem.Read(y))
	if !slices.Equal(got, untouched) {
		t.Errorf("%d×%d, %d rows: the twin that only reads writes", n, k, rows)
	}
	h.Launch(t, &mem, gemmName, launch, i%2 == 1, kerneltest.Struct(p.bytes()))
	got = halves(mem.Read(y))
	if err := ref.RelErr(floats(got, c.f.Type), want); !(err <= c.f.bound()) {
		t.Errorf("%d×%d, %d rows: relative error %g", n, k, rows, err)
	}
	results.compare(t, fmt.Sprintf("%s, %d×%d, %d rows", c.f.name(), n, k, rows), got)
}

func halves(b []byte) []uint16 {
	v := make([]uint16, len(b)/2)
	copy(driver.Bytes(v), b)
	return v
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
		r.of[name] = y
	}
	if !slices.Equal(r.of[name], y) {
		t.Errorf("%s: other bits than under another configuration", name)
	}
}
