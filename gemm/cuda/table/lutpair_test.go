package table

import (
	"fmt"
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
