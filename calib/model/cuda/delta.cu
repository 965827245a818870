// Gated delta rules: of prompts row by row, and of the newest token of each text all between two products at once.

// Run are the rows of a text in a step, one behind the other. rows [n][2] has the slot and the position of each row; without, all n rows are
// a text from its beginning. No two runs of a step are of one slot.
struct Run {
    const float* rows;
    u32 first, n, slot, position;
    __device__ __forceinline__ Run(const float* rows, u32 first, u32 n) : rows(rows), first(first), n(n) {
        slot = rows ? (u32)rows[2 * first] : 0;
        position = rows ? (u32)rows[2 * first + 1] : first;
    }
    __device__ __forceinline__ bool begins() const { return !has(first - 1); }
    __device__ __forceinline__ bool has(u32 row) const { return row < n && (!rows || (u32)rows[2 * row] == slot); }
    // end is the row behind its last one, which is looked for by halves.
    __device__ __forceinline__ u32 end() const {
        u32 in = first, out = n;
        if (!rows) return n;
        while (out - in > 1) {
            const u32 middle = in + (out - in) / 2;
            if (has(middle)) in = middle;
            else out = middle;
        }
        return out;
    }
};

// Inputs of convolutions are kept in a ring of width rows of each slot, that of position p in row p mod width: one more than are looked at, so that the
// newest can be written while others are still to be read.
__device__ __forceinline__ u64 ring_at(u32 slot, u32 position, u32 width, u32 channels) { return ((u64)slot * width + position % width) * channels; }

// The state [kDim][vDim] of a head lies in memory by four elements of a column, those of neighbours in columns next to each other:
// [kDim/4][vDim][4], and what is left of columns in the same way. Four threads, a quad, have a column; part p of them has fours p, p + 4 and so on.
struct alignas(16) Four { float at[4]; };

__device__ __forceinline__ float over_quad(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

__device__ __forceinline__ u64 delta_at(u32 four, u32 column, u32 kDim, u32 vDim) { return ((u64)four * vDim + column) * 4; }

__device__ __forceinline__ Four load_state(const float* state, u32 four, u32 column, u32 kDim, u32 vDim) {
    if (4 * four + 4 <= kDim) return *(const Four*)(state + delta_at(four, column, kDim, vDim));
    Four some = {};
    const u32 left = 4 * four < kDim ? kDim - 4 * four : 0;
    for (u32 i = 0; i < left; i++) some.at[i] = state[(u64)four * 4 * vDim + column * left + i];
    return some;
}

__device__ __forceinline__ void store_state(float* state, Four some, u32 four, u32 column, u32 kDim, u32 vDim) {
    if (4 * four + 4 <= kDim) {
        *(Four*)(state + delta_at(four, column, kDim, vDim)) = some;
        return;
    }
    const u32 left = 4 * four < kDim ? kDim - 4 * four : 0;
    for (u32 i = 0; i < left; i++) state[(u64)four * 4 * vDim + column * left + i] = some.at[i];
}

// Factors are what a row's gates and the lengths of its query and key come to: with raw queries q, keys k and states S from before,
//   d = v·value − (Sᵀk)·found    o = (Sᵀq)·old + d·fresh    S ← decay·S + k·dᵀ
// so that both products with S are taken of the state as it was, side by side.
struct Factors {
    float decay, value, found, old, fresh;
    __device__ __forceinline__ Factors(float qq, float kk, float kq, float a, float b, float rate, u32 kDim) {
        const float byQuery = 1.0f / sqrtf((qq + 1e-6f) * (float)kDim), byKey = 1.0f / sqrtf(kk + 1e-6f);
        const float soft = a > 20 ? a : logf(1.0f + expf(a)), beta = 1.0f / (1.0f + expf(-b));
        decay = expf(-rate * soft);
        value = beta * byKey;
        found = decay * byKey * value;
        old = decay * byQuery;
        fresh = kq * byQuery;
    }
};
constexpr u32 FACTORS = 5;

// delta_factors writes those of each row and value head, floats [rows][vHeads][FACTORS]. A warp has a key head of a row.
extern "C" __global__ void __launch_bounds__(256)
delta_factors(float* to, const Act* x, const float* a, const float* b, const float* aLog, const float* bias, u32 kHeads, u32 vHeads, u32 kDim, u32 vDim, u32 n) {
    const u32 at = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, row = at / kHeads, head = at % kHeads, each = vHeads / kHeads;
    if (row >= n) return;
    const u32 keys = kHeads * kDim;
    const Act* query = x + (u64)row * (2 * keys + vHeads * vDim) + head * kDim;
    float qq = 0, kk = 0, kq = 0;
    for (u32 i = lane; i < kDim; i += 32) {
        const float q = value(query[i]), k = value(query[keys + i]);
        qq = fmaf(q, q, qq);
        kk = fmaf(k, k, kk);
        kq = fmaf(k, q, kq);
    }
#pragma unroll
    for (u32 far = 16; far > 0; far /= 2) {
        qq += __shfl_xor_sync(0xffffffff, qq, far);
        kk += __shfl_xor_sync(0xffffffff, kk, far);
        kq += __shfl_xor_sync(0xffffffff, kq, far);
    }
    for (u32 i = lane; i < each; i += 32) {
        const u32 h = head * each + i;
        const u64 gate = (u64)row * vHeads + h;
        const Factors f(qq, kk, kq, a[gate] + bias[h], b[gate], expf(aLog[h]), kDim);
        float* out = to + gate * FACTORS;
        out[0] = f.decay;
        out[1] = f.value;
        out[2] = f.found;
        out[3] = f.old;
        out[4] = f.fresh;
    }
}

// A block has so many columns of a state, and reads so many rows at a time.
constexpr u32 DELTA_COLUMNS = 32, DELTA_ROWS = 8, DELTA_THREADS = 4 * DELTA_COLUMNS;

// delta_rule takes columns from DELTA_COLUMNS·blockIdx.z on of the state of value head blockIdx.y, in registers, through the rows of the run
// that begins at row stride·blockIdx.x. Rows come in eights: those that come next are on their way while these are gone through, and are
// put to shared memory by one barrier for all of them.
template <u32 KEY>
__device__ __forceinline__ void delta_rule(Act* o, const Act* x, const float* factors, float* state, const float* rows, u32 stride, u32 kHeads, u32 vHeads, u32 kDim,
                                           u32 vDim, u32 n) {
    constexpr u32 FOURS = KEY / 16, PACKS = (DELTA_ROWS * KEY / EACH + DELTA_THREADS - 1) / DELTA_THREADS, IN_ROW = KEY / EACH;
    __shared__ __align__(16) float q[2][DELTA_ROWS][KEY], k[2][DELTA_ROWS][KEY], v[2][DELTA_ROWS][DELTA_COLUMNS], by[2][DELTA_ROWS][FACTORS];
    const Run run(rows, stride * blockIdx.x, n);
    if (!run.begins()) return;
    const u32 h = blockIdx.y, t = threadIdx.x, part = t % 4, column = blockIdx.z * DELTA_COLUMNS + t / 4, j = min(column, vDim - 1), keys = kHeads * kDim, end = run.end();
    const u64 channels = 2 * keys + vHeads * vDim, query = h / (vHeads / kHeads) * kDim, valuesAt = 2 * keys + h * vDim + blockIdx.z * DELTA_COLUMNS;
    const u32 wide = min(DELTA_COLUMNS, vDim - blockIdx.z * DELTA_COLUMNS);
    float* kept = state + ((u64)run.slot * vHeads + h) * kDim * vDim;
    Four s[FOURS] = {};
    if (state && run.position > 0)
#pragma unroll
        for (u32 i = 0; i < FOURS; i++) s[i] = load_state(kept, 4 * i + part, j, kDim, vDim);

    Pack<Act> queries[PACKS], someKeys[PACKS], someValues;
    float factor = 0;
    const auto fetch = [&](u32 first) {
#pragma unroll
        for (u32 i = 0; i < PACKS; i++) {
            const u32 at = t + i * DELTA_THREADS, row = first + at / IN_ROW, c = at % IN_ROW * EACH;
            const u64 from = row * channels + query;
            const bool there = at < DELTA_ROWS * IN_ROW && row < end && c < kDim;
            queries[i] = Elements(from + c, there ? from + kDim : 0).read(x);
            someKeys[i] = Elements(from + keys + c, there ? from + keys + kDim : 0).read(x);
        }
        constexpr u32 OF_VALUES = DELTA_COLUMNS / EACH;
        const u32 row = first + t / OF_VALUES, c = t % OF_VALUES * EACH;
        const u64 from = row * channels + valuesAt;
        if (t < DELTA_ROWS * OF_VALUES) someValues = Elements(from + c, row < end && c < wide ? from + wide : 0).read(x);
        const u32 which = t - DELTA_ROWS * OF_VALUES;  // of the factors, by other threads
        if (which < DELTA_ROWS * FACTORS) {
            const u32 of = first + which / FACTORS;
            factor = of < end ? factors[((u64)of * vHeads + h) * FACTORS + which % FACTORS] : 0;
        }
    };
    const auto put = [&](u32 to) {
#pragma unroll
        for (u32 i = 0; i < PACKS; i++) {
            const u32 at = t + i * DELTA_THREADS;
            if (at >= DELTA_ROWS * IN_ROW) continue;
            float f[EACH], g[EACH];
            values(f, queries[i]);
            values(g, someKeys[i]);
            *(Four*)(&q[to][0][0] + at * EACH) = {{f[0], f[1], f[2], f[3]}};
            *(Four*)(&q[to][0][0] + at * EACH + 4) = {{f[4], f[5], f[6], f[7]}};
            *(Four*)(&k[to][0][0] + at * EACH) = {{g[0], g[1], g[2], g[3]}};
            *(Four*)(&k[to][0][0] + at * EACH + 4) = {{g[4], g[5], g[6], g[7]}};
        }
        if (t < DELTA_ROWS * DELTA_COLUMNS / EACH) {
            float f[EACH];
            values(f, someValues);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) (&v[to][0][0])[t * EACH + i] = f[i];
        }
        const u32 which = t - DELTA_ROWS * DELTA_COLUMNS / EACH;
        if (which < DELTA_ROWS * FACTORS) (&by[to][0][0])[which] = factor;
    };

    fetch(run.first);
    u32 turn = 0;
    for (u32 first = run.first; first < end; first += DELTA_ROWS, turn ^= 1) {
        put(turn);
        __syncthreads();
        if (first + DELTA_ROWS < end) fetch(first + DELTA_ROWS);
        for (u32 r = 0; r < DELTA_ROWS && first + r < end; r++) {
            Four key[FOURS];
            float ks[4] = {}, qs[4] = {};
#pragma unroll
            for (u32 i = 0; i < FOURS; i++) {
                const u32 at = 16 * i + 4 * part;
                const Four query = *(const Four*)(q[turn][r] + at);
                key[i] = *(const Four*)(k[turn][r] + at);
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    ks[e] = fmaf(s[i].at[e], key[i].at[e], ks[e]);
                    qs[e] = fmaf(s[i].at[e], query.at[e], qs[e]);
                }
            }
            const float found = over_quad((ks[0] + ks[1]) + (ks[2] + ks[3])), old = over_quad((qs[0] + qs[1]) + (qs[2] + qs[3]));
            const float* f = by[turn][r];
            const float d = v[turn][r][t / 4] * f[1] - found * f[2];
#pragma unroll
            for (u32 i = 0; i < FOURS; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) s[i].at[e] = fmaf(key[i].at[e], d, s[i].at[e] * f[0]);
            if (part == 0 && column < vDim) set(o[((u64)(first + r) * vHeads + h) * vDim + column], fmaf(old, f[3], d * f[4]));
        }
    }
    if (!state || column >= vDim) return;
#pragma unroll
    for (u32 i = 0; i < FOURS; i++) store_state(kept, s[i], 4 * i + part, column, kDim, vDim);
}
#define DELTA_RULE(KEY)                                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(DELTA_THREADS)                                                                                                      \
    delta_rule_##KEY(Act* o, const Act* x, const float* factors, float* state, const float* rows, u32 stride, u32 kHeads, u32 vHeads, u32 kDim, u32 vDim, u32 n) { \
        delta_rule<KEY>(o, x, factors, state, rows, stride, kHeads, vHeads, kDim, vDim, n);                                                                        \
    }
DELTA_RULE(64)
DELTA_RULE(128)
DELTA_RULE(256)

// DeltaStepArgs are the arguments of delta_step.
struct DeltaStepArgs {
    Act* out;                // [rows][v_heads][v_dim], or null
    u8 *prepared, *rotated;  // as Inputs has them
    const Act *qkv, *z, *x;  // of each row; x [rows][hidden] is what the gates are made of
    const Act *b, *a;        // the gates' weights [..][hidden]
    const float *conv, *a_log, *bias, *norm;  // [channels][width], [v_heads], [v_heads], [v_dim]
    Act* kept;               // inputs of the convolution, and
    float* state;            // of each slot
    const float* rows;       // [rows][2]: slot and position of each
    u32 qkv_pitch, z_pitch;  // elements from a row to the next
    u32 head, key, value;    // elements from a key head's query to the next one's, and from the first query to the first key and value
    u32 v_head, z_head;      // elements from a key head's first value, and z, to the next one's
    u32 gate;                // rows of the gates' weights from a key head's first to the next one's
    u32 hidden, k_heads, v_heads, k_dim, v_dim, width;
    float eps;
};

// The most tokens that a convolution sees, and elements of a head here. A column of a state is two threads', of which part p has fours p, p + 2 and so on:
// so two blocks are at a multiprocessor at a time.
constexpr u32 CONVOLVED = 8, STEP_DIM = 128, STEP_PARTS = 2, STEP_THREADS = STEP_PARTS * STEP_DIM, STEP_WARPS = STEP_THREADS / 32;

__device__ __forceinline__ float over_parts(float x) { return x + __shfl_xor_sync(0xffffffff, x, 1); }

// over_warps is the sum of what each warp of a block has left.
__device__ __forceinline__ float over_warps(const float (&of)[STEP_WARPS]) {
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < STEP_WARPS; i++) sum += i < blockDim.x / 32 ? of[i] : 0;
    return sum;
}

// Channel is one that passes the convolution: of the query, the key or the values of a head, from the first on.
struct Channel {
    u32 to, of, from;  // in shared memory, of all channels, and in what the product makes of a row
    bool there, keeps;  // and whether this block is to keep its input, which heads of values share
    template <u32 KEY>
    static __device__ __forceinline__ Channel at(const DeltaStepArgs& p, u32 i, u32 h, u32 head, u32 nth) {
        const u32 keys = p.k_heads * p.k_dim;
        if (i < p.k_dim) return {i, head * p.k_dim + i, head * p.head + i, true, nth == 0};
        i -= p.k_dim;
        if (i < p.k_dim) return {KEY + i, keys + head * p.k_dim + i, p.key + head * p.head + i, true, nth == 0};
        i -= p.k_dim;
        return {2 * KEY + i, 2 * keys + h * p.v_dim + i, p.value + head * p.v_head + nth * p.v_dim + i, i < p.v_dim, true};
    }
};

// delta_step is what becomes of value head blockIdx.y of row blockIdx.x, the newest token of a text, from the product that makes q, k, v and z to the
// one that reads what all heads leave: its gates, convolution, the rule, norm, and z. The state, what the convolution sees of tokens before and
// the gates' weights are on their way before the product in front has ended.
template <u32 KEY>
__device__ __forceinline__ void delta_step(const DeltaStepArgs& p) {
    constexpr u32 FOURS = KEY / (4 * STEP_PARTS), CHANNELS = 2;  // heads of keys are no wider than those of values
    __shared__ __align__(16) float in[2 * KEY + STEP_DIM];  // query, key, values
    __shared__ __align__(16) float outs[STEP_DIM];
    __shared__ float betas[STEP_WARPS], alphas[STEP_WARPS], squares[STEP_WARPS];
    const u32 t = threadIdx.x, warp = t / 32, lane = t % 32, part = t % STEP_PARTS, column = t / STEP_PARTS, row = blockIdx.x, h = blockIdx.y;
    const u32 each = p.v_heads / p.k_heads, head = h / each, nth = h % each, channels = 2 * p.k_heads * p.k_dim + p.v_heads * p.v_dim;
    const u32 slot = (u32)p.rows[2 * row], position = (u32)p.rows[2 * row + 1];

    float* kept = p.state + ((u64)slot * p.v_heads + h) * p.k_dim * p.v_dim;
    Four s[FOURS] = {};
    if (position > 0)
#pragma unroll
        for (u32 i = 0; i < FOURS; i++)
            if (4 * (STEP_PARTS * i + part) < p.k_dim) s[i] = *(const Four*)(kept + delta_at(STEP_PARTS * i + part, column, p.k_dim, p.v_dim));
    const u64 gate = (u64)(head * p.gate + nth) * p.hidden;
    for (u32 i = t * (128 / sizeof(Act)); i < p.hidden; i += blockDim.x * (128 / sizeof(Act))) {
        prefetch(p.b + gate + i);
        prefetch(p.a + gate + i);
    }
    // What it sees of tokens before; all is read before the first is looked at, so that none waits for another.
    float before[CHANNELS], newest[CHANNELS];
    const u32 turn = position % p.width;
    const Act* ring = p.kept + (u64)slot * p.width * channels;
#pragma unroll
    for (u32 c = 0; c < CHANNELS; c++) {
        const Channel at = Channel::at<KEY>(p, t + c * blockDim.x, h, head, nth);
        float by[CONVOLVED] = {};
        Act past[CONVOLVED] = {};
        if (at.there) {
#pragma unroll
            for (u32 j = 0; j < CONVOLVED; j++) {
                if (j >= p.width) continue;
                by[j] = p.conv[at.of * p.width + p.width - 1 - j];
                past[j] = ring[(turn >= j ? turn - j : turn + p.width - j) * channels + at.of];
            }
        }
        before[c] = 0;
        newest[c] = by[0];
#pragma unroll
        for (u32 j = 1; j < CONVOLVED; j++)
            if (j < p.width && j <= position) before[c] = fmaf(by[j], value(past[j]), before[c]);
    }
    const float rate = expf(p.a_log[h]), bias = p.bias[h];
    for (u32 i = p.k_dim + t; i < KEY; i += blockDim.x) in[i] = in[KEY + i] = 0;
    begin();

#pragma unroll
    for (u32 c = 0; c < CHANNELS; c++) {
        const Channel at = Channel::at<KEY>(p, t + c * blockDim.x, h, head, nth);
        if (!at.there) continue;
        const Act x = p.qkv[(u64)row * p.qkv_pitch + at.from];
        const float sum = fmaf(newest[c], value(x), before[c]);
        in[at.to] = sum / (1.0f + __expf(-sum));
        if (at.keeps) p.kept[ring_at(slot, position, p.width, channels) + at.of] = x;
    }
    float alpha = 0, beta = 0;
#pragma unroll 2
    for (u32 at = t * EACH; at < p.hidden; at += blockDim.x * EACH) {
        float x[EACH], b[EACH], a[EACH];
        const Elements here(at, p.hidden);
        here.load(x, p.x + (u64)row * p.hidden);
        here.load(b, p.b + gate);
        here.load(a, p.a + gate);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            beta = fmaf(x[i], b[i], beta);
            alpha = fmaf(x[i], a[i], alpha);
        }
    }
#pragma unroll
    for (u32 far = 16; far > 0; far /= 2) {
        beta += __shfl_xor_sync(0xffffffff, beta, far);
        alpha += __shfl_xor_sync(0xffffffff, alpha, far);
    }
    if (lane == 0) {
        betas[warp] = beta;
        alphas[warp] = alpha;
    }
    // z of eight columns, which the lanes of the first warp write.
    const u32 first = lane * EACH, left = first < p.v_dim ? p.v_dim : 0;
    float z[EACH];
    if (warp == 0) {
        const u64 zs = (u64)row * p.z_pitch + head * p.z_head + nth * p.v_dim;
        Elements(zs + first, left ? zs + left : 0).load(z, p.z);
    }
    __syncthreads();

    float ks[4] = {}, qs[4] = {}, qq = 0, kk = 0, kq = 0;
#pragma unroll
    for (u32 i = 0; i < FOURS; i++) {
        const u32 four = STEP_PARTS * i + part;
        const Four query = *(const Four*)(in + 4 * four), key = *(const Four*)(in + KEY + 4 * four);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const float q = query.at[e], k = key.at[e];
            ks[e] = fmaf(s[i].at[e], k, ks[e]);
            qs[e] = fmaf(s[i].at[e], q, qs[e]);
            qq = fmaf(q, q, qq);
            kk = fmaf(k, k, kk);
            kq = fmaf(k, q, kq);
        }
    }
    const float found = over_parts((ks[0] + ks[1]) + (ks[2] + ks[3])), old = over_parts((qs[0] + qs[1]) + (qs[2] + qs[3]));
    const Factors f(over_parts(qq), over_parts(kk), over_parts(kq), over_warps(alphas) + bias, over_warps(betas), rate, p.k_dim);
    const float d = in[2 * KEY + column] * f.value - found * f.found, o = fmaf(old, f.old, d * f.fresh);
    float square = o * o;
#pragma unroll
    for (u32 far = 16; far >= STEP_PARTS; far /= 2) square += __shfl_xor_sync(0xffffffff, square, far);
    if (lane == 0) squares[warp] = square;
    if (part == 0) outs[column] = o;
#pragma unroll
    for (u32 i = 0; i < FOURS; i++) {
        const u32 four = STEP_PARTS * i + part;
        if (4 * four >= p.k_dim) continue;
        const Four key = *(const Four*)(in + KEY + 4 * four);
#pragma unroll
        for (u32 e = 0; e < 4; e++) s[i].at[e] = fmaf(key.at[e], d, s[i].at[e] * f.decay);
        *(Four*)(kept + delta_at(four, column, p.k_dim, p.v_dim)) = s[i];
    }
    __syncthreads();

    if (warp > 0) return;
    const float scale = 1.0f / sqrtf(over_warps(squares) / (float)p.v_dim + p.eps);
    float y[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) y[i] = left ? outs[first + i] * scale * p.norm[first + i] * z[i] / (1.0f + __expf(-z[i])) : 0;
    const u64 at = ((u64)row * p.v_heads + h) * p.v_dim + first;
    Inputs{p.out, p.prepared, p.rotated, (gridDim.x + 7) / 8}.store(Elements(at, left ? at - first + left : 0), row, h * p.v_dim + first, y);
}
#define DELTA_STEP(KEY) \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2) delta_step_##KEY(const __grid_constant__ DeltaStepArgs p) { delta_step<KEY>(p); }
DELTA_STEP(64)
DELTA_STEP(128)
