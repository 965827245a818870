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
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

// TestReads holds what blocks read first to what the kernels do, for layers of 8 billion weights on 132 multiprocessors: a unit of a tile is 2 KB of
// codes at 4 bits and 128 bytes of scales, a warp has a slice, and slices read their units of a tile at once.
func TestReads(t *testing.T) {
	const codes, scales = 1 << 32, 1 << 36
	g := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	f := Format{4, 64, weight.F16, driver.F16}
	gates := cuda.Gates{Activation: "silu"}
	reads := func(at driver.Ptr, blocks, each, over, to, bytes, pitch int) cuda.Reads {
		return cuda.Reads{At: at, Blocks: blocks, Each: each, Over: over, To: to, Bytes: bytes, Pitch: pitch}
	}
	for _, test := range []struct {
		name         string
		n, k, m      int
		gates        cuda.Gates
		bytes, spare int
		want         []cuda.Reads
	}{
		{"the first of two tiles", 4096, 4096, 1, cuda.Gates{}, 128 * 32 << 10, 4, []cuda.Reads{
			reads(codes, 128, 2, 0, 1, 32<<10, 32<<10), reads(scales, 128, 2, 0, 1, 2048, 2048),
		}},
		{"both, of all multiprocessors", 4096, 4096, 1, cuda.Gates{}, 16 << 20, 0, []cuda.Reads{
			reads(codes, 132, 1, 124, 2, 32<<10, 32<<10), reads(scales, 132, 1, 124, 2, 2048, 2048),
		}},
		{"sixteen of 56 units of two tiles", 4096, 14336, 1, cuda.Gates{}, 128 * 64 << 10, 4, []cuda.Reads{
			reads(codes, 128, 2, 0, 2, 32<<10, 112<<10), reads(scales, 128, 2, 0, 2, 2048, 56*128),
		}},
		{"and sixteen more", 4096, 14336, 1, cuda.Gates{}, 128*64<<10 + 1, 4, []cuda.Reads{
			reads(codes, 128, 2, 0, 2, 64<<10, 112<<10), reads(scales, 128, 2, 0, 2, 4096, 56*128),
		}},
		{"gates", 28672, 4096, 1, gates, 128 * 96 << 10, 4, []cuda.Reads{
			reads(codes, 128, 7, 0, 3, 32<<10, 32<<10), reads(scales, 128, 7, 0, 3, 2048, 2048),
		}},
		{"and what they are multiplied by", 28672, 4096, 1, gates, 128 * 8 * 32 << 10, 4, []cuda.Reads{
			reads(codes, 128, 7, 0, 7, 32<<10, 32<<10), reads(codes+896*32<<10, 128, 7, 0, 1, 32<<10, 32<<10),
			reads(scales, 128, 7, 0, 7, 2048, 2048), reads(scales+896*2048, 128, 7, 0, 1, 2048, 2048),
		}},
		{"both in turns, of sixteen rows in four slices", 28672, 4096, 16, gates, 128 * 3 * 8 << 10, 4, []cuda.Reads{
			reads(codes, 128, 7, 0, 2, 8<<10, 32<<10), reads(codes+896*32<<10, 128, 7, 0, 1, 8<<10, 32<<10),
			reads(scales, 128, 7, 0, 2, 512, 2048), reads(scales+896*2048, 128, 7, 0, 1, 512, 2048),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tiles := Like(f, test.n, test.k)
			o := cuda.Operands{M: test.m, Gates: test.gates, Step: &cuda.Step{Ahead: cuda.Ahead{Spare: test.spare}}}
			chosen := cudatest.Must(tiles.Configs(g, test.m))(t)[0]
			if test.gates != (cuda.Gates{}) {
				chosen = cudatest.Must(tiles.Gated(g, chosen, test.m, test.gates))(t)
			}
			if got := tiles.Reads(g, []driver.Ptr{codes, scales}, chosen, o, test.bytes); !slices.Equal(got, test.want) {
				t.Errorf("%v: reads\n%+v, want\n%+v", chosen, got, test.want)
			}
		})
	}
}

// TestSpared holds grids that leave multiprocessors free to those that have no more tiles a block for that.
func TestSpared(t *testing.T) {
	for _, test := range []struct {
		n, sms, spare, want int
		gated               bool
	}{
		{4096, 132, 4, 128, false},
		{4096, 132, 0, 132, false},
		{4096, 132, 8, 128, false}, // 127 would have three tiles
		{3072, 132, 8, 124, false}, // 192 tiles: two for some
		{132 * 16, 132, 8, 132, false},
		{28672, 132, 4, 128, true},
		{16, 132, 4, 128, false}, // where there are fewer tiles than that anyway
	} {
		s := Shape{n: test.n, gated: test.gated}
		if got := s.spared(test.sms, test.spare); got != test.want {
			t.Errorf("%d rows on %d multiprocessors less %d: %d blocks, want %d", test.n, test.sms, test.spare, got, test.want)
		}
	}
}

// marking is a kernel that asks for lines by counting in their first bytes.
type marking struct{ warps int }

func (m marking) Kernel() driver.Kernel {
	return driver.Kernel{
		Name: "marking.cu",
		Source: ptx.Instructions() + "#define prefetch(p) (*(u8*)(p) += 1)\n" + aheadSource +
			`extern "C" __global__ void marking(const __grid_constant__ Ahead a) {
    ask_for_next(a, WARPS);
    ask_for_own(a, WARPS);
}`,
		Options: driver.CompileOptions{Defines: []string{"AHEAD=1", "WITHIN=0", fmt.Sprintf("WARPS=%d", m.warps)}},
	}
}

// TestHostAsks counts on the host how often lines are asked for.
func TestHostAsks(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for _, test := range []struct {
		warps, grid int
		own         bool
		r           cuda.Reads
	}{
		{4, 3, false, cuda.Reads{Blocks: 3, Each: 2, To: 2, Bytes: 8192, Pitch: 8192}},
		{8, 2, false, cuda.Reads{Blocks: 5, Each: 3, Over: 2, From: 1, To: 4, Bytes: 5 << 10, Pitch: 6 << 10}},
		{3, 7, false, cuda.Reads{Blocks: 4, Each: 1, Over: 3, To: 2, Bytes: 256, Pitch: 384}},
		{4, 4, true, cuda.Reads{Blocks: 4, Each: 2, Over: 1, From: 1, To: 9, Bytes: 4096, Pitch: 8192}},
	} {
		t.Run(fmt.Sprintf("%d warps %d blocks %+v", test.warps, test.grid, test.r), func(t *testing.T) {
			k := marking{test.warps}.Kernel()
			stamps.Due(t, kerneltest.Modules(900, k)...)
			var mem kerneltest.Memory
			marks := make([]byte, (test.r.Blocks*test.r.Each+test.r.Over)*test.r.Pitch)
			at := mem.Upload(marks)
			test.r.At = at
			args := readsBytes([]cuda.Reads{{}, test.r}, nextReads)
			args = append(args, readsBytes(nil, ownReads)...)
			if test.own {
				args = append(readsBytes(nil, nextReads), readsBytes([]cuda.Reads{test.r}, ownReads)...)
			}
			l := driver.Launch{Grid: driver.Dim{X: uint32(test.grid)}, Block: driver.Dim{X: uint32(32 * test.warps)}}
			stamps.OnHost(t, k, 900).Launch(t, &mem, "marking", l, false, kerneltest.Struct(args))

			want := make([]byte, len(marks))
			first := 0
			for b := range test.r.Blocks {
				count := test.r.Each
				if b < test.r.Over {
					count++
				}
				for i := test.r.From; i < min(test.r.To, count); i++ {
					for j := 0; j < test.r.Bytes; j += 128 {
						want[(first+i)*test.r.Pitch+j] = 1
					}
				}
				first += count
			}
			if got := mem.Read(at); !slices.Equal(got, want) {
				t.Error("lines are asked for that are not read, or the other way round, or twice")
			}
		})
	}
}

// TestHostAhead compares bits of products that read ahead with those of products that do not, on the host.
func TestHostAhead(t *testing.T) {
	stamps := cudatest.Stamps(t)
	four, three := Format{4, 64, weight.F16, driver.F16}, Format{3, 128, weight.F16, driver.BF16}
	for i, c := range []gatedCase{
		{four, gemmVariant{rows: 8, atoms: 2, depth: 4}, 16, 320, 4352, 1, 2, 0, ""},
		{four, gemmVariant{rows: 8, atoms: 2, depth: 2}, 8, 320, 544, 3, 3, 4, "silu"},
		{three, gemmVariant{rows: 8, atoms: 2, depth: 4}, 8, 96, 800, 4, 4, 0, ""},
		{four, wideVariant{16, 8, 8, 4, 8}, 8, 416, 544, 13, 3, 0, "silu"},
		{four, wideVariant{16, 4, 8, 7, 7}, 4, 448, 1056, 16, 3, 0, ""},
	} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			plain := source{format: c.f, config: c.config, gates: c.act}
			asks := plain
			asks.asking = asking{byLines, 2}
			stamps.Due(t, kerneltest.Modules(900, plain.Kernel(), asks.Kernel())...)
			r := rand.New(rand.NewPCG(uint64(i), 3))
			tiles := cudatest.Must(repack.CUDA(testMatrix(uint64(i), c.n, c.k, c.f)))(t)
			x, bias := normalOperand(r, c.f, c.m*c.k), normalOperand(r, c.f, c.n)
			gated := c.act != ""
			want := c.launchAs(t, stamps, plain.Kernel(), tiles, gated, x, bias, nil)
			got := c.launchAs(t, stamps, asks.Kernel(), tiles, gated, x, bias, func(s Shape, p *Params, blocks int) {
				all := s.reading(c.config, *p, blocks)
				n, each := all.first(1 << 30)
				codes, scales := all.of([]driver.Ptr{driver.Ptr(p.codes), driver.Ptr(p.scales)}, 0, n, each)
				p.ahead = append(readsBytes(append(codes, scales...), nextReads), readsBytes(codes, ownReads)...)
			})
			if !slices.Equal(got, want) {
				t.Error("other bits")
			}
		})
	}
}

// TestCompileAhead compiles kernels that read ahead, which spill no more than those that do not.
func TestCompileAhead(t *testing.T) {
	c := kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover)
	f := Format{4, 64, weight.F16, driver.F16}
	var variants []kerneltest.Variant
	for i, config := range []config{gemmVariant{rows: 8, atoms: 2, depth: 4}, gemmVariant{rows: 8, atoms: 2, depth: 2}, wideVariant{16, 8, 8, 4, 8}, wideVariant{16, 4, 8, 7, 7}} {
		for j, gates := range []string{"", "silu"} {
			for _, a := range []asking{{byBulks, 0}, {byLines, 0}, {byBulks, 2}} {
				if !*cudatest.Long && (j == 0 || a.within == 0 || i%3 != 0) {
					continue
				}
				k := source{format: f, config: config, gates: gates, asking: a}.Kernel()
				k.Options.Arch = "sm_90a"
				variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%v, gates %q, %+v", config, gates, a), Kernel: k, Spills: someSpills})
			}
		}
	}
	kerneltest.Compile(t, c, variants)
}
