// X as lutmany.cu reads it: [2·⌈k/128⌉][⌈m/8⌉][8][128 bytes], 64 columns of 8 rows in 1024 bytes. Of each 32
// columns the pairs that lanes have of the weights of an mma, 4t + 2s + h of step s, lie in the order 8s + 4h + t:
// as words, four fours are turned. Of row r the 16 bytes that would be part c are part c ^ r%8. Where there is
// no row or column there are zeros.

struct Columns {
    const u8* x;  // [m][k], of 16-bit numbers
    u8* to;
    u32* flags;   // to be set to 0
    u32 m, k;
    u32 atoms;    // ⌈k/128⌉
    u32 zeros;    // flags
};

// A warp takes eight rows and an atom: four times four rows of 64 columns, of which a lane has eight.
extern "C" __global__ void __launch_bounds__(128, 16) lutcolumns(const __grid_constant__ Columns p) {
    launch_next();
    wait_previous();
    const u32 thread = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x % 32, groups = (p.m + 7) / 8;
    for (u32 i = thread; i < p.zeros; i += gridDim.x * 128) p.flags[i] = 0;
    for (u32 i = thread / 32; i < groups * p.atoms; i += gridDim.x * 4) {
        const u32 group = i / p.atoms, atom = i - group * p.atoms, part = lane % 8;
        u32 v[4][4] = {};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 m = group * 8 + j / 2 * 4 + lane / 8, k = atom * 128 + j % 2 * 64 + part * 8;
            if (m < p.m && k < p.k) load_cached(v[j], p.x + ((u64)m * p.k + k) * 2);
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            turn(v[j], lane);
            const u32 row = j / 2 * 4 + lane / 8;
            u8* to = p.to + ((u64)(2 * atom + j % 2) * groups + group) * 1024 + row * 128;
            store(to + (part ^ row) * 16, v[j]);
        }
    }
}
