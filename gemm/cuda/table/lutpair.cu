// Y = X·Ŵᵀ for some 40 to 256 rows of X by large matrices, on Hopper: as lutmany.cu, but a field is two blocks', a pair that is a
// cluster, of which each multiplies by half of its columns. NOTES.md has why, and what was predicted.
//
// Work. A pair is what fields.cuh calls a worker. A field has 128 rows of Ŵ, of which a warpgroup has 64; with SPLITS 2 there are as many
// others again, which take every other atom. What is summed comes together in shared memory: of each piece a block has the sums of all columns for
// one half of the rows of Ŵ, and the block beside it for the other, in turns, so that a warpgroup goes on with the next piece while
// another passes its sums on and writes.
//
// Order of sums. Of a field's 64 rows each warpgroup's sum is wgmma's, over its columns in order. Those of a block are added first, and then
// those of both blocks: which of two is the first makes no difference.
//
// Latency. Behind the products of half an atom a warpgroup looks up the weights of the next half, into registers that the products
// before those before had read, so that it waits for none. With SPLITS 2 there are no registers for three sets of weights, and
// ptxas would wait for each product, as it does without scales of groups: there a warpgroup waits for the products before, and others
// multiply meanwhile.
//
// Set by the host, beside what fields.cuh names:
//   SPLITS   warpgroups that share the columns of 64 rows: 1, or 2 where a stage is an atom
//   HALVES   half atoms of a stage: 1 or 2. STAGES are counted in half atoms, and places are a multiple of SPLITS
// GROUPS4 is 2 and WARPS 8·SPLITS + 4. Without WIDE_ROWS codes have 4 bits. Or weights are made by arithmetic (DECODE 1).

constexpr u32 PLACES = STAGES / HALVES;
static_assert(GROUPS4 == 2 && (SPLITS == 1 || (SPLITS == 2 && HALVES == 2)) && PLACES % SPLITS == 0 && ATOMS % SPLITS == 0 && (WIDE_ROWS || BITS == 4));

// Shared memory behind that of fields.cuh: more phases, and what other warpgroups have sent.
constexpr u32 SENT_PHASES = PHASES_BASE + 16 * (STAGES + ATOMS);  // of two halves of the rows: when all of it is there
constexpr u32 READ_PHASES = SENT_PHASES + 16;                     // when this block, and the other, have read what was sent to them, of even and odd pieces
constexpr u32 SENT_BASE = SENT_PHASES + 48;
constexpr u32 SENDERS = 2 * SPLITS - 1;
constexpr u32 SENT_BYTES = 64 * COLUMNS * 4;  // of a warpgroup

// Places is fields.cuh's Ring where addresses have the block's number.
template <u32 COUNT>
struct Places {
    u32 phases, i, odd;

    __device__ __forceinline__ u32 full() const { return phases + 16 * i; }
    __device__ __forceinline__ u32 empty() const { return full() + 8; }
    __device__ __forceinline__ void wait_full() const { wait_phase(full(), odd); }
    __device__ __forceinline__ void wait_empty() const { wait_phase(empty(), odd ^ 1); }
    __device__ __forceinline__ void step(u32 by) {
        i += by;
        if (i >= COUNT) i -= COUNT, odd ^= 1;
    }
};
using XPlaces = Places<PLACES>;
using CodePlaces = Places<ATOMS>;

// half_of returns the atoms of a piece that a block has.
__device__ __forceinline__ Piece half_of(const Piece& piece, u32 block) {
    const u32 middle = piece.from + (piece.to - piece.from + 1) / 2;
    return block == 0 ? Piece{piece.field, piece.from, middle} : Piece{piece.field, middle, piece.to};
}

// ---- copies ----

// ask_pair_x asks for X for all of a pair's pieces.
__device__ __forceinline__ void ask_pair_x(const Params& p, const Work& w, XPlaces& stage, u32 number, u32 pair, bool& waited) {
    Share share = share_of(w, pair);
    Piece whole;
    while (take(whole, share, w)) {
        const Piece piece = half_of(whole, block_number());
        const u32 group = piece.field / w.rows * (COLUMNS / 8), bytes = min(COLUMNS / 8u, w.groups_of_x - group) * 1024;
        const u8* x = (const u8*)p.x + ((u64)piece.from * 2 * w.groups_of_x + group) * 1024;
        for (u32 i = piece.from * (2 / HALVES); i < piece.to * (2 / HALVES); i++) {
            stage.wait_empty();
            arrive_expecting(stage.full(), HALVES * bytes);
            if (!waited) wait_previous();  // no sooner, for all that has to be fetched to be there by then
            waited = true;
#pragma unroll
            for (u32 half = 0; half < HALVES; half++) {
                copy_bulk(number + X_BASE + (stage.i * HALVES + half) * PART_BYTES, x, bytes, stage.full());
                x += (u64)w.groups_of_x * 1024;
            }
            stage.step(1);
        }
    }
}

// ask_pair_codes asks for the codes and scales of all of a pair's pieces, for every CODING-th tile of a field.
__device__ __forceinline__ void ask_pair_codes(const Params& p, const Work& w, CodePlaces& place, u32 number, u32 pair, u32 first, u32 lane) {
    const u32 tile_codes = p.units * 2 * ATOM_BYTES, tile_scales = p.units * UNIT_SCALE_BYTES;
    Share share = share_of(w, pair);
    Piece whole;
    while (take(whole, share, w)) {
        const Piece piece = half_of(whole, block_number());
        const u32 tile = piece.field % w.rows * TILES, tiles = min(TILES, (p.n + 15) / 16 - tile);
        const u8* codes = p.codes + ((u64)(tile + first) * tile_codes + piece.from * ATOM_BYTES);
        const u8* scales = p.scales + (u64)(tile + first) * tile_scales;
        for (u32 atom = piece.from; atom < piece.to; atom++) {
            place.wait_empty();
            const u8 *c = codes, *s = scales + (GROUP == 256 ? atom / 2 : atom) * ATOM_SCALES;
#pragma unroll
            for (u32 t = first; t < TILES; t += CODING) {
                if (t >= tiles) break;
                copy_parts<ATOM_BYTES>(number + CODES_BASE + (place.i * TILES + t) * ATOM_BYTES, c, lane);
                if constexpr (GROUP != 0) copy_parts<ATOM_SCALES>(number + SCALES_BASE + (place.i * TILES + t) * ATOM_SCALES, s, lane);
                c += CODING * tile_codes;
                s += CODING * tile_scales;
            }
            arrive_copied(place.full());
            codes += ATOM_BYTES;
            place.step(1);
        }
    }
}

// ---- weights ----

// Factors are a lane's scales of an atom, each twice, in the type of X: what weights are multiplied by; and what rounding them to that has left
// over where they are float16 and X bfloat16.
struct Factors {
    u32 scale[2 * GROUPS], rest[2 * GROUPS];
};
constexpr bool HAS_REST = BF16 && SCALE == 1;

__device__ __forceinline__ void factors_of(Factors& f, const u32 (&raw)[RAW_WORDS], float power, u32 power_twice) {
    if constexpr (GROUP != 0) {
#pragma unroll
        for (u32 i = 0; i < 2 * GROUPS; i++) {
            if (!BF16 && SCALE == 1) {
                const u32 both = times(raw[i / 2 % RAW_WORDS], power_twice);
                f.scale[i] = prmt(both, both, i % 2 ? 0x3232 : 0x1010);
                continue;
            }
            const float v = scale_at(raw, i) * power;
            f.scale[i] = BF16 ? bf16x2_of_f32(v, v) : f16x2_of_f32(v, v);
            if (HAS_REST) {
                const float rest = v - f32_of_bits(f.scale[i] & 0xffff0000);
                f.rest[i] = bf16x2_of_f32(rest, rest);
            }
        }
    }
}

// look_up looks up half of an atom.
template <u32 HALF>
__device__ __forceinline__ void look_up(u32 (&a)[HALF_STEPS][4], const u32 (&w)[2 * BITS], const Table& table) {
#if !WIDE_ROWS && !DECODE
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        const u32 word = w[4 * HALF + i / 4];
        constexpr u32 row = 0xff << 7;  // of 128 bytes
        a[i / 4][i % 4] = lookup<SHARED_BASE>(((i % 4 == 0 ? word << 7 : word >> (8 * (i % 4) + 25) % 32) & row) | table.self);
    }
#else
    dequantize(a, w, 0, HALF, table);
#endif
}

// scale_weights multiplies half an atom's weights by their scales.
template <u32 HALF>
__device__ __forceinline__ void scale_weights(u32 (&a)[HALF_STEPS][4], const Factors& f) {
    if constexpr (GROUP != 0) {
#pragma unroll
        for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                const u32 of = (HALF * HALF_STEPS + i) / (8 / GROUPS) * 2 + r % 2;
                a[i][r] = HAS_REST ? times_plus(a[i][r], f.scale[of], times(a[i][r], f.rest[of])) : times(a[i][r], f.scale[of]);
            }
    }
}

// ---- multiply ----

constexpr u32 SETS = SPLITS == 1 && GROUP != 0 ? 3 : 2;  // of half an atom's weights

// Loop is what a warp goes through a piece with.
struct Loop {
    XPlaces stage;
    CodePlaces place;
    u32 words[2 * BITS];  // of the atom that is looked up
    Factors factors;
    u64 columns;  // of the half atom of X that is multiplied by next, where there are registers for it
    u32 left;     // atoms
    u32 last;     // the phase of the place of X before, or 0
};

// Own is what a warp has for all pieces.
struct Own {
    Table table;
    u32 number, tile, lane, power_twice;
    float power;
};

// read_atom reads the codes and scales of the next atom.
__device__ __forceinline__ void read_atom(Loop& l, const Own& own) {
    l.place.wait_full();
    read_codes(l.words, own.number + CODES_BASE + (l.place.i * TILES + own.tile) * ATOM_BYTES, own.lane);
    u32 raw[RAW_WORDS];
    if constexpr (GROUP != 0) read_shared(raw, own.number + SCALES_BASE + (l.place.i * TILES + own.tile) * ATOM_SCALES + own.lane / 4 * SCALE_BYTES);
    let_go(l.place.empty(), own.lane);
    l.place.step(SPLITS);
    factors_of(l.factors, raw, own.power, own.power_twice);
}

// find_x finds where a half atom of X is in the next place: a number that all lanes have, which uniform registers hold.
__device__ __forceinline__ u64 find_x(const Loop& l, u32 half) { return columns_at(__shfl_sync(~0u, X_BASE + (l.stage.i * HALVES + half) * PART_BYTES, 0)); }

// half_atom multiplies by one half of an atom and looks up the weights of the next, of what there is no more in vain.
template <u32 SET, u32 HALF>
__device__ __forceinline__ void half_atom(float (&sums)[COLUMNS / 2], u32 (&a)[SETS][HALF_STEPS][4], Loop& l, const Own& own) {
    constexpr u32 next = (SET + 1) % SETS;
    constexpr bool begins = HALVES == 1 || HALF == 0, ends = HALVES == 1 || HALF == 1;  // a place of X
    if (begins) l.stage.wait_full();
    const u64 columns = SETS == 3 ? l.columns : find_x(l, begins ? 0 : 1);
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++)
#pragma unroll
        for (u32 r = 0; r < 4; r++) a[SET][i][r] = opaque(a[SET][i][r]);
    begin_products();
#pragma unroll
    for (u32 i = 0; i < HALF_STEPS; i++) multiply_group(sums, a[SET][i], columns + 2 * i);  // 32 bytes on
    end_products();
    __syncwarp();  // or ptxas would have the products wait for lookups
    const u32 empty = l.stage.empty();
    if (ends) {
        l.stage.step(SPLITS);
        if (SETS == 3) l.columns = find_x(l, 0);
    }
    if (SETS == 2) wait_products<1>();
    look_up<1 - HALF>(a[next], l.words, own.table);
    scale_weights<1 - HALF>(a[next], l.factors);
    if (HALF == 0 && l.left > 1) read_atom(l, own);
    if (SETS == 3) wait_products<1>();
    if (begins && l.last) let_go(l.last, own.lane);
    if (begins) l.last = empty;
}

// multiply multiplies so many atoms of a piece.
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], Loop& l, u32 atoms, const Own& own) {
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
    if (atoms == 0) return;
    l.left = atoms;
    l.last = 0;
    u32 a[SETS][HALF_STEPS][4];
    read_atom(l, own);
    look_up<0>(a[0], l.words, own.table);
    scale_weights<0>(a[0], l.factors);
    if (SETS == 3) l.columns = find_x(l, 0);
    for (;;) {
        half_atom<0, 0>(sums, a, l, own);
        half_atom<1, 1>(sums, a, l, own);
        if (--l.left == 0) break;
        if (SETS == 2) continue;
        half_atom<2 % SETS, 0>(sums, a, l, own);
        half_atom<0, 1>(sums, a, l, own);
        if (--l.left == 0) break;
        half_atom<1, 0>(sums, a, l, own);
        half_atom<2 % SETS, 1>(sums, a, l, own);
        if (--l.left == 0) break;
    }
    wait_products<0>();
    let_go(l.last, own.lane);
}

// ---- sums ----

// sent_at returns where a sender's sums of a warp are.
__device__ __forceinline__ u32 sent_at(u32 sender, const Own& own) { return own.number + SENT_BASE + sender * SENT_BYTES + (own.tile % 4 * (COLUMNS / 8) * 32 + own.lane) * 16; }

// pass sends the sums of a piece, the nth of the block, to the block that has these rows.
__device__ __forceinline__ void pass(const float (&sums)[COLUMNS / 2], const Own& own, u32 n, u32 to, u32 split) {
    const bool far = to != block_number();
    const u32 rows = own.tile / 4, sender = far ? (SPLITS - 1) + split : 0;
    // Each warpgroup waits for all phases of even pieces, or of odd ones: so it tells one from the next.
    if (n > 0) wait_far(own.number + READ_PHASES + (far ? 16 : 0) + (n - 1) % 2 * 8, (n - 1) / 2 & 1);
    const u32 at = far_shared(sent_at(sender, own), to), phase = far_shared(own.number + SENT_PHASES + 8 * rows, to);
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 8; i++) send(at + 512 * i, sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3], phase);
}

// gather adds what others have sent of the nth piece.
__device__ __forceinline__ void gather(float (&sums)[COLUMNS / 2], const Own& own, u32 n) {
    const u32 phase = own.number + SENT_PHASES + 8 * (own.tile / 4);
    if (own.tile % 4 == 0 && own.lane == 0) expect(phase, SENDERS * SENT_BYTES);
    __syncwarp();
    wait_far(phase, n / 2 & 1);  // of every other piece
#pragma unroll
    for (u32 i = 0; i < COLUMNS / 8; i++) {
        float v[SENDERS][4];
#pragma unroll
        for (u32 s = 0; s < SENDERS; s++) receive(v[s], sent_at(s, own) + 512 * i);
#pragma unroll
        for (u32 j = 0; j < 4; j++) sums[4 * i + j] = SPLITS == 1 ? sums[4 * i + j] + v[0][j] : (sums[4 * i + j] + v[0][j]) + (v[SENDERS / 2][j] + v[SENDERS - 1][j]);
    }
    __syncwarp();
    if (own.lane == 0) {
        const u32 at = own.number + READ_PHASES + n % 2 * 8;
        arrive(at);
        arrive_far(far_shared(at + 16, 1 - block_number()));
    }
}

// ---- kernel ----

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutpair(const __grid_constant__ Params p, const __grid_constant__ Work w) {
    // Registers of a thread that multiplies and of one that does not: in all what the block begins with.
    constexpr u32 MULTIPLYING = SPLITS == 1 ? 232 : 104, ASKING = SPLITS == 1 ? 40 : 64;
    launch_next();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, number = number_of(shared);
    if (shared_address(shared) != SHARED_BASE + number) __trap();
    if (threadIdx.x < PLACES) {
        begin_phases(number + PHASES_BASE + 16 * threadIdx.x, 1);
        begin_phases(number + PHASES_BASE + 16 * threadIdx.x + 8, TILES);
    } else if (threadIdx.x < PLACES + ATOMS) {
        const u32 at = number + PHASES_BASE + 16 * (threadIdx.x - PLACES + STAGES);
        begin_phases(at, 32 * CODING);
        begin_phases(at + 8, TILES);
    } else if (threadIdx.x < PLACES + ATOMS + 6) {
        const u32 i = threadIdx.x - PLACES - ATOMS;
        begin_phases(number + SENT_PHASES + 8 * i, i < 2 ? 1 : 4);  // and READ_PHASES
    }
    show_phases();
    if (WIDE_ROWS || DECODE)
        fill_table(p);
    else
        fill_pairs(p);
    __syncthreads();
    meet_cluster();
    // Those of two blocks are neighbours, for all before them to be their own or of blocks before.
    const u32 pairs = gridDim.x / 2, block = block_number(), at = blockIdx.x / 2;
    const u32 begin = (u32)((u64)w.workers * at / pairs), end = (u32)((u64)w.workers * (at + 1) / pairs);
    XPlaces stage = {number + PHASES_BASE, 0, 0};
    CodePlaces place = {number + PHASES_BASE + 16 * STAGES, 0, 0};
    if (warp >= TILES * SPLITS) {
        fewer_registers<ASKING>();
        bool waited = false;
        for (u32 pair = begin; pair < end; pair++) {
            if (warp == TILES * SPLITS && lane == 0) ask_pair_x(p, w, stage, number, pair, waited);
            if (warp > TILES * SPLITS) ask_pair_codes(p, w, place, number, pair, warp - TILES * SPLITS - 1, lane);
        }
        return;
    }
    more_registers<MULTIPLYING>();
    const u32 split = warp / TILES, tile = warp % TILES, rows = tile / 4;
    Own own = {};
    own.number = number, own.tile = tile, own.lane = lane, own.power = w.power;
    own.power_twice = opaque(f16x2_of_f32(w.power, w.power));
#if !DECODE
    own.table.self = number | lane * (BITS == 2 ? 8 : 4);
#endif
    Loop l;
    l.stage = stage;
    l.place = place;
    l.stage.step(split);
    l.place.step(split);
    float sums[COLUMNS / 2];
    u32 n = 0, atoms = 0;  // pieces and atoms of the block before
    for (u32 pair = begin; pair < end; pair++) {
        Share share = share_of(w, pair);
        Piece piece;
        while (take(piece, share, w)) {
            const Piece half = half_of(piece, block);
            const u32 of = half.to - half.from;
            multiply(sums, l, SPLITS == 1 ? of : (of + (atoms % 2 == split ? 1 : 0)) / 2, own);
            atoms += of;
            const u32 to = (rows ^ n) & 1;
            if (to != block || split != 0) {
                pass(sums, own, n, to, split);
            } else {
                gather(sums, own, n);
                wait_previous();  // long over, for X has been there
                if (piece.to < w.atoms) {
                    leave(sums, w, pair, tile, lane);
                } else {
                    if (piece.from > 0) collect(sums, w, piece, pair, tile, lane);
                    write(sums, p, w, piece, tile, lane);
                }
            }
            n++;
        }
    }
    __syncwarp();
    meet_cluster();  // so that nobody sends to a block that has ended
}
