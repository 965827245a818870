// Codes of rings of package formats/weight/trellis, by Viterbi's algorithm over all windows of 16 bits: see package
// quantize/viterbi, whose words these are.
//
// BITS come in at a step, a step has TOGETHER weights, and a ring STEPS steps, in the order in which windows are shifted. All numbers are
// float16, two rings in the halves of a word, so that one instruction does both. FAR is whether shared memory has no room for values.

constexpr u32 THREADS = 512, WARPS = THREADS / 32;
constexpr u32 WINDOWS = 1 << 16, EDGES = WINDOWS >> BITS;
constexpr u32 OWN = WINDOWS / THREADS;                           // windows of a thread:
constexpr u32 BRANCHES = 1 << BITS < 16 ? 1 << BITS : 16;        // so many to each
constexpr u32 ENDS = OWN / BRANCHES;                             // of so many edges that follow each other;
constexpr u32 SHARERS = (1 << BITS) / BRANCHES;                  // so many threads have the other windows to these.
constexpr u32 WORDS = OWN * TOGETHER / 2;                        // of their values
constexpr u32 IN_REGISTERS = ENDS * (3 - TOGETHER) > 32 ? 32 : 64;  // of these, where there are as many:
constexpr u32 FIRST = IN_REGISTERS < WORDS ? IN_REGISTERS : WORDS;  // the others are in shared memory, or not
constexpr u32 METRICS = EDGES * 4 * 2 > (64 << 10) ? 1 : 2;      // rooms for M
constexpr u32 INFINITE = 0x7c007c00;
constexpr u32 RENEWED = BITS < 9 ? 8 : 2;  // steps after which M is made small: a weight far out would take bits from what follows

extern __shared__ __align__(128) u8 shared[];

template <u32 N>
struct alignas(4 * N) Several {
    u32 w[N];
};
typedef Several<4> Four;

__device__ __forceinline__ u32 sum(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 squared_and(u32 a, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(a), "r"(c));
    return d;
}

// less returns the least of two costs in each half. twice puts a half of a word into both: the assembler makes it a part of the
// instruction that reads the result.
#ifdef __CUDACC__
__device__ __forceinline__ u32 less(u32 a, u32 b) {
    u32 d;
    asm("min.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
template <u32 HALF>
__device__ __forceinline__ u32 twice(u32 a) {
    u16 lo, hi;
    u32 d;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(lo), "=h"(hi) : "r"(a));
    asm("mov.b32 %0, {%1, %2};" : "=r"(d) : "h"(HALF ? hi : lo), "h"(HALF ? hi : lo));
    return d;
}
#else  // where tests run it: costs are not negative, so that their bits are in their order
__device__ __forceinline__ u32 less(u32 a, u32 b) {
    return (a >> 16 < b >> 16 ? a : b) & 0xffff0000 | ((a & 0xffff) < (b & 0xffff) ? a : b) & 0xffff;
}
template <u32 HALF>
__device__ __forceinline__ u32 twice(u32 a) {
    return (a >> HALF * 16 & 0xffff) * 0x10001;
}
#endif

// kept hides where a value comes from, so that it is not read anew.
__device__ __forceinline__ u32 kept(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// window is the i-th to the j-th edge of a thread.
__device__ __forceinline__ u32 window(u32 thread, u32 i, u32 j) {
    return (i * SHARERS + thread % SHARERS) * EDGES + thread / SHARERS * ENDS + j;
}

// word returns the n-th of a thread's values. Of pairs a word is one window's; of single values, those of two edges.
__device__ __forceinline__ u32 word(const u32* table, u32 thread, u32 n) {
    const u32 first = n * 2 / TOGETHER, x = window(thread, first / ENDS, first % ENDS);
    return table[x * TOGETHER / 2];
}

// cost adds to m, of two rings, that of a word's values against the weights w, which are negated.
__device__ __forceinline__ u32 cost(u32 values, u32 half, const u32 (&w)[TOGETHER], u32 m) {
    if (TOGETHER == 2) return squared_and(sum(twice<1>(values), w[TOGETHER - 1]), squared_and(sum(twice<0>(values), w[0]), m));
    return squared_and(sum(half ? twice<1>(values) : twice<0>(values), w[0]), m);
}

__device__ __forceinline__ void weights(u32 (&w)[TOGETHER], const u32* steps, u32 step) {
#pragma unroll
    for (u32 i = 0; i < TOGETHER; i++) w[i] = steps[step * TOGETHER + i];
}

// four returns the n-th and the three behind it.
__device__ __forceinline__ Four four(const u32* table, u32 thread, u32 n) {
    Four f;
#pragma unroll
    for (u32 i = 0; i < 4; i++) f.w[i] = word(table, thread, n + i);
    return f;
}

// viterbi_far writes the values that no register holds to far [(WORDS - FIRST) / 4][THREADS].
extern "C" __global__ void __launch_bounds__(512) viterbi_far(Four* far, const u32* table) {
    for (u32 n = FIRST; n < WORDS; n += 4) far[(n - FIRST) / 4 * THREADS + threadIdx.x] = four(table, threadIdx.x, n);
}

// viterbi_forward goes through count steps of pairs of rings from one on, and writes M of all edges before each step from the keep-th
// on, and after the last, to history [pairs][count − keep + 1][EDGES]. steps [pairs][STEPS][TOGETHER] are the negated weights. Paths
// begin in the edges begin [2·pairs], or anywhere without it. table has the values of windows, one or two float16 each; far is read
// with FAR.
extern "C" __global__ void __launch_bounds__(512) viterbi_forward(u32* history, const u32* steps, const u32* table, const Four* far,
                                                                  const u32* begin, u32 first, u32 count, u32 keep, u32 pairs) {
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    u32* metric = (u32*)shared;                      // [METRICS][EDGES]
    u32* parts = metric + METRICS * EDGES;           // [WARPS][ENDS], where more than a warp has windows to an edge
    u32* lows = parts + (SHARERS > 32 ? WARPS * ENDS : 0);  // [WARPS]
    Four* near = (Four*)(lows + WARPS);              // [(WORDS − FIRST) / 4][THREADS]
    const Four* rest = FAR ? far : near;

    u32 own[FIRST];
#pragma unroll
    for (u32 n = 0; n < FIRST; n++) own[n] = kept(word(table, thread, n));
#pragma unroll 1
    for (u32 n = FAR ? WORDS : FIRST; n < WORDS; n += 4) near[(n - FIRST) / 4 * THREADS + thread] = four(table, thread, n);
    const u32 edge = thread / SHARERS * ENDS;                                        // its first
    const u32 from = (thread % SHARERS * EDGES + edge) >> BITS;                      // the edge before its first window
    constexpr u32 HERE = SHARERS < 32 ? SHARERS : 32;                                // lanes that share edges
    constexpr u32 LEFT = ENDS > HERE ? ENDS / HERE : 1;                              // edges that each writes
    u32 mine = 0;                                                                    // its first of these
#pragma unroll
    for (u32 bit = 1, n = ENDS / 2; bit < HERE && n > 0; bit *= 2, n /= 2) mine += thread & bit ? n : 0;
    const bool writes = ENDS >= HERE || thread % HERE < ENDS;

    for (u32 pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
        const u32* at = steps + (u64)pair * STEPS * TOGETHER;
        u32* out = history + (u64)pair * (count - keep + 1) * EDGES;
        __syncthreads();  // the pair before has been read
        for (u32 e = thread; e < EDGES; e += THREADS) {
            u32 m = 0;
            if (begin) m = (begin[2 * pair] == e ? 0 : INFINITE & 0xffff) | (begin[2 * pair + 1] == e ? 0 : INFINITE & 0xffff0000);
            metric[e] = m;
            if (keep == 0) out[e] = m;
        }
        __syncthreads();
        u32 w[TOGETHER];
        weights(w, at, first % STEPS);
#pragma unroll 1
        for (u32 step = 0; step < count; step++) {
            const u32* before = metric + (METRICS == 2 ? step % 2 * EDGES : 0);
            u32* after = metric + (METRICS == 2 ? (step + 1) % 2 * EDGES : 0);
            u32 next[TOGETHER], best[ENDS];
            weights(next, at, (first + step + 1) % STEPS);
#pragma unroll
            for (u32 i = 0; i < ENDS; i++) best[i] = INFINITE;
#pragma unroll
            for (u32 i = 0; i < BRANCHES; i++) {
                u32 m = 0;
                Four some;
#pragma unroll
                for (u32 j = 0; j < ENDS; j++) {
                    if (j % (1 << BITS) == 0) m = before[i * (WINDOWS / BRANCHES >> BITS) + from + (j >> BITS)];
                    const u32 n = (i * ENDS + j) * TOGETHER / 2;
                    u32 v;
                    if (n < FIRST) {
                        v = own[n];
                    } else {
                        if (n % 4 == 0 && (TOGETHER == 2 || j % 2 == 0)) some = rest[(n - FIRST) / 4 * THREADS + thread];
                        v = some.w[n % 4];
                    }
                    best[j] = less(best[j], cost(v, j % 2, w, m));
                }
            }
#pragma unroll
            for (u32 s = 0; 1u << s < HERE; s++) {
                const u32 bit = 1 << s, n = ENDS >> s;  // edges that it still has
                if (n > 1) {
                    const bool upper = thread & bit;
#pragma unroll
                    for (u32 i = 0; i < n / 2; i++) {
                        const u32 other = upper ? best[i] : best[i + n / 2], own = upper ? best[i + n / 2] : best[i];
                        best[i] = less(own, __shfl_xor_sync(0xffffffff, other, bit));
                    }
                } else {
                    best[0] = less(best[0], __shfl_xor_sync(0xffffffff, best[0], bit));
                }
            }
            // What is below all of M is found in one step and taken off in the next.
            if (step % RENEWED == RENEWED - 1) {
                u32 low = best[0];
#pragma unroll
                for (u32 i = 1; i < LEFT; i++) low = less(low, best[i]);
#pragma unroll
                for (u32 bit = 1; bit < 32; bit *= 2) low = less(low, __shfl_xor_sync(0xffffffff, low, bit));
                if (lane == 0) lows[warp] = low;
            }
            if (step % RENEWED == 0 && step > 0) {
                u32 low = lows[0];
#pragma unroll
                for (u32 i = 1; i < WARPS; i++) low = less(low, lows[i]);
                low ^= 0x80008000;
#pragma unroll
                for (u32 i = 0; i < LEFT; i++) best[i] = sum(best[i], low);
            }
            const bool keeps = step + 1 >= keep;
            u32* past = out + (u64)(step + 1 - keep) * EDGES;
            if constexpr (SHARERS > 32) {
                if (writes) parts[warp * ENDS + mine] = best[0];
                __syncthreads();
                if (thread < EDGES) {
                    constexpr u32 EACH = SHARERS > 32 ? SHARERS / 32 : 1;  // warps to an edge
                    u32 low = INFINITE;
#pragma unroll
                    for (u32 i = 0; i < EACH; i++) low = less(low, parts[(thread / ENDS * EACH + i) * ENDS + thread % ENDS]);
                    after[thread] = low;
                    if (keeps) past[thread] = low;
                }
            } else {
                if (METRICS == 1) __syncthreads();  // all have read it
                if (writes) {
                    constexpr u32 SIZE = LEFT < 4 ? LEFT : 4;
#pragma unroll
                    for (u32 i = 0; i < LEFT; i += SIZE) {
                        Several<SIZE> row;
#pragma unroll
                        for (u32 j = 0; j < SIZE; j++) row.w[j] = best[i + j];
                        *(Several<SIZE>*)(after + edge + mine + i) = row;
                        if (keeps) *(Several<SIZE>*)(past + edge + mine + i) = row;
                    }
                }
            }
            __syncthreads();
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) w[i] = next[i];
        }
    }
}

// Threads that find a step's window again: so many that none looks at more than 8 of those to an edge.
constexpr u32 TEAM = BITS <= 8 ? 32 : (1 << BITS) / 8;

struct Least {
    __device__ __forceinline__ u32 operator()(u32 a, u32 b) const { return a < b ? a : b; }
};
__device__ __forceinline__ u32 least(u32 v) {
    if (TEAM == 32) return __reduce_min_sync(0xffffffff, v);
    return reduce(v, Least());
}

// viterbi_back finds the best path that viterbi_forward has left, a team a ring. Without windows, it is the path to the best edge, and
// edges [rings] becomes the one in it before the keep-th step. With windows [rings][STEPS], it is the path to the ring's edge, and
// these become its windows. Of paths that cost the same it is the one through the lowest windows.
extern "C" __global__ void __launch_bounds__(512) viterbi_back(u16* windows, u32* edges, const u32* history, const u32* steps, const u32* table,
                                                               u32 first, u32 count, u32 keep, u32 rings) {
    const u32 teams = blockDim.x / TEAM, ring = blockIdx.x * teams + threadIdx.x / TEAM, lane = threadIdx.x % TEAM, half = ring % 2 * 16;
    if (ring >= rings) return;
    const u32 pair = ring / 2;
    history += (u64)pair * (count - keep + 1) * EDGES;
    steps += (u64)pair * STEPS * TOGETHER;
    u32 edge;
    if (windows) {
        edge = edges[ring];
    } else {
        // A cost is not negative, so that its bits are in the order of costs, and stand above an edge's.
        u32 best = ~0u;
        for (u32 e = lane; e < EDGES; e += TEAM) {
            const u32 c = (history[(u64)(count - keep) * EDGES + e] >> half & 0xffff) << 16 | e;
            best = c < best ? c : best;
        }
        edge = least(best) & 0xffff;
    }
    for (u32 step = count; step-- > keep;) {
        const u32* before = history + (u64)(step - keep) * EDGES;
        u32 w[TOGETHER];
        weights(w, steps, (first + step) % STEPS);
        u32 best = ~0u;
#pragma unroll
        for (u32 i = 0; i < (TEAM < 1 << BITS ? (1 << BITS) / TEAM : 1); i++) {
            const u32 x = ((i * TEAM + lane) * EDGES + edge) % WINDOWS, values = table[x * TOGETHER / 2];
            const u32 c = (cost(values, x % 2, w, before[x >> BITS]) >> half & 0xffff) << 16 | x;
            best = c < best ? c : best;
        }
        const u32 x = least(best) & 0xffff;
        if (windows && lane == 0) windows[(u64)ring * STEPS + (first + step) % STEPS] = (u16)x;
        edge = x >> BITS;
    }
    if (!windows && lane == 0) edges[ring] = edge;
}
