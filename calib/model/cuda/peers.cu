// The end of a half of a layer that several GPUs have a part of each.

// sum_add_norm is add_norm (step.cu) of the sum of x over all GPUs, in the order of their ranks. A block has a row, of at most 4 · BOX_WORDS bytes.
extern "C" __global__ void __launch_bounds__(1024)
sum_add_norm(Peers peers, Act* y, u8* prepared, u8* rotated, F32* h, const Act* x, const float* w, u32 cols, float eps, u32 does) {
    constexpr u32 WORDS = EACH * sizeof(Act) / 4;  // of a thread's part
    union Part {
        Pack<Act> pack;
        u32 words[WORDS];
        __device__ Part() {}
    };
    const u64 row = (u64)blockIdx.x * cols, end = row + cols;
    const u32 first = threadIdx.x * EACH, stride = blockDim.x * EACH, before = threadIdx.x % 32 * EACH;
    const Inputs inputs = {y, prepared, rotated, (gridDim.x + 7) / 8};
    float kept[EACH] = {}, factors[EACH], sum = 0;  // the first of a thread's, mostly all of them
    Elements(first, cols).load(factors, (const F32*)w);  // which no kernel writes
    begin();
    const Mail mail(peers, blockIdx.x);
    Part own;
    if (does & SENDS)
        for (u32 i = first, slot = threadIdx.x; i < cols; i += stride, slot += WORDS * blockDim.x) {
            own.pack = Elements(row + i, end).read(x);
#pragma unroll
            for (u32 j = 0; j < WORDS; j++) mail.send(slot + j * blockDim.x, own.words[j]);
        }
    if (!(does & TAKES)) return;
    for (u32 i = first, slot = threadIdx.x; i < cols; i += stride, slot += WORDS * blockDim.x) {
        const Elements e(row + i, end);
        const Pack<F32> to = e.read(h);
        own.pack = e.read(x);
        float a[EACH], added[EACH] = {};
#pragma unroll 1
        for (u32 r = 0; r < peers.ranks; r++) {
            Part part;
            if (r == peers.rank)
                part.pack = own.pack;
            else
                mail.take(part.words, r, slot, blockDim.x, WORDS);
            float b[EACH];
            values(b, part.pack);
#pragma unroll
            for (u32 j = 0; j < EACH; j++) added[j] += b[j];
        }
        values(a, to);
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            a[j] += added[j];
            sum += a[j] * a[j];
            if (i == first) kept[j] = a[j];
        }
        e.store(h, a);
    }
    const float scale = 1 / sqrtf(reduce(sum, Sum()) / cols + eps);
    for (u32 i = first; i - before < cols; i += stride) {  // by whole warps
        const Elements e(row + i, end);
        if (i != first) {
            e.load(kept, h);
            Elements(i, cols).load(factors, (const F32*)w);
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) kept[j] *= scale * factors[j];
        inputs.store(e, blockIdx.x, i, kept);
    }
    mail.done();
}
