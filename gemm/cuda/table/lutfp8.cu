// Y = X·Ŵᵀ for many rows of X, on Hopper, with numbers of X and values of the table in E4M3: wgmma, which multiplies
// those twice as fast as numbers of 16 bits, with the weights looked up into its registers. X is prepared (lutbytes.cu).
// What was measured is in NOTES.md.
//
// The table's values are E4M3 of a common factor times them, which the host has chosen. The products of a group of scales, and
// of an atom at most, are summed by wgmma, which keeps fewer bits of sums than float32 has. Times the group's scale that is
// added in float32 to the sum of a piece; sums are multiplied at the end by what a row of X has been divided by, and by what takes back the factor.
//
// Latency. Warpgroups look up the weights of one atom while they multiply by the one before, and while one adds
// another multiplies. fields.cuh has the rest.
//
// GROUP is not 32. The power of Work takes back the factor.

struct alignas(8) Floats2 { float f[2]; };

// ---- weights ----

// look_up looks up half of an atom: the four registers of A for two steps of 32 columns, each of which two of 16 make.
__device__ __forceinline__ void look_up(u32 (&atom)[4][4], const u32 (&w)[2 * BITS], u32 half, const Table& table) {
    u32(*a)[4] = atom + 2 * half;
    u32 pairs[HALF_STEPS][4];
    dequantize(pairs, w, 0, half, table);
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
        for (u32 j = 0; j < 2; j++) a[i / 2][i % 2 * 2 + j] = prmt(pairs[i][j], pairs[i][2 + j], 0x6420);
}

// ---- multiply ----

// begin begins to multiply by a group of an atom, of SPAN steps, of a stage of X.
constexpr u32 SPAN = 4 / GROUPS;

__device__ __forceinline__ void begin(float (&part)[COLUMNS / 2], u32 (&a)[4][4], u32 group, u64 columns) {
#pragma unroll
    for (u32 i = 0; i < SPAN; i++)
#pragma unroll
        for (u32 r = 0; r < 4; r++) a[group * SPAN + i][r] = opaque(a[group * SPAN + i][r]);
    begin_products();
    multiply_group<0>(part, a[group * SPAN], columns + 2 * group * SPAN);
#pragma unroll
    for (u32 i = 1; i < SPAN; i++) multiply_group(part, a[group * SPAN + i], columns + 2 * (group * SPAN + i));  // 32 bytes on
    end_products();
}

// add adds the sums of a group times its scales.
__device__ __forceinline__ void add(float (&sums)[COLUMNS / 2], const float (&part)[COLUMNS / 2], const u32 (&raw)[RAW_WORDS], u32 group) {
    float scales[2];
#pragma unroll
    for (u32 j = 0; j < 2; j++) scales[j] = GROUP == 0 ? 1.0f : scale_at(raw, 2 * group + j);
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; i++) sums[i] = GROUP == 0 ? sums[i] + part[i] : fmaf(part[i], scales[i / 2 % 2], sums[i]);
}

// Loop is what a warp goes through a piece with.
struct Loop {
    float part[COLUMNS / 2];
    Read r;                 // of the atom that is looked up next
    u32 scales[RAW_WORDS];  // of the one that is multiplied by next
    u32 left;               // atoms
    u32 x;                  // where its stage of X is: a number that all lanes have, which uniform registers hold
};

// read_next reads the codes and scales of an atom.
__device__ __forceinline__ void read_next(Loop& l, Codes& place, u32 tile, u32 lane) {
    place.wait_full();
    read(l.r, place, tile, lane);
    let_go(place.empty(), lane);
    place.step();
}

// find_x waits for a stage of X.
__device__ __forceinline__ void find_x(Loop& l, const Stages& stage) {
    l.x = __shfl_sync(~0u, X_BASE + stage.i * X_BYTES, 0);
    stage.wait_full();
}

// atom multiplies by an atom whose weights are looked up. Meanwhile it looks up those of the next, reads the codes of the one
// behind that, and finds the next stage of X.
__device__ __forceinline__ void atom(float (&sums)[COLUMNS / 2], Loop& l, u32 (&a)[4][4], u32 (&next)[4][4], Stages& stage, Codes& place, u32 tile, u32 lane,
                                     const Table& table) {
    const u64 columns = columns_at(l.x);
    const u32 empty = stage.empty();
    stage.step();
    u32 scales[RAW_WORDS];
#pragma unroll
    for (u32 i = 0; i < RAW_WORDS; i++) scales[i] = l.scales[i];
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        begin(l.part, a, group, columns);
        if (GROUPS == 1 || group == 0) look_up(next, l.r.words, 0, table);  // of what there is no more, in vain
        if (GROUPS == 1 || group == 1) look_up(next, l.r.words, 1, table);
        if (group + 1 == GROUPS) {
#pragma unroll
            for (u32 i = 0; i < RAW_WORDS; i++) l.scales[i] = l.r.scales[i];
            if (l.left > 2) read_next(l, place, tile, lane);
            if (l.left > 1) find_x(l, stage);
        }
        wait_products<0>();
        if (group + 1 == GROUPS) let_go(empty, lane);
        add(sums, l.part, scales, group);
    }
    l.left--;
}

// multiply multiplies a piece.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], const Piece& piece, Stages& stage, Codes& place, u32 tile, u32 lane, const Table& table) {
    Loop l = {};
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
    u32 a[2][4][4];
    l.left = piece.to - piece.from;
    read_next(l, place, tile, lane);
#pragma unroll
    for (u32 half = 0; half < 2; half++) look_up(a[0], l.r.words, half, table);
#pragma unroll
    for (u32 i = 0; i < RAW_WORDS; i++) l.scales[i] = l.r.scales[i];
    if (l.left > 1) read_next(l, place, tile, lane);
    find_x(l, stage);
    for (;;) {
        atom(sums, l, a[0], a[1], stage, place, tile, lane, table);
        if (l.left == 0) break;
        atom(sums, l, a[1], a[0], stage, place, tile, lane, table);
        if (l.left == 0) break;
    }
}

// ---- epilogue ----

// take_back multiplies sums by what the rows of X have been divided by, and takes back the factor of the table.
__device__ __forceinline__ void take_back(float (&sums)[COLUMNS / 2], const Params& p, const Work& w, const float* row_scales, const Piece& piece, u32 lane) {
    const u32 first = piece.field / w.rows * COLUMNS;
    Floats2 scales[COLUMNS / 8];
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 8; i++) {  // without a branch, for all loads to be under way at once
        const u32 row = first + 8 * i < p.m ? first + 8 * i : first;
        scales[i] = *(const Floats2*)(row_scales + row + lane % 4 * 2);
    }
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 8; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) sums[4 * i + j] *= scales[i].f[j % 2] * w.power;
}

// ---- kernel ----

struct Bytes8 {
    // Registers of a thread that multiplies and of one that does not: in all what the block begins with.
    static constexpr u32 MULTIPLYING = GROUPS4 == 2 ? 232 : 152, ASKING = GROUPS4 == 2 ? 40 : 56;
    static_assert(4 * GROUPS4 * MULTIPLYING + 4 * ASKING <= 65536 / THREADS / 8 * 8 * WARPS, "or warps wait for registers for ever");

    const Params& p;
    const Work& w;
    const float* row_scales;
    Table table;

    static __device__ __forceinline__ void fill(const Params& p) { fill_table(p); }

    __device__ __forceinline__ Bytes8(const Params& p, const Work& w, const float* row_scales, u32 lane) : p(p), w(w), row_scales(row_scales), table{} {
        table.self = lane * (BITS == 2 ? 8 : 4);
    }

    __device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], const Work&, const Piece& piece, Stages& stage, Codes& place, u32 tile, u32 lane) const {
        ::multiply(sums, piece, stage, place, tile, lane, table);
    }

    __device__ __forceinline__ void finish(float (&sums)[COLUMNS / 2], const Piece& piece, u32 lane) const {
        take_back(sums, p, w, row_scales, piece, lane);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutfp8(const __grid_constant__ Params p, const __grid_constant__ Work w, const float* row_scales) {
    run_block<Bytes8>(p, w, row_scales);
}
