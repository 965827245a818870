package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/repack"
)

// expertCase is products by experts on the host: of each group an expert, and how many rows.
type expertCase struct {
	f       Format
	n, k    int
	groups  [][2]int
	blocks  int
	run     int  // tiles at a time at most; 0: all that fit
	same    bool // whether the rows of X are those of Y
	act     string
	biased  bool
	reverse bool
}

func (c expertCase) String() string {
	return fmt.Sprintf("%s, %dx%d, groups %v, %d blocks, %s", c.f.name(), c.n, c.k, c.groups, c.blocks, c.act)
}

func expertCases() []expertCase {
	four, three, whole := Format{4, 64, weight.F16, driver.F16}, Format{3, 128, weight.F16, driver.BF16}, Format{5, 0, weight.F16, driver.F16}
	two := Format{2, 32, weight.BF16, driver.F16}
	return []expertCase{
		{f: four, n: 96, k: 544, groups: [][2]int{{3, 1}}, blocks: 2, act: "silu"},
		{f: four, n: 160, k: 2048, groups: [][2]int{{0, 1}, {2, 1}, {3, 1}}, blocks: 4, act: "silu"}, // a block has parts of two experts
		{f: four, n: 48, k: 768, groups: [][2]int{{1, 1}, {2, 1}, {4, 1}}, blocks: 3, same: true},
		{f: four, n: 192, k: 768, groups: [][2]int{{0, 3}, {1, 8}, {1, 2}, {4, 1}}, blocks: 3, run: 5, same: true, reverse: true},
		{f: four, n: 192, k: 768, groups: [][2]int{{0, 2}, {3, 7}}, blocks: 3, act: "swiglu_oai", biased: true},
		{f: four, n: 64, k: 96, groups: [][2]int{{0, 1}, {1, 4}, {2, 1}, {3, 1}, {4, 5}}, blocks: 7, act: "gelu", reverse: true},
		{f: three, n: 80, k: 1056, groups: [][2]int{{4, 4}, {0, 1}}, blocks: 5, same: true, biased: true},
		{f: whole, n: 64, k: 800, groups: [][2]int{{2, 5}, {3, 1}}, blocks: 1, act: "relu", biased: true},
		{f: four, n: 64, k: 544, groups: [][2]int{{3, 1}, {1, 6}}, blocks: 3},
		{f: whole, n: 32, k: 4352, groups: [][2]int{{4, 1}}, blocks: 3, same: true},
		{f: two, n: 96, k: 1024, groups: [][2]int{{0, 1}, {4, 6}}, blocks: 2, act: "silu"},
	}
}

// TestHostExperts compares groups of rows of experts with products by each expert alone on the host, to the bit.
func TestHostExperts(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for i, c := range expertCases() {
		if !*cudatest.Long && i%2 == 0 {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s := Shape{Format: c.f, n: c.n, k: c.k, m: cuda.GroupRows, gated: c.act != ""}
			s.slices = expertSlices(s.Units())
			config := c.f.expertConfig(s.slices)
			kernel := c.f.expertKernel(config, c.act)
			alone := gatedCase{f: c.f, config: lutgemm{}.variants(c.f, cuda.MaxRows)[0], slices: s.slices, n: c.n, k: c.k, blocks: 2, act: c.act}
			stamps.Due(t, kerneltest.Modules(900, kernel, alone.kernel(c.act != ""))...)
			const experts, texts = 5, 9
			r := rand.New(rand.NewPCG(uint64(i), 3))
			var all []*repack.CUDATiles
			var codes, scales []byte
			for e := range experts {
				one := cudatest.Must(repack.CUDA(testMatrix(uint64(10*i+e), c.n, c.k, c.f)))(t)
				all, codes, scales = append(all, one), append(codes, one.Codes...), append(scales, c.f.Scales(one)...)
			}
			words, from, rows := []uint32{uint32(len(c.groups)), 0, 0, 0}, []uint32(nil), 0
			for _, g := range c.groups {
				words = append(words, uint32(g[0]), uint32(rows), uint32(g[1]), 7)
				rows += g[1]
			}
			for range rows {
				from = append(from, uint32(r.IntN(texts)))
			}
			inputs := texts
			if c.same {
				inputs = rows
				for row := range from {
					from[row] = uint32(row)
				}
			}
			x, bias := normalOperand(r, c.f, inputs*c.k), normalOperand(r, c.f, experts*c.n)

			p, launch, err := s.planExperts(config, Limits{SMs: c.blocks, Shared: 227 << 10}, len(c.groups))
			if err != nil {
				t.Fatal(err)
			}
			if c.run != 0 {
				p.run = min(p.run, uint32(c.run))
			}
			var mem kerneltest.Memory
			p.codes, p.scales, p.codebook = uint64(mem.Upload(codes)), uint64(mem.Upload(scales)), codebookOf(c.f, all[0])
			p.x, p.chosen = uint64(mem.Upload(driver.Bytes(x))), uint64(mem.Upload(driver.Bytes(words)))
			if c.biased {
				p.bias = uint64(mem.Upload(driver.Bytes(bias)))
			}
			if !c.same {
				p.rows = uint64(mem.Upload(driver.Bytes(from)))
			}
			p.alpha, p.limit = gateAlpha, gateLimit
			width := c.n / s.together()
			got := make([]uint16, rows*width)
			at := mem.Upload(driver.Bytes(got))
			p.y = uint64(at)
			stamps.OnHost(t, kernel, 900).Launch(t, &mem, gemmName, launch, c.reverse, kerneltest.Struct(p.Bytes()))
			copy(driver.Bytes(got), mem.Read(at))

			first := 0
			for _, g := range c.groups {
				var in []uint16
				for _, row := range from[first : first+g[1]] {
					in = append(in, x[int(row)*c.k:][:c.k]...)
				}
				tiles := *all[g[0]]
				tiles.Codebook = all[0].Codebook
				own := make([]uint16, c.n)
				if c.biased {
					own = bias[g[0]*c.n:][:c.n]
				}
				alone.m = g[1]
				want := alone.launch(t, stamps, &tiles, c.act != "", in, own)
				if !slices.Equal(got[first*width:][:g[1]*width], want) {
					t.Errorf("the rows of expert %d, from %d on, have other bits than alone", g[0], first)
				}
				first += g[1]
			}
		})
	}
}

func codebookOf(f Format, t *repack.CUDATiles) []uint32 {
	var all []uint32
	for _, v := range t.Codebook {
		all = append(all, uint32(f.convert(v)))
	}
	return all
}
