// X is prepared as prepared.cuh has it, for callers who have it row by row, or in another order of columns. There are zeros also where
// there is no row.
//
// Set by the host:
//   ORDER   of columns: 0 for that of prepared.cuh; 1 for pairs of neighbours but one, columns 0 and 2 and 1 and 3 of four, in the places
//           of pairs of neighbours (lutsym.cuh); 2 for their own

struct Columns {
    const u8* x;  // [m][k], of 16-bit numbers
    u8* to;
    u32 m, k;
    u32 atoms;    // ⌈k/128⌉, or more
};

// skip makes of pairs of neighbours pairs of neighbours but one.
__device__ __forceinline__ void skip(u32 (&v)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i += 2) {
        const u32 lo = v[i], hi = v[i + 1];
        v[i] = prmt(lo, hi, 0x5410);
        v[i + 1] = prmt(lo, hi, 0x7632);
    }
}

// A warp takes eight rows and an atom: four times four rows of 64 columns, of which a lane has eight.
extern "C" __global__ void __launch_bounds__(128, 16) lutcolumns(const __grid_constant__ Columns p) {
    launch_next();
    wait_previous();
    const u32 thread = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x % 32, groups = (p.m + 7) / 8;
    for (u32 i = thread / 32; i < groups * p.atoms; i += gridDim.x * 4) {
        const u32 group = i / p.atoms, atom = i - group * p.atoms, part = lane % 8;
        u32 v[4][4] = {};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 m = group * 8 + j / 2 * 4 + lane / 8, k = atom * 128 + j % 2 * 64 + part * 8;
            if (m < p.m && k < p.k) load_cached(v[j], p.x + ((u64)m * p.k + k) * 2);
        }
        u8* to = p.to + (u64)group * 1024;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (ORDER == 1) skip(v[j]);
            if (ORDER != 2) turn(v[j], lane);
            *(Prepared*)(to + prepared_part(j / 2 * 4 + lane / 8, 2 * atom + j % 2, part, groups)) = {{v[j][0], v[j][1], v[j][2], v[j][3]}};
        }
    }
}
