// Y = X·Ŵᵀ for very many rows of X, on Hopper: wgmma with the weights looked up into its registers (weights.cuh). X is prepared
// (lutcolumns.cu). What was measured, and tried and lost, is in NOTES.md.
//
// Sums are wgmma's, over all columns of a piece in order.
//
// Latency. Warpgroups look up the weights of one half of an atom while they multiply by the other's, and read the codes of the
// next atom before they wait for that. fields.cuh has the rest.

// multiply multiplies a piece. It asks early whether the next stage is there, for the answer takes long.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], const Piece& piece, Stages& stage, Codes& place, u32 tile, u32 lane, float power,
                                         const Table& table, const Bytes& bytes) {
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
    u32 a[2][HALF_STEPS][4], pattern[2][2] = {};
    Read r = {};
    place.wait_full();
    read(r, place, tile, lane);
    let_go(place.empty(), lane);
    place.step();
    const u32 twice = opaque(f16x2_of_f32(power, power));
    u32 last = 0, last_but_one = 0;  // phases of the stages before
    for (u32 left = piece.to - piece.from; left != 0; left--) {
        Doubled scales[2 * GROUPS];
        double_scales(scales, r.scales, power, twice);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const bool next = half == 1 && left > 1;  // whether another atom's codes are read
            const u32 there = stage.is_full(), codes_there = next ? place.is_full() : 1;
            // A number that all lanes have is the descriptor's, which uniform registers hold.
            u64 columns[SPAN];
            columns[0] = columns_at(__shfl_sync(~0u, X_BASE + stage.i * X_BYTES, 0));
            Stages second = stage;
            if constexpr (SPAN == 2) {
                second.step();
                columns[1] = columns_at(__shfl_sync(~0u, X_BASE + second.i * X_BYTES, 0));
            }
            weights(a[half], r.words, scales, half, table, bytes);
#if SPARSE
            pattern[half][0] = r.pattern[2 * half];
            pattern[half][1] = r.pattern[2 * half + 1];
#endif
            if (next) {
                if (!codes_there) place.wait_full();
                read(r, place, tile, lane);
            }
            if (!there) stage.wait_full();
            if (SPAN == 2) second.wait_full();
            issue(sums, a[half], pattern[half], columns);
            if (next) {
                let_go(place.empty(), lane);
                place.step();
            }
            wait_products<1>();
            if (SPAN == 2 && last) let_go(last_but_one, lane);
            if (last) let_go(last, lane);
            if (SPAN == 2) {
                last_but_one = stage.empty();
                stage.step();
            }
            last = stage.empty();
            stage.step();
        }
    }
    wait_products<0>();
    if (SPAN == 2) let_go(last_but_one, lane);
    let_go(last, lane);
}

// ---- kernel ----

struct Many {
    // Registers of a thread that multiplies and of one that does not: in all what the block begins with.
    static constexpr u32 MULTIPLYING = GROUPS4 == 2 ? 232 : GROUPS4 == 3 ? 144 : 104, ASKING = GROUPS4 == 2 ? 40 : GROUPS4 == 3 ? 80 : 64;

    Table table;
    Bytes bytes;

    static __device__ __forceinline__ void fill(const Params& p) {
        if (WIDE_ROWS || DECODE)
            fill_table(p);
        else if (!PLANES)
            fill_pairs(p);
#if SPARSE
        fill_patterns();
#endif
    }

    __device__ __forceinline__ Many(const Params& p, const Work&, const float*, u32 lane) : table{} {
#if !DECODE
        table.self = lane * (WIDE_ROWS && BITS == 2 ? 8 : 4);
#endif
        bytes = bytes_of(p);
    }

    __device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], const Work& w, const Piece& piece, Stages& stage, Codes& place, u32 tile, u32 lane) const {
        ::multiply(sums, piece, stage, place, tile, lane, w.power, table, bytes);
    }

    __device__ __forceinline__ void finish(float (&)[COLUMNS / 2], const Piece&, u32) const {}
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutmany(const __grid_constant__ Params p, const __grid_constant__ Work w) {
    run_block<Many>(p, w, nullptr);
}
