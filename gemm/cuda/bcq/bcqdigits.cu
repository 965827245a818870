// Y = X·Ŵᵀ for Ŵ of binary codes, ŵ = z + Σ ±αᵢ, as bcqplanes.cu has it, for one or two rows of X: of those the digits are
// multiplied, by products of bytes, of which one takes as many columns as two of halves do.
//
// Digits. The largest number of a row of X in a unit of 256 columns lies below a power of two; in terms of that one by 2⁻²² all its
// numbers are rounded to integers, and those are three digits of base 256, −128 to 127 each. So numbers are exact that have no bits below 2⁻²²
// of that power, and others are off by half of it at most. The digits of a number and of its negative lie side by side as X and −X do in
// bcqplanes.cu, and columns 4m to 4m + 2 of a product are those of row m.
//
// A unit with an infinity or a NaN in a row of X makes that row of Y NaNs.
//
// Order of sums. A plane's sums of digits over a group, or a unit if that is shorter, are exact. Those of the lower two digits are
// one number, that of the upper one another, which go apart to the end: they are multiplied by the factors plane by plane and added to the
// unit's, the offset at last; units are added in order, each times its power of two, and so are slices.
//
// Set by the host, beside what bcq.cuh says:
//   ROWS     of X: 1 or 2

constexpr u32 DIGITS = 3;  // of a number of X
constexpr u32 EARLY = 1;   // stages that are filled before the grids in front have ended: X comes behind them

// Where lanes exchange digits of a row of X, eight times for 32 columns, three times 64 bytes: in the stage of the ring that is filled next, or
// if that is too short beside the ring.
constexpr u32 EXCHANGED = 8 * DIGITS * 64;
static_assert(BESIDE == (RECORD < EXCHANGED ? EXCHANGED : 0));

// mma_ones adds the product of a 16×64 tile of bytes, of which every four columns keep two that are ones, and a 64×8 tile to c. Lane 4g + i
// has the pattern of row g or, where i is odd, g + 8, and of columns 0 to 31 or, from i = 2 on, 32 to 63.
__device__ __forceinline__ void mma_ones(int (&c)[4], const u32 (&b)[4], u32 pattern) {
    const u32 ones = 0x01010101;
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%6,%7,%8}, {%0,%1,%2,%3}, %9, 0x0;"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(ones), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(pattern));
}

// Raw is what a lane makes digits of, for each row of X: sixteen columns in a row, of which it takes the even or the odd ones.
struct Raw {
    u32 w[ROWS][8];
};

__device__ __forceinline__ void load_raw(Raw& raw, const Params& p, const Warp& w, u32 step) {
    const u32 col = (p.slices * step + w.slice) * 256 + w.lane / 4 * 32 + w.lane % 2 * 16;
#pragma unroll
    for (u32 m = 0; m < ROWS; m++) {
        u32 v[2][4] = {};
        if (col < p.k)
#pragma unroll
            for (u32 h = 0; h < 2; h++) load_cached(v[h], p.x + ((u64)m * p.k + col + 8 * h) * 2);
#pragma unroll
        for (u32 i = 0; i < 8; i++) raw.w[m][i] = v[i / 4][i % 4];
    }
}

// Columns is what a lane holds of X for a unit: for each product of 32 columns a digit of eight, each with that of its negative before it.
// Lane 4g + t has digit g % 4 of row g / 4, of columns t/2 + 2j and that and 8 of half t % 2 of the 32, j = 0 to 3. There is no digit 3 and, of one row
// of X, no other, and what is there instead is not looked at.
struct Columns {
    u32 b[8][4];
    float scale;  // of the sums that the lane has in the end
};

// fill_columns makes columns of what lanes loaded. Lane 4c + t makes the digits that lanes of t have of the cth 32 columns, and leaves them
// to those at exchange.
__device__ __forceinline__ void fill_columns(Columns& x, const Raw& raw, const Warp& w, u8* exchange) {
    const u32 g = w.lane / 4, t = w.lane % 4;
#pragma unroll
    for (u32 m = 0; m < ROWS; m++) {
        float v[8];
        u32 most = 0;  // of their bits without the sign, which are in the order of the numbers
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            v[i] = float_of((u16)(raw.w[m][i] >> t / 2 * 16));
            most = max(most, __float_as_uint(v[i]) & 0x7fffffff);
        }
        most = __reduce_max_sync(~0u, most);
        // As floats have it; what is so small that a scale were none is as if it were larger.
        const u32 exponent = max(most >> 23, 22u);
        const float up = f32_of_bits((275 - exponent) << 23);
        const float down = most < 0x7f800000 ? f32_of_bits((exponent - 21) << 23) : f32_of_bits(0x7fffffff);
        if (m == 0 || t / 2 == 1) x.scale = t % 2 ? 65536 * down : down;
        u32 n[8][2];  // of the negative and the number, each digit more by 128
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 bits = __float_as_uint(fmaf(v[i], up, 12582912.0f)), zero = 0x4b400000, more = 0x808080;
            n[i][0] = zero + more - bits;
            n[i][1] = bits - (zero - more);
        }
        u8* at = exchange + (w.lane / 4 * DIGITS * 4 + t) * 16;
        __syncwarp();  // what was there has been read
        Words4 of[DIGITS];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 *a = n[j], *b = n[j + 4];
            const u32 lo[2] = {prmt(a[0], a[1], 0x5140), prmt(b[0], b[1], 0x5140)}, hi[2] = {prmt(a[0], a[1], 0x62), prmt(b[0], b[1], 0x62)};
            of[0].w[j] = prmt(lo[0], lo[1], 0x5410) ^ 0x80808080;
            of[1].w[j] = prmt(lo[0], lo[1], 0x7632) ^ 0x80808080;
            of[2].w[j] = prmt(hi[0], hi[1], 0x5410) ^ 0x80808080;
        }
#pragma unroll
        for (u32 d = 0; d < DIGITS; d++) *(Words4*)(at + d * 64) = of[d];
        __syncwarp();
        if (m == 0 || g / 4 == 1)
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                const Words4 of = *(const Words4*)(exchange + ((c * DIGITS + min(g % 4, DIGITS - 1)) * 4 + t) * 16);
#pragma unroll
                for (u32 j = 0; j < 4; j++) x.b[c][j] = of.w[j];
            }
    }
}

// Sums are those of digits 0 and 1 or, where t is odd, digit 2 and none of row t/2, of rows g and g + 8 of Ŵ.
struct Sums {
    int of[CHAINS][4];
};

// multiply adds the products of a plane's words by the columns to the sums of their chains. Both halves of the unit take turns:
// a product waits for the one before it in its chain.
__device__ __forceinline__ void multiply(Sums& sums, const u32 (&plane)[4], const Columns& x) {
#pragma unroll
    for (u32 c = 0; c < 4; c++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 i = 4 * half + c;  // of the eight times 32 columns
            mma_ones(sums.of[i * CHAINS / 8], x.b[i], pattern_of(plane[i / 2], i % 2));
        }
}

// sum_of returns the sum of a group for row g or g + 8: less than 2²⁴, a float's integers.
__device__ __forceinline__ float sum_of(const Sums& sums, u32 group, u32 j, const Warp& w) {
    const int second = w.lane % 2 ? 0 : 256;
    int sum = 0;
#pragma unroll
    for (u32 c = 0; c < CHAINS / GROUPS; c++) {
        const int (&of)[4] = sums.of[group * (CHAINS / GROUPS) + c];
        sum += of[2 * j] + second * of[2 * j + 1];
    }
    return (float)sum;
}

// plane_of returns the words of a plane for both lanes that share a row each, g and g + 8, as these are the lower and the
// upper halves of what two lanes have in the layout.
__device__ __forceinline__ void plane_of(u32 (&plane)[4], const u8* even, u32 selector) {
    const Words4 lo = *(const Words4*)even, hi = *(const Words4*)(even + 16);
#pragma unroll
    for (u32 j = 0; j < 4; j++) plane[j] = prmt(lo.w[j], hi.w[j], selector);
}

// multiply_unit returns the sums of the products of a record for rows g and g + 8, of digits as Sums has them; totals are those of the columns
// of each group.
__device__ __forceinline__ void multiply_unit(float (&total)[2], const u8* record, const Warp& w, const Columns& x, const float (&totals)[GROUPS]) {
    const u8* factors = own_factors(record, w.lane);
    const u8* even = record + w.lane / 2 * 32;
    const u32 selector = w.lane % 2 ? 0x7632 : 0x5410;
    total[0] = total[1] = 0;
#pragma unroll
    for (u32 i = 0; i <= BITS; i++) {
        Sums sums = {};
        if (i < BITS) {
            u32 plane[4];
            plane_of(plane, even + i * PLANE_BYTES, selector);
            multiply(sums, plane, x);
        }
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            float f[2];
            factors_of(f, factors, group, i);
#pragma unroll
            for (u32 j = 0; j < 2; j++) total[j] = fmaf(i < BITS ? sum_of(sums, group, j, w) : totals[group], f[j], total[j]);
        }
    }
}

// Part m of the sums is of row m, and has those of the lower digits before those of the upper ones.
__device__ __forceinline__ void write(const Params& p, u32 row, u32 q, const float (&v)[4]) {
#pragma unroll
    for (u32 j = 0; j < 2; j++) write_sum(p, row + 8 * j, q, v[j] + v[2 + j]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bcqdigits(const __grid_constant__ Params p) {
    launch_next();
    Warp w = warp_of(p);
    w.lane = opaque(w.lane);  // kept: to read it of the thread's number again takes its time
    Cursor ahead = {};
    begin(ahead, p, w);
    fill<0, EARLY>(ahead, p, w);
    wait_previous();

    Raw raw;  // of the next step
    load_raw(raw, p, w, 0);
    fill<EARLY, STAGES - 1>(ahead, p, w);
    Ring ring = ring_of(w);
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 tiles = tiles_of(p, w, first);
        for (u32 step = 0; step < w.steps && tiles; step++) {
            Columns x;
            fill_columns(x, raw, w, shared + (BESIDE ? w.beside : ring.last));
            load_raw(raw, p, w, step + 1 < w.steps ? step + 1 : 0);
            Sums all = {};
            const u32 set[4] = {~0u, ~0u, ~0u, ~0u};
            multiply(all, set, x);
            float totals[GROUPS];
#pragma unroll
            for (u32 group = 0; group < GROUPS; group++) totals[group] = sum_of(all, group, 0, w);
            for (u32 i = 0; i < tiles; i++) {
                wait_copies<STAGES - 2>();
                __syncwarp();  // all lanes' copies are there, and all have read the stage that is filled next
                fetch(ahead, p, w, ring.last);
                float total[2];
                multiply_unit(total, shared + ring.stage, w, x, totals);
                next(ring, w);
                const u32 t = w.lane % 4;
                if (t / 2 >= ROWS) continue;
                Floats2& to = *(Floats2*)(shared + slot(p, w.team + i * p.teams, w.slice, t / 2, w.lane / 4) + t % 2 * 8);
                Floats2 sum = {};
                if (step) sum = to;
#pragma unroll
                for (u32 j = 0; j < 2; j++) sum.f[j] = fmaf(total[j], x.scale, sum.f[j]);
                to = sum;
            }
        }
        finish(p, w, first);
        if (first + p.run < w.tiles) __syncthreads();  // before the slots are written again
    }
    wait_copies<0>();
}
