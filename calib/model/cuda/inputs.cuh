// What kernels write that products read: rows, or X prepared for products of many of them (prepared.cuh), or both.

struct Inputs {
    Act* rows;     // [m][cols], or null
    u8* prepared;  // or null: for cols that are a multiple of 128, and 16 bits
    u32 groups;    // ⌈m/8⌉

    // store writes a thread's part of a row, from column on. All of a warp call it, with parts side by side.
    __device__ __forceinline__ void store(const Elements& e, u32 row, u32 column, const float (&f)[EACH]) const {
        if (rows) e.store(rows, f);
        if constexpr (sizeof(Act) == 2) {
            if (!prepared) return;
            Pack<Act> pack;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) set(pack.at[i], f[i]);
            Prepared x = *(const Prepared*)&pack;
            prepare(prepared, groups, row, column, x.w, e.count != 0);
        }
    }
};
