// What kernels have in common whose warps leave sums in slots of shared memory: of each tile and slice of K
// one. At the end the slots of a tile are summed in order.

struct Warp {
    u32 lane, slice, group;
    u32 row;          // of X, that the lane reads, where experts have groups of rows
    bool writes[NT];  // whether the lane holds sums of rows of X, for each tile of 8
    u32 tile0, tiles;  // of the block
    u32 steps;
};

// ---- epilogue ----

// slot returns where pair q of rows of X lies for a tile and slice; the eight
// values of g follow, turned so that four neighbours in q do not share banks.
__device__ __forceinline__ u32 slot(const Params& p, u32 tile, u32 slice, u32 q, u32 g) {
    return p.slot_base + ((tile * p.slices + slice) * p.pairs + q) * p.slot_pitch + (g + 2 * q) % 8 * 16;
}

// Output is what a thread finishes at once: of a tile the rows g and g + 8 of Ŵ, for a pair
// of rows of X.
struct Output {
    u32 row, m;      // of Ŵ, the first of two eight apart; of X, the first of two
    float scale[2];  // of the rows, where each has one
    float bias[2];
};

// output_of returns the output for row g of a tile of the matrix.
__device__ __forceinline__ Output output_of(const Params& p, u32 tile, u32 q, u32 g) {
    Output o;
    o.row = tile * 16 + g;
    o.m = 2 * q;
    o.scale[0] = o.scale[1] = 1;
    if constexpr (GROUP == 0) {
        u32 s[SCALE_SIZE == 4 ? 2 : 1];
        load_stream(s, p.scales + (o.row + g) * SCALE_SIZE);
        o.scale[0] = scale_at(s, 0);
        o.scale[1] = scale_at(s, 1);
    }
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        u32 n = o.row + 8 * j;
        o.bias[j] = 0;
        if (p.bias && n < p.n) o.bias[j] = float_of(p.bias[n]);
    }
    return o;
}

// result returns what is rounded of sum j of an output.
__device__ __forceinline__ float result(const Output& o, const float (&v)[4], u32 j) {
    return fmaf(v[j], o.scale[j / 2], o.bias[j / 2]);  // one rounding, as in lutwide.cu
}

// write rounds the sums of an output to Y.
__device__ __forceinline__ void write(const Params& p, const Output& o, const float (&v)[4]) {
    u16* y = p.y + ((u64)o.m * p.n + o.row);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        u32 row = j / 2 * 8, m = j % 2;
        if (o.row + row < p.n && o.m + m < p.m) y[m * p.n + row] = rounded_of(result(o, v, j));
    }
}

// place returns the output that a run's thread i finishes, and where its slot of slice 0 lies.
__device__ __forceinline__ Output place(const Params& p, const Warp& w, u32 first, u32 i, u32& at) {
    u32 g = i % 8, tile = p.pairs == 1 ? i / 8 : __umulhi(i / 8, p.pairs_inverse), q = i / 8 - tile * p.pairs;
    at = slot(p, tile, 0, q, g);
    return output_of(p, w.tile0 + (GATES ? first / 2 : first) + tile, q, g);
}

// add_slots adds an output's slots of so many slices in order, of which AT_ONCE are read together.
template <u32 AT_ONCE>
__device__ __forceinline__ void add_slots(float (&v)[4], u32 at, u32 pitch, u32 slices) {
#pragma unroll AT_ONCE
    for (u32 s = 0; s < slices; s++) {
        const Floats4 part = *(const Floats4*)(shared + at + s * pitch);
#pragma unroll
        for (u32 j = 0; j < 4; j++) v[j] += part.f[j];
    }
}

// add_up adds up the slots of an output.
__device__ __forceinline__ void add_up(float (&v)[4], u32 at, u32 pitch, u32 slices) {
    // All at once gains 1 to 6 % up to 14336×4096.
    if (slices == 16)
        add_slots<16>(v, at, pitch, 16);
    else if (slices == 8)
        add_slots<8>(v, at, pitch, 8);
    else
        add_slots<4>(v, at, pitch, slices);
}

#if GATES
// gate writes an output of gates times the one that lies so many bytes behind it.
__device__ __forceinline__ void gate(const Params& p, const Warp& w, const Output& o, const float (&v)[4], u32 at, u32 pitch, u32 slices) {
    const Output up = output_of(p, o.row / 16 + p.n / 32, o.m / 2, o.row % 16);
    float u[4] = {0, 0, 0, 0};
    add_up(u, at, pitch, slices);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 row = o.row + j / 2 * 8, m = o.m + j % 2;
        if (m < p.m) p.y[(u64)m * (p.n / 2) + row] = gated(p, rounded_of(result(o, v, j)), rounded_of(result(up, u, j)));
    }
}
#endif

// finish sums the slots of a run and writes Y. The kernel behind this one waits for
// a block's last instructions, so all that can be is done before the barrier.
__device__ __forceinline__ void finish(const Params& p, const Warp& w, u32 first) {
    const u32 tiles = min(p.run, w.tiles - first) / (GATES ? 2 : 1), count = tiles * p.pairs * 8;
    const u32 pitch = p.pairs * p.slot_pitch;
    const u32 slices = min(p.slices, p.units);  // those without columns have written none
    u32 i = threadIdx.x, at;
    Output o;
    if (i < count) o = place(p, w, first, i, at);
    __syncthreads();
    while (i < count) {
        float v[4] = {0, 0, 0, 0};
        add_up(v, at, pitch, slices);
#if GATES
        gate(p, w, o, v, at + tiles * p.slices * pitch, pitch, slices);
#else
        write(p, o, v);
#endif
        i += THREADS;
        if (i < count) o = place(p, w, first, i, at);
    }
}
