// Weights for wgmma, looked up into its registers, and how they are multiplied by X: what lutmany.cu and lutspread.cu have in common. It follows
// fields.cuh.
//
// Unlike in lut.cuh, scales are applied to the weights: a table value times its group's scale is rounded to the type
// of X, as lutdense.cu does it. Scales come into the range of that type by a power of two that is the matrix's own,
// taken back at the end; one scale a row is applied to the sums.
//
// With SPARSE wgmma takes twice the columns of X for as many weights, which are those that are kept (lutsparse.cu).
//
// PLANES is for 4 bits. With DECODE 1 (lutsym.cuh) there is no table, and with PLANES and WIDE_ROWS 0.

// ---- weights ----

// Bytes holds the table's low bytes and its high ones, for codes of 4 bits.
struct Bytes {
    u32 low[4], high[4];
};

__device__ __forceinline__ Bytes bytes_of(const Params& p) {
    Bytes b = {};
#if PLANES
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        b.low[i / 4] |= (p.codebook[i] & 0xff) << i % 4 * 8;
        b.high[i / 4] |= p.codebook[i] >> 8 << i % 4 * 8;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {  // or uniform registers have them, of which each use would move them
        b.low[i] = opaque(b.low[i]);
        b.high[i] = opaque(b.high[i]);
    }
#endif
    return b;
}

// look_up_bytes looks up a word of eight 4-bit codes, a step.
__device__ __forceinline__ void look_up_bytes(u32 (&a)[4], u32 word, const Bytes& b) {
    u32 codes = word & 0x77777777, halves = (word >> 1 & 0x44444444) | 0x32103210;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 low = sixteen(b.low, codes, halves), high = sixteen(b.high, codes, halves);
        a[2 * i] = prmt(low, high, 0x5140);
        a[2 * i + 1] = prmt(low, high, 0x7362);
        codes >>= 16;
        halves >>= 16;
    }
}

// Doubled is a scale twice, in the type of X, and what rounding it to that has left over where it is float16 and X
// bfloat16.
struct Doubled {
    u32 scale, rest;
};
constexpr bool RESTS = BF16 && SCALE == 1;

__device__ __forceinline__ Doubled doubled(float scale) {
    Doubled d = {};
    if (BF16) {
        d.scale = bf16x2_of_f32(scale, scale);
        if (RESTS) {
            const float rest = scale - f32_of_bits(d.scale & 0xffff0000);
            d.rest = bf16x2_of_f32(rest, rest);
        }
    } else {
        d.scale = f16x2_of_f32(scale, scale);
    }
    return d;
}

__device__ __forceinline__ u32 scaled(u32 pair, const Doubled& d) {
    return RESTS ? times_plus(pair, d.scale, times(pair, d.rest)) : times(pair, d.scale);
}

#if !DECODE
// pair_at looks up the pair of which the codes begin at a bit of a word.
template <u32 BIT>
__device__ __forceinline__ u32 pair_at(u32 word, u32 self) {
    constexpr u32 mask = ((1 << 2 * BITS) - 1) << 7;
    return lookup<SHARED_BASE>(((BIT < 7 ? word << (7 - BIT) % 32 : word >> (BIT - 7) % 32) & mask) | self);
}
template <u32 BIT>
__device__ __forceinline__ void pairs_at(u32 (&a)[4], u32 word, u32 self) {
    constexpr u32 next = BITS == 2 ? 4 : 8;
    a[0] = pair_at<BIT>(word, self);
    a[1] = pair_at<BIT + next>(word, self);
    a[2] = pair_at<BIT + 2 * next>(word, self);
    a[3] = pair_at<BIT + 3 * next>(word, self);
}
#endif

// look_up looks up half of an atom.
__device__ __forceinline__ void look_up(u32 (&a)[HALF_STEPS][4], const u32 (&w)[2 * BITS], u32 half, const Table& table, const Bytes& bytes) {
#if PLANES
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) look_up_bytes(a[i], w[4 * half + i], bytes);
#elif WIDE_ROWS || DECODE
    dequantize(a, w, 0, half, table);
#elif BITS == 2
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        pairs_at<0>(a[2 * i], w[2 * half + i], table.self);
        pairs_at<16>(a[2 * i + 1], w[2 * half + i], table.self);
    }
#elif BITS == 3
    constexpr u32 nibble = 0x0f0f0f0f;  // as in dequantize
    const u32 low = w[2 * half], high = w[2 * half + 1], b = w[4 + half];
    pairs_at<0>(a[0], select<nibble>(low, b), table.self);
    pairs_at<0>(a[1], select<nibble>(low >> 4, b >> 2), table.self);
    pairs_at<0>(a[2], select<nibble>(high, b << 2), table.self);
    pairs_at<0>(a[3], select<nibble>(high >> 4, b << 4), table.self);
#elif BITS == 4
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) pairs_at<0>(a[i], w[4 * half + i], table.self);
#else
    dequantize(a, w, 0, half, table);
#endif
}

// weights looks up half of an atom and applies the scales.
__device__ __forceinline__ void weights(u32 (&a)[HALF_STEPS][4], const u32 (&words)[2 * BITS], const Doubled (&scales)[2 * GROUPS], u32 half,
                                        const Table& table, const Bytes& bytes) {
    look_up(a, words, half, table, bytes);
    if constexpr (GROUP != 0) {
#pragma unroll
        for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
            for (u32 r = 0; r < 4; r++) a[i][r] = scaled(a[i][r], scales[(half * HALF_STEPS + i) / (8 / GROUPS) * 2 + r % 2]);
    }
}

// ---- multiply ----

// double_scales makes of a lane's scales of an atom what weights are multiplied by.
__device__ __forceinline__ void double_scales(Doubled (&d)[2 * GROUPS], const u32 (&raw)[RAW_WORDS], float power, u32 twice) {
    if constexpr (GROUP != 0) {
#pragma unroll
        for (u32 i = 0; i < 2 * GROUPS; i += 2) {
            if (!BF16 && SCALE == 1) {
                const u32 both = times(raw[i / 2 % RAW_WORDS], twice);
                d[i].scale = prmt(both, both, 0x1010);
                d[i + 1].scale = prmt(both, both, 0x3232);
            } else {
                d[i] = doubled(scale_at(raw, i) * power);
                d[i + 1] = doubled(scale_at(raw, i + 1) * power);
            }
        }
    }
}

// issue begins to multiply half an atom by X: by a stage, or where that has fewer columns by the next one, too.
constexpr u32 SPAN = OF_ATOM / 2;  // stages of half an atom

__device__ __forceinline__ void issue(float (&sums)[COLUMNS / 2], u32 (&a)[HALF_STEPS][4], u32 (&pattern)[2], const u64 (&columns)[SPAN]) {
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
        for (u32 r = 0; r < 4; r++) a[i][r] = opaque(a[i][r]);
#if SPARSE
    pattern[0] = opaque(pattern[0]);
    pattern[1] = opaque(pattern[1]);
    begin_products();
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i += 2) {  // steps of 32 columns, two to a part of X and a word of the pattern
        const u64 part = SPAN == 2 ? columns[i / 2 % SPAN] : columns[0] + i / 2 * (PART_BYTES / 16);
        multiply_group<0>(sums, a[i], part, pattern[i / 2]);
        multiply_group<1>(sums, a[i + 1], part + 4, pattern[i / 2]);  // 64 bytes on
    }
#else
    begin_products();
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) multiply_group(sums, a[i], columns[0] + 2 * i);  // 32 bytes on
#endif
    end_products();
}
