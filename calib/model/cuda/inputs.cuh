// What kernels write that products read: rows, or X in a form of products (prepared.cuh for many rows, rotated.cuh for rings), or both.

struct Inputs {
    Act* rows;     // [m][cols], or null
    u8* prepared;  // or null: for cols that are a multiple of 128, and 16 bits
    u8* rotated;   // or null: likewise, and where prepared is null
    u32 groups;    // ⌈m/8⌉

    // store writes a thread's part of a row, from column on. All of a warp call it, with parts side by side.
    __device__ __forceinline__ void store(const Elements& e, u32 row, u32 column, const float (&f)[EACH]) const {
        if (rows) e.store(rows, f);
        if constexpr (sizeof(Act) == 2) {
            if (!prepared && !rotated) return;
            Pack<Act> pack;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) set(pack.at[i], f[i]);
            if (prepared) {
                Prepared x = *(const Prepared*)&pack;
                prepare(prepared, groups, row, column, x.w, e.count != 0);
                return;
            }
            float v[EACH];  // as who reads rows finds them
            values(v, pack);
            write_rotated(rotated, groups, row, column, v, e.count != 0);
        }
    }
};

// Share is what a thread has of all rows of cols: where it lies in rows that are read, pitch elements apart, and in those that are written.
struct Share {
    u32 row;
    u64 column;
    Elements from, to;
    __device__ __forceinline__ Share(u64 cols, u64 pitch, u32 rows)
        : row((blockIdx.x * blockDim.x + threadIdx.x) / parts(cols)),
          column((u64)((blockIdx.x * blockDim.x + threadIdx.x) % parts(cols)) * EACH),
          from(row * pitch + column, row < rows ? row * pitch + cols : 0),
          to(row * cols + column, row < rows ? (row + 1) * cols : 0) {}
    __device__ __forceinline__ static u32 parts(u64 cols) { return (u32)((cols + EACH - 1) / EACH); }  // of a row
};
