// Rows of Ŵ as they are multiplied, out of the tiles of repack.CUDATiles.
//
// A block takes a row, a thread columns of it. Neighbours read the same words, which
// the cache holds: the kernel is for what is not read for every token, an embedding's
// rows and the dense form that a gradient is multiplied by.
//
// Set by the host, beside BITS, GROUP, SCALE and BF16, which lut.cuh explains:
//   OUT   0 for float32 results, 1 for the type of the table

struct Rows {
    const u8* codes;
    const u8* scales;
    void* out;         // [rows][k]
    const u32* index;  // of the rows, or null for those from first on
    u32 first, k, atoms;
    u32 codebook[1 << BITS];  // in the low 16 bits
};

constexpr u32 ATOM_COLS = 128;
constexpr u32 ATOM_BYTES = 256 * BITS;
constexpr u32 SCALE_SIZE = SCALE == 3 ? 4 : SCALE >= 4 ? 1 : 2;
constexpr u32 PER_ATOM = GROUP == 0 || GROUP >= 128 ? 1 : 128 / GROUP;  // scales of a row that lie together

// word reads word j of a lane.
__device__ __forceinline__ u32 word(const u8* atom, u32 lane, u32 j) {
    u32 four = j / 4, per = min(4u, 2 * BITS - 4 * four);
    return *(const u32*)(atom + 512 * four + lane * 4 * per + j % 4 * 4);
}

// code_at finds the code of a row of a tile at a column of an atom.
__device__ __forceinline__ u32 code_at(const u8* atom, u32 row, u32 col) {
    const u32 step = col / 32 * 2 + col % 8 / 4, reg = row / 8 + col % 4 / 2 * 2, e = col % 2;
    const u32 lane = row % 8 * 4 + col % 32 / 8, half = step / 4, s = step % 4, q = 4 * s + reg;
    if (BITS == 2) return word(atom, lane, 2 * half + q / 8) >> (q % 8 * 4 + 2 * e) & 3;
    if (BITS == 4) return word(atom, lane, 4 * half + s) >> (8 * reg + 4 * e) & 15;
    if (BITS == 3) {
        u32 low = word(atom, lane, 2 * half + s / 2) >> (8 * reg + 4 * (s % 2) + 2 * e) & 3;
        u32 high = word(atom, lane, 4 + half) >> (8 * reg + (0x0264 >> 4 * s & 15) + e) & 1;  // at bit 4, 6, 2 or 0
        return low | high << 2;
    }
    u32 pair = 0;
    if (q < 15) {
        pair = rotr(word(atom, lane, 5 * half + q / 3), 9 + 2 * (q / 3) + 10 * (q % 3));
    } else {
        for (u32 j = 0; j < 5; j++) pair |= (rotr(word(atom, lane, 5 * half + j), 7 + 2 * j) & 3) << 2 * j;
    }
    return pair >> 5 * e & 31;
}

__device__ __forceinline__ float scale_of(const u8* p) {
    if (SCALE == 3) return *(const float*)p;
    if (SCALE == 1) return f32_of_f16(*(const u16*)p);
    if (SCALE == 2) return f32_of_bits((u32) * (const u16*)p << 16);
    // The bytes are float16 with fewer bits of mantissa and an exponent biased by
    // 11 instead of 15.
    u32 bits = *p;
    return f32_of_f16(SCALE == 4 ? bits << 6 : (bits & 0x80) << 8 | (bits & 0x7f) << 7) * 16.0f;
}

extern "C" __global__ void __launch_bounds__(256) lutrows(const __grid_constant__ Rows p) {
    const u32 n = p.index ? p.index[blockIdx.x] : p.first + blockIdx.x;
    const u32 tile = n / 16, row = n % 16;
    const u32 slots = GROUP == 0 ? 1 : GROUP == 256 ? p.atoms / 2 : p.atoms * PER_ATOM;
    const u8* codes = p.codes + (u64)tile * p.atoms * ATOM_BYTES;
    const u8* scales = p.scales + (u64)tile * 16 * slots * SCALE_SIZE;
    for (u32 k = blockIdx.y * 256 + threadIdx.x; k < p.k; k += gridDim.y * 256) {
        u32 c = code_at(codes + k / ATOM_COLS * ATOM_BYTES, row, k % ATOM_COLS);
        u32 g = GROUP == 0 ? 0 : k / (GROUP == 0 ? 1 : GROUP);
        float s = scale_of(scales + (((g / PER_ATOM * 8 + row % 8) * PER_ATOM + g % PER_ATOM) * 2 + row / 8) * SCALE_SIZE);
        u32 v = p.codebook[c];
        float w = (BF16 ? f32_of_bits(v << 16) : f32_of_f16(v)) * s;
        u64 at = (u64)blockIdx.x * p.k + k;
        if (OUT)
            ((u16*)p.out)[at] = BF16 ? bf16_of_f32(w) : f16_of_f32(w);
        else
            ((float*)p.out)[at] = w;
    }
}
