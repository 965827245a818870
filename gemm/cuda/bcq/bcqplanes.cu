// Y = X·Ŵᵀ for Ŵ of binary codes, ŵ = z + Σ ±αᵢ, on tensor cores: each plane is multiplied by itself and its sums by the
// factors of the plane, for up to 16 rows of X. bcqdigits.cu is for one and two.
//
// Operands. The columns of X come in pairs of themselves, −x and x, of which mma.sp keeps one: A is nothing but ones, and the bits of
// a plane are its pattern. So a product of 16 columns takes half an instruction to make its operands of a word.
//
// Order of sums. Columns come in units of 256; slice s of K has units s, s + slices and so on. A plane's sums over each half of a unit, or a
// group if that is shorter, are added by the mmas of 16 columns each. They are multiplied by the factors
// plane by plane and added to the unit's, to which the offset is added last; units are added in order, and so are slices.
//
// Set by the host, beside what bcq.cuh says:
//   NT       tiles of 8 rows of X: 1 or 2

// What a warp has beside its ring: sums of X of its unit, of each chain for a lane's two rows of X.
static_assert(BESIDE == CHAINS * NT * 4 * 8);

// Columns is what a lane holds of X for a unit: for each product of 16 columns, of a row for each tile of 8, four columns with their negatives
// before them. Of 32 columns a lane has eight consecutive ones, of which the first product takes four.
struct Columns {
    u32 b[16][NT][4];
};

__device__ __forceinline__ void load_columns(Columns& x, const Params& p, const Warp& w, u32 step) {
    const u32 col0 = (p.slices * step + w.slice) * 256 + w.lane % 4 * 8;
#pragma unroll
    for (u32 c = 0; c < 8; c++)
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            const u32 row = 8 * t + w.lane / 4, col = col0 + 32 * c;
            u32 v[4] = {0, 0, 0, 0};
            if (row < p.m && col < p.k) load_cached(v, p.x + ((u64)row * p.k + col) * 2);
#pragma unroll
            for (u32 i = 0; i < 8; i++) x.b[2 * c + i / 4][t][i % 4] = prmt(v[i / 2], 0, i % 2 ? 0x3232 : 0x1010) ^ 0x8000;
        }
}

// multiply adds the products of a plane's words by the columns to the sums of their chains. Both halves of the unit take turns:
// a product waits for the one before it in its chain.
__device__ __forceinline__ void multiply(float (&sums)[CHAINS][NT][4], const u32 (&plane)[4], const Columns& x) {
    const u32 one = BF16 ? 0x3f803f80 : 0x3c003c00;
    const u32 ones[4] = {one, one, one, one};
#pragma unroll
    for (u32 c = 0; c < 4; c++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 i = 4 * half + c;  // of the eight times 32 columns
            const u32 pattern = pattern_of(plane[i / 2], i % 2);
#pragma unroll
            for (u32 t = 0; t < NT; t++) {
                mma_sparse<0>(sums[i * CHAINS / 8][t], ones, x.b[2 * i][t], pattern);
                mma_sparse<1>(sums[i * CHAINS / 8][t], ones, x.b[2 * i + 1][t], pattern);
            }
        }
}

// ---- sums ----

// totals_of returns the sums of a chain's columns of X, for a lane's two rows of it.
__device__ __forceinline__ Floats2& totals_of(const Warp& w, u32 chain, u32 t, u32 column) {
    return *(Floats2*)(shared + w.beside + ((chain * NT + t) * 4 + column) * 8);
}

// fill_totals makes those of a unit, as products by a plane of ones.
__device__ __forceinline__ void fill_totals(const Warp& w, const Columns& x) {
    float all[CHAINS][NT][4] = {};
    const u32 set[4] = {~0u, ~0u, ~0u, ~0u};
    multiply(all, set, x);
    __syncwarp();  // the last unit's are read
    if (w.lane < 4)
#pragma unroll
        for (u32 c = 0; c < CHAINS; c++)
#pragma unroll
            for (u32 t = 0; t < NT; t++) totals_of(w, c, t, w.lane) = {{all[c][t][0], all[c][t][1]}};
    __syncwarp();
}

// multiply_unit adds the products of a record to sums.
__device__ __forceinline__ void multiply_unit(float (&total)[NT][4], const u8* record, const Warp& w, const Columns& x) {
    const u8* factors = own_factors(record, w.lane);
#pragma unroll
    for (u32 i = 0; i < BITS; i++) {
        u32 plane[4];
        float sums[CHAINS][NT][4] = {};
        const Words4 v = *(const Words4*)(record + i * PLANE_BYTES + w.lane * 16);
#pragma unroll
        for (u32 j = 0; j < 4; j++) plane[j] = v.w[j];
        multiply(sums, plane, x);
#pragma unroll
        for (u32 c = 0; c < CHAINS; c++) {
            float f[2];
            factors_of(f, factors, c * GROUPS / CHAINS, i);
#pragma unroll
            for (u32 t = 0; t < NT; t++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) total[t][j] = fmaf(sums[c][t][j], f[j / 2], total[t][j]);
        }
    }
#pragma unroll
    for (u32 c = 0; c < CHAINS; c++) {
        float z[2];
        factors_of(z, factors, c * GROUPS / CHAINS, BITS);
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            const Floats2 of = totals_of(w, c, t, w.lane % 4);
#pragma unroll
            for (u32 j = 0; j < 4; j++) total[t][j] = fmaf(of.f[j % 2], z[j / 2], total[t][j]);
        }
    }
}

__device__ __forceinline__ void write(const Params& p, u32 row, u32 q, const float (&v)[4]) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) write_sum(p, row + j / 2 * 8, 2 * q + j % 2, v[j]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqplanes(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    Cursor ahead = {};
    begin(ahead, p, w);
    fill<0, STAGES - 1>(ahead, p, w);
    wait_previous();

    Ring ring = ring_of(w);
    Columns x;
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 tiles = tiles_of(p, w, first);
        for (u32 step = 0; step < w.steps && tiles; step++) {
            load_columns(x, p, w, step);
            fill_totals(w, x);
            for (u32 i = 0; i < tiles; i++) {
                wait_copies<STAGES - 2>();
                __syncwarp();  // all lanes' copies are there, and all have read the stage that is filled next
                fetch(ahead, p, w, ring.last);
                float total[NT][4] = {};
                multiply_unit(total, shared + ring.stage, w, x);
                next(ring, w);
#pragma unroll
                for (u32 t = 0; t < NT; t++) {
                    const u32 q = 4 * t + w.lane % 4;
                    if (q >= p.parts) continue;
                    Floats4& to = *(Floats4*)(shared + slot(p, w.team + i * p.teams, w.slice, q, w.lane / 4));
                    Floats4 sum = {{total[t][0], total[t][1], total[t][2], total[t][3]}};
                    if (step) {
                        const Floats4 before = to;
#pragma unroll
                        for (u32 j = 0; j < 4; j++) sum.f[j] += before.f[j];
                    }
                    to = sum;
                }
            }
        }
        finish(p, w, first);
        if (first + p.run < w.tiles) __syncthreads();  // before the slots are written again
    }
    wait_copies<0>();
}
