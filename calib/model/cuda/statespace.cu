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
};

// Past is what a slot keeps of the inputs of a convolution: that of position p in row p mod width, so that a step of a row reads others than it writes.
struct Past {
    Act* kept;  // or null
    u32 columns, width;
    __device__ __forceinline__ Past(Act* kept, u32 slot, u32 columns, u32 width)
        : kept(kept ? kept + (u64)slot * width * columns : kept), columns(columns), width(width) {}
    __device__ __forceinline__ Act* row(u32 position) const { return kept + (u64)(position % width) * columns; }
};

// ConvRows are the sizes and tensors of conv_rows.
struct ConvRows {
    const Act *x, *by, *gates;  // by and gates may be null
    u64 pitch;
    const float *w, *bias;
    Act* kept;
    u32 columns, width;
};

// conv_rows passes the rows of a step through a convolution of width tokens, each channel by its own weights [columns][width], and then SiLU, or
// multiplies by gates, where those are not null. A thread has EACH channels of a row, and asks for all that it reads before it looks at any of
// it. Where rows tells of the texts, it keeps their inputs.
template <u32 MOST>
__device__ __forceinline__ void conv_rows(const Inputs& y, const ConvRows& s, const float* rows, u32 first, u32 count, u32 slot, u32 position) {
    begin();
    const u32 parts = (s.columns + EACH - 1) / EACH, at = blockIdx.x * blockDim.x + threadIdx.x, row = at / parts, c = at % parts * EACH;
    const bool there = row < count;
    const Text text(there ? rows : nullptr, row, first, count, slot, position);
    const u32 in = rows ? 0 : row;  // of the text's rows
    const Past past(s.kept, text.slot, s.columns, s.width);
    const Elements here(c, there ? s.columns : 0);
    Pack<Act> x[MOST], by[MOST], gates;
#pragma unroll
    for (u32 j = 0; j < MOST; j++) {
        const bool seen = there && j < s.width;
        const u64 from = (text.first + in - j) * s.pitch;
        const Elements e(seen && j <= in ? from + c : 0, seen && j <= in ? from + s.columns : 0);
        if (seen && j > in && s.kept && j <= text.position + in)
            x[j] = here.read(past.row(text.position + in - j));
        else
            x[j] = e.read(s.x);
        if (s.by) by[j] = e.read(s.by);
    }
    const u64 from = (text.first + in) * s.pitch;
    if (s.gates) gates = Elements(from + c, there ? from + s.columns : 0).read(s.gates);
    float sum[EACH] = {}, own[EACH];
    if (s.bias) here.load(sum, (const F32*)s.bias);
#pragma unroll
    for (u32 j = 0; j < MOST; j++)
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const float v = value(x[j].at[i]), f = s.by && j <= in ? v * value(by[j].at[i]) : v;
            if (j == 0) own[i] = f;
            if (j < s.width && i < here.count) sum[i] = fmaf(s.w[(u64)(c + i) * s.width + s.width - 1 - j], f, sum[i]);
        }
    if (there && s.kept && rows) here.store(past.row(text.position), own);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sum[i] = s.gates ? sum[i] * value(gates.at[i]) : sum[i] / (1.0f + __expf(-sum[i]));
    const u64 to = (u64)(text.first + in) * s.columns;
    y.store(Elements(to + c, there ? to + s.columns : 0), text.first + in, c, sum);
}
#define CONV_ROWS(MOST)                                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256)                                                                                                         \
    conv_rows_##MOST(Act* y, u8* prepared, u8* rotated, const Act* x, const Act* by, const Act* gates, u64 pitch, const float* w, const float* bias,          \
                     Act* kept, const float* rows, u32 first, u32 count, u32 slot, u32 position, u32 columns, u32 width, u32 groups) {                        \
        conv_rows<MOST>({y, prepared, rotated, groups}, {x, by, gates, pitch, w, bias, kept, columns, width}, rows, first, count, slot, position);            \
    }
CONV_ROWS(4)
CONV_ROWS(8)

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

// Token is where shared memory has what the rows of a block need of a token: x, gates, b and c.
template <u32 EACH_LANE>
struct Token {
    static constexpr u32 GATES = STATE_DIM, B = 2 * STATE_DIM, C = B + 32 * EACH_LANE, WIDTH = C + 32 * EACH_LANE;
    static constexpr u32 PARTS = WIDTH / EACH, LOADS = (STATE_TOKENS * PARTS + 32 * STATE_WARPS - 1) / (32 * STATE_WARPS);
    static constexpr u32 SINGLE = (WIDTH + 32 * STATE_WARPS - 1) / (32 * STATE_WARPS);

    u32 inner, channels, h, from, group;
    u64 pitch;
    __device__ __forceinline__ Token(const StateSpace& s, u32 h, u32 from)
        : inner(s.heads * s.dim), channels(inner + 2 * s.groups * s.states), h(h), from(from), group(h / (s.heads / s.groups)), pitch(inner + channels + s.heads) {}

    // column returns which channel an element is, and end which the first is that is not there any more. Those of gates are before the channels.
    __device__ __forceinline__ u32 column(const StateSpace& s, u32 at, u32& end) const {
        if (at < B) {
            end = (h + 1) * s.dim;
            return h * s.dim + from + at % STATE_DIM;
        }
        const u32 first = inner + (at < C ? group : s.groups + group) * s.states;
        end = first + s.states;
        return first + (at - B) % (32 * EACH_LANE);
    }

    // load asks for a thread's parts of some tokens, which have passed the convolution, and put puts them into place.
    __device__ __forceinline__ void load(Pack<Act> (&parts)[LOADS], const StateSpace& s, u32 row, u32 tokens) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            const u32 q = threadIdx.x + i * 32 * STATE_WARPS, t = q / PARTS, at = q % PARTS * EACH;
            u32 end;
            const u32 c = column(s, at, end);
            const bool gate = at >= GATES && at < B;
            const u64 begin = (u64)(row + t) * (gate ? pitch : channels);
            parts[i] = Elements(begin + c, t < tokens ? begin + end : 0).read(gate ? s.made : s.passed);
        }
    }
    __device__ __forceinline__ void put(float (*places)[WIDTH], const Pack<Act> (&parts)[LOADS]) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            const u32 q = threadIdx.x + i * 32 * STATE_WARPS, t = q / PARTS, at = q % PARTS * EACH;
            if (t >= STATE_TOKENS) break;
#pragma unroll
            for (u32 j = 0; j < EACH; j++) {
                const float v = value(parts[i].at[j]);
                places[t][at + j] = at >= GATES && at < B ? v / (1.0f + __expf(-v)) : v;
            }
        }
    }

    // single puts the only token of a text into place, which passes the convolution here, and keeps its inputs.
    __device__ __forceinline__ void single(float* place, const StateSpace& s, const Text& text, bool keeps) const {
        constexpr u32 TAPS = 4;  // that are asked for at once
        const Past past(s.kept, text.slot, channels, s.width);
        float own[SINGLE], sum[SINGLE];
        for (u32 first = 0; first < s.width; first += TAPS) {
            float in[SINGLE][TAPS], w[SINGLE][TAPS];
#pragma unroll
            for (u32 i = 0; i < SINGLE; i++) {
                const u32 at = threadIdx.x + i * 32 * STATE_WARPS;
                u32 end;
                const u32 c = column(s, at, end);
                const bool there = at < WIDTH && c < end, passes = there && (at < GATES || at >= B);
                if (first == 0) {
                    own[i] = there ? value(s.made[text.first * pitch + (passes ? inner : 0) + c]) : 0;
                    sum[i] = passes ? s.bias ? s.bias[c] : 0 : own[i];
                }
#pragma unroll
                for (u32 j = 0; j < TAPS; j++) {
                    const u32 back = first + j;
                    const bool seen = passes && back < s.width && back <= text.position;
                    w[i][j] = seen ? s.w[(u64)c * s.width + s.width - 1 - back] : 0;
                    in[i][j] = seen && back > 0 ? value(past.row(text.position - back)[c]) : own[i];
                }
            }
#pragma unroll
            for (u32 i = 0; i < SINGLE; i++)
#pragma unroll
                for (u32 j = 0; j < TAPS; j++) sum[i] = fmaf(w[i][j], in[i][j], sum[i]);
        }
#pragma unroll
        for (u32 i = 0; i < SINGLE; i++) {
            const u32 at = threadIdx.x + i * 32 * STATE_WARPS;
            u32 end;
            const u32 c = column(s, at, end);
            if (at >= WIDTH) break;
            if (c < end && (at < GATES || at >= B && keeps)) set(past.row(text.position)[c], own[i]);
            place[at] = sum[i] / (1.0f + __expf(-sum[i]));
        }
    }
};

// state_space takes the states [slots][heads][dim][states] of a head through the rows of a text, and writes what is found, times SiLU of
// the gates, to y. A warp has STATE_ROWS rows of the state, and a lane of it every 32nd element of them, in registers: each is read and written once.
// What tokens have is put into shared memory, in two places by turns, and asked for while those before are worked on. States and places of texts
// are read before the kernel in front has ended, which may not write them.
template <u32 EACH_LANE>
__device__ __forceinline__ void state_space(Act* y, const StateSpace& s, const float* rows, u32 first, u32 count, u32 slot, u32 position) {
    typedef Token<EACH_LANE> Of;
    __shared__ float places[2][STATE_TOKENS][Of::WIDTH];
    __shared__ float steps[2][STATE_TOKENS][2];  // how far a token goes, and what it leaves of the state
    const Text text(rows, blockIdx.x, first, count, slot, position);
    const u32 h = blockIdx.y, from = blockIdx.z * STATE_DIM, lane = threadIdx.x % 32, mine = threadIdx.x / 32 * STATE_ROWS;
    const Of of(s, h, from);
    float* kept = s.state + (((u64)text.slot * s.heads + h) * s.dim + from + mine) * s.states + lane;
    float m[STATE_ROWS][EACH_LANE];
#pragma unroll
    for (u32 r = 0; r < STATE_ROWS; r++)
#pragma unroll
        for (u32 e = 0; e < EACH_LANE; e++)
            m[r][e] = s.state && text.position > 0 && from + mine + r < s.dim && lane + 32 * e < s.states ? kept[r * s.states + 32 * e] : 0;
    const float rate = expf(s.aLog[h]), direct = s.d[h], sooner = s.dtBias[h];
    begin();
    const bool keeps = h % (s.heads / s.groups) == 0 && blockIdx.z == 0;  // what the heads of a group share
    Pack<Act> parts[Of::LOADS];
    float step = 0;
    const auto load = [&](u32 row, u32 tokens) {
        if (s.passed) of.load(parts, s, row, tokens);
        if (threadIdx.x < tokens) step = value(s.made[(row + threadIdx.x) * of.pitch + of.inner + of.channels + h]);
    };
    load(text.first, min(STATE_TOKENS, text.count));
    for (u32 begins = 0, turn = 0; begins < text.count; begins += STATE_TOKENS, turn ^= 1) {
        const u32 tokens = min(STATE_TOKENS, text.count - begins), row = text.first + begins;
        if (s.passed)
            of.put(places[turn], parts);
        else
            of.single(places[turn][0], s, text, keeps);
        if (threadIdx.x < tokens) {
            const float soft = softplus(step + sooner);
            steps[turn][threadIdx.x][0] = soft;
            steps[turn][threadIdx.x][1] = expf(-rate * soft);
        }
        __syncthreads();
        if (begins + STATE_TOKENS < text.count) load(row + STATE_TOKENS, min(STATE_TOKENS, text.count - begins - STATE_TOKENS));
#pragma unroll 2
        for (u32 t = 0; t < tokens; t++) {
            const float *token = places[turn][t], far = steps[turn][t][0], left = steps[turn][t][1];
            float b[EACH_LANE], c[EACH_LANE], found[STATE_ROWS];
#pragma unroll
            for (u32 e = 0; e < EACH_LANE; e++) {
                b[e] = token[Of::B + lane + 32 * e];
                c[e] = token[Of::C + lane + 32 * e];
            }
#pragma unroll
            for (u32 r = 0; r < STATE_ROWS; r++) {
                const float add = token[mine + r] * far;
                found[r] = 0;
#pragma unroll
                for (u32 e = 0; e < EACH_LANE; e++) {
                    m[r][e] = fmaf(add, b[e], m[r][e] * left);
                    found[r] = fmaf(m[r][e], c[e], found[r]);
                }
            }
            const float sum = rows_of_lanes(found);
            const u32 i = mine + lane / 4;
            if (lane % 4 == 0 && from + i < s.dim) set(y[(u64)(row + t) * of.inner + h * s.dim + from + i], fmaf(direct, token[i], sum) * token[Of::GATES + i]);
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
