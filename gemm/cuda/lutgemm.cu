// Y = X·Ŵᵀ for 1 to 16 rows of X, with Ŵ in the tiles of repack.CUDATiles.
//
// The weights are the A operand of mma.m16n8k16, looked up in shared memory
// two (at 2 bits four) at a time and multiplied as they are: scales are applied
// to the float32 sums of a group. The rows of X are the 8 columns of B.
//
// Work. A block owns whole tiles, 16 rows of Ŵ over all of K, so nothing is
// summed across blocks. Its warps split K into S slices: the columns are taken in
// units of 256, and the warp of slice s holds the fragments of X for unit S·i + s in
// registers while it runs down the tiles of the block, reading 256 columns of each
// (one step i). What a step adds to a tile goes to the warp's own slot in shared
// memory, and at the end the S slots of a tile are summed in order. S is 16 where shared
// memory has room for the slots of all tiles: warps are then loaded evenly, a block reads X
// once and steps are half as many (28672×4096, 4 bits, M = 1 and 8: 15.8 and 17.3 for 16.3
// and 17.6 µs; 8192×28672, 2 bits, M = 1: 24.1 for 30.5). Otherwise it is 8, and the other
// eight warps of a block have tiles of their own. The order of every sum is fixed by the
// shape of Ŵ and by whether X has more than 8 rows: neither the grid nor any of the
// knobs below can change a bit of the result.
//
// Latency. Weights pass through a ring of DEPTH atoms in registers, straight from
// memory: the shared-memory port is busy with the table. The ring's first loads are
// out before the table is filled and before the kernel waits for the one in front of
// it. As ptxas puts all the global loads of a loop on one scoreboard, every wait is for
// the newest of them: what counts is how long before the next wait a load begins. Sixteen
// warps with 128 registers each hide the latency of table and tensor cores best: in one
// block that has the SM to itself, or in two of eight warps that are replaced by the next
// kernel's as each of them ends.
//
// Limits, as Nsight Compute sees them on an H200 at 57344×8192, group 128, M = 1 (busy
// time of DRAM, of the shared-memory port and of issue, in percent): 2 bits 61, 74, 49;
// 3 bits 73, 79, 57; 4 bits 79, 69, 41; 5 bits 77, 60, 47. So 4 and 5 bits wait for
// memory; at 2 and 3 bits nothing is full, but each of four warps a scheduler waits its
// turn at the port, and every instruction of the loop counts. M = 8 passes 128 bytes
// through the port six times more a step than M = 1, for the slots.
//
// Where a call goes at 28672×4096, 4 bits, M = 8 (cycles of 1800 MHz by the SM's own clock, when
// it took 17.8 µs): 800 to the filled table, 700 until the grid before has ended, 1900
// until X is there, 25,300 of products, 1100 from the first warp's last one to the last warp's,
// 1350 for the slots, 1100 until the next block begins. Memory idles for a fifth of it.
//
// At M = 16 X fills the registers, so a step is half a unit and slots are read and written
// twice as often: 32,800 cycles of products, 9.4 for a 16×16 tile of weights. The port is
// what they share, and it is full: Nsight Compute counts 8.9 wavefronts a tile (6.3 at
// M = 8, 5.7 at M = 1), 4 of lookups, 2 of slots, 1 of codes and more than 1 of X, while issue
// is busy half of the time and the tensor cores a quarter. It takes 19.4 of 22.6 µs when no
// codes are loaded in the loop at all.
//
// Tried, right, and slower (µs at 28672×4096, 4 bits):
//   - Codes through a ring in shared memory, by bulk copies (M = 8 and 16: 1 to 5 more), of which
//     a multiprocessor begins one in 20 cycles, however small; or by each lane for itself with
//     cp.async (1.5 to 4 more), where ptxas puts three idle loads before a copy. Either way they
//     pass the port twice.
//   - X of the next step, fetching which costs 1.5 at M = 16 (at 8192×8192 2.5, at M = 8 0.8):
//     staged in shared memory (0.5 to 3.5 more), prefetched into the L1 (no change), loaded into
//     the registers that the last tile of a step lets go of, in a copy of the loop of its own
//     (1.4 to 2.4 more); its rows loaded in turns, so as not to meet in the same banks (no change).
//   - At M = 16 whole units a step (0.3 to 0.8 more): slots halve, but registers spill and
//     one step is in flight.
//   - Sums in registers along all of K, X in shared memory, 32 or 64 rows a warp: no slots in the
//     loop and 6.1 cycles a tile without loads. With them M = 16 takes 24.4 and M = 1 and 8 17.6 to
//     19.4, as 8 warps of 255 registers wait for their loads as one. With bulk copies 25.1 and
//     18.7, with cp.async and 16 warps 29.0 and 22.2.
//   - wgmma with K split over four warpgroups, also without slots: 25.9 at M = 16 (19.6 without
//     loads). Its groups of 64 rows do not divide evenly, which is 18 % more lookups.
//   - 24 or 32 warps of fewer registers (0.5 to 2 more); the tiles of a step two or four at a time
//     in one basic block.
//   - A quarter of the 4-bit weights looked up in registers by byte planes (M = 16: 23.9; half
//     of them: 26.6).
//   - Codes prefetched into the level-2 cache: 2 % gained at large shapes, 10 % lost at small ones.
//   - A barrier for each tile, to finish it while others are multiplied (no change).
//
// Clocks are 1800 MHz as soon as the tensor cores work, of 1980 otherwise; kept up for long,
// large shapes meet the card's 700 W and fall to 1500: time in short bursts.
//
// Set by the host:
//   BITS         2 to 5
//   GROUP        32, 64, 128, 256, or 0 for one scale a row
//   SCALE        lut.ScaleType of the scales
//   BF16         1 for bfloat16 activations and table, 0 for float16
//   NT           tiles of 8 rows of X, 1 or 2
//   KA           atoms of a unit that are read in one step: 1 or 2. At 1 a unit takes
//                two steps and X half the registers.
//   DEPTH        atoms that a warp has registers for, a multiple of KA
//   WARPS        of a block, 8 or 16
//   MIN_BLOCKS   blocks that an SM must hold

constexpr u32 THREADS = WARPS * 32;
constexpr u32 ATOM_COLS = 128;
constexpr u32 ATOM_BYTES = 256 * BITS;
constexpr u32 HALF_STEPS = 4;  // mma steps of half an atom, 64 columns

// Bytes of a table row: 32 copies of a pair for as many lanes, so that a lane
// finds every entry in its own bank. At 3 and 4 bits the row is 256 bytes long,
// for a byte of codes to be byte 1 of the address, and its second half is free.
constexpr u32 TABLE_PITCH = BITS == 5 ? 128 : 256;

constexpr u32 SCALE_SIZE = SCALE == 3 ? 4 : SCALE >= 4 ? 1 : 2;
constexpr u32 GROUPS = GROUP == 0 || GROUP >= 128 ? 1 : 128 / GROUP;  // of an atom
constexpr u32 SCALE_BYTES = GROUP == 0 ? 0 : GROUPS * 2 * SCALE_SIZE;  // of an atom, for a lane
constexpr u32 SCALE_WORDS = (SCALE_BYTES + 3) / 4;

struct Params {
    const u8* codes;
    const u8* scales;
    const u8* x;     // [m][k]
    u16* y;          // [m][n]
    const u16* bias; // [n] or null
    u32 n, k, m;
    u32 units;             // of a tile: ⌈k/256⌉
    u32 slices;            // of K: 8, or 16 if a block has as many warps
    u32 groups;            // of warps, each at its own tiles: 1 or 2, slices·groups = WARPS
    u32 tiles_each;        // tiles of a block; the first tiles_over have one more
    u32 tiles_over;
    u32 run;               // tiles that have slots at a time
    u32 pairs;             // ⌈m/2⌉, pairs of rows of X: 16 bytes each of a lane's slot
    u32 pairs_inverse;     // ⌈2^32/pairs⌉, wrapped
    u32 slot_base;         // where slots begin in shared memory
    u32 slot_pitch;        // from one pair's 128 bytes to the next: 128, or 256 in the table's gaps
    u32 codebook[1 << BITS];  // in the low 16 bits, in the type of X
};

// planes_chunk returns which of the four times 32 columns of an atom, the first or the
// second of a unit, are looked up in registers; 4 is none. At 2 bits the table is looked
// up faster than the shared-memory port allows, which reads 64 weights a clock, and
// registers cost instructions instead: a quarter of the weights gains 6 %, three eighths 5,
// half of them 2. Which quarter makes up to 4 %, for how it falls between the others: the
// second 32 columns of one atom and the last of the next are the best of all sixteen
// pairs. (At 3 bits, where it takes an instruction a weight, a quarter loses 3 %, an
// eighth up to 5, and a sixteenth gains 1 at the best of its places.)
__device__ __forceinline__ constexpr u32 planes_chunk(u32 atom) { return BITS == 2 ? 2 * atom + 1 : 4; }

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

// fill_table writes every entry 32 times (at 2 bits 32 times 8 bytes). A thread
// writes whole rows, beginning at a different 16 bytes than its neighbours, which
// are in the same banks.
__device__ __forceinline__ void fill_table(const Params& p) {
    constexpr u32 entries = BITS == 5 ? 1024 : 256;
    for (u32 e = threadIdx.x; e < entries; e += THREADS) {
        u32 lo, hi;
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
        constexpr u32 chunks = BITS == 2 ? 16 : 8;
#pragma unroll
        for (u32 j = 0; j < chunks; j++)
            *(Words4*)(shared + e * TABLE_PITCH + (j + threadIdx.x) % chunks * 16) = {{lo, hi, lo, hi}};
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
    if constexpr (SCALE_BYTES == 2) {
        s[0] = load_stream_u16(p);
    } else if constexpr (WORDS < 4) {
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

struct Warp {
    u32 lane, slice, group;
    bool writes[NT];  // whether the lane holds sums of rows of X, for each tile of 8
    u32 tile0, tiles;  // of the block
    u32 steps;
};

constexpr u32 UNIT_SCALE_BYTES = GROUP == 256 ? 8 * SCALE_BYTES : 16 * SCALE_BYTES;

// Cursor walks the steps of a warp: the tiles of a run, for each step of K, for
// each run of tiles of the block.
struct Cursor {
    u32 first;  // tile of the block that the run begins at
    u32 step;   // of K
    u32 left;   // tiles to do in this step, 0 at the end
    const u8* codes;
    const u8* scales;
};

// tiles_of returns how many tiles of the run at first fall to the warp.
__device__ __forceinline__ u32 tiles_of(const Params& p, const Warp& w, u32 first) {
    if (first >= w.tiles) return 0;
    u32 run = min(p.run, w.tiles - first);
    return p.groups == 2 ? (run + 1 - w.group) / 2 : run;
}

__device__ __forceinline__ void seek(Cursor& c, const Params& p, const Warp& w) {
    u32 tile = w.tile0 + c.first + w.group;
    u32 unit = tile * p.units + p.slices * (KA == 2 ? c.step : c.step / 2) + w.slice;
    u32 second = KA == 2 ? 0 : c.step % 2;
    c.left = tiles_of(p, w, c.first);
    c.codes = p.codes + (u64)unit * (2 * ATOM_BYTES) + second * ATOM_BYTES + w.lane * 16;
    c.scales = p.scales + (u64)unit * UNIT_SCALE_BYTES + w.lane / 4 * SCALE_BYTES +
               (GROUP == 256 ? 0 : second * 8 * SCALE_BYTES);
}

__device__ __forceinline__ void advance(Cursor& c, const Params& p, const Warp& w) {
    if (--c.left > 0) {
        c.codes += (u64)(p.units * (2 * ATOM_BYTES)) * p.groups;
        c.scales += (u64)(p.units * UNIT_SCALE_BYTES) * p.groups;
        return;
    }
    if (++c.step == w.steps) {
        c.step = 0;
        c.first += p.run;
    }
    seek(c, p, w);
}

// load_atom loads an atom from delay bytes behind its place.
__device__ __forceinline__ void load_atom(Atom& atom, const Warp& w, const Cursor& c, u32 a, u32 delay = 0) {
    load_codes(atom.w, c.codes + delay + a * ATOM_BYTES, w.lane);
    if constexpr (GROUP != 0) load_scales(atom.s, c.scales + delay + (GROUP == 256 ? 0 : a * 8 * SCALE_BYTES));
}

// ---- unpack and look up ----

// Table is what a lane looks codes up with.
struct Table {
    u32 self;       // the offset of its copy in a row
    u32 low, high;  // at 2 bits, the low bytes of the four values and the high ones
};

__device__ __forceinline__ Table table_of(const Params& p, const Warp& w) {
    Table t = {};
    t.self = w.lane * (BITS == 2 ? 8 : 4);
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
// but one in K, of two bytes; load_columns turns X accordingly.
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
        // Steps 1 and 3 hold their low bits in the high nibbles; the high bits of
        // the four steps lie two bits apart. The top two bits of a byte are left
        // over from other steps: the table has every entry four times.
        constexpr u32 nibble = 0x0f0f0f0f;
        u32 a0 = w[2 * half], a1 = w[2 * half + 1], b = w[4 + half];
        u32 q[4] = {select<nibble>(a0, b), select<nibble>(a0 >> 4, b >> 2),
                    select<nibble>(a1, b << 2), select<nibble>(a1 >> 4, b << 4)};
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

// ---- multiply ----

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

// Columns is what a lane holds of X for a unit: for each atom and each 32 columns
// eight consecutive ones, of a row for each tile of 8; pairs of neighbours, but of
// neighbours but one where the weights are looked up in registers.
struct Columns {
    u32 b[KA][4][NT][4];
};

__device__ __forceinline__ void load_columns(Columns& x, const Params& p, const Warp& w, u32 step) {
    u32 unit = p.slices * (KA == 2 ? step : step / 2) + w.slice;
    u32 col0 = (2 * unit + (KA == 2 ? 0 : step % 2)) * ATOM_COLS + w.lane % 4 * 8;
#pragma unroll
    for (u32 a = 0; a < KA; a++)
#pragma unroll
        for (u32 c = 0; c < 4; c++)
#pragma unroll
            for (u32 t = 0; t < NT; t++) {
                u32 row = 8 * t + w.lane / 4, col = col0 + a * ATOM_COLS + 32 * c;
                u32(&b)[4] = x.b[a][c][t];
                b[0] = b[1] = b[2] = b[3] = 0;
                if (row < p.m && col < p.k) load_cached(b, p.x + ((u64)row * p.k + col) * 2);
                if (c == planes_chunk(KA == 2 ? a : step % 2)) {
#pragma unroll
                    for (u32 i = 0; i < 4; i += 2) {
                        u32 lo = b[i], hi = b[i + 1];
                        b[i] = prmt(lo, hi, 0x5410);
                        b[i + 1] = prmt(lo, hi, 0x7632);
                    }
                }
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

// ---- epilogue ----

// slot returns where pair q of rows of X lies for a tile and slice; the eight
// values of g follow, turned so that four neighbours in q do not share banks.
__device__ __forceinline__ u32 slot(const Params& p, u32 tile, u32 slice, u32 q, u32 g) {
    return p.slot_base + ((tile * p.slices + slice) * p.pairs + q) * p.slot_pitch + (g + 2 * q) % 8 * 16;
}

// Output is what one thread finishes: of a tile the rows g and g + 8 of Ŵ, for a pair
// of rows of X.
struct Output {
    u32 slot;        // of slice 0
    u32 row, m;      // of Ŵ, the first of two eight apart; of X, the first of two
    float scale[2];  // of the rows, where each has one
    float bias[2];
};

__device__ __forceinline__ Output output_of(const Params& p, const Warp& w, u32 first, u32 i) {
    Output o;
    u32 g = i % 8, tile = p.pairs == 1 ? i / 8 : __umulhi(i / 8, p.pairs_inverse), q = i / 8 - tile * p.pairs;
    o.slot = slot(p, tile, 0, q, g);
    o.row = (w.tile0 + first + tile) * 16 + g;
    o.m = 2 * q;
    o.scale[0] = o.scale[1] = 1;
    if constexpr (GROUP == 0) {
        u32 s[2 * SCALE_SIZE < 4 ? 1 : 2 * SCALE_SIZE / 4];
        const u8* at = p.scales + (o.row + g) * SCALE_SIZE;
        if constexpr (SCALE_SIZE == 1)
            s[0] = load_stream_u16(at);
        else
            load_stream(s, at);
        o.scale[0] = scale_at(s, 0);
        o.scale[1] = scale_at(s, 1);
    }
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        u32 n = o.row + 8 * j;
        o.bias[j] = 0;
        if (p.bias && n < p.n) o.bias[j] = BF16 ? f32_of_bits((u32)p.bias[n] << 16) : f32_of_f16(p.bias[n]);
    }
    return o;
}

// finish sums the slots of a run and writes Y. The kernel behind this one waits for
// a block's last instructions, so all that can be is done before the barrier.
__device__ __forceinline__ void finish(const Params& p, const Warp& w, u32 first) {
    const u32 count = min(p.run, w.tiles - first) * p.pairs * 8;
    const u32 pitch = p.pairs * p.slot_pitch;
    u32 i = threadIdx.x;
    Output o;
    if (i < count) o = output_of(p, w, first, i);
    __syncthreads();
    while (i < count) {
        float v[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (u32 s = 0; s < p.slices; s++) {
            Floats4 part = *(const Floats4*)(shared + o.slot + s * pitch);
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[j] += s < p.units ? part.f[j] : 0;  // slices without columns have written none
        }
        u16* y = p.y + ((u64)o.m * p.n + o.row);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = j / 2 * 8, m = j % 2;
            float r = GROUP == 0 ? v[j] * o.scale[j / 2] : v[j];
            r += o.bias[j / 2];
            if (o.row + row < p.n && o.m + m < p.m) y[m * p.n + row] = BF16 ? bf16_of_f32(r) : f16_of_f32(r);
        }
        i += THREADS;
        if (i < count) o = output_of(p, w, first, i);
    }
}

// ---- kernels ----

__device__ __forceinline__ Warp warp_of(const Params& p) {
    Warp w;
    u32 warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.group = p.groups == 2 ? warp / 8 : 0;
    w.slice = warp - 8 * w.group;
#pragma unroll
    for (u32 t = 0; t < NT; t++) w.writes[t] = w.lane % 4 + 4 * t < p.pairs;
    w.tile0 = blockIdx.x * p.tiles_each + min(blockIdx.x, p.tiles_over);
    w.tiles = p.tiles_each + (blockIdx.x < p.tiles_over);
    w.steps = ((p.units + p.slices - 1 - w.slice) >> (p.slices == 16 ? 4 : 3)) * (2 / KA);
    return w;
}

constexpr u32 RING = DEPTH / KA;  // steps in registers

// Whether the ring is a double buffer, of two steps one in flight: the next is loaded as
// soon as the first codes of the one at work are looked up, and has the time of a whole
// step. With codes of 4 and 5 bits, which give way to those of the next step late, that
// gains up to 3 % up to 8 rows (at 4096×4096, and at 5 bits with 8 rows, it loses as much);
// with fewer bits it loses up to 5, and with more rows up to 7.
constexpr bool DOUBLE = RING == 2 && BITS >= 4 && NT == 1;

// Whether the registers, of which ring and scales take the most, suffice for a second,
// shorter copy of the loop, and for X beside the end of a run.
constexpr bool ROOM = DEPTH * (2 * BITS + SCALE_WORDS) + 4 * GROUPS <= (DOUBLE ? 48 : 35);

struct Ring {
    Atom atom[DEPTH];
};

template <u32 STEPS>
__device__ __forceinline__ void fill_ring(Ring& ring, Cursor& ahead, const Params& p, const Warp& w) {
#pragma unroll
    for (u32 d = 0; d < STEPS; d++)
        if (ahead.left) {
#pragma unroll
            for (u32 a = 0; a < KA; a++) load_atom(ring.atom[d * KA + a], w, ahead, a);
            advance(ahead, p, w);
        }
}

// Scales that are brought into the level-2 cache at once, in bytes of a block: together with
// those of all others a part of that cache.
constexpr u32 MOST_AHEAD = 128 << 10;

// prefetch_scales brings the block's scales into the level-2 cache. They are few and
// lie scattered, and memory reads codes 2 to 4 % faster when it is not asked for a sector of
// scales between them.
__device__ __forceinline__ void prefetch_scales(const Params& p, const Warp& w) {
    const u32 tile = p.units * UNIT_SCALE_BYTES, bytes = min(w.tiles * tile, MOST_AHEAD);
    for (u32 i = threadIdx.x * 128; i < bytes; i += THREADS * 128) prefetch(p.scales + (u64)w.tile0 * tile + i);
}

// rotate moves the ring on by a step, so that the second comes to the front.
__device__ __forceinline__ void rotate(Ring& ring) {
    Atom front[KA];
#pragma unroll
    for (u32 d = 0; d < KA; d++) front[d] = ring.atom[d];
#pragma unroll
    for (u32 d = 0; d + KA < DEPTH; d++) ring.atom[d] = ring.atom[d + KA];
#pragma unroll
    for (u32 d = 0; d < KA; d++) ring.atom[DEPTH - KA + d] = front[d];
}

// Whether the first half of an atom is multiplied before the second is looked up: with 16
// rows of X sixteen warps have no registers for both, and gain 7 %; eight have, and lose 4 %.
constexpr bool HALVES = NT == 2 && WARPS == 16;

// turn multiplies by step d of the ring, adds to the slots at an address, or begins them,
// and loads the step that ahead points to, in place of it or beside it.
template <u32 ATOM>
__device__ __forceinline__ void turn(const Params& p, const Warp& w, const Table& table, const Columns& x, Ring& ring, u32 d,
                                     const Cursor& ahead, bool load, u32 at, bool add) {
    float total[KA][NT][4] = {};
#pragma unroll
    for (u32 i = 0; i < KA; i++) {
        Atom& atom = ring.atom[d * KA + i];
        Sums sums = {};
        float scales[GROUPS * 2];
        u32 a[2][HALF_STEPS][4];
        dequantize(a[0], atom.w, ATOM + i, 0, table);
        if (DOUBLE && i == 0 && load) {
            // Nothing, but not known before a first weight is: were these loads to begin
            // sooner, the wait for the step at work would be one for them, on the one scoreboard.
            const u32 delay = a[0][0][0] & p.n >> 31;
#pragma unroll
            for (u32 j = 0; j < KA; j++) load_atom(ring.atom[(1 - d) * KA + j], w, ahead, j, delay);
        }
        if (HALVES) multiply(sums, a[0], x.b[i], 0);
        dequantize(a[1], atom.w, ATOM + i, 1, table);
#pragma unroll
        for (u32 j = 0; j < GROUPS * 2; j++) scales[j] = GROUP ? scale_at(atom.s, j) : 1.0f;
        if (!DOUBLE && load) load_atom(atom, w, ahead, i);
        if (!HALVES) multiply(sums, a[0], x.b[i], 0);
        multiply(sums, a[1], x.b[i], 1);
        scale(total[i], sums, scales);
    }
#pragma unroll
    for (u32 t = 0; t < NT; t++)
        if (w.writes[t]) {
            Floats4* slot = (Floats4*)(shared + at + 4 * t * p.slot_pitch);
            Floats4 v = {{0, 0, 0, 0}};
            if (add) v = *slot;
#pragma unroll
            for (u32 i = 0; i < KA; i++)  // one after the other, whatever KA
#pragma unroll
                for (u32 j = 0; j < 4; j++) v.f[j] += total[i][t][j];
            *slot = v;
        }
}

// multiply_tiles multiplies the tiles of a run by the columns of a step. ATOM says which
// of its unit that is, at 2 bits and where a step is one atom.
template <u32 ATOM>
__device__ __forceinline__ void multiply_tiles(const Params& p, const Warp& w, const Table& table, const Columns& x, Ring& ring,
                                               Cursor& ahead, u32 tiles, u32 step) {
    // That is WARPS times, but written so, the compiler spills at five bits.
    const u32 stride = p.groups * p.slices * p.pairs * p.slot_pitch;
    const u32 slot0 = slot(p, w.group, w.slice, w.lane % 4, w.lane / 4);
    const u32 code_stride = p.units * (2 * ATOM_BYTES) * p.groups;  // from one tile to the next
    const u32 scale_stride = p.units * UNIT_SCALE_BYTES * p.groups;
    u32 left = tiles, at = slot0;
    while (left) {
        // As long as the loads stay inside a step of K, there is little to decide.
        u32 inside = ROOM && ahead.left ? min(left, ahead.left - 1) : 0;
        inside -= inside % RING;
        left -= inside;
        ahead.left -= inside;
        while (inside) {
#pragma unroll
            for (u32 d = 0; d < RING; d++) {
                turn<ATOM>(p, w, table, x, ring, d, ahead, true, at, step != 0);
                // Within straight code the compiler moves loads down to their use,
                // and their lead is gone; over a branch, never taken, it does not.
                at = opaque(at);
                if (at == ~0u) __trap();
                ahead.codes += code_stride;
                ahead.scales += scale_stride;
                at += stride;
            }
            inside -= RING;
        }
        if (!left) break;
#pragma unroll
        for (u32 d = 0; d < RING; d++) {
            const bool more = ahead.left != 0;
            turn<ATOM>(p, w, table, x, ring, d, ahead, more, at, step != 0);
            if (more) advance(ahead, p, w);
            at += stride;
            if (--left == 0) {
#pragma unroll
                for (u32 n = 0; n < (d + 1) % RING; n++) rotate(ring);
                break;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) lutgemm(const __grid_constant__ Params p) {
    launch_next();
    Warp w = warp_of(p);
    Cursor ahead = {};
    if (w.steps) seek(ahead, p, w);
    Ring ring = {};
    fill_ring<DOUBLE ? 1 : RING>(ring, ahead, p, w);
    if (GROUP) prefetch_scales(p, w);

    check_base();
    fill_table(p);
    __syncthreads();
    wait_previous();

    const Table table = table_of(p, w);
    Columns x;
    if (w.steps) load_columns(x, p, w, 0);
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 tiles = tiles_of(p, w, first);
        for (u32 step = 0; step < w.steps && tiles; step++) {
            if (step) load_columns(x, p, w, step);
            if (BITS == 2 && KA == 1 && step % 2)
                multiply_tiles<1>(p, w, table, x, ring, ahead, tiles, step);
            else
                multiply_tiles<0>(p, w, table, x, ring, ahead, tiles, step);
        }
        const bool again = first + p.run < w.tiles;
        if (ROOM && again && w.steps > 1) load_columns(x, p, w, 0);
        finish(p, w, first);
        if (again) __syncthreads();  // before the slots are written again
        if (!ROOM && again && w.steps > 1) load_columns(x, p, w, 0);
    }
}

// lutread is the read-only twin: the same grid, shared memory, prefetched scales and
// loads, in the same order and at the distance of a full ring, and nothing done with them.
// It bounds what the kernel could reach.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) lutread(const __grid_constant__ Params p) {
    launch_next();
    Warp w = warp_of(p);
    Cursor ahead = {};
    if (w.steps) seek(ahead, p, w);
    Ring ring = {};
    fill_ring<RING>(ring, ahead, p, w);
    if (GROUP) prefetch_scales(p, w);
    wait_previous();

    u32 sink = 0;
    for (u32 first = 0; first < w.tiles; first += p.run) {
        u32 left = tiles_of(p, w, first) * w.steps;
        while (left) {
#pragma unroll
            for (u32 d = 0; d < RING; d++) {
                const bool more = ahead.left != 0;
#pragma unroll
                for (u32 i = 0; i < KA; i++) {
                    Atom& atom = ring.atom[d * KA + i];
#pragma unroll
                    for (u32 j = 0; j < 2 * BITS; j++) sink ^= atom.w[j];
#pragma unroll
                    for (u32 j = 0; j != SCALE_WORDS; j++) sink ^= atom.s[j];
                    if (more) load_atom(atom, w, ahead, i);
                }
                if (more) advance(ahead, p, w);
                if (--left == 0) {
#pragma unroll
                    for (u32 n = 0; n < (d + 1) % RING; n++) rotate(ring);
                    break;
                }
            }
        }
    }
    // Never true for the codes of a real matrix; the compiler cannot know.
    if (sink == 0x9e3779b9 && p.m == 0) p.y[threadIdx.x] = (u16)sink;
}
