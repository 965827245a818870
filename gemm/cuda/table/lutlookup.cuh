// Other ways to look up what lut.cuh has a copy of the table for each lane for, to compare them: as many copies as COPIES
// says, so that lanes with different codes share banks, or no shared memory and COPIES is 0: a lane holds a value of
// the table, and others ask it for that by a shuffle. Bits of results are the same.

constexpr u32 ENTRY_BYTES = BITS == 2 ? 8 : 4;
[[maybe_unused]] constexpr u32 TABLE_PITCH = COPIES * ENTRY_BYTES, ENTRIES = BITS == 5 ? 1024 : 256;

__device__ __forceinline__ constexpr u32 log2_of(u32 n) { return n < 2 ? 0 : 1 + log2_of(n / 2); }

__device__ __forceinline__ constexpr bool turned(u32, u32) { return false; }

struct Table {
    u32 self;        // the offset of the lane's copy in a row
    u32 even, odd;   // or the lane's value for the first code of a pair, and for the second: at 3 bits their bits lie apart
};

__device__ __forceinline__ void fill_table(const Params& p) {
    for (u32 i = threadIdx.x; i < ENTRIES * COPIES; i += THREADS) {
        u32 lo, hi;
        entry_of(p, i / max(COPIES, 1u), lo, hi);
        *(u32*)(shared + i * ENTRY_BYTES) = lo;
        if (BITS == 2) *(u32*)(shared + i * ENTRY_BYTES + 4) = hi;
    }
}

__device__ __forceinline__ Table table_of(const Params& p, u32 lane) {
    Table t = {};
    if (COPIES != 0) {
        t.self = lane % max(COPIES, 1u) * ENTRY_BYTES;
        return t;
    }
    constexpr u32 mask = (1 << BITS) - 1;
    t.even = opaque(p.codebook[BITS == 3 ? (lane & 3) | (lane >> 2 & 4) : lane & mask]);
    t.odd = opaque(p.codebook[BITS == 3 ? (lane >> 1 & 3) | (lane >> 2 & 4) : lane & mask]);
    return t;
}

// offset_of returns where the entry is that begins at a bit of a word.
__device__ __forceinline__ u32 offset_of(u32 word, u32 bit, const Table& t) {
    constexpr u32 shift = log2_of(TABLE_PITCH);
    return (rotr(word, bit - shift) & (ENTRIES - 1) << shift) | t.self;
}

// shuffled returns a pair of values, of codes that begin at bits of a word.
__device__ __forceinline__ u32 shuffled(u32 word, u32 first, u32 second, const Table& t) {
    return prmt(__shfl_sync(~0u, t.even, rotr(word, first) & 31), __shfl_sync(~0u, t.odd, rotr(word, second) & 31), 0x5410);
}

// pair returns the pair whose codes begin at a bit of a word.
__device__ __forceinline__ u32 pair(u32 word, u32 bit, const Table& t) {
    if (COPIES == 0) return shuffled(word, bit, bit + (BITS == 3 ? 1 : BITS), t);
    return lookup<SHARED_BASE>(offset_of(word, bit, t));
}

__device__ __forceinline__ void dequantize(u32 (&a)[HALF_STEPS][4], const u32 (&w)[2 * BITS], u32, u32 half, const Table& t) {
    if constexpr (BITS == 2) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 word = w[2 * half + i / 4], bit = i % 4 * 8;
            u32(&to)[4] = a[i / 2];
            if (COPIES == 0) {
                to[i % 2 * 2] = pair(word, bit, t);
                to[i % 2 * 2 + 1] = pair(word, bit + 4, t);
            } else {
                lookup2<SHARED_BASE>(to[i % 2 * 2], to[i % 2 * 2 + 1], offset_of(word, bit, t));
            }
        }
    }
    if constexpr (BITS == 3) {
        u32 q[4];
        nibbles(q, w, half);
#pragma unroll
        for (u32 i = 0; i < 16; i++) a[i / 4][i % 4] = pair(q[i / 4], i % 4 * 8, t);
    }
    if constexpr (BITS == 4) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) a[i / 4][i % 4] = pair(w[4 * half + i / 4], i % 4 * 8, t);
    }
    if constexpr (BITS == 5) {
        u32 last = 0;  // as in lut.cuh
#pragma unroll
        for (u32 j = 0; j < 5; j++) {
            const u32 v = w[5 * half + j];
#pragma unroll
            for (u32 f = 0; f < 3; f++) a[(3 * j + f) / 4][(3 * j + f) % 4] = pair(v, 9 + 2 * j + 10 * f, t);
            last |= v & 3u << (7 + 2 * j);
        }
        a[3][3] = pair(last, 7, t);
    }
}
