// Attention of the newest token of each text, from what a layer's product has of it to what the next one reads: the
// norms of heads, the turning of queries and keys, the keeping of keys and values, and the mixing of values.
// For activations of 16 bits.

// A block has some query heads of a head of keys and values, as many as an mma has columns, and its warps
// 16 keys at a time each. So keys and values are read once for all of these heads. It has eight warps, or half as many where blocks
// are many, so that all are on the multiprocessors at once, and for heads of more than 128 elements, as all mixtures are in shared memory.
constexpr u32 ATTEND_HEADS = 8, ATTEND_KEYS = 16;

// Elements from one head in shared memory to the next, so that lanes that read together do not share banks.
__device__ __forceinline__ constexpr u32 attend_pitch(u32 dim) { return dim + 8; }

__device__ __forceinline__ float rounded(float f) {
    Act x;
    set(x, f);
    return value(x);
}

// transposed is an 8×8 tile, a row of it in four lanes, with rows and columns changed.
__device__ __forceinline__ u32 transposed(u32 tile) {
    u32 d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(tile));
    return d;
}

struct alignas(16) Part { u32 w[4]; };

// AttendArgs are the arguments of attend.
struct AttendArgs {
    Act* out;           // [rows][heads][dim], or
    u8* prepared;       // the same as prepared.cuh has it, if not null, or
    u8* rotated;        // as rotated.cuh has it, where a block has heads of whole blocks of 128 elements
    float* parts;       // [rows][heads][gridDim.z][dim + 2], where there are several
    u32* arrived;       // [rows][gridDim.y], zeros, which they are left
    const Act *q, *k, *v;  // of each row, pitches apart
    const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;  // null: none; norms of a head
    const float *cos, *sin;  // [rows][half]
    const float* rows;       // [rows][2]: slot and position of each
    Act *keys, *values;      // [slots][kv_heads][head], of which a head's positions follow each other
    const float* sinks;      // [heads], null: none
    u64 head;
    u32 gated;  // whether behind each head of queries are gates
    u32 q_pitch, kv_pitch, heads, group, half, window;
    float q_eps, k_eps, scale, cap;

    // query returns where a head of queries lies.
    template <u32 DIM>
    __device__ __forceinline__ const Act* query(u32 row, u32 head) const { return q + (u64)row * q_pitch + head * (gated ? 2 * DIM : DIM); }

    // write writes two elements of a head, the first of which is even, behind their gates. mixed has room for all heads of a block, from head0 on, that are yet to be
    // rotated.
    template <u32 DIM>
    __device__ __forceinline__ void write(u32 row, u32 head, u32 d, float lo, float hi, Act* mixed, u32 head0) const {
        if (gated) {
            const Act* gate = query<DIM>(row, head) + DIM + d;
            lo /= 1.0f + __expf(-value(gate[0]));
            hi /= 1.0f + __expf(-value(gate[1]));
        }
        const u32 two = pair(lo, hi);
        if (rotated)
            *(u32*)(mixed + (head - head0) * DIM + d) = two;
        else if (prepared)
            *(u32*)(prepared + prepared_at(row, head * DIM + d, (gridDim.x + 7) / 8)) = two;
        else
            *(u32*)(out + ((u64)row * heads + head) * DIM + d) = two;
    }

    // rotate writes what is yet to be of so many heads. All threads of a block call it.
    template <u32 DIM>
    __device__ __forceinline__ void rotate(u32 row, const Act* mixed, u32 head0, u32 count) const {
        if (!rotated) return;
        __syncthreads();
        const u32 n = count * DIM;
        for (u32 from = threadIdx.x / 32 * 256; from < n; from += blockDim.x * 8) {
            const u32 i = from + threadIdx.x % 32 * 8;
            float v[8] = {};
            if (i < n) {
                struct alignas(16) Eight { Act at[8]; };
                const Eight eight = *(const Eight*)(mixed + i);
#pragma unroll
                for (u32 j = 0; j < 8; j++) v[j] = value(eight.at[j]);
            }
            write_rotated(rotated, (gridDim.x + 7) / 8, row, head0 * DIM + i, v, i < n);
        }
    }
};

// Turn is what a warp turns a head by: lane l has elements l, l + 32 and so on.
template <u32 DIM>
struct Turn {
    float cos[DIM / 32], sin[DIM / 32];

    __device__ __forceinline__ Turn(const AttendArgs& p, u32 row, u32 lane) {
#pragma unroll
        for (u32 j = 0; j < DIM / 32; j++) {
            const u32 i = lane + 32 * j, angle = row * p.half + (i < p.half ? i : i - p.half);
            cos[j] = i < 2 * p.half ? p.cos[angle] : 1;
            sin[j] = i < 2 * p.half ? p.sin[angle] : 0;
        }
    }

    // head writes a head as it is after bias, norm and turning, each rounded.
    __device__ __forceinline__ void head(Act* to, const Act (&from)[DIM / 32], const float* bias, const float* norm, float eps, u32 half, u32 lane) const {
        float x[DIM / 32], sum = 0;
#pragma unroll
        for (u32 j = 0; j < DIM / 32; j++) {
            x[j] = value(from[j]);
            if (bias) x[j] = rounded(x[j] + bias[lane + 32 * j]);
            sum += x[j] * x[j];
        }
        if (norm) {
#pragma unroll
            for (u32 lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
            const float scale = 1 / sqrtf(sum / DIM + eps);
#pragma unroll
            for (u32 j = 0; j < DIM / 32; j++) x[j] = rounded(x[j] * scale * norm[lane + 32 * j]);
        }
#pragma unroll
        for (u32 j = 0; j < DIM / 32; j++) set(to[lane + 32 * j], x[j]);
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < DIM / 32; j++) {
            const u32 i = lane + 32 * j;
            if (i < half) x[j] = x[j] * cos[j] - value(to[i + half]) * sin[j];
            else if (i < 2 * half) x[j] = x[j] * cos[j] + value(to[i - half]) * sin[j];
        }
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < DIM / 32; j++) set(to[lane + 32 * j], x[j]);
    }
};

// Tile are the keys and values of 16 positions as a warp has them: lane 4g + t has eight of each 32 elements of
// keys g and g + 8, and DIM/8 elements of the values of 2t, 2t + 1, 2t + 8 and 2t + 9.
template <u32 DIM>
struct Tile {
    static constexpr u32 SHARE = DIM / 8, WORDS = SHARE / 2, STEP = WORDS % 4 == 0 ? 4 : 2;
    struct alignas(4 * STEP) Some { u32 w[STEP]; };
    u32 k[2][DIM / 32][4], v[4][WORDS];

    static __device__ __forceinline__ u32 key(u32 base, u32 lane, u32 r) { return base + lane / 4 + 8 * r; }
    static __device__ __forceinline__ u32 position(u32 base, u32 lane, u32 r) { return base + lane % 4 * 2 + r % 2 + r / 2 * 8; }

    __device__ __forceinline__ void load_key(const Act* from, u32 lane, u32 r) {
#pragma unroll
        for (u32 c = 0; c < DIM / 32; c++) {
            const Part part = *(const Part*)(from + 32 * c + lane % 4 * 8);
#pragma unroll
            for (u32 i = 0; i < 4; i++) k[r][c][i] = part.w[i];
        }
    }
    __device__ __forceinline__ void load_value(const Act* from, u32 lane, u32 r) {
#pragma unroll
        for (u32 i = 0; i < WORDS; i += STEP) {
            const Some some = *(const Some*)(from + lane / 4 * SHARE + 2 * i);
#pragma unroll
            for (u32 j = 0; j < STEP; j++) v[r][i + j] = some.w[j];
        }
    }
    // load reads positions below end and leaves zeros for others.
    __device__ __forceinline__ void load(const Act* keys, const Act* values, u32 base, u32 end, u32 lane) {
        *this = {};
#pragma unroll
        for (u32 r = 0; r < 2; r++)
            if (key(base, lane, r) < end) load_key(keys + (u64)key(base, lane, r) * DIM, lane, r);
#pragma unroll
        for (u32 r = 0; r < 4; r++)
            if (position(base, lane, r) < end) load_value(values + (u64)position(base, lane, r) * DIM, lane, r);
    }
    // replace puts a key and a value to their position, if it is one of these.
    __device__ __forceinline__ void replace(const Act* newest_key, const Act* newest_value, u32 base, u32 at, u32 lane) {
#pragma unroll
        for (u32 r = 0; r < 2; r++)
            if (key(base, lane, r) == at) load_key(newest_key, lane, r);
#pragma unroll
        for (u32 r = 0; r < 4; r++)
            if (position(base, lane, r) == at) load_value(newest_value, lane, r);
    }
};

// Blended are the values that a warp has mixed: for heads 2t and 2t + 1 of a lane 4g + t the largest scores, the lane's
// part of the sums of exponentials beside them, and of each head's mixture elements g·DIM/8 + 2i and the next.
template <u32 DIM>
struct Blended {
    float top[2], sum[2], at[DIM / 16][4];

    // add mixes in a tile, of which positions from end on do not count. queries are those of the heads in shared memory.
    __device__ __forceinline__ void add(const Tile<DIM>& tile, const Act* queries, u32 base, u32 end, u32 lane, float scale, float cap) {
        float s[4] = {};
#pragma unroll
        for (u32 c = 0; c < DIM / 32; c++) {
            const Part q = *(const Part*)(queries + lane / 4 * attend_pitch(DIM) + 32 * c + lane % 4 * 8);
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                const u32 a[4] = {tile.k[0][c][i], tile.k[1][c][i], tile.k[0][c][i + 1], tile.k[1][c][i + 1]};
                mma(s, a, q.w[i], q.w[i + 1]);
            }
        }
        const bool counts[2] = {tile.key(base, lane, 0) < end, tile.key(base, lane, 1) < end};
        float above[2] = {top[0], top[1]};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            s[j] *= scale;
            if (cap > 0) s[j] = cap * tanhf(s[j] / cap);
            if (counts[j / 2]) above[j % 2] = fmaxf(above[j % 2], s[j]);
        }
#pragma unroll
        for (u32 lanes = 16; lanes >= 4; lanes /= 2)
#pragma unroll
            for (u32 h = 0; h < 2; h++) above[h] = fmaxf(above[h], __shfl_xor_sync(0xffffffff, above[h], lanes));
        float shrink[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            shrink[h] = __expf(top[h] - above[h]);
            top[h] = above[h];
            sum[h] *= shrink[h];
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            s[j] = counts[j / 2] ? rounded(__expf(s[j] - top[j % 2])) : 0;  // as the mma has it
            sum[j % 2] += s[j];
        }
        const u32 b0 = transposed(pair(s[0], s[1])), b1 = transposed(pair(s[2], s[3]));
#pragma unroll
        for (u32 i = 0; i < DIM / 16; i++) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) at[i][j] *= shrink[j % 2];
            const u32 a[4] = {prmt(tile.v[0][i], tile.v[1][i], 0x5410), prmt(tile.v[0][i], tile.v[1][i], 0x7632),
                              prmt(tile.v[2][i], tile.v[3][i], 0x5410), prmt(tile.v[2][i], tile.v[3][i], 0x7632)};
            mma(at[i], a, b0, b1);
        }
    }
};

// attend is the attention of row blockIdx.x for some heads of a head of keys and values, over one of gridDim.z parts
// of what its text has. Of short texts there are fewer parts than blocks. The last block to come adds several up. What is
// kept, places and angles are read before the kernels in front have ended: none of those right before may write them.
template <u32 DIM, u32 WARPS>
__device__ __forceinline__ void attend(const AttendArgs& p) {
    constexpr u32 PITCH = attend_pitch(DIM), MIXTURE = DIM + 4, CHUNK = 256;
    constexpr u32 ROUNDS = ATTEND_HEADS / WARPS + 1, SHARE = (DIM - 1) / (32 * WARPS) + 1;  // of queries and the newest key, and of its value
    __shared__ __align__(16) Act turned[(ATTEND_HEADS + 2) * PITCH];  // queries, the newest key, and its value
    __shared__ __align__(16) float mixtures[WARPS * ATTEND_HEADS * MIXTURE];
    __shared__ float tops[WARPS][ATTEND_HEADS], sums[WARPS][ATTEND_HEADS];
    __shared__ u32 order;
    Act* const newest = turned + ATTEND_HEADS * PITCH;

    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x;
    const u32 blocks = (p.group + ATTEND_HEADS - 1) / ATTEND_HEADS, kv = blockIdx.y / blocks, kv_heads = p.heads / p.group;
    const u32 head0 = kv * p.group + blockIdx.y % blocks * ATTEND_HEADS, count = min(ATTEND_HEADS, (kv + 1) * p.group - head0);
    const u64 slot = (u64)p.rows[2 * row];
    const u32 position = (u32)p.rows[2 * row + 1];
    const u32 seen = p.window && position + 1 > p.window ? position + 1 - p.window : 0, length = position + 1 - seen;
    const u32 wanted = min((length + CHUNK - 1) / CHUNK, gridDim.z);
    const u32 share = ((length + wanted - 1) / wanted + ATTEND_KEYS - 1) / ATTEND_KEYS * ATTEND_KEYS, parts = (length + share - 1) / share;
    if (blockIdx.z >= parts) return;
    const u32 first = seen + blockIdx.z * share, end = min(first + share, position + 1);
    const bool last = end > position;

    Act* const keys = p.keys + (slot * kv_heads + kv) * p.head;
    Act* const values = p.values + (slot * kv_heads + kv) * p.head;
    Tile<DIM> tile;
    u32 base = first + warp * ATTEND_KEYS;
    tile.load(keys, values, base, min(end, position), lane);
    const u64 line = 128 / sizeof(Act), next = (u64)(first + WARPS * ATTEND_KEYS) * DIM + threadIdx.x * line;
    if (next < (u64)min(end, position) * DIM) {
        prefetch(keys + next);
        prefetch(values + next);
    }
    const Turn<DIM> turn(p, row, lane);
    for (u32 i = count * PITCH + threadIdx.x; i < ATTEND_HEADS * PITCH; i += blockDim.x) set(turned[i], 0);
    begin();

    // All are on their way before the first is looked at.
    Act heads[ROUNDS][DIM / 32], newest_value[SHARE];
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 h = warp + r * WARPS;
        if (h > count || (h == count && !last)) continue;
        const Act* from = h < count ? p.query<DIM>(row, head0 + h) : p.k + (u64)row * p.kv_pitch + kv * DIM;
#pragma unroll
        for (u32 j = 0; j < DIM / 32; j++) heads[r][j] = from[lane + 32 * j];
    }
    const u32 behind = 32 * WARPS - 1 - threadIdx.x;  // from the warps on that have fewer heads
#pragma unroll
    for (u32 r = 0; r < SHARE; r++)
        if (last && behind + r * 32 * WARPS < DIM) newest_value[r] = p.v[(u64)row * p.kv_pitch + kv * DIM + behind + r * 32 * WARPS];
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 h = warp + r * WARPS;
        if (h < count)
            turn.head(turned + h * PITCH, heads[r], p.q_bias ? p.q_bias + (head0 + h) * DIM : p.q_bias, p.q_norm, p.q_eps, p.half, lane);
        else if (h == count && last)
            turn.head(newest, heads[r], p.k_bias ? p.k_bias + kv * DIM : p.k_bias, p.k_norm, p.k_eps, p.half, lane);
    }
#pragma unroll
    for (u32 r = 0; r < SHARE; r++) {
        const u32 i = behind + r * 32 * WARPS;
        if (!last || i >= DIM) continue;
        if (p.v_bias)
            set(newest[PITCH + i], value(newest_value[r]) + p.v_bias[kv * DIM + i]);
        else
            newest[PITCH + i] = newest_value[r];
    }
    __syncthreads();
    if (last && blockIdx.y % blocks == 0)
        for (u32 i = threadIdx.x; i < DIM; i += blockDim.x) {
            keys[(u64)position * DIM + i] = newest[i];
            values[(u64)position * DIM + i] = newest[PITCH + i];
        }

    Blended<DIM> m = {};
    m.top[0] = m.top[1] = LOWEST;
    while (base < end) {
        tile.replace(newest, newest + PITCH, base, position, lane);
        m.add(tile, turned, base, end, lane, p.scale, p.cap);
        base += WARPS * ATTEND_KEYS;
        if (base < end) tile.load(keys, values, base, min(end, position), lane);
    }

    // What warps have mixed, in pairs of elements: pair 8i + g of a head is of elements g·DIM/8 + 2i.
    const u32 g = lane / 4, h0 = lane % 4 * 2;
#pragma unroll
    for (u32 lanes = 16; lanes >= 4; lanes /= 2)
#pragma unroll
        for (u32 h = 0; h < 2; h++) m.sum[h] += __shfl_xor_sync(0xffffffff, m.sum[h], lanes);
    struct alignas(8) Two { float at[2]; };
#pragma unroll
    for (u32 i = 0; i < DIM / 16; i++)
#pragma unroll
        for (u32 h = 0; h < 2; h++) *(Two*)(mixtures + (warp * ATTEND_HEADS + h0 + h) * MIXTURE + 2 * (8 * i + g)) = {{m.at[i][h], m.at[i][2 + h]}};
    if (g == 0)
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            tops[warp][h0 + h] = m.top[h];
            sums[warp][h0 + h] = m.sum[h];
        }
    __syncthreads();

    const u64 at = (u64)row * p.heads + head0;
    const u32 pitch = DIM + 2;
    for (u32 i = threadIdx.x; i < count * (DIM / 2); i += blockDim.x) {
        const u32 h = i / (DIM / 2), n = i % (DIM / 2), d = n % 8 * (DIM / 8) + n / 8 * 2;
        const bool whole = parts == 1;
        float top = whole && p.sinks ? p.sinks[head0 + h] : LOWEST;
        const float sink = top;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
        float sum = whole && p.sinks ? __expf(sink - top) : 0, lo = 0, hi = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            const float weight = __expf(tops[w][h] - top);
            const Two two = *(const Two*)(mixtures + (w * ATTEND_HEADS + h) * MIXTURE + 2 * n);
            sum = fmaf(weight, sums[w][h], sum);
            lo = fmaf(weight, two.at[0], lo);
            hi = fmaf(weight, two.at[1], hi);
        }
        if (whole) {
            p.write<DIM>(row, head0 + h, d, lo / sum, hi / sum, turned, head0);
            continue;
        }
        float* part = p.parts + ((at + h) * gridDim.z + blockIdx.z) * pitch;
        *(Two*)(part + d) = {{lo, hi}};
        if (n == 0) *(Two*)(part + DIM) = {{sum, top}};
    }
    if (parts == 1) {
        p.rotate<DIM>(row, turned, head0, count);
        return;
    }

    __threadfence();
    __syncthreads();
    u32* arrived = p.arrived + row * gridDim.y + blockIdx.y;
    if (threadIdx.x == 0) order = atomicAdd(arrived, 1);
    __syncthreads();
    if (order + 1 < parts) return;
    __threadfence();
    if (threadIdx.x == 0) *arrived = 0;
    for (u32 i = threadIdx.x; i < count * (DIM / 2); i += blockDim.x) {
        const u32 h = i / (DIM / 2), d = i % (DIM / 2) * 2;
        const volatile float* part = p.parts + (at + h) * gridDim.z * pitch;
        const float sink = p.sinks ? p.sinks[head0 + h] : LOWEST;
        float top = sink, sum = 0, lo = 0, hi = 0;
        for (u32 z = 0; z < parts; z++) top = fmaxf(top, part[z * pitch + DIM + 1]);
        if (p.sinks) sum = __expf(sink - top);
        for (u32 z = 0; z < parts; z++) {
            const float weight = __expf(part[z * pitch + DIM + 1] - top);
            sum = fmaf(weight, part[z * pitch + DIM], sum);
            lo = fmaf(weight, part[z * pitch + d], lo);
            hi = fmaf(weight, part[z * pitch + d + 1], hi);
        }
        p.write<DIM>(row, head0 + h, d, lo / sum, hi / sum, turned, head0);
    }
    p.rotate<DIM>(row, turned, head0, count);
}
#define ATTEND(NAME, DIM, WARPS, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) NAME(const __grid_constant__ AttendArgs p) { attend<DIM, WARPS>(p); }
ATTEND(attend_32, 32, 8, 2)
ATTEND(attend_64, 64, 8, 2)
ATTEND(attend_96, 96, 8, 2)
ATTEND(attend_128, 128, 8, 2)
ATTEND(attend_256, 256, 4, 1)
ATTEND(attend_many_32, 32, 4, 4)
ATTEND(attend_many_64, 64, 4, 4)
ATTEND(attend_many_96, 96, 4, 4)
ATTEND(attend_many_128, 128, 4, 4)
