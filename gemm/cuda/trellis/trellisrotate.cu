// X as trellisgemm.cu reads it: each number times its column's factor, mixed in blocks by Hadamard matrices (trellis.Rotate) and rounded to
// float16, whatever the type of X; what is beyond its range becomes its largest number. Columns that k leaves of a tile are zeros.
//
// A warp takes 128 columns of a row, of which a lane has four neighbours.

struct Rotation {
    const u8* x;         // [m][k], of 16-bit numbers
    u8* to;              // as rotated.cuh has it
    const u16* factors;  // of columns, in float16, or null for those of the formula
    u32 m, k;            // k is a multiple of 32
    u32 columns;         // of tiles: ⌈k/64⌉
    u32 groups;          // ⌈m/8⌉
};

struct alignas(8) Pairs { u32 w[2]; };

extern "C" __global__ void __launch_bounds__(128) trellisrotate(const __grid_constant__ Rotation p) {
    launch_next();
    const u32 lane = threadIdx.x % 32, blocks = (p.k + 127) / 128;
    const u32 i = blockIdx.x * 4 + threadIdx.x / 32, block = i % blocks, row = i / blocks;
    if (row >= p.m) return;
    const u32 column = block * 128 + lane * 4, tile = column / TILE, size = block_of(p.k - block * 128, lane);
    float f[4] = {}, v[4] = {};
    if (column < p.k) factors_of(f, p.factors, column);
    wait_previous();
    if (column < p.k) {
        const Pairs x = *(const Pairs*)(p.x + ((u64)row * p.k + column) * 2);
#pragma unroll
        for (u32 j = 0; j < 4; j++) v[j] = float_of((u16)(x.w[j / 2] >> j % 2 * 16)) * f[j];
    }
    mix(v, size, lane);
    const float by = NORM * even(size);
#pragma unroll
    for (u32 j = 0; j < 4; j++) v[j] = column < p.k ? bounded(v[j] * by) : 0.0f;
    if (tile >= p.columns) return;
    *(Pairs*)(p.to + rotated_at(row, column, p.groups)) = {{f16x2_of_f32(v[0], v[1]), f16x2_of_f32(v[2], v[3])}};
}
