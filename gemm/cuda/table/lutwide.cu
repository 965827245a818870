// Y = X·Ŵᵀ with the sums in registers, for many rows of X, up to 32: lut.cuh tells what is computed.
// What was measured, and tried and lost, is in NOTES.md.
//
// Words. A tile is 16 rows of Ŵ over all of K; a unit 256 of its columns and an atom half a unit;
// a slice every SLICES-th unit, which one team of warps multiplies; a run the tiles that a block
// takes at once; a slot the place in shared memory of the sums of a tile in a slice.
//
// Work. A block owns whole tiles, 16 rows of Ŵ over all of K. Its warps are SLICES teams, one for
// each slice of K, whose members have up to TILES tiles each. A warp
// passes over the columns of its slice once, an atom of 128 after the other, and keeps the sums of its
// tiles in registers until the end; so nothing but lookups, codes and X passes the port of
// shared memory, and X once for TILES tiles. X is copied to shared memory an atom ahead, by the
// team of the slice together: a warp says that its part is there in the middle of the atom before,
// and nobody waits unless another is half an atom behind. At the end the slices' sums meet in
// slots, where the table and X were, and are added in order.
//
// Latency. Codes come in batches, one at work and one on the way: the batch that has been used up is
// loaded anew as soon as the first codes of the other are looked up. With DEPTH = 2·TILES a batch is
// all tiles of an atom, else half of them. Two tiles are in one basic block, for the lookups of one
// to pass while the other is multiplied.
//
// Set by the host, beside what lut.cuh names:
//   TILES    whose sums a warp holds
//   SLICES   of K, which divide WARPS, into teams of no more than 4·NT
// and DEPTH is TILES or twice as many.

constexpr u32 TEAM = WARPS / SLICES;  // warps of a slice, each with tiles of its own
constexpr bool DOUBLE = DEPTH > TILES;  // whether a batch is all tiles of an atom
constexpr u32 FIRST = DOUBLE ? TILES : (TILES + 1) / 2;  // tiles of the first batch

// Whether both atoms of a unit have code of their own: with registers of their own, or with
// columns that are looked up differently.
constexpr bool UNROLLED = DOUBLE || turned(0, 1) != turned(1, 1);

// Tiles that are multiplied in one basic block: with four groups an atom the registers do not
// suffice for two.
constexpr u32 TOGETHER = GROUPS == 4 ? 1 : 2;

// X in shared memory, behind the table: of each slice a unit. In odd rows neighbouring 64 bytes
// change places (other_half), so that the eight lanes that read at once, of two rows, do not share
// banks. Eight bytes of each slice for its phases follow, behind the slots where those reach farther.
constexpr u32 X_PITCH = 2 * 256;
constexpr u32 X_BYTES = 8 * NT * X_PITCH;
constexpr u32 TABLE_BYTES = ENTRIES * TABLE_PITCH;
constexpr u32 COPIES = 4 * NT / TEAM;  // that a lane makes of an atom, 16 bytes each
constexpr bool MANY = NT > 2;  // whether the rows of X are more than 16
constexpr bool FAR = MANY || TABLE_BYTES == 0;  // whether slots may reach farther than the table and X

__device__ __forceinline__ u32 other_half(u32 at, u32 odd) { return at ^ odd % 2 * 64; }

struct Warp {
    u32 lane, slice, group;
    u32 tile0, tiles;  // of the block
    u32 units;         // of the slice
};

__device__ __forceinline__ Warp warp_of(const Params& p) {
    Warp w;
    const u32 warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.slice = warp / TEAM;
    // The first of a team have one tile more where they do not divide evenly. With more than 16 rows of X,
    // where that takes longer, those of two slices do not share a scheduler.
    w.group = (warp + (MANY && TEAM < 8 ? warp / 4 * (TEAM / 2) : 0)) % TEAM;
    share_tiles(p, w.tile0, w.tiles);
    w.units = p.units > w.slice ? (p.units - 1 - w.slice) / SLICES + 1 : 0;
    return w;
}

// ---- X ----

// Source is what a lane copies: the same 8 columns of an atom of every 2·TEAM-th row.
struct Source {
    u32 row[MANY ? 1 : COPIES];  // of X, in bytes from its begin; with many only the first is held,
    u32 stride;                  // and what is between them
    u32 rows;         // that there are; of the others nothing is read
    u32 at;           // the lane's columns of the next atom, in bytes from the begin of a row
    u32 to;           // where they go in shared memory, for the first row and a first atom
};

// source_of returns what a lane copies of its slice. That it is opaque keeps it in registers.
__device__ __forceinline__ Source source_of(const Params& p, const Warp& w, u32 columns) {
    Source s;
    const u32 row = w.group * 2 + w.lane / 16;
#pragma unroll
    for (u32 j = 0; j < (MANY ? 1 : COPIES); j++) s.row[j] = opaque(min(row + 2 * TEAM * j, p.m - 1) * p.k * 2);
    s.stride = MANY ? opaque(4 * TEAM * p.k) : 0;
    s.rows = opaque(p.m > row ? (p.m - row + 2 * TEAM - 1) / (2 * TEAM) : 0);
    s.at = w.slice * 512 + w.lane % 16 * 16;
    s.to = opaque(other_half(columns + row * X_PITCH + w.lane % 16 * 16, row));
    return s;
}

// copy_atom begins to copy the next atom, of which ODD says which of its unit it is.
__device__ __forceinline__ void copy_atom(const Params& p, Source& s, u32 odd) {
    const bool inside = s.at < p.k * 2;
#pragma unroll
    for (u32 j = 0; j < COPIES; j++)
        copy_async(s.to + odd * 256 + j * (2 * TEAM * X_PITCH), p.x + ((MANY ? s.row[0] + j * s.stride : s.row[j]) + s.at),
                   inside && j < s.rows ? 16 : 0);
    end_copies();
    s.at += odd ? SLICES * 512 - 256 : 256;
}

// copied waits for what the lane copies but for the last LEFT atoms, and tells its team that it
// is there, and that the lane has read the columns before.
template <u32 LEFT>
__device__ __forceinline__ void copied(u32 phases) {
    wait_copies<LEFT>();
    if (TEAM > 1)
        arrive(phases);  // each lane: racecheck of compute-sanitizer would not follow one for all
    else
        __syncwarp();
}

// Columns is what a lane holds of X for an atom: for each 32 columns eight consecutive ones of
// a row, for each tile of 8 rows.
struct Columns {
    u32 b[4][NT][4];
};

template <u32 ATOM>
__device__ __forceinline__ void read_columns(Columns& x, u32 at) {
#pragma unroll
    for (u32 c = 0; c < 4; c++)
#pragma unroll
        for (u32 t = 0; t < NT; t++) {
            read_shared(x.b[c][t], other_half(at, c) + 8 * t * X_PITCH + c / 2 * 128);
            if (turned(ATOM, c)) turn_columns(x.b[c][t]);
        }
}

// ---- codes ----

struct Ring {
    Atom atom[TILES];
};

// Place is where a lane's codes and scales of an atom lie for a tile of its warp.
struct Place {
    const u8* codes;
    const u8* scales;
};

__device__ __forceinline__ Place second(const Place& at) {
    return {at.codes + ATOM_BYTES, at.scales + (GROUP == 256 ? 0 : 8 * SCALE_BYTES)};
}

// Strides are the bytes from a tile of a warp to its next. With gates the block's tiles are in turns one of gates and what that is
// multiplied by, and so are those of a warp that is alone with its slice: then strides are from a gate to the next, and those
// of ups from a gate to what it is multiplied by.
struct Strides {
    u32 codes, scales, up_codes, up_scales;
};
constexpr bool IN_TURNS = GATES && TEAM == 1;

// skipped returns the bytes from a warp's first tile to another one.
__device__ __forceinline__ Strides skipped(const Strides& stride, u32 tiles) {
    if (IN_TURNS) return {tiles / 2 * stride.codes + tiles % 2 * stride.up_codes, tiles / 2 * stride.scales + tiles % 2 * stride.up_scales};
    return {tiles * stride.codes, tiles * stride.scales};
}

// Share is how many tiles a warp has of a run, in its first batch and in its second.
struct Share {
    u32 first, second;
};

// share_of splits the tiles of a warp. Where two are missing they are of the first batch, so that
// there is a second to load ahead of.
__device__ __forceinline__ Share share_of(u32 tiles) {
    const u32 first = min(tiles, !DOUBLE && FIRST > 2 && tiles + 2 <= TILES ? FIRST - 2 : FIRST);
    return {first, tiles - first};
}

// load loads count tiles of an atom, the first from delay bytes behind a place, to FROM and what
// follows it in the ring, before TO.
template <u32 FROM, u32 TO>
__device__ __forceinline__ void load(Ring& ring, const Strides& stride, const Warp& w, const Place& at, u32 count, u32 delay = 0) {
    if (count == 0) return;
    Place tile = {at.codes + delay, at.scales + delay};
#pragma unroll
    for (u32 t = FROM; t < TO; t++) {
        if (t - FROM < count) {
            load_codes(ring.atom[t].w, tile.codes, w.lane);
            if constexpr (GROUP != 0) load_scales(ring.atom[t].s, tile.scales);
        }
        if (IN_TURNS && t % 2 == 0) {
            tile.codes += stride.up_codes;
            tile.scales += stride.up_scales;
            continue;
        }
        tile.codes += stride.codes;
        tile.scales += stride.scales;
        if (IN_TURNS) {
            tile.codes -= stride.up_codes;
            tile.scales -= stride.up_scales;
        }
    }
}

// ---- multiply ----

// Batch is the next one to be loaded, if any.
struct Batch {
    Ring& ring;
    Place at;
    u32 count;
};

// multiply_tile multiplies a tile of an atom by X, and the first of a batch loads the next one to
// LOAD to END when its first codes are looked up.
template <u32 ATOM, u32 LOAD, u32 END>
__device__ __forceinline__ void multiply_tile(float (&total)[NT][4], const Atom& atom, const Columns& x, const Batch& next, bool first,
                                              const Params& p, const Strides& stride, const Warp& w, const Table& table) {
    u32 a[2][HALF_STEPS][4];
    Sums sums = {};
    dequantize(a[0], atom.w, ATOM, 0, table);
    // Nothing, but not known before a first weight is.
    if (first) load<LOAD, END>(next.ring, stride, w, next.at, next.count, a[0][0][0] & p.n >> 31);
    multiply(sums, a[0], x.b, 0);
    dequantize(a[1], atom.w, ATOM, 1, table);
    float scales[GROUPS * 2];
#pragma unroll
    for (u32 j = 0; j < GROUPS * 2; j++) scales[j] = GROUP ? scale_at(atom.s, j) : 1.0f;
    multiply(sums, a[1], x.b, 1);
    scale(total, sums, scales);
}

// multiply_batch multiplies a batch of count tiles, at FROM and behind it in the ring, by X, and
// meanwhile loads the next batch to LOAD to END. Of two tiles in a basic block the first decides
// whether they are there; what is done in vain changes sums that nobody reads. But where TILES is
// even, the last of an odd number is done alone: one tile and three are common then, and three took
// 10 % longer as four.
template <u32 ATOM, u32 FROM, u32 TO, u32 LOAD, u32 END>
__device__ __forceinline__ void multiply_batch(float (&total)[TILES][NT][4], const Ring& ring, u32 count, const Columns& x, const Batch& next,
                                               const Params& p, const Strides& stride, const Warp& w, const Table& table) {
    if (FROM != 0 && count == 0) {
        load<LOAD, END>(next.ring, stride, w, next.at, next.count);
        return;
    }
#pragma unroll
    for (u32 t = FROM; t < TO; t += TOGETHER) {
        if (t != FROM && t - FROM >= count) continue;
        if (TOGETHER == 1 || t + 1 == TO || TILES % 2 == 0 && t + 1 - FROM == count) {
            multiply_tile<ATOM, LOAD, END>(total[t], ring.atom[t], x, next, t == FROM, p, stride, w, table);
        } else {
            multiply_tile<ATOM, LOAD, END>(total[t], ring.atom[t], x, next, t == FROM, p, stride, w, table);
            multiply_tile<ATOM, LOAD, END>(total[t + 1], ring.atom[t + 1], x, next, false, p, stride, w, table);
        }
    }
}

// Walk is where a warp is in its slice.
struct Walk {
    Place at;       // of the atom at work
    Source ahead;   // of those behind it
    u32 odd;        // whether it is the second of its unit
    u32 left;       // atoms, with this one
    bool first;     // whether it is the slice's first
};

// multiply_atom multiplies the tiles of a run by the atom at work, of which ATOM says which of its
// unit it is where that makes other code, and goes on to the next. Columns are where the lane's
// of a first atom are; skip are the bytes from the first batch to the second.
template <u32 ATOM>
__device__ __forceinline__ void multiply_atom(float (&total)[TILES][NT][4], Ring& ring, Ring& other, Walk& k, const Share& tiles, const Strides& skip,
                                              u32 columns, u32 phases, const Params& p, const Strides& stride, const Warp& w, const Table& table) {
    const u32 odd = UNROLLED ? ATOM : k.odd;
    const Place next = odd ? Place{k.at.codes + (SLICES * (2 * ATOM_BYTES) - ATOM_BYTES),
                                   k.at.scales + (SLICES * UNIT_SCALE_BYTES - (GROUP == 256 ? 0 : 8 * SCALE_BYTES))}
                           : second(k.at);
    const u32 more = k.left > 1 ? tiles.first : 0;
    if (TEAM > 1) wait_phase(phases, odd);
    if (k.left > 1 && !k.first) copy_atom(p, k.ahead, 1 - odd);
    Columns x;
    read_columns<ATOM>(x, columns + odd * 256);
    if constexpr (DOUBLE) {
        multiply_batch<ATOM, 0, TILES, 0, TILES>(total, ring, tiles.first, x, {other, next, k.first ? 0 : more}, p, stride, w, table);
        if (k.left > 1) copied<0>(phases);
    } else {
        const Place rest = {k.at.codes + skip.codes, k.at.scales + skip.scales};
        multiply_batch<ATOM, 0, FIRST, FIRST, TILES>(total, ring, tiles.first, x, {ring, rest, tiles.second}, p, stride, w, table);
        if (k.left > 1) copied<0>(phases);
        multiply_batch<ATOM, FIRST, TILES, 0, FIRST>(total, ring, tiles.second, x, {ring, next, more}, p, stride, w, table);
    }
    k.at = next;
    k.odd ^= 1;
    k.left--;
    k.first = false;
}

// ---- epilogue ----

// A slice's sums of a tile in shared memory, at the end: for each row of X the 16 rows of Ŵ, and 16
// bytes more, so that neither the lanes that write nor those that read share banks.
constexpr u32 SLOT_PITCH = 16 * 4 + 16;
constexpr u32 SLOT_BYTES = 8 * NT * SLOT_PITCH;

// put writes a lane's sums of a tile to its slot.
__device__ __forceinline__ void put(const float (&total)[NT][4], u32 slot, u32 lane) {
#pragma unroll
    for (u32 t = 0; t < NT; t++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            *(float*)(shared + slot + (8 * t + lane % 4 * 2 + j % 2) * SLOT_PITCH + (lane / 4 + j / 2 * 8) * 4) = total[t][j];
}

// Neighbours in a row of Y that a thread finishes at once: as few as leave no thread without.
constexpr u32 EACH = TILES * 4 * NT / SLICES > 4 ? 8 : TILES * 4 * NT / SLICES > 2 ? 4 : 2;

struct alignas(2 * EACH) Rounded { u32 w[EACH / 2]; };

constexpr u32 PART = EACH < 4 ? EACH : 4;  // of them, that are read from a slot at once
struct alignas(4 * PART) Part { float f[PART]; };

// finish_row scales neighbours of a row of Y, where each row of Ŵ has one, and adds the bias.
__device__ __forceinline__ void finish_row(const Params& p, u32 n0, float (&v)[EACH]) {
    if (!p.bias && GROUP != 0) return;
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        float bias = 0, scale = 1;
        if (p.bias && n0 + j < p.n) bias = float_of(p.bias[n0 + j]);
        if constexpr (GROUP == 0) {
            const u32 row = n0 % 16 + j;
            const u32 at = (n0 / 16 * 16 + row % 8 * 2 + row / 8) * SCALE_SIZE;  // rows g and g + 8 lie together
            u32 bits[1] = {};
            for (u32 b = 0; b < SCALE_SIZE; b++) bits[0] |= (u32)p.scales[at + b] << 8 * b;
            scale = scale_at(bits, 0);
        }
        v[j] = fmaf(v[j], scale, bias);
    }
}

// write_row rounds neighbours of a row of Y, the first at a multiple of their number. Rows have n elements.
__device__ __forceinline__ void write_row(const Params& p, u32 n, u32 m, u32 n0, const u16 (&v)[EACH]) {
    Rounded r;
#pragma unroll
    for (u32 j = 0; j < EACH; j += 2) r.w[j / 2] = v[j] | (u32)v[j + 1] << 16;
    u16* y = p.y + ((u64)m * n + n0);
    if (n0 + EACH <= n && (u64)y % sizeof r == 0) {
        *(Rounded*)y = r;
        return;
    }
#pragma unroll
    for (u32 j = 0; j < EACH; j++)
        if (n0 + j < n) y[j] = v[j];
}

// add_up adds up the slots of a tile for neighbours of a row of Y, of which those of the first slice begin at a place.
__device__ __forceinline__ void add_up(const Params& p, const u8* at, float (&v)[EACH]) {
#pragma unroll
    for (u32 s = 0; s < SLICES; s++) {
#pragma unroll
        for (u32 h = 0; h < EACH; h += PART) {
            Part part = {};
            if (s < p.units) part = *(const Part*)(at + s * SLOT_BYTES + h * 4);  // the others have written none
#pragma unroll
            for (u32 j = 0; j < PART; j++) v[h + j] += part.f[j];
        }
    }
}

// finish sums the slots of a run and writes Y. Threads beside each other have rows of X beside each
// other, eight of them, so as not to share banks. A block ends when this does, and only then the next
// can begin: that all threads have some of it, and read all its slots at once, gains up to 9 % on small
// matrices.
__device__ __forceinline__ void finish(const Params& p, const Warp& w, u32 first, u32 run) {
    __syncthreads();
    constexpr u32 rows = 16 / EACH;  // threads for a tile's column of Y
    constexpr u32 together = GATES ? 2 : 1;
    const u32 n = p.n / together;
    for (u32 i = threadIdx.x; i < run / together * (8 * NT * rows); i += THREADS) {
        const u32 row = i / 8 % rows * EACH, m = i % 8 + i / (8 * rows) % NT * 8, tile = i / (8 * NT * rows);
        const u32 n0 = (w.tile0 + first / together + tile) * 16 + row;
        if (m >= p.m || n0 >= n) continue;
        const u8* at = shared + tile * together * SLICES * SLOT_BYTES + m * SLOT_PITCH + row * 4;
        float v[EACH] = {};
        add_up(p, at, v);
        finish_row(p, n0, v);
        u16 y[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; j++) y[j] = rounded_of(v[j]);
#if GATES
        float u[EACH] = {};
        add_up(p, at + SLICES * SLOT_BYTES, u);
        finish_row(p, n + n0, u);
#pragma unroll
        for (u32 j = 0; j < EACH; j++) y[j] = gated(p, y[j], rounded_of(u[j]));
#endif
        write_row(p, n, m, n0, y);
    }
}

// ---- kernels ----

extern "C" __global__ void __launch_bounds__(THREADS, 1) lutgemm(const __grid_constant__ Params p) {
    launch_next();
    const Warp w = warp_of(p);
    const u32 phases = opaque(SHARED_BASE + (FAR ? p.slot_base : TABLE_BYTES + SLICES * X_BYTES) + w.slice * 8);
    const u32 staged = SHARED_BASE + TABLE_BYTES + w.slice * X_BYTES;
    const u32 columns = opaque(other_half(staged + w.lane / 4 * X_PITCH + w.lane % 4 * 16, w.lane / 4));
    const u32 tile_codes = p.units * (2 * ATOM_BYTES), tile_scales = p.units * UNIT_SCALE_BYTES;
    // Of a team of several each warp has gates alone, or what they are multiplied by.
    constexpr u32 apart = GATES && !IN_TURNS ? 2 : 1;
    const Strides stride = {opaque(TEAM / apart * tile_codes), opaque(TEAM / apart * tile_scales), p.n / 32 * tile_codes, p.n / 32 * tile_scales};
    for (u32 first = 0; first < w.tiles; first += p.run) {
        const u32 run = min(p.run, w.tiles - first);
        const Share tiles = share_of(w.units ? (run + TEAM - 1 - w.group) / TEAM : 0);
        const Strides skip = skipped(stride, tiles.first);
        const u64 tile = w.tile0 + (GATES ? first / 2 + w.group / apart + w.group % apart * (p.n / 32) : first + w.group);
        const Place at = {p.codes + (tile * tile_codes + w.slice * (2 * ATOM_BYTES) + w.lane * 16),
                          p.scales + (tile * tile_scales + w.slice * UNIT_SCALE_BYTES + w.lane / 4 * SCALE_BYTES)};
        Ring ring = {}, ring1 = {};  // ring1 is the second atom's, where a batch is all tiles
        load<0, FIRST>(ring, stride, w, at, tiles.first);
        if (DOUBLE) load<0, TILES>(ring1, stride, w, second(at), tiles.first);
        Walk k = {at, source_of(p, w, staged), 0, 2 * w.units, true};
        if (first == 0) {
            if (GROUP) prefetch_scales(p, w.tile0, w.tiles);
#if AHEAD
            ask_for_own(p.ahead, WARPS);
            if (w.units == 0) ask_for_next(p.ahead, WARPS);  // who has nothing to multiply
#endif
            check_base();
            if (TEAM > 1 && threadIdx.x % (32 * TEAM) == 0) begin_phases(phases, 32 * TEAM);
        }
        fill_table(p);
        __syncthreads();
        if (first == 0) wait_previous();
        const Table table = table_of(p, w.lane);
        float total[TILES][NT][4] = {};

        // As many phases end as there are atoms, an even number: each run begins with an even one.
        if (k.left) {
            copy_atom(p, k.ahead, 0);
            copy_atom(p, k.ahead, 1);
            copied<1>(phases);
        }
        while (k.left) {
            multiply_atom<0>(total, ring, DOUBLE ? ring1 : ring, k, tiles, skip, columns, phases, p, stride, w, table);
#if AHEAD
            if (UNROLLED && k.left == 1 && first + p.run >= w.tiles) ask_for_next(p.ahead, WARPS);
#endif
            if (UNROLLED) multiply_atom<1>(total, DOUBLE ? ring1 : ring, ring, k, tiles, skip, columns, phases, p, stride, w, table);
        }
#if AHEAD
        if (!UNROLLED && w.units && first + p.run >= w.tiles) ask_for_next(p.ahead, WARPS);
#endif
        __syncthreads();  // slots are where the table and X were: so the cache keeps more
#pragma unroll
        for (u32 t = 0; t < TILES; t++) {
            const u32 tile = t < FIRST ? t : t - FIRST + tiles.first;
            if (t < FIRST ? t < tiles.first : t - FIRST < tiles.second)
                put(total[t], ((tile * TEAM + w.group) * SLICES + w.slice) * SLOT_BYTES, w.lane);
        }
        finish(p, w, first, run);
        if (first + p.run < w.tiles) __syncthreads();  // and the table where slots were
    }
}
