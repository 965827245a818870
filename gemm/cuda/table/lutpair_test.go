package table

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

// hostCluster stands in for cluster.cuh where blocks run one after the other. A grid runs twice, with blockIdx.y 0 and 1: what blocks send
// hangs on nothing that they receive, so that in the second run all is there that the first has sent. The nth time that a
// block reads 16 bytes it has what was sent there the nth time.
const hostCluster = `
constexpr u32 MOST_BLOCKS = 12, MOST_PIECES = 8, PLACES_OF_16 = 256 << 10 >> 4;
static float mail[MOST_BLOCKS][MOST_PIECES][PLACES_OF_16][4];
static u8 sent[2][MOST_BLOCKS][PLACES_OF_16], received[2][MOST_BLOCKS][PLACES_OF_16];

u32 block_number() { return blockIdx.x % 2; }
u32 number_of(const u8* shared) { return shared_address(shared) & 0xff000000; }
void meet_cluster() { __syncthreads(); }
u32 far_shared(u32 at, u32 block) { return at | block << 24; }

__attribute__((no_sanitize("thread"))) u32 count(u8 (&counts)[2][MOST_BLOCKS][PLACES_OF_16], u32 block, u32 at) {
    if (block >= MOST_BLOCKS || blockIdx.y > 1 || at / 16 >= PLACES_OF_16 || at % 16 != 0) __trap();
    const u32 n = counts[blockIdx.y][block][at / 16]++;
    if (n >= MOST_PIECES) __trap();
    return n;
}
__attribute__((no_sanitize("thread"))) void send(u32 to, float a, float b, float c, float d, u32 phase) {
    const u32 block = blockIdx.x / 2 * 2 + (to >> 24), at = to & 0xffffff;
    if (phase >> 24 != to >> 24) __trap();  // which has to be of the same block
    float(&m)[4] = mail[block][count(sent, block, at)][at / 16];
    m[0] = a, m[1] = b, m[2] = c, m[3] = d;
}
__attribute__((no_sanitize("thread"))) void receive(float (&v)[4], u32 at) {
    const u32 n = count(received, blockIdx.x, at);
    for (u32 i = 0; i < 4; i++) v[i] = mail[blockIdx.x][n][at / 16][i];
    if (blockIdx.y == 1 && sent[1][blockIdx.x][at / 16] <= n && sent[0][blockIdx.x][at / 16] <= n) __trap();  // sent by nobody
}
void expect(u32, u32) {}
void arrive_far(u32) {}
void wait_far(u32, u32) {}
`

// onHost returns lutpair.cu with that in place of clusters.
func (k pairKernel) onHost(t *testing.T) driver.Kernel {
	t.Helper()
	of := k.Kernel()
	if strings.Count(of.Source, ptx.Cluster()) != 1 {
		t.Fatal("the source has no clusters")
	}
	of.Source = strings.Replace(of.Source, ptx.Cluster(), hostCluster, 1)
	return of
}

// TestHostPair runs lutpair.cu on the host's processor, with what is asynchronous done at once and as late as it may be. Columns and K are
// odd and even numbers of atoms, one pair has several pieces and a piece several pairs.
func TestHostPair(t *testing.T) {
	stamps := cudatest.Stamps(t)
	for _, test := range []struct {
		f Format
		v pairVariant
	}{
		{Format{4, 128, weight.F16, driver.F16}, pairVariant{64, 2, Replicated}},
		{Format{4, 128, weight.F16, driver.F16}, pairVariant{64, 2, Integers}},
		{Format{4, 64, weight.F16, driver.BF16}, pairVariant{128, 1, Integers}},
		{Format{4, 64, weight.F16, driver.F16}, pairVariant{128, 1, Replicated}},
		{Format{3, 0, weight.F32, driver.F16}, pairVariant{96, 1, Replicated}},
		{Format{2, 256, weight.BF16, driver.BF16}, pairVariant{48, 2, Replicated}},
		{Format{4, 32, weight.E4M4, driver.F16}, pairVariant{256, 1, Integers}},
		{Format{4, 128, weight.BF16, driver.F16}, pairVariant{192, 1, Replicated}},
	} {
		t.Run(fmt.Sprintf("%s %v", test.f.name(), test.v), func(t *testing.T) {
			t.Parallel()
			if !slices.Contains(test.f.pairVariants(), test.v) {
				t.Fatal("not compiled")
			}
			h := hostPair{f: test.f, v: test.v}
			prepare, multiply := lutcolumns{test.v.many().form()}.Kernel(), pairKernel{test.f, test.v}.onHost(t)
			stamps.Due(t, kerneltest.Modules(900, prepare, multiply)...)
			h.prepare, h.multiply = stamps.OnHost(t, prepare, 900), stamps.OnHost(t, multiply, 900)
			c := test.v.Columns
			for i, p := range []manyProduct{{333, 480, c + 9, 3}, {17, 96, c, 1}, {200, 1312, 2*c - 1, 4}, {128, 992, 40, 5}} {
				if *cudatest.Long || i == 0 || i == 2 {
					h.check(t, uint64(i), p)
				}
			}
		})
	}
}

type hostPair struct {
	f                 Format
	v                 pairVariant
	prepare, multiply *kerneltest.Host
}

func (h hostPair) check(t *testing.T, seed uint64, p manyProduct) {
	t.Helper()
	if h.f.Group >= p.k {
		return
	}
	of := testMatrix(seed, p.n, p.k, h.f)
	if h.v.Lookup == Integers {
		of.Codebook = cudatest.Must(lut.NewCodebook("sym", h.f.Bits, h.f.Group))(t).Values
	}
	tiles := cudatest.Must(repack.CUDA(of))(t)
	scales := h.f.Scales(tiles)
	w := cudatest.Must(New(h.f, of.N, of.K, tiles.Codebook, scales))(t)
	x := cudatest.Product(of.N, of.K, p.m, h.f.Type, seed%2 == 0)
	cudatest.Fields{
		Variant: h.v, Type: h.f.Type, Form: h.v.many().form(), Sums: h.v.many().SumBytes(p.workers), Tiles: h.v.many().Tiles(),
		N: of.N, K: of.K, Product: x, Workers: p.workers,
		Reference: conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, x.X, x.Bias, p.m, 1, h.f.Type), Bound: 1.5 * conform.Bound(h.f.Type),
		Multiply: func(mem *kerneltest.Memory, x driver.Ptr, o cuda.Operands, pairs int, reverse bool) {
			at := []driver.Ptr{mem.Upload(tiles.Codes), mem.Upload(scales)}
			cudatest.Launch(t, h.prepare, mem, lutcolumns{h.v.many().form()}.launch(x, o.X, p.m, of.K, 2), reverse)
			l := w.byPairs(at, h.v, o, p.workers, 2*pairs)
			l.Grid.Y = 2
			cudatest.Launch(t, h.multiply, mem, l, reverse)
		},
	}.Run(t)
}

// TestPairWays holds pairs to as many rows as they are for, and to GPUs that have clusters.
func TestPairWays(t *testing.T) {
	g := cuda.GPU{DeviceInfo: driver.DeviceInfo{Major: 9, SMs: 132, SharedPerBlock: HopperShared, Clusters: true}}
	table := Like(Format{4, 128, weight.F16, driver.F16}, 8192, 8192)
	integers := *table
	integers.integers = true
	for _, test := range []struct {
		w    *Tiles
		m    int
		want string // the first of them
	}{
		{table, 32, ""},
		{table, 64, "pair c64 s2"},
		{table, 128, "pair c128 s1"},
		{&integers, 128, "pair c128 s1 integers"},
		{table, 257, ""},
	} {
		got := ""
		if all := test.w.pairWays(g, test.m); len(all) > 0 {
			got = all[0].(pairVariant).String()
		}
		if got != test.want {
			t.Errorf("%d rows: %q is the first, want %q", test.m, got, test.want)
		}
		without := g
		without.Clusters = false
		if all := test.w.pairWays(without, test.m); len(all) > 0 {
			t.Errorf("%d rows: %v without clusters", test.m, all)
		}
		if slices.ContainsFunc(test.w.Ways(g, test.m), func(by cuda.Way) bool { _, ok := by.(pairVariant); return ok }) != (pairsTried && test.want != "") {
			t.Errorf("%d rows: pairs are among what is tried: %v", test.m, !pairsTried)
		}
	}
}

// TestGPUPair multiplies by every variant, on grids of as many blocks as the GPU takes and of fewer.
func TestGPUPair(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		if gpu := g.Engine.GPU(); !gpu.Hopper() || !gpu.Clusters {
			t.Skip("no clusters")
		}
		usual := []Format{{4, 128, weight.F16, driver.F16}, {4, 64, weight.F16, driver.F16}}
		for i, f := range append(usual, testFormats()...) {
			if !*cudatest.Long && i >= len(usual) && i%6 != 0 {
				continue
			}
			var kernels []driver.Kernel
			for _, v := range f.pairVariants() {
				kernels = append(kernels, pairKernel{f, v}.Kernel())
			}
			g.Dev.Prepare(kernels) // at once, on all processors
			for j, test := range []manyProduct{{4100, 544, 200, 0}, {2100, 1600, 129, 0}, {1000, 4128, 65, 0}, {40, 320, 48, 0}, {8192, 2048, 96, 0}} {
				if !*cudatest.Long && i >= len(usual) && (i+j)%2 == 1 {
					continue
				}
				of := testMatrix(uint64(i), test.n, test.k, f)
				if f.Bits == 4 {
					of.Codebook = cudatest.Must(lut.NewCodebook("sym", f.Bits, f.Group))(t).Values
				}
				p := cudatest.Product(test.n, test.k, test.m, f.Type, i%2 == 0)
				w := upload(t, g, of, f.Type)
				ref := conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, test.m, 1, f.Type)
				g.CheckWays(t, f.name(), w, p, ref, 1.5*conform.Bound(f.Type), ways(f.pairVariants()), []int{math.MaxInt, 131, 77, 1})
				cudatest.Must(0, w.Close())(t)
			}
		}
	})
}

// pairPiece is what a block of a pair has of a piece, and of it a warpgroup of 64 rows.
type pairPiece struct {
	field    int
	from, to int      // of the whole piece, in atoms of the field
	of       [2][]int // atoms of each block, in order
}

// piecesOf returns the pieces of a pair as lutpair.cu goes through them: fields.cuh's take, and half_of.
func piecesOf(w *Work, pair int) []pairPiece {
	var all []pairPiece
	atoms := int(w.atoms)
	add := func(field, from, to int) {
		p := pairPiece{field: field, from: from, to: to}
		middle := from + (to-from+1)/2
		for a := from; a < to; a++ {
			block := 0
			if a >= middle {
				block = 1
			}
			p.of[block] = append(p.of[block], a)
		}
		all = append(all, p)
	}
	begin, end := w.sharedBefore(uint32(pair)), w.sharedBefore(uint32(pair)+1)
	for begin < end {
		field := (end - 1) / atoms
		first := field * atoms
		add(field, max(begin, first)-first, end-first)
		end = max(begin, first)
	}
	for field := int(w.shared) + pair; field < int(w.fields); field += int(w.workers) {
		add(field, 0, atoms)
	}
	return all
}

// TestPairPieces goes through what all blocks of a product do: each atom of each field is one block's; a pair leaves sums of one field at
// most, before it waits for others'; whose sums it waits for are of pairs before it; two pairs at most share a field of large layers; and which
// warpgroup of a block has an atom is told from how many the block had before.
func TestPairPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 40))
	type product struct {
		n, k, m int
		large   bool
	}
	all := []product{
		{8192, 8192, 64, true},
		{8192, 8192, 128, true},
		{8192, 8192, 256, true},
		{28672, 4096, 64, true},
		{28672, 4096, 128, true},
		{28672, 4096, 256, true},
		{14336, 4096, 128, true},
		{28672, 8192, 192, true},
		{4096, 14336, 128, true},
		{16, 32, 40, false},
	}
	for range 300 {
		all = append(all, product{1 + r.IntN(30000), 32 * (1 + r.IntN(300)), 33 + r.IntN(224), false})
	}
	for i, test := range all {
		v := []pairVariant{{64, 2, Replicated}, {96, 1, Replicated}, {128, 1, Replicated}, {256, 1, Integers}}[i%4]
		w := v.divide(test.n, test.k, test.m, Pairs)
		seen := make([]int, w.fields*w.atoms)
		parts := make(map[int][]int) // pairs that have a field
		for pair := range int(w.workers) {
			leaves, waits, before := 0, false, [2]int{}
			pieces := piecesOf(&w, pair)
			if len(pieces) == 0 {
				t.Errorf("%v, %+v: pair %d of %d has nothing", v, test, pair, w.workers)
			}
			for _, p := range pieces {
				parts[p.field] = append(parts[p.field], pair)
				if p.to < int(w.atoms) {
					leaves++
					if waits {
						t.Errorf("%v, %+v: pair %d waits before it leaves sums", v, test, pair)
					}
				}
				waits = waits || p.from > 0 && p.to == int(w.atoms)
				for block, of := range p.of {
					for split := range v.Splits { // as the kernel counts them
						count := len(of)
						if v.Splits == 2 {
							if before[block]%2 == split {
								count++
							}
							count /= 2
						}
						got := 0
						for j, a := range of {
							if (before[block]+j)%v.Splits == split {
								seen[p.field*int(w.atoms)+a]++
								got++
							}
						}
						if got != count {
							t.Errorf("%v, %+v: %d atoms of a warpgroup, which counts %d", v, test, got, count)
						}
					}
					before[block] += len(of)
				}
			}
			if leaves > 1 {
				t.Errorf("%v, %+v: pair %d leaves the sums of %d fields", v, test, pair, leaves)
			}
		}
		if least, most := slices.Min(seen), slices.Max(seen); least != 1 || most != 1 {
			t.Fatalf("%v, %+v: atoms are multiplied by %d to %d times", v, test, least, most)
		}
		for field, pairs := range parts {
			if slices.Max(pairs)-slices.Min(pairs) != len(pairs)-1 {
				t.Errorf("%v, %+v: field %d is of pairs %v", v, test, field, pairs)
			}
			if test.large && len(pairs) > 2 {
				t.Errorf("%v, %+v: field %d is shared by pairs %v", v, test, field, pairs)
			}
		}
	}
}
