// Scales of groups of weights, searched as package quantize/rtn does, to the bit: products are not fused with sums here, and sums are
// those of sixteen lanes, which are then folded in halves. And what rows of weights become by them.

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / 32;
constexpr u32 LANES = 16;       // of a sum
constexpr u32 TRIED = 64;       // scales at a time, at most
constexpr u32 VALUES = 32;      // of a table, at most
constexpr u32 COARSE = 128;     // multiples, at most
constexpr u32 FINE = 4;
constexpr u32 INFINITE = 0x7f800000;

// Search is what the host lays out of rounding.Search.
struct Search {
    u32 type;   // of scales: 0 float32, 1 float16, 2 bfloat16, 3 of a byte
    u32 bytes;  // of such a type, without sign
    u32 absmax, mirrored, upper;
    u32 coarse, first, more, refine;
    float max, reach;
};

// Lists is what lies behind each other in memory.
struct Lists {
    float values[VALUES], mids[VALUES];  // mids are infinite beyond their end
    float fine[FINE], coarse[COARSE];
    float bytes[256], least[256];
};

__device__ __forceinline__ float infinity() { return __int_as_float(INFINITE); }
__device__ __forceinline__ u32 magnitude(float f) { return (u32)__float_as_int(f) & 0x7fffffff; }

// times is exact but where the product is subnormal.
__device__ __forceinline__ float times(float v, double factor) { return factor == 1 ? v : (float)((double)v * factor); }

// near_factor returns the power of two that brings a magnitude near 1 where it is far from it, else 1.
__device__ __forceinline__ double near_factor(float top) {
    if (top == 0 || (top >= 0x1p-40f && top <= 0x1p40f)) return 1;
    union { double d; u64 bits; } one;
    one.d = top;
    one.bits = (2045 - (one.bits >> 52)) << 52;
    return one.d;
}

__device__ __forceinline__ float reciprocal(float scale) {
    if (scale >= 0 && scale < 1e-38f) scale = 1e-38f;
    if (scale < 0 && scale > -1e-38f) scale = -1e-38f;
    return __fdiv_rn(1.0f, scale);
}

// fold adds up the sums of the lanes of each half of a warp.
__device__ __forceinline__ float fold(float sum) {
#pragma unroll
    for (u32 half = LANES / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffff, sum, half);
    return sum;
}

// Held are weights of a group in registers, every sixteenth of them; Read those that are read again each time.
template <u32 EACH>
struct Held {
    float v[EACH];
    u32 n;
    __device__ __forceinline__ Held(const float* w, u32 count, double factor) : n(count) {
        const u32 lane = threadIdx.x % LANES;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) v[j] = j * LANES + lane < n ? times(w[j * LANES + lane], factor) : 0.0f;
    }
    template <class F>
    __device__ __forceinline__ void each(F f) const {
        const u32 lane = threadIdx.x % LANES;
#pragma unroll
        for (u32 j = 0; j < EACH; j++)
            if (j * LANES + lane < n) f(v[j]);
    }
};
struct Read {
    const float* w;
    u32 n;
    double factor;
    __device__ __forceinline__ Read(const float* w, u32 count, double factor) : w(w), n(count), factor(factor) {}
    template <class F>
    __device__ __forceinline__ void each(F f) const {
        for (u32 i = threadIdx.x % LANES; i < n; i += LANES) f(times(w[i], factor));
    }
};

// Table is a table in shared memory.
struct Table {
    float values[VALUES], mids[VALUES];
    // nearest returns the value of the code of x, which is the number of mids below it.
    __device__ __forceinline__ float nearest(float x) const {
        u32 c = 0;
#pragma unroll
        for (u32 step = VALUES / 2; step > 0; step /= 2)
            if (x > mids[c + step - 1]) c += step;
        return values[c];
    }
};

// Tried are the scales that a warp tries at a time, and the moments of the codes that they give.
struct Tried {
    float scale[TRIED], wq[TRIED], qq[TRIED];
};

// Lead keeps the best scale so far.
struct Lead {
    float scale;        // the best for its codes
    float first, next;  // the scales tried that gave the best codes and the next best
    double square, qq;  // what scale takes off Σ w² is square over qq

    // update takes in n scales that were tried, the first of equals, and reports whether the best changed.
    __device__ __forceinline__ bool update(const Tried& t, u32 n) {
        u32 at = TRIED, second = TRIED;
        double second_square = 0, second_qq = 1;
        for (u32 i = 0; i < n; i++) {
            const double s = (double)t.wq[i] * (double)t.wq[i], q = t.qq[i];
            if (!(s * second_qq > second_square * q) || !(s <= 1.7976931348623157e308) || q == 0) continue;
            if (s * qq > square * q) {
                second = at, second_square = square, second_qq = qq;
                at = i, square = s, qq = q;
            } else {
                second = i, second_square = s, second_qq = q;
            }
        }
        if (at == TRIED) return false;
        next = second == TRIED ? first : t.scale[second];
        first = t.scale[at];
        scale = __fdiv_rn(t.wq[at], t.qq[at]);
        return true;
    }
};

// Group is a search in a group of weights by a warp, whose threads all know the same.
template <class Weights>
struct Group {
    const Search& s;
    const Lists& lists;
    const Table& table;
    Tried& tried;
    const Weights& w;
    double factor;

    __device__ __forceinline__ bool holds(float scale) const { return magnitude(scale * s.max) != INFINITE; }

    // byte_of returns what a magnitude is stored as.
    __device__ __forceinline__ u32 byte_of(float size) const {
        u32 from = 0, to = s.bytes - 1;
        while (from < to) {
            const u32 mid = (from + to + 1) / 2;
            if (size >= lists.least[mid])
                from = mid;
            else
                to = mid - 1;
        }
        return from;
    }

    // encoded returns a scale as it comes back from its type.
    __device__ __forceinline__ float encoded(float scale) const {
        if (s.type == 1) {
            F16 h;
            set(h, scale);
            return value(h);
        }
        if (s.type == 2) {
            BF16 h;
            set(h, scale);
            return value(h);
        }
        if (s.type == 0) return scale;
        const float size = lists.bytes[byte_of(fabsf(scale))];
        return scale < 0 ? -size : size;
    }

    __device__ __forceinline__ float stored(float scale) const {
        const float back = encoded(times(scale, 1 / factor));
        return holds(back) ? times(back, factor) : infinity();
    }

    // fit finds what the codes for n scales give, a half of the warp for each.
    __device__ __forceinline__ void fit(u32 n) {
        __syncwarp();
        const u32 half = threadIdx.x / LANES % 2;
        for (u32 i = 0; i < n; i += 2) {
            const u32 at = i + half < n ? i + half : n - 1;
            const float inv = reciprocal(tried.scale[at]);
            float wq = 0, qq = 0;
            w.each([&](float v) {
                const float q = table.nearest(v * inv);
                wq += v * q;
                qq += q * q;
            });
            wq = fold(wq), qq = fold(qq);
            if (threadIdx.x % LANES == 0 && i + half < n) tried.wq[at] = wq, tried.qq[at] = qq;
        }
        __syncwarp();
    }

    // fill has thread i of the warp, and every 32nd from there on, write scale(i) of n.
    template <class F>
    __device__ __forceinline__ void fill(u32 n, F scale) {
        __syncwarp();
        for (u32 i = threadIdx.x % 32; i < n; i += 32) tried.scale[i] = scale(i);
    }

    // Where negative scales are tried as well, every second one is the negative of that before.
    __device__ __forceinline__ u32 times_tried(u32 n) const { return s.mirrored ? 2 * n : n; }
    __device__ __forceinline__ u32 step_of(u32 i) const { return s.mirrored ? i / 2 : i; }
    __device__ __forceinline__ float signed_by(u32 i, float scale) const { return s.mirrored && i % 2 ? -scale : scale; }

    // less reports whether a leaves less of a squared error than b. Each half of the warp sums one up.
    __device__ __forceinline__ bool less(float a, float b) {
        const float scale = threadIdx.x / LANES % 2 ? b : a, inv = reciprocal(scale);
        float sum = 0;
        w.each([&](float v) {
            const float d = v - table.nearest(v * inv) * scale;
            sum += d * d;
        });
        sum = fold(sum);
        return __shfl_sync(0xffffffff, sum, 0) < __shfl_sync(0xffffffff, sum, LANES);
    }

    __device__ __forceinline__ float search(float end) {
        if (s.type == 3) return search_bytes(end);
        Lead b{end, end, end, 0, 1};
        // The steps, by parts; then finer ones; then the scale that suits its codes. All in one loop, as fit is much code.
        u32 from = 0, part = s.first, fitted = 0;
        for (u32 pass = 0; pass < 3;) {
            u32 n = 1;
            if (pass == 0) {
                n = times_tried(part);
                fill(n, [&](u32 i) { return signed_by(i, end * lists.coarse[from + step_of(i)]); });
            } else if (pass == 1) {
                n = 2 * FINE;
                fill(n, [&](u32 i) { return (i < FINE ? b.first : b.next) * lists.fine[i % FINE]; });
            } else {
                fill(n, [&](u32) { return b.scale; });
            }
            fit(n);
            const bool better = b.update(tried, n);
            if (pass == 2) {
                if (!better || ++fitted == s.refine) break;
            } else if (pass == 1) {
                pass = s.refine > 0 ? 2 : 3;
            } else {
                const float lowest = end * lists.coarse[from + part - 1];
                from += part;
                part = s.coarse - from < s.more ? s.coarse - from : s.more;
                if (part == 0 || (b.first != lowest && b.first != -lowest)) pass = 1;
            }
        }
        const float own = stored(b.scale);
        return less(own, stored(end)) ? own : end;
    }

    // search_bytes tries all that a byte can hold between the ends of the first steps.
    __device__ __forceinline__ float search_bytes(float end) {
        const float size = (float)((double)fabsf(end) / factor);
        const u32 from = byte_of(size * lists.coarse[s.first - 1]), to = byte_of(size * lists.coarse[0]) + 1;
        float best = 0;
        union { u64 bits; double d; } least{0x7ff0000000000000};
        for (u32 at = from; at < to; at += TRIED / 2) {
            const u32 n = times_tried(to - at < TRIED / 2 ? to - at : TRIED / 2);
            fill(n, [&](u32 i) {
                const float scale = lists.bytes[at + step_of(i)];
                return holds(scale) ? signed_by(i, times(scale, factor)) : infinity();  // which is never better
            });
            fit(n);
            for (u32 i = 0; i < n; i++) {
                const double scale = tried.scale[i], e = scale * (scale * (double)tried.qq[i] - 2 * (double)tried.wq[i]);
                if (e < least.d) best = tried.scale[i], least.d = e;
            }
        }
        return best;
    }

    // towards gives end the sign that maps the first weight of magnitude top, of raw ones, to the end of the table that is as far out.
    __device__ __forceinline__ float towards(const float* raw, u32 n, float end, u32 top) const {
        u32 first = ~0u;
        for (u32 i = threadIdx.x % 32; i < n && first == ~0u; i += 32)
            if (magnitude(raw[i]) == top) first = i;
        for (u32 other = 16; other > 0; other /= 2) {
            const u32 there = __shfl_xor_sync(0xffffffff, first, other);
            first = there < first ? there : first;
        }
        return first != ~0u && (raw[first] < 0) == (s.upper != 0) ? -end : end;
    }
};

// search_scales finds the scale of each group of w [rows, k]: wanted, and as it is stored. tops are the bits of the largest magnitudes;
// of groups with a weight that is not finite nothing else is found.
template <class Weights>
__device__ __forceinline__ void search_scales(float* wanted, float* back, u32* tops, const float* w, const Lists* lists, const Search& s,
                                              u32 rows, u32 k, u32 group) {
    __shared__ Table table;
    __shared__ Tried tried[WARPS];
    for (u32 i = threadIdx.x; i < VALUES; i += THREADS) table.values[i] = lists->values[i], table.mids[i] = lists->mids[i];
    __syncthreads();
    const u32 groups = (k + group - 1) / group, lane = threadIdx.x % 32;
    const u64 at = (u64)blockIdx.x * WARPS + threadIdx.x / 32;
    if (at >= (u64)rows * groups) return;
    const u32 from = (u32)(at % groups) * group, n = k - from < group ? k - from : group;
    w += at / groups * k + from;
    u32 top = 0;
    for (u32 i = lane; i < n; i += 32) top = magnitude(w[i]) > top ? magnitude(w[i]) : top;
#pragma unroll
    for (u32 other = 16; other > 0; other /= 2) {
        const u32 there = __shfl_xor_sync(0xffffffff, top, other);
        top = there > top ? there : top;
    }
    float scale = 0, encoded = 0;
    if (top < INFINITE) {
        const double factor = near_factor(__int_as_float((int)top));
        const Weights weights(w, n, factor);
        Group<Weights> g{s, *lists, table, tried[threadIdx.x / 32], weights, factor};
        if (top > 0) {
            const float peak = times(__int_as_float((int)top), factor);
            float end = __fdiv_rn(peak, s.reach);
            if (s.mirrored) end = g.towards(w, n, end, top);
            scale = times(s.absmax ? end : g.search(end), 1 / factor);
        }
        encoded = g.encoded(scale);
    }
    if (lane == 0) wanted[at] = scale, back[at] = encoded, tops[at] = top;
}
extern "C" __global__ void __launch_bounds__(256) search_scales_64(float* wanted, float* back, u32* tops, const float* w, const Lists* lists, Search s, u32 rows, u32 k, u32 group) {
    search_scales<Held<4>>(wanted, back, tops, w, lists, s, rows, k, group);
}
extern "C" __global__ void __launch_bounds__(256) search_scales_128(float* wanted, float* back, u32* tops, const float* w, const Lists* lists, Search s, u32 rows, u32 k, u32 group) {
    search_scales<Held<8>>(wanted, back, tops, w, lists, s, rows, k, group);
}
extern "C" __global__ void __launch_bounds__(256) search_scales_all(float* wanted, float* back, u32* tops, const float* w, const Lists* lists, Search s, u32 rows, u32 k, u32 group) {
    search_scales<Read>(wanted, back, tops, w, lists, s, rows, k, group);
}

// add_scaled adds x times a factor to y.
extern "C" __global__ void __launch_bounds__(256) add_scaled(float* y, const float* x, float factor, u64 n) {
    Elements e(n);
    float f[EACH], g[EACH];
    e.load(f, (const F32*)y);
    e.load(g, (const F32*)x);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) f[i] += g[i] * factor;
    e.store((F32*)y, f);
}

// keep_finite copies to target [rows, k] the rows of w that are not finite there.
extern "C" __global__ void __launch_bounds__(256) keep_finite(float* target, const float* w, u32 k) {
    target += (u64)blockIdx.x * k;
    w += (u64)blockIdx.x * k;
    float bad = 0;
    for (u32 i = threadIdx.x; i < k; i += THREADS)
        if (!finite(target[i])) bad = 1;
    if (reduce(bad, Max()) == 0) return;
    for (u32 i = threadIdx.x; i < k; i += THREADS) target[i] = w[i];
}

// make_levels writes what each of count codes stands for in each of n groups.
extern "C" __global__ void __launch_bounds__(256) make_levels(float* y, const float* scales, const Lists* lists, u32 n, u32 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i < (u64)n * count) y[i] = lists->values[i % count] * scales[i / count];
}

// choose_codes takes the nearest codes [rows, k] for the fed ones where those lose no less, and sums up over each row Σ w², Σ (w-ŵ)²,
// Σ goal², Σ (goal-ŵ)², one column after the other as the host does. A warp has a row.
extern "C" __global__ void __launch_bounds__(256) choose_codes(u8* codes, const u8* nearest, const float* fed_loss, const float* nearest_loss,
                                                               const float* levels, const float* w, const float* goal, double* sums,
                                                               u32 rows, u32 k, u32 group, u32 count) {
    __shared__ double terms[WARPS][4][33];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 row = (u64)blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    const bool fed = fed_loss[row] < nearest_loss[row];
    codes += row * k, nearest += row * k, w += row * k, goal += row * k;
    levels += row * ((k + group - 1) / group) * count;
    double sum = 0;
    for (u32 from = 0; from < k; from += 32) {
        const u32 c = from + lane, n = k - from < 32 ? k - from : 32;
        if (c < k) {
            const u8 code = fed ? codes[c] : nearest[c];
            if (!fed) codes[c] = code;
            const double stored = levels[(u64)(c / group) * count + code], own = w[c], aimed = goal[c];
            terms[warp][0][lane] = own * own;
            terms[warp][1][lane] = (own - stored) * (own - stored);
            terms[warp][2][lane] = aimed * aimed;
            terms[warp][3][lane] = (aimed - stored) * (aimed - stored);
        }
        __syncwarp();
        if (lane < 4)
            for (u32 i = 0; i < n; i++) sum += terms[warp][lane][i];
        __syncwarp();
    }
    if (lane < 4) sums[row * 4 + lane] = sum;
}
