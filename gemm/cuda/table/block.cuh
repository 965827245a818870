// What a block of the kernels for very many rows of X does, whatever its warps multiply by. One warp copies X and others codes, each with few
// registers; the rest multiply the pieces of the block's workers and pass on sums (fields.cuh).
//
// OWN is what is the kernel's own, for a lane:
//   fill      writes what warps look up in shared memory
//   multiply  multiplies a piece
//   finish    does what is left to do to the sums of a field before they are written
template <class OWN>
__device__ __forceinline__ void run_block(const Params& p, const Work& w, const float* row_scales) {
    launch_next();
    check_base();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < STAGES + ATOMS) {
        begin_phases(PHASES_BASE + 16 * threadIdx.x, threadIdx.x < STAGES ? 1 : 32 * CODING);
        begin_phases(PHASES_BASE + 16 * threadIdx.x + 8, TILES);
        show_phases();
    }
#if GATES
    if (threadIdx.x == THREADS - 1) {
        begin_phases(MEETING, TILES);
        show_phases();
    }
    Meeting meeting = {0};
#endif
    OWN::fill(p);
    __syncthreads();
    // Those of a block are neighbours, for all before them to be its own or of blocks before.
    const u32 begin = (u32)((u64)w.workers * blockIdx.x / gridDim.x), end = (u32)((u64)w.workers * (blockIdx.x + 1) / gridDim.x);
    Stages stage = {0, 0};
    Codes place = {0, 0};
    if (warp >= TILES) {
        fewer_registers<OWN::ASKING>();
        for (u32 worker = begin; worker < end; worker++) {
            if (warp == TILES && lane == 0) ask_x(p, w, stage, worker);
            if (warp > TILES) ask_codes(p, w, place, worker, warp - TILES - 1, lane);
        }
        return;
    }
    more_registers<OWN::MULTIPLYING>();
    const OWN own(p, w, row_scales, lane);
    float sums[COLUMNS / 2];
    for (u32 worker = begin; worker < end; worker++) {
        Share share = share_of(w, worker);
        Piece piece;
        while (take(piece, share, w)) {
            own.multiply(sums, w, piece, stage, place, warp, lane);
            wait_previous();  // long over, for X has been there
            if (piece.to < w.atoms) {
                leave(sums, w, worker, warp, lane);
                continue;
            }
            if (piece.from > 0) collect(sums, w, piece, worker, warp, lane);
            own.finish(sums, piece, lane);
#if GATES
            write_gated(sums, p, w, piece, meeting, warp, lane);
#else
            write(sums, p, w, piece, warp, lane);
#endif
        }
    }
}
