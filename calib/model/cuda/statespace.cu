// Kernels of short convolutions and of state spaces.

// Text are rows of a text that follow each other: count of a step from row first on, the first at a position of the text in a slot. In a step of
// one row a text, rows [n][2] has the slot and the position of each.
struct Text {
    u32 first, count, slot, position;
    __device__ __forceinline__ Text(const float* rows, u32 text, u32 first, u32 count, u32 slot, u32 position)
        : first(rows ? text : first), count(rows ? 1 : count), slot(rows ? (u32)rows[2 * text] : slot), position(rows ? (u32)rows[2 * text + 1] : position) {}
};

// Taken is what passes a convolution: x, times by where that is not null, of rows pitch elements apart.
struct Taken {
    const Act *x, *by;
    u64 pitch;
    __device__ __forceinline__ float at(u32 row, u32 column) const {
        const u64 i = row * pitch + column;
        return by ? value(x[i]) * value(by[i]) : value(x[i]);
    }
    __device__ __forceinline__ void load(float (&f)[EACH], u32 row, u32 column, u32 columns) const {
        const Elements e(row * pitch + column, row * pitch + columns);
        e.load(f, x);
        if (!by) return;
        float g[EACH];
        e.load(g, by);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) f[i] *= g[i];
    }
};

// Past is what a slot keeps of the inputs of a convolution: that of position p in row p mod width, so that a step of a row reads others than it writes.
struct Past {
    Act* kept;  // or null
    u32 columns, width;
    __device__ __forceinline__ Past(Act* kept, u32 slot, u32 columns, u32 width)
        : kept(kept ? kept + (u64)slot * width * columns : kept), columns(columns), width(width) {}
    __device__ __forceinline__ Act* row(u32 position) const { return kept + (u64)(position % width) * columns; }
};

// conv_rows passes the rows of a step through a convolution of width tokens, each channel by its own weights [columns][width], and then SiLU, or
// multiplies by gates, where those are not null. A thread has EACH channels of a row. Where rows tells of the texts, it keeps their inputs.
extern "C" __global__ void __launch_bounds__(256)
conv_rows(Act* y, u8* prepared, u8* rotated, const Act* x, const Act* by, const Act* gates, u64 pitch, const float* w, const float* bias, Act* kept, const float* rows,
          u32 first, u32 count, u32 slot, u32 position, u32 columns, u32 width, u32 groups) {
    begin();
    const u32 parts = (columns + EACH - 1) / EACH, at = blockIdx.x * blockDim.x + threadIdx.x, row = at / parts, c = at % parts * EACH;
    const bool there = row < count;
    const Text text(there ? rows : nullptr, row, first, count, slot, position);
    const u32 in = rows ? 0 : row;  // of the text's rows
    const Taken taken = {x, by, pitch};
    const Past past(kept, text.slot, columns, width);
    const Elements here(c, there ? columns : 0);
    float sum[EACH] = {}, own[EACH] = {};
    if (there) {
        if (bias) here.load(sum, (const F32*)bias);
        for (u32 j = 0; j < width; j++) {
            float f[EACH];
            if (j <= in)
                taken.load(f, text.first + in - j, c, columns);
            else if (kept && j <= text.position + in)
                here.load(f, past.row(text.position + in - j));
            else
                break;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                if (j == 0) own[i] = f[i];
                if (i < here.count) sum[i] = fmaf(w[(u64)(c + i) * width + width - 1 - j], f[i], sum[i]);
            }
        }
        if (kept && rows) here.store(past.row(text.position), own);
    }
    if (gates) {
        const u64 from = (text.first + in) * pitch;
        float g[EACH];
        Elements(from + c, there ? from + columns : 0).load(g, gates);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) sum[i] *= g[i];
    } else {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) sum[i] /= 1.0f + __expf(-sum[i]);
    }
    const u64 to = (u64)(text.first + in) * columns;
    Inputs{y, prepared, rotated, groups}.store(Elements(to + c, there ? to + columns : 0), text.first + in, c, sum);
}

// keep_inputs keeps the last inputs of rows of one text. A thread has a channel.
extern "C" __global__ void __launch_bounds__(256)
keep_inputs(Act* kept, const Act* x, const Act* by, u64 pitch, u32 first, u32 count, u32 slot, u32 position, u32 columns, u32 width) {
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    const Taken taken = {x, by, pitch};
    const Past past(kept, slot, columns, width);
    for (u32 r = count < width ? 0 : count - width + 1; r < count; r++) set(past.row(position + r)[c], taken.at(first + r, c));
}

// What a warp of state_space has: rows of a state. A block has STATE_WARPS of them, and takes so many tokens at a time.
constexpr u32 STATE_ROWS = 8, STATE_WARPS = 4, STATE_DIM = STATE_ROWS * STATE_WARPS, STATE_TOKENS = 8;

// StateSpace are the sizes and tensors of state_space.
struct StateSpace {
    const Act *made, *passed;  // passed [rows][channels] is what has passed the convolution, or null: it is done here
    const float *w, *bias, *aLog, *dtBias, *d;
    Act* kept;
    float* state;
    u32 heads, dim, groups, states, width;
};

// softplus is ln(1 + e^x), by Kahan's logarithm of what is near 1.
__device__ __forceinline__ float softplus(float x) {
    const float u = expf(-fabsf(x)), w = 1.0f + u;
    return fmaxf(x, 0) + (w == 1.0f ? u : logf(w) * u / (w - 1.0f));
}

// rows_of_lanes returns to lane l the sum of v[l / 4] over all lanes.
__device__ __forceinline__ float rows_of_lanes(float (&v)[STATE_ROWS]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 far = 16, n = STATE_ROWS / 2; n > 0; far /= 2, n /= 2)
#pragma unroll
        for (u32 i = 0; i < n; i++) {
            const float mine = lane & far ? v[i + n] : v[i], others = lane & far ? v[i] : v[i + n];
            v[i] = mine + __shfl_xor_sync(0xffffffff, others, far);
        }
    v[0] += __shfl_xor_sync(0xffffffff, v[0], 2);
    return v[0] + __shfl_xor_sync(0xffffffff, v[0], 1);
}

// state_space takes the states [slots][heads][dim][states] of a head through the rows of a text, and writes what is found, times SiLU of
// the gates, to y. A warp has STATE_ROWS rows of the state, and a lane of it every 32nd element of them, in registers: each is read and written once.
// What a token has is put into shared memory, in two places by turns. States and places of texts are read before the kernel in front has ended,
// which may not write them.
template <u32 EACH_LANE>
__device__ __forceinline__ void state_space(Act* y, const StateSpace& s, const float* rows, u32 first, u32 count, u32 slot, u32 position) {
    constexpr u32 B = 2 * STATE_DIM, C = B + 32 * EACH_LANE, WIDTH = C + 32 * EACH_LANE;  // x, gates, b and c of a token
    __shared__ float places[2][STATE_TOKENS][WIDTH];
    __shared__ float steps[2][STATE_TOKENS][2];  // how far a token goes, and what it leaves of the state
    const Text text(rows, blockIdx.x, first, count, slot, position);
    const u32 h = blockIdx.y, from = blockIdx.z * STATE_DIM, lane = threadIdx.x % 32, mine = threadIdx.x / 32 * STATE_ROWS;
    const u32 inner = s.heads * s.dim, channels = inner + 2 * s.groups * s.states, group = h / (s.heads / s.groups);
    const u64 pitch = inner + channels + s.heads;
    float* kept = s.state + (((u64)text.slot * s.heads + h) * s.dim + from + mine) * s.states + lane;
    float m[STATE_ROWS][EACH_LANE];
#pragma unroll
    for (u32 r = 0; r < STATE_ROWS; r++)
#pragma unroll
        for (u32 e = 0; e < EACH_LANE; e++)
            m[r][e] = s.state && text.position > 0 && from + mine + r < s.dim && lane + 32 * e < s.states ? kept[r * s.states + 32 * e] : 0;
    const float rate = expf(s.aLog[h]), direct = s.d[h];
    const Taken taken = {s.made + inner, nullptr, pitch};
    const Past past(s.kept, text.slot, channels, s.width);
    const bool first_of_group = h % (s.heads / s.groups) == 0 && blockIdx.z == 0;
    begin();
    for (u32 begins = 0, turn = 0; begins < text.count; begins += STATE_TOKENS, turn ^= 1) {
        const u32 tokens = min(STATE_TOKENS, text.count - begins), row = text.first + begins;
        for (u32 i = threadIdx.x; i < tokens * WIDTH; i += blockDim.x) {
            const u32 t = i / WIDTH, at = i % WIDTH;
            float v = 0;
            if (at >= STATE_DIM && at < B) {
                const u32 j = from + at - STATE_DIM;
                if (j < s.dim) {
                    v = value(s.made[(row + t) * pitch + h * s.dim + j]);
                    v /= 1.0f + __expf(-v);
                }
            } else {
                const u32 j = at < B ? from + at : (at - B) % (32 * EACH_LANE), c = at < B ? h * s.dim + j : inner + (at < C ? group : s.groups + group) * s.states + j;
                const bool there = j < (at < B ? s.dim : s.states);
                if (there && s.passed) {
                    v = value(s.passed[(u64)(row + t) * channels + c]);
                } else if (there) {
                    const float own = taken.at(row, c);
                    v = fmaf(s.w[(u64)c * s.width + s.width - 1], own, s.bias ? s.bias[c] : 0);
                    for (u32 back = 1; back < s.width && back <= text.position; back++)
                        v = fmaf(s.w[(u64)c * s.width + s.width - 1 - back], value(past.row(text.position - back)[c]), v);
                    v /= 1.0f + __expf(-v);
                    if (at < B || first_of_group) set(past.row(text.position)[c], own);
                }
            }
            places[turn][t][at] = v;
        }
        if (threadIdx.x < tokens) {
            const float step = value(s.made[(row + threadIdx.x) * pitch + inner + channels + h]) + s.dtBias[h], soft = softplus(step);
            steps[turn][threadIdx.x][0] = soft;
            steps[turn][threadIdx.x][1] = expf(-rate * soft);
        }
        __syncthreads();
        for (u32 t = 0; t < tokens; t++) {
            const float *token = places[turn][t], step = steps[turn][t][0], left = steps[turn][t][1];
            float b[EACH_LANE], c[EACH_LANE], found[STATE_ROWS];
#pragma unroll
            for (u32 e = 0; e < EACH_LANE; e++) {
                b[e] = token[B + lane + 32 * e];
                c[e] = token[C + lane + 32 * e];
            }
#pragma unroll
            for (u32 r = 0; r < STATE_ROWS; r++) {
                const float add = token[mine + r] * step;
                found[r] = 0;
#pragma unroll
                for (u32 e = 0; e < EACH_LANE; e++) {
                    m[r][e] = fmaf(add, b[e], m[r][e] * left);
                    found[r] = fmaf(m[r][e], c[e], found[r]);
                }
            }
            const float sum = rows_of_lanes(found);
            const u32 i = mine + lane / 4;
            if (lane % 4 == 0 && from + i < s.dim) set(y[(u64)(row + t) * inner + h * s.dim + from + i], fmaf(direct, token[i], sum) * token[STATE_DIM + i]);
        }
    }
    if (!s.state) return;
#pragma unroll
    for (u32 r = 0; r < STATE_ROWS; r++)
#pragma unroll
        for (u32 e = 0; e < EACH_LANE; e++)
            if (from + mine + r < s.dim && lane + 32 * e < s.states) kept[r * s.states + 32 * e] = m[r][e];
}
#define STATE_SPACE(STATES)                                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(32 * STATE_WARPS)                                                                                                \
    state_space_##STATES(Act* y, const Act* made, const Act* passed, const float* w, const float* bias, const float* aLog, const float* dtBias, const float* d,   \
                         Act* kept, float* state, u32 heads, u32 dim, u32 groups, u32 states, u32 width, const float* rows, u32 first, u32 count, u32 slot,       \
                         u32 position) {                                                                                                                          \
        const StateSpace s = {made, passed, w, bias, aLog, dtBias, d, kept, state, heads, dim, groups, states, width};                                            \
        state_space<STATES / 32>(y, s, rows, first, count, slot, position);                                                                                       \
    }
STATE_SPACE(32)
STATE_SPACE(64)
STATE_SPACE(128)
STATE_SPACE(256)
