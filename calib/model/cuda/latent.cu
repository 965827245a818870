// Attention to what latent attention keeps of texts: a row of dim elements a position, [slots][head], which is the key and the value of all
// query heads.

// A block has a query head a warp, so that what one of them has read of a text is at hand for the others, and a warp some keys at a time.
// A lane has pairs of elements: l, l + 32 and so on. Of texts there are parts of at least a chunk of positions.
constexpr u32 LATENT_WARPS = 8, LATENT_PAIRS = 9, LATENT_KEYS = 4, LATENT_CHUNK = 64;

struct alignas(2 * sizeof(Act)) Two { Act at[2]; };

// Parts are those that a text of so many positions is seen in, of at most so many.
struct Parts {
    u32 share, count;
    __device__ __forceinline__ Parts(u32 length, u32 most) {
        const u32 wanted = min((length + LATENT_CHUNK - 1) / LATENT_CHUNK, most);
        share = ((length + wanted - 1) / wanted + LATENT_KEYS - 1) / LATENT_KEYS * LATENT_KEYS;
        count = (length + share - 1) / share;
    }
};

// latent is the attention of the heads of row blockIdx.x over part blockIdx.z of its text. Where there are several these write the mixture, the
// sum of exponentials and the largest score to parts [rows][heads][gridDim.z][dim + 2], for latent_sum. out may be q.
extern "C" __global__ void __launch_bounds__(32 * LATENT_WARPS)
latent(Act* out, float* parts, const Act* q, const Act* kept, const float* rows, u32 heads, u32 dim, u64 head, float scale) {
    begin();
    const u32 lane = threadIdx.x % 32, h = blockIdx.y * LATENT_WARPS + threadIdx.x / 32, length = (u32)rows[2 * blockIdx.x + 1] + 1;
    const Parts p(length, gridDim.z);
    if (h >= heads || blockIdx.z >= p.count) return;
    const u32 first = blockIdx.z * p.share, end = min(first + p.share, length);
    const Act* const keys = kept + (u64)rows[2 * blockIdx.x] * head;
    const u64 at = (u64)blockIdx.x * heads + h;

    float x[LATENT_PAIRS][2], mixed[LATENT_PAIRS][2] = {}, top = LOWEST, sum = 0;
#pragma unroll
    for (u32 j = 0; j < LATENT_PAIRS; j++) {
        const u32 d = 2 * (lane + 32 * j);
        const Two two = d < dim ? *(const Two*)(q + at * dim + d) : Two();
        x[j][0] = d < dim ? value(two.at[0]) : 0;
        x[j][1] = d < dim ? value(two.at[1]) : 0;
    }
    for (u32 base = first; base < end; base += LATENT_KEYS) {
        Two k[LATENT_KEYS][LATENT_PAIRS];
        float s[LATENT_KEYS], above = top;
#pragma unroll
        for (u32 i = 0; i < LATENT_KEYS; i++) {
            const Act* key = keys + (u64)min(base + i, end - 1) * dim;
#pragma unroll
            for (u32 j = 0; j < LATENT_PAIRS; j++) {
                const u32 d = 2 * (lane + 32 * j);
                if (d < dim) {
                    k[i][j] = *(const Two*)(key + d);
                } else {
                    set(k[i][j].at[0], 0);
                    set(k[i][j].at[1], 0);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < LATENT_KEYS; i++) {
            s[i] = 0;
#pragma unroll
            for (u32 j = 0; j < LATENT_PAIRS; j++) s[i] = fmaf(x[j][0], value(k[i][j].at[0]), fmaf(x[j][1], value(k[i][j].at[1]), s[i]));
        }
#pragma unroll
        for (u32 half = 16; half > 0; half /= 2)
#pragma unroll
            for (u32 i = 0; i < LATENT_KEYS; i++) s[i] += __shfl_xor_sync(0xffffffff, s[i], half);
#pragma unroll
        for (u32 i = 0; i < LATENT_KEYS; i++) {
            s[i] = base + i < end ? s[i] * scale : LOWEST;
            above = fmaxf(above, s[i]);
        }
        const float shrink = __expf(top - above);
        top = above;
        sum *= shrink;
#pragma unroll
        for (u32 j = 0; j < LATENT_PAIRS; j++) {
            mixed[j][0] *= shrink;
            mixed[j][1] *= shrink;
        }
#pragma unroll
        for (u32 i = 0; i < LATENT_KEYS; i++) {
            const float e = base + i < end ? __expf(s[i] - top) : 0;
            sum += e;
#pragma unroll
            for (u32 j = 0; j < LATENT_PAIRS; j++) {
                mixed[j][0] = fmaf(e, value(k[i][j].at[0]), mixed[j][0]);
                mixed[j][1] = fmaf(e, value(k[i][j].at[1]), mixed[j][1]);
            }
        }
    }
    float* const part = parts + (at * gridDim.z + blockIdx.z) * (dim + 2);
#pragma unroll
    for (u32 j = 0; j < LATENT_PAIRS; j++) {
        const u32 d = 2 * (lane + 32 * j);
        if (d >= dim) continue;
        if (p.count == 1) {
            Two two;
            set(two.at[0], mixed[j][0] / sum);
            set(two.at[1], mixed[j][1] / sum);
            *(Two*)(out + at * dim + d) = two;
        } else {
            part[d] = mixed[j][0];
            part[d + 1] = mixed[j][1];
        }
    }
    if (p.count > 1 && lane == 0) {
        part[dim] = sum;
        part[dim + 1] = top;
    }
}

// latent_sum adds up the parts of a query, head blockIdx.y of row blockIdx.x, where there are several of at most so many.
extern "C" __global__ void __launch_bounds__(128) latent_sum(Act* out, const float* parts, const float* rows, u32 heads, u32 dim, u32 most) {
    begin();
    const u32 count = Parts((u32)rows[2 * blockIdx.x + 1] + 1, most).count, pitch = dim + 2;
    if (count == 1) return;
    const u64 at = (u64)blockIdx.x * heads + blockIdx.y;
    parts += at * most * pitch;
    float top = LOWEST, sum = 0;
    for (u32 p = 0; p < count; p++) top = fmaxf(top, parts[p * pitch + dim + 1]);
    for (u32 p = 0; p < count; p++) sum += parts[p * pitch + dim] * __expf(parts[p * pitch + dim + 1] - top);
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = 0;
        for (u32 p = 0; p < count; p++) v = fmaf(__expf(parts[p * pitch + dim + 1] - top), parts[p * pitch + i], v);
        set(out[at * dim + i], v / sum);
    }
}

// keep_latents writes what attention to latents reads of row blockIdx.x: to its place in kept a latent after its norm and the key that heads
// share, of down [rows][rank + 2·half], and behind the first rank of queries [rows][heads][rank + 2·half] the last elements of q
// [rows][heads][dim]; both turned, in pairs that are neighbours or half of what turns apart.
extern "C" __global__ void __launch_bounds__(256)
keep_latents(Act* queries, Act* kept, const Act* q, const Act* down, const float* norm, const float* cos, const float* sin, const float* rows, u64 head,
             u32 heads, u32 dim, u32 rank, u32 half, u32 adjacent, float eps) {
    begin();
    const u32 row = blockIdx.x, width = rank + 2 * half;
    const Act* const from = down + (u64)row * width;
    Act* const to = kept + (u64)rows[2 * row] * head + (u64)rows[2 * row + 1] * width;
    float squares = 0;
    for (u32 i = threadIdx.x; i < rank; i += blockDim.x) squares = fmaf(value(from[i]), value(from[i]), squares);
    const float scale = 1 / sqrtf(reduce(squares, Sum()) / rank + eps);
    for (u32 i = threadIdx.x; i < rank; i += blockDim.x) set(to[i], value(from[i]) * scale * norm[i]);
    for (u32 i = threadIdx.x; i < (heads + 1) * half; i += blockDim.x) { // the key, and each head
        const u32 h = i / half, j = i % half, a = adjacent ? 2 * j : j, b = adjacent ? 2 * j + 1 : j + half;
        const Act* const x = h == 0 ? from + rank : q + ((u64)row * heads + h) * dim - 2 * half;
        Act* const y = h == 0 ? to + rank : queries + ((u64)row * heads + h - 1) * width + rank;
        const float first = value(x[a]), second = value(x[b]), c = cos[row * half + j], s = sin[row * half + j];
        set(y[a], first * c - second * s);
        set(y[b], second * c + first * s);
    }
}
