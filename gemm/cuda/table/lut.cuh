// What the kernels that multiply by the tiles of repack.CUDATiles have in common: the
// arguments, the table, how codes are loaded and looked up, the products of an atom, and
// what becomes of the sums.
//
// The weights are the A operand of mma.m16n8k16, looked up in shared memory two (at 2 bits
// four) at a time and multiplied as they are: scales are applied to the float32 sums of a
// group. The rows of X are the 8 columns of B.
//
// Order of sums. The columns are taken in units of 256, slice s of K having units s, s +
// slices, s + 2·slices and so on. A slice's sum of a weight's row and a row of X begins
// at 0; for each unit, and each group in it, it has the group's sum times the group's scale
// added in one rounding, or without scales the atom's sum. A group's sum, or its part in an
// atom of 128 columns, is what the mmas of 16 columns each add up one after the other. At the
// end the slices are added in order. Slices are a matter of the shape of Ŵ, of its bits and of
// the rows of X (choices.go): neither the kernel nor the grid nor any knob changes a bit.
//
// Set by the host:
//   BITS         2 to 5
//   GROUP        32, 64, 128, 256, or 0 for one scale a row
//   SCALE        lut.ScaleType of the scales; that of a byte where GROUP is 32
//   BF16         1 for bfloat16 activations and table, 0 for float16
//   NT           tiles of 8 rows of X, 1 to 4
//   WARPS        of a block
//   DEPTH        atoms that a warp has registers for
// for one that does not look codes up in the table:
//   DECODE       1: lutsym.cuh, which follows, has what becomes of codes; 2: lutlookup.cuh has
// and for a kernel that does more than multiply:
//   GATES        1 if Y has the results of the first half of Ŵ's rows, which are then gates, times those of the second
//   ACTIVATION   of the gates, as glu.cuh has them
//   EXPERTS      1 if Ŵ is several matrices of as many rows, one behind the other, and groups of rows of X have one each
//   AHEAD        1 or 2 if more is brought into the level-2 cache than is multiplied by: ahead.cuh is in front and tells
#ifndef GATES
#define GATES 0
#endif
#ifndef EXPERTS
#define EXPERTS 0
#endif
#ifndef AHEAD
#define AHEAD 0
#define WITHIN 0
#endif
#ifndef DECODE
#define DECODE 0
#endif

constexpr u32 THREADS = WARPS * 32;
constexpr u32 ATOM_BYTES = 256 * BITS;
constexpr u32 HALF_STEPS = 4;  // mma steps of half an atom, 64 columns

constexpr u32 SCALE_SIZE = SCALE == 3 ? 4 : SCALE >= 4 ? 1 : 2;
constexpr u32 GROUPS = GROUP == 0 || GROUP >= 128 ? 1 : 128 / GROUP;  // of an atom
constexpr u32 SCALE_BYTES = GROUP == 0 ? 0 : GROUPS * 2 * SCALE_SIZE;  // of an atom, for a lane
constexpr u32 SCALE_WORDS = SCALE_BYTES / 4;

constexpr u32 UNIT_SCALE_BYTES = GROUP == 256 ? 8 * SCALE_BYTES : 16 * SCALE_BYTES;

// What the first loads hang on comes first: the constant cache has it in one line, and each
// line that is asked for anew takes 200 cycles.
struct Params {
    const u8* codes;
    const u8* scales;
    u32 units;             // of a tile: ⌈k/256⌉
    u32 slices;            // of K: 2, 4, 8 or 16
    u32 groups;            // of warps, each at its own tiles: slices·groups = WARPS
    u32 tiles_each;        // tiles of a block; the first tiles_over have one more
    u32 tiles_over;
    u32 run;               // tiles that are summed at a time
    u32 n, k;

    const u8* x;     // [m][k]
    u16* y;          // [m][n]
    const u16* bias; // [n] or null
    u32 m;
    u32 pairs;             // ⌈m/2⌉, pairs of rows of X: 16 bytes each of a lane's slot
    u32 pairs_inverse;     // ⌈2^32/pairs⌉, wrapped
    u32 slot_base;         // where slots begin in shared memory, or in lutwide.cu, where they may reach far, what is behind them
    u32 slot_pitch;        // from one pair's 128 bytes to the next: 128, or 256 in the table's gaps
#if GATES
    float alpha, limit;    // of the activation
#endif
#if EXPERTS
    u32 tiles;              // of an expert; n and units are those of one too
    u32 most;               // groups that there may be
    u64 codes_of, scales_of;  // bytes from an expert to the next
    const u32* chosen;      // their number, in 16 bytes, and as many Groups
    const u32* rows;        // the row of X of each of Y, or null where they are the same
#endif
    u32 codebook[1 << BITS];  // in the low 16 bits, in the type of X
#if AHEAD
    Ahead ahead;
#endif
};

extern __shared__ __align__(128) u8 shared[];

// Where that lies. The table's addresses hold it as a constant; check_base sees to it
// that the compiler agrees.
#if __CUDA_ARCH__ >= 900
constexpr u32 SHARED_BASE = 1024;
#else
constexpr u32 SHARED_BASE = 0;
#endif

__device__ __forceinline__ void check_base() {
    if (shared_address(shared) != SHARED_BASE) __trap();
}

// ---- table ----

__device__ __forceinline__ u32 pair_of(const Params& p, u32 c0, u32 c1) {
    return p.codebook[c0] | p.codebook[c1] << 16;
}

// entry_of returns the values of an entry: of two codes, or at 2 bits of four.
__device__ __forceinline__ void entry_of(const Params& p, u32 e, u32& lo, u32& hi) {
    if (BITS == 2) {
        lo = pair_of(p, e & 3, e >> 2 & 3);
        hi = pair_of(p, e >> 4 & 3, e >> 6);
    } else {
        if (BITS == 3)
            lo = pair_of(p, (e & 3) | (e >> 2 & 4), (e >> 2 & 3) | (e >> 3 & 4));
        else
            lo = pair_of(p, e & ((1 << BITS) - 1), e >> BITS);
        hi = lo;
    }
}

// ---- load ----

// Atom is what a lane holds of an atom: the codes, and the scales of its two
// rows.
struct Atom {
    u32 w[2 * BITS];
    u32 s[SCALE_WORDS == 0 ? 1 : SCALE_WORDS];
};

__device__ __forceinline__ void load_codes(u32 (&w)[2 * BITS], const u8* p, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < BITS / 2; i++) {
        u32 v[4];
        load_stream(v, p + 512 * i);
#pragma unroll
        for (u32 j = 0; j < 4; j++) w[4 * i + j] = v[j];
    }
    if (BITS % 2) {
        u32 v[2];
        load_stream(v, p + 512 * (BITS / 2) - 8 * lane);
        w[2 * BITS - 2] = v[0];
        w[2 * BITS - 1] = v[1];
    }
}

template <u32 WORDS>
__device__ __forceinline__ void load_scales(u32 (&s)[WORDS], const u8* p) {
    if constexpr (WORDS < 4) {
        load_stream(s, p);
    } else {
#pragma unroll
        for (u32 i = 0; i < WORDS / 4; i++) {
            u32 v[4];
            load_stream(v, p + 16 * i);
#pragma unroll
            for (u32 j = 0; j < 4; j++) s[4 * i + j] = v[j];
        }
    }
}

// Scales that are brought into the level-2 cache at once, in bytes of a block: together with
// those of all others a part of that cache.
constexpr u32 MOST_AHEAD = 128 << 10;

// share_tiles returns the tiles of a block: the first, and how many. Where there are gates it has as many tiles of the
// second half of Ŵ's rows, each half a matrix behind a gate's.
__device__ __forceinline__ void share_tiles(const Params& p, u32& first, u32& count) {
    const u32 together = GATES ? 2 : 1;
    first = blockIdx.x * (p.tiles_each / together) + min(blockIdx.x, p.tiles_over);
    count = p.tiles_each + (blockIdx.x < p.tiles_over ? together : 0);
}

// prefetch_scales brings the block's scales into the level-2 cache. They are few and
// lie scattered, and memory reads codes 2 to 4 % faster when it is not asked for a sector of
// scales between them.
__device__ __forceinline__ void prefetch_scales(const Params& p, u32 tile0, u32 tiles) {
    const u32 tile = p.units * UNIT_SCALE_BYTES, bytes = min((GATES ? tiles / 2 : tiles) * tile, MOST_AHEAD);
    for (u32 i = threadIdx.x * 128; i < bytes; i += THREADS * 128) {
        prefetch(p.scales + (u64)tile0 * tile + i);
        if (GATES) prefetch(p.scales + (u64)(tile0 + p.n / 32) * tile + i);
    }
}

// ---- unpack and look up ----

// nibbles returns words of four pairs of codes of half an atom, one for each step, in order in each byte.
__device__ __forceinline__ void nibbles(u32 (&q)[HALF_STEPS], const u32 (&w)[2 * BITS], u32 half) {
    // Steps 1 and 3 hold their low bits in the high nibbles; the high bits of
    // the four steps lie two bits apart. The top two bits of a byte are left
    // over from other steps: the table has every entry four times.
    constexpr u32 nibble = 0x0f0f0f0f;
    const u32 low = w[2 * half], high = w[2 * half + 1], b = w[4 + half];
    q[0] = select<nibble>(low, b);
    q[1] = select<nibble>(low >> 4, b >> 2);
    q[2] = select<nibble>(high, b << 2);
    q[3] = select<nibble>(high >> 4, b << 4);
}

#if DECODE == 0
// Bytes of a table row: 32 copies of a pair for as many lanes, so that a lane
// finds every entry in its own bank. At 3 and 4 bits the row is 256 bytes long,
// for a byte of codes to be byte 1 of the address, and its second half is free.
constexpr u32 TABLE_PITCH = BITS == 5 ? 128 : 256;
constexpr u32 ENTRIES = BITS == 5 ? 1024 : 256;

// planes_chunk returns which of the four times 32 columns of an atom, the first or the
// second of a unit, are looked up in registers; 4 is none. At 2 bits the table is looked
// up faster than the shared-memory port allows, which reads 64 weights a clock, and
// registers cost instructions instead; a quarter of the weights gains the most, and with more
// than 8 rows of X none gains (NOTES.md). So a kernel for up to 16 rows puts other columns of a
// step beside each other than one for up to 8; to the bits of a sum that makes no difference on
// Hopper, where TestGPUPrebuilt compares them, and on other GPUs it has not been tried.
__device__ __forceinline__ constexpr u32 planes_chunk(u32 atom) { return BITS == 2 && NT == 1 ? 2 * atom + 1 : 4; }

// turned reports whether X is to have neighbours but one in the place of neighbours, for 32 columns of an atom.
__device__ __forceinline__ constexpr bool turned(u32 atom, u32 chunk) { return chunk == planes_chunk(atom); }

// fill_table writes every entry 32 times (at 2 bits 32 times 8 bytes). A thread
// writes whole rows, beginning at a different 16 bytes than its neighbours, which
// are in the same banks.
__device__ __forceinline__ void fill_table(const Params& p) {
    for (u32 e = threadIdx.x; e < ENTRIES; e += THREADS) {
        u32 lo, hi;
        entry_of(p, e, lo, hi);
        constexpr u32 chunks = BITS == 2 ? 16 : 8;
#pragma unroll
        for (u32 j = 0; j < chunks; j++)
            *(Words4*)(shared + e * TABLE_PITCH + (j + threadIdx.x) % chunks * 16) = {{lo, hi, lo, hi}};
    }
}

// Table is what a lane looks codes up with.
struct Table {
    u32 self;       // the offset of its copy in a row
    u32 low, high;  // at 2 bits, the low bytes of the four values and the high ones
};

__device__ __forceinline__ Table table_of(const Params& p, u32 lane) {
    Table t = {};
    t.self = lane * (BITS == 2 ? 8 : 4);
    if constexpr (BITS == 2) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            t.low |= (p.codebook[i] & 0xff) << 8 * i;
            t.high |= p.codebook[i] >> 8 << 8 * i;
        }
        t.low = opaque(t.low);
        t.high = opaque(t.high);
    }
    return t;
}

// look_up_planes looks up a word of sixteen 2-bit codes, two steps, without shared
// memory: code c selects byte c of low and byte c of high, so that four nibbles, made
// from two codes by one multiplication, select two weights. The two are neighbours
// but one in K, of two bytes; turn_columns turns X accordingly.
__device__ __forceinline__ void look_up_planes(u32 (&even)[4], u32 (&odd)[4], u32 word, const Table& t) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {  // row g, columns 0 and 2 of four, 1 and 3; row g + 8, the same
        u32 selectors = (word >> 2 * i & 0x03030303) * 0x11 + 0x40404040;
        even[i / 2 + i % 2 * 2] = prmt(t.low, t.high, selectors);
        odd[i / 2 + i % 2 * 2] = prmt(t.low, t.high, selectors >> 16);
    }
}

// dequantize looks up half of an atom of a unit: the four registers of A for four steps.
__device__ __forceinline__ void dequantize(u32 (&a)[HALF_STEPS][4], const u32 (&w)[2 * BITS], u32 atom, u32 half, const Table& t) {
    const u32 self = t.self;
    if constexpr (BITS == 2) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (2 * half + i == planes_chunk(atom)) {
                look_up_planes(a[2 * i], a[2 * i + 1], w[2 * half + i], t);
                continue;
            }
#pragma unroll
            for (u32 b = 0; b < 4; b++)  // a byte is two pairs
                lookup2<SHARED_BASE>(a[2 * i + b / 2][b % 2 * 2], a[2 * i + b / 2][b % 2 * 2 + 1],
                                     prmt(w[2 * half + i], self, 0x7604 | b << 4));
        }
    }
    if constexpr (BITS == 3) {
        u32 q[4];
        nibbles(q, w, half);
#pragma unroll
        for (u32 i = 0; i < 16; i++) a[i / 4][i % 4] = lookup<SHARED_BASE>(prmt(q[i / 4], self, 0x7604 | i % 4 << 4));
    }
    if constexpr (BITS == 4) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) a[i / 4][i % 4] = lookup<SHARED_BASE>(prmt(w[4 * half + i / 4], self, 0x7604 | i % 4 << 4));
    }
    if constexpr (BITS == 5) {
        // The bits that the first fifteen pairs leave over are the last one's,
        // each in its place.
        constexpr u32 field = 0x3ff << 7;
        u32 last = 0;
#pragma unroll
        for (u32 j = 0; j < 5; j++) {
            u32 v = w[5 * half + j];
#pragma unroll
            for (u32 f = 0; f < 3; f++)
                a[(3 * j + f) / 4][(3 * j + f) % 4] = lookup<SHARED_BASE>((rotr(v, 2 + 2 * j + 10 * f) & field) | self);
            last |= v & 3u << (7 + 2 * j);
        }
        a[3][3] = lookup<SHARED_BASE>(last | self);
    }
}
#endif

// ---- multiply ----

// float_of and rounded_of turn the bits of a bias into a number and a number into those of Y.
__device__ __forceinline__ float float_of(u16 h) { return BF16 ? f32_of_bits((u32)h << 16) : f32_of_f16(h); }
__device__ __forceinline__ u16 rounded_of(float f) { return BF16 ? bf16_of_f32(f) : f16_of_f32(f); }

#if GATES
// gated returns a gate, activated, times another factor, both rounded before.
__device__ __forceinline__ u16 gated(const Params& p, u16 gate, u16 up) {
    const Gating g = {p.alpha, p.limit};
    return rounded_of(activated<ACTIVATION>(float_of(gate), g) * other_factor<ACTIVATION>(float_of(up), g));
}
#endif

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (BF16)
        mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
    else
        mma_f16(c, a[0], a[1], a[2], a[3], b0, b1);
}

// scale_at decodes scale i of those that a lane holds of an atom.
template <u32 WORDS>
__device__ __forceinline__ float scale_at(const u32 (&s)[WORDS], u32 i) {
    u32 bits = s[i * SCALE_SIZE / 4] >> (i * SCALE_SIZE % 4 * 8);
    if (SCALE == 1) return f32_of_f16(bits);
    if (SCALE == 2) return f32_of_bits(bits << 16);
    if (SCALE == 3) return f32_of_bits(bits);
    // The bytes are float16 with fewer bits of mantissa and an exponent biased by
    // 11 instead of 15.
    if (SCALE == 4) return f32_of_f16((bits & 0xff) << 6) * 16.0f;
    return f32_of_f16((bits & 0x80) << 8 | (bits & 0x7f) << 7) * 16.0f;
}

// turn_columns puts eight consecutive columns of X, pairs of neighbours, in the order of weights
// that are looked up in registers.
__device__ __forceinline__ void turn_columns(u32 (&b)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i += 2) {
        u32 lo = b[i], hi = b[i + 1];
        b[i] = prmt(lo, hi, 0x5410);
        b[i + 1] = prmt(lo, hi, 0x7632);
    }
}

// Sums are those of a warp's tile over one atom, for each group of scales: a lane's
// rows g and g + 8 for two rows of X, for each tile of X.
struct Sums {
    float c[GROUPS][NT][4];
};

__device__ __forceinline__ void multiply(Sums& sums, const u32 (&a)[HALF_STEPS][4], const u32 (&x)[4][NT][4], u32 half) {
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) {
        u32 step = half * HALF_STEPS + i;
#pragma unroll
        for (u32 t = 0; t < NT; t++)
            mma(sums.c[step / (8 / GROUPS)][t], a[i], x[step / 2][t][step % 2 * 2], x[step / 2][t][step % 2 * 2 + 1]);
    }
}

__device__ __forceinline__ void scale(float (&total)[NT][4], const Sums& sums, const float (&scales)[GROUPS * 2]) {
#pragma unroll
    for (u32 t = 0; t < NT; t++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 i = 0; i < GROUPS; i++) {
                float v = sums.c[i][t][j];
                total[t][j] = GROUP == 0 ? total[t][j] + v : fmaf(v, scales[2 * i + j / 2], total[t][j]);
            }
}
