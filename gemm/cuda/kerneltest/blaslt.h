// cuBLASLt, as far as package driver asks for it, on the host: products of E4M3 with a scale for each row and column of the results, done
// at once. What Hopper does not multiply is refused.

#include <cstdint>
#include <cstring>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define API EXPORTED int32_t

enum { OK = 0, INVALID = 7 };
enum { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28 };  // of cudaDataType_t

struct Desc {
    int32_t transposed[2];
    int8_t fast;
    const float* scales[2];
    int32_t mode[2];
};
struct Layout {
    int32_t type;
    uint64_t rows, cols;
    int64_t ld;
};
static int handle;

EXPORTED size_t cublasLtGetVersion() { return 130000; }
EXPORTED const char* cublasLtGetStatusName(int32_t) { return "an error"; }
EXPORTED const char* cublasLtGetStatusString(int32_t) { return "of the host's products"; }
API cublasLtCreate(void** h) { *h = &handle; return OK; }
API cublasLtDestroy(void*) { return OK; }
API cublasLtMatmulDescCreate(Desc** d, int32_t compute, int32_t scale) {
    if (compute != 68 || scale != F32) return INVALID;
    *d = new Desc{};
    return OK;
}
API cublasLtMatmulDescDestroy(Desc* d) { delete d; return OK; }
API cublasLtMatmulDescSetAttribute(Desc* d, int32_t attribute, const void* value, size_t size) {
    void* to;
    size_t want = 4;
    switch (attribute) {
        case 3: case 4: to = &d->transposed[attribute - 3]; break;
        case 17: case 18: to = &d->scales[attribute - 17], want = 8; break;
        case 25: to = &d->fast, want = 1; break;
        case 31: case 32: to = &d->mode[attribute - 31]; break;
        default: return INVALID;
    }
    if (size != want) return INVALID;
    memcpy(to, value, size);
    return OK;
}
API cublasLtMatrixLayoutCreate(Layout** l, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new Layout{type, rows, cols, ld};
    return OK;
}
API cublasLtMatrixLayoutDestroy(Layout* l) { delete l; return OK; }
API cublasLtMatmulPreferenceCreate(void** p) { *p = &handle; return OK; }
API cublasLtMatmulPreferenceDestroy(void*) { return OK; }
API cublasLtMatmulPreferenceSetAttribute(void*, int32_t attribute, const void*, size_t size) { return attribute == 1 && size == 8 ? OK : INVALID; }

static bool fits(const Desc* d, const Layout* a, const Layout* b, const Layout* c) {
    const int64_t size = c->type == F32 ? 4 : 2;
    return d->transposed[0] == 1 && d->transposed[1] == 0 && d->mode[0] == 3 && d->mode[1] == 3 && d->scales[0] && d->scales[1] &&
           a->type == E4M3 && b->type == E4M3 && (c->type == F32 || c->type == F16 || c->type == BF16) && a->rows == b->rows &&
           a->cols == c->rows && b->cols == c->cols && a->ld % 16 == 0 && b->ld % 16 == 0 && a->rows % 16 == 0 && a->cols * size % 16 == 0 &&
           c->ld * size % 16 == 0;
}
API cublasLtMatmulAlgoGetHeuristic(void*, Desc* d, Layout* a, Layout* b, Layout* c, Layout* y, void*, int32_t, void*, int32_t* found) {
    *found = c == y && fits(d, a, b, c) ? 1 : 0;
    return OK;
}

static float get(const uint8_t* p, int32_t type) {
    if (type == F32) return *(const float*)p;
    return type == F16 ? host::float_of_f16(*(const uint16_t*)p) : host::float_of_bf16(*(const uint16_t*)p);
}
static void set(uint8_t* p, int32_t type, float v) {
    if (type == F32)
        *(float*)p = v;
    else
        *(uint16_t*)p = type == F16 ? host::f16_of(v) : host::bf16_of(v);
}
static std::vector<float> numbers(const uint8_t* p, const Layout* l) {
    std::vector<float> all;
    for (uint64_t col = 0; col < l->cols; col++)
        for (uint64_t row = 0; row < l->rows; row++) all.push_back(host::float_of_e4m3(p[col * l->ld + row]));
    return all;
}

API cublasLtMatmul(void*, Desc* d, const float* alpha, uint8_t* a, Layout* la, uint8_t* b, Layout* lb, const float* beta, uint8_t* c, Layout* lc, uint8_t* y, Layout* ly,
                   const void*, void*, size_t, void*) {
    if (!fits(d, la, lb, lc) || c != y || lc != ly || ((uint64_t)a | (uint64_t)b | (uint64_t)c) % 16) return INVALID;
    const std::vector<float> w = numbers(a, la), x = numbers(b, lb);
    const uint64_t k = la->rows, size = lc->type == F32 ? 4 : 2;
    for (uint64_t col = 0; col < lc->cols; col++)
        for (uint64_t row = 0; row < lc->rows; row++) {
            double sums[4] = {};
            for (uint64_t l = 0; l < k; l++) sums[l % 4] += (double)w[row * k + l] * x[col * k + l];
            double v = *alpha * (sums[0] + sums[1] + sums[2] + sums[3]) * d->scales[0][row] * d->scales[1][col];
            uint8_t* at = y + (col * lc->ld + row) * size;
            if (*beta != 0) v += *beta * (double)get(at, lc->type);
            set(at, lc->type, (float)v);
        }
    return OK;
}
