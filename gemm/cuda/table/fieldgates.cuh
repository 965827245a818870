// The end of a field with GATES: what fields.cuh has as write. Results of gates and of what they are multiplied by, rounded, meet in
// shared memory, where a warp has 8 rows of X by 32 of the gates.
//
// Set by the host, beside what fields.cuh names:
//   INTO  1 if Y is written as prepared.cuh has it, of whole atoms, and 0 if row by row

constexpr u32 MEETING = PHASES_BASE + 16 * (STAGES + ATOMS);

// Meeting is where the warps that multiply wait for each other.
struct Meeting {
    u32 odd;
    __device__ __forceinline__ void meet(u32 lane) {
        let_go(MEETING, lane);
        wait_phase(MEETING, odd);
        odd ^= 1;
    }
};

__device__ __forceinline__ void write_gated(const float (&sums)[COLUMNS / 2], const Params& p, const Work& w, const Piece& piece, Meeting& meeting, u32 tile,
                                            u32 lane) {
    const u32 first = piece.field % w.rows * NEIGHBOURS, together = tiles_together(p), m0 = piece.field / w.rows * COLUMNS;
    const bool is_tile = first + tile % NEIGHBOURS < together;
    const Ends ends = ends_of(p, w, is_tile ? (first + tile % NEIGHBOURS + tile / NEIGHBOURS * together) * 16 : 0, lane);
    // Of 32 rows of X eight are the warp's, and a lane has half of one of two tiles.
    const u32 row = tile / (TILES / 4) * 8 + lane / 4, gates = tile % (TILES / 4) * 2 + lane / 2 % 2, column = (first + gates) * 16 + lane % 2 * 8;
    const u32 from = OUT_BASE + gates * OUT_BYTES + row * OUT_PITCH + lane % 2 * 16;
    [[maybe_unused]] const bool whole = (u64)p.y % 16 == 0;
#pragma unroll
    for (u32 i = 0; i < COLUMNS / OUT_ROWS; i++) {
        const u32 m = m0 + OUT_ROWS * i + row;
        if (m0 + OUT_ROWS * i >= p.m) break;
        if (is_tile) put(sums, i, ends, tile, lane);
        meeting.meet(lane);
        const bool there = row < OUT_ROWS && first + gates < together && m < p.m;
        u32 gate[4] = {}, up[4] = {};
        if (there) {
            read_shared(gate, from);
            read_shared(up, from + NEIGHBOURS * OUT_BYTES);
        }
        meeting.meet(lane);  // before others are put there
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            gate[j] = gated(p, (u16)gate[j], (u16)up[j]) | (u32)gated(p, (u16)(gate[j] >> 16), (u16)(up[j] >> 16)) << 16;
#if INTO
        prepare((u8*)p.y, w.groups_of_x, m, column, gate, there);
#else
        if (!there) continue;
        u16* y = p.y + ((u64)m * (p.n / 2) + column);
        if (whole) {
            store(y, gate);
            continue;
        }
#pragma unroll 1
        for (u32 j = 0; j < 8; j++) {
            y[j] = (u16)gate[0];
            shift_down(gate);
        }
#endif
    }
}
