// X as lutmany.cu reads it, prepared: [2·⌈k/128⌉][⌈m/8⌉][8][128 bytes], 64 columns of 8 rows in 1024 bytes. Of each 32
// columns the pairs that lanes have of the weights of an mma, 4t + 2s + h of step s, lie in the order 8s + 4h + t:
// as words, four fours are turned. Of row r the 16 bytes that would be part c are part c ^ r%8. Where there is
// no column there are zeros, and where there is no row what nobody looks at.
//
// For kernels that have the types of ptx.cuh or their own, and quad.cuh.

// prepared_part returns where one of the 8 parts of a row's 64 columns of a number lies: bytes from where X begins, of which there
// are so many groups of eight rows.
__device__ __forceinline__ u64 prepared_part(u32 row, u32 columns, u32 part, u32 groups) {
    return ((u64)columns * groups + row / 8) * 1024 + row % 8 * 128 + (part ^ row % 8) * 16;
}

// prepared_at returns where a pair of columns of a row lies, the first of them even.
__device__ __forceinline__ u64 prepared_at(u32 row, u32 column, u32 groups) {
    const u32 pair = column / 2 % 16, part = column / 32 % 2 * 4 + pair % 4;
    return prepared_part(row, column / 64, part, groups) + pair / 4 * 4;
}

struct alignas(16) Prepared { u32 w[4]; };

// prepare writes eight neighbours of a row, of which column is the first. All lanes of a warp call it, and four of them, the first
// of which is a multiple of four, have 32 neighbours, from a multiple of 32 on; or are not there.
__device__ __forceinline__ void prepare(u8* x, u32 groups, u32 row, u32 column, u32 (&eight)[4], bool there) {
    turn(eight, threadIdx.x % 32);
    if (there) *(Prepared*)(x + prepared_at(row, column / 32 * 32 + column / 8 % 4 * 2, groups)) = {{eight[0], eight[1], eight[2], eight[3]}};
}
