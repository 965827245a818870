// What a product brings into the level-2 cache for memory to go on reading while nothing is multiplied: of the matrix behind it what
// blocks read there first, as soon as its own last loads are out, and of its own codes some, before X is there.
//
// AHEAD is 1 to ask for line after line, and 2 for bulks, which are Hopper's.
// WITHIN is how many tiles in front of its loads a warp asks for its codes while it multiplies (lutgemm.cu); 0: none.

// Reads are some pieces of each block of a grid: they lie one behind the other, and so do those of blocks.
struct Reads {
    const u8* at;
    u32 blocks;      // 0: there is nothing to read
    u32 each, over;  // pieces of a block; the first so many have one more
    u32 from, to;    // of them that are read
    u32 bytes;       // of each, a multiple of 16
    u32 pitch;       // from a piece to the next
};

struct Ahead {
    Reads next[4], own[2];
};

// ask brings bytes into the level-2 cache. All lanes of a warp call it.
__device__ __forceinline__ void ask(const u8* at, u32 bytes, u32 lane) {
#if AHEAD == 2
    if (lane == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes));
#else
    for (u32 i = lane * 128; i < bytes; i += 32 * 128) prefetch(at + i);
#endif
}

// What a warp asks for at once.
constexpr u32 ASKED = 4096;

// ask_for brings a warp's part of a block's pieces.
__device__ __forceinline__ void ask_for(const Reads& r, u32 block, u32 warps) {
    const u32 lane = threadIdx.x % 32, parts = (r.bytes + ASKED - 1) / ASKED;  // of a piece
    const u32 first = block * r.each + min(block, r.over), end = min(r.to, r.each + (block < r.over ? 1 : 0)) * parts;
    for (u32 i = r.from * parts + threadIdx.x / 32; i < end; i += warps) {
        const u32 piece = i / parts, at = i % parts * ASKED;
        ask(r.at + ((u64)(first + piece) * r.pitch + at), min(ASKED, r.bytes - at), lane);
    }
}

// ask_for_next brings a warp's part of what the product behind this one reads first. There its blocks have the same numbers.
__device__ __forceinline__ void ask_for_next(const Ahead& a, u32 warps) {
#pragma unroll 1
    for (u32 i = 0; i < 4; i++)
        for (u32 block = blockIdx.x; block < a.next[i].blocks; block += gridDim.x) ask_for(a.next[i], block, warps);
}

// ask_for_own brings a warp's part of what the block reads first.
__device__ __forceinline__ void ask_for_own(const Ahead& a, u32 warps) {
#pragma unroll 1
    for (u32 i = 0; i < 2; i++)
        if (blockIdx.x < a.own[i].blocks) ask_for(a.own[i], blockIdx.x, warps);
}
