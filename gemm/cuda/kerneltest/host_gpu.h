// The libraries of a GPU, in one, as far as package driver asks for them: memory is the host's,
// kernels run on the host while they are launched, and machine code is a library for the
// host, which a function of the test compiles.

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

typedef int (*Compile)(const char* source, const char* options, const char* path);

static struct {
    Compile compile;  // to path; returns 0, or an error
    int32_t major, sms;
    uint32_t reverse;
} gpu;

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define API EXPORTED int32_t

API host_set(Compile compile, int32_t major, int32_t sms, uint32_t reverse) {
    gpu = {compile, major, sms, reverse};
    return 0;
}

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, UNSUPPORTED = 801, CAPTURING = 900 };

// Graph is work that was queued while it was captured.
struct Graph {
    std::vector<std::function<int32_t()>> work;
};
static Graph* captured;  // takes what is queued, if there is one

// queue does work at once, or leaves it to a graph.
static int32_t queue(std::function<int32_t()> work) {
    if (!captured) return work();
    captured->work.push_back(std::move(work));
    return OK;
}

// waits is the result of what must not happen while work is captured.
static int32_t waits() { return captured ? CAPTURING : OK; }

// ---- the driver: devices and memory ----

API cuGetErrorName(int32_t code, const char** s) {
    *s = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return OK;
}
API cuGetErrorString(int32_t, const char** s) { *s = "of the host's GPU"; return OK; }
API cuInit(uint32_t) { return OK; }
API cuDriverGetVersion(int32_t* v) { *v = 13000; return OK; }
API cuDeviceGetCount(int32_t* n) { *n = 1; return OK; }
API cuDeviceGet(int32_t* d, int32_t i) { *d = i; return i == 0 ? OK : INVALID; }
API cuDeviceGetName(char* name, int32_t n, int32_t) { snprintf(name, n, "the host's GPU"); return OK; }
API cuDeviceTotalMem_v2(size_t* n, int32_t) { *n = 8ull << 30; return OK; }
API cuDeviceGetAttribute(int32_t* v, int32_t attribute, int32_t) {
    static const std::map<int32_t, int32_t> values = {{39, 2048}, {81, 228 << 10}, {82, 65536}, {97, 227 << 10}};
    const auto found = values.find(attribute);
    *v = attribute == 16 ? gpu.sms : attribute == 75 ? gpu.major : found == values.end() ? 0 : found->second;
    return OK;
}
API cuDevicePrimaryCtxRetain(void** ctx, int32_t) { *ctx = &gpu; return OK; }
API cuDevicePrimaryCtxRelease_v2(int32_t) { return OK; }
API cuCtxSetCurrent(void*) { return OK; }
API cuCtxSynchronize() { return waits(); }

// Memory ends at an unmapped page, but for what makes its address a multiple of 256.
constexpr size_t PAGE = 64 << 10, ALIGNMENT = 256, MOST = 4ull << 30;
static std::mutex memory_lock;
static std::map<void*, std::pair<void*, size_t>> memory;  // what is mapped for an address

API cuMemAlloc_v2(void** p, size_t n) {
    if (captured) return CAPTURING;
    if (n > MOST) return NO_MEMORY;
    const size_t pages = (n + PAGE - 1) / PAGE * PAGE;
    uint8_t* at = (uint8_t*)mmap(nullptr, pages + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at, pages, PROT_READ | PROT_WRITE)) return NO_MEMORY;
    if (pages < 64 << 20) memset(at, 0xff, pages);  // NaNs
    *p = at + (pages - n) / ALIGNMENT * ALIGNMENT;
    std::lock_guard<std::mutex> lock(memory_lock);
    memory[*p] = {at, pages + PAGE};
    return OK;
}
API cuMemFree_v2(void* p) {
    std::lock_guard<std::mutex> lock(memory_lock);
    const auto found = memory.find(p);
    if (found == memory.end()) return INVALID;
    munmap(found->second.first, found->second.second);
    memory.erase(found);
    return OK;
}
API cuMemGetInfo_v2(size_t* f, size_t* t) { *f = *t = 8ull << 30; return OK; }
API cuMemHostAlloc(void** p, size_t n, uint32_t) { return (*p = calloc(n, 1)) ? OK : NO_MEMORY; }
API cuMemFreeHost(void* p) { free(p); return OK; }

static int32_t copy(void* to, const void* from, size_t n) { memmove(to, from, n); return OK; }
API cuMemcpyHtoD_v2(void* to, const void* from, size_t n) { return captured ? CAPTURING : copy(to, from, n); }
API cuMemcpyDtoH_v2(void* to, const void* from, size_t n) { return captured ? CAPTURING : copy(to, from, n); }
API cuMemcpyDtoD_v2(void* to, const void* from, size_t n) { return captured ? CAPTURING : copy(to, from, n); }
API cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t n, void*) {
    return queue([=] { return copy(to, from, n); });
}
API cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t n, void*) {
    return queue([=] { return copy(to, from, n); });
}
API cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t n, void*) {
    return queue([=] { return copy(to, from, n); });
}
API cuMemsetD8_v2(void* p, uint8_t v, size_t n) { memset(p, v, n); return OK; }
API cuMemsetD8Async(void* p, uint8_t v, size_t n, void*) {
    return queue([=] { return cuMemsetD8_v2(p, v, n); });
}
API cuMemsetD32_v2(uint32_t* p, uint32_t v, size_t n) {
    for (size_t i = 0; i < n; i++) p[i] = v;
    return OK;
}
API cuMemsetD32Async(uint32_t* p, uint32_t v, size_t n, void*) {
    return queue([=] { return cuMemsetD32_v2(p, v, n); });
}

API cuStreamCreate(void** s, uint32_t) { *s = &gpu; return OK; }
API cuStreamDestroy_v2(void*) { return OK; }
API cuStreamSynchronize(void*) { return waits(); }
API cuStreamWaitEvent(void*, void*, uint32_t) { return OK; }
API cuEventCreate(void** e, uint32_t) { *e = &gpu; return OK; }
API cuEventDestroy_v2(void*) { return OK; }
API cuEventRecord(void*, void*) { return OK; }
API cuEventSynchronize(void*) { return waits(); }
API cuEventElapsedTime(float* ms, void*, void*) { // whatever it was
    *ms = 1;
    return OK;
}

API cuStreamBeginCapture_v2(void*, int32_t) {
    if (captured) return INVALID;
    captured = new Graph;
    return OK;
}
API cuStreamEndCapture(void*, Graph** g) {
    *g = captured;
    captured = nullptr;
    return *g ? OK : INVALID;
}
API cuGraphDestroy(Graph* g) { delete g; return OK; }
API cuGraphInstantiateWithFlags(Graph** exec, Graph* g, uint64_t) { *exec = new Graph(*g); return OK; }
API cuGraphExecDestroy(Graph* g) { delete g; return OK; }
API cuGraphUpload(Graph*, void*) { return OK; }
API cuGraphLaunch(Graph* g, void*) {
    for (const auto& work : g->work)
        if (const int32_t result = work()) return result;
    return OK;
}
API cuGraphGetNodes(Graph* g, void*, size_t* n) { *n = g->work.size(); return OK; }

#define WITHOUT(name) \
    API name() { return UNSUPPORTED; }
WITHOUT(cuGraphCreate)
WITHOUT(cuGraphAddKernelNode_v2)
WITHOUT(cuGraphKernelNodeSetAttribute)
WITHOUT(cuGraphExecKernelNodeSetParams_v2)
WITHOUT(cuModuleGetGlobal_v2)
WITHOUT(cuFuncGetAttribute)
WITHOUT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
WITHOUT(cuOccupancyMaxActiveClusters)

// ---- the compiler and the driver: kernels ----

// Machine code begins with its own size, to the end of a line.
static const char MAGIC[] = "a library for the host of ";

// Program is what is compiled. Only what a user asks for follows from options.
struct Program {
    std::string source, code, log;
};

API nvrtcVersion(int32_t* major, int32_t* minor) { *major = 13, *minor = 99; return OK; }
EXPORTED const char* nvrtcGetErrorString(int32_t) { return "an error of the host's compiler"; }
API nvrtcCreateProgram(Program** p, const char* source, const char*, int32_t, void*, void*) {
    *p = new Program{source};
    return OK;
}
API nvrtcDestroyProgram(Program** p) { delete *p; return OK; }
API nvrtcCompileProgram(Program* p, int32_t n, const char** options) {
    std::string all;
    for (int32_t i = 0; i < n; i++) all += std::string(options[i]) + "\n";
    char path[] = "/tmp/lutq-kernel-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0) return 6;
    int result = gpu.compile(p->source.c_str(), all.c_str(), path) == 0 ? OK : 6;
    close(file);  // the compiler has put another one in its place
    if (FILE* f = result == OK ? fopen(path, "rb") : nullptr) {
        std::string code;
        char part[1 << 16];
        for (size_t got; (got = fread(part, 1, sizeof part, f)) > 0;) code.append(part, got);
        fclose(f);
        p->code = MAGIC + std::to_string(code.size()) + "\n" + code;
    }
    unlink(path);
    return result;
}
API nvrtcGetPTXSize(Program*, size_t* n) { *n = 0; return OK; }
API nvrtcGetPTX(Program*, char*) { return OK; }
API nvrtcGetCUBINSize(Program* p, size_t* n) { *n = p->code.size(); return OK; }
API nvrtcGetCUBIN(Program* p, char* to) { memcpy(to, p->code.data(), p->code.size()); return OK; }
API nvrtcGetProgramLogSize(Program*, size_t* n) { *n = 0; return OK; }
API nvrtcGetProgramLog(Program*, char*) { return OK; }

struct Module {
    void* library;
    // host_launch of the library
    int32_t (*launch)(const char* kernel, const uint32_t* grid_block_shared_programmatic_arch_reverse, void** values);
    int32_t (*has)(const char* kernel);
    // host_size: of an argument, 0 behind the last
    uint32_t (*size)(const char* kernel, uint32_t i);
};
struct Function {
    Module* module;
    std::string name;
};

API cuModuleLoadDataEx(Module** m, const char* image, uint32_t, void*, void*) {
    if (strncmp(image, MAGIC, sizeof MAGIC - 1) != 0) return INVALID_IMAGE;
    char* code;
    const size_t n = strtoull(image + sizeof MAGIC - 1, &code, 10);
    char path[] = "/tmp/lutq-kernel-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || write(file, code + 1, n) != (ssize_t)n) return INVALID_IMAGE;
    close(file);
    Module loaded = {dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    unlink(path);
    if (!loaded.library) {
        fprintf(stderr, "%s\n", dlerror());
        return INVALID_IMAGE;
    }
    *(void**)&loaded.launch = dlsym(loaded.library, "host_launch");
    *(void**)&loaded.has = dlsym(loaded.library, "host_has");
    *(void**)&loaded.size = dlsym(loaded.library, "host_size");
    *m = new Module(loaded);
    return OK;
}
API cuModuleUnload(Module* m) {
    dlclose(m->library);
    delete m;
    return OK;
}
API cuModuleGetFunction(Function** f, Module* m, const char* name) {
    if (!m->has(name)) return NOT_FOUND;
    *f = new Function{m, name};
    return OK;
}
API cuFuncSetAttribute(Function*, int32_t, int32_t) { return OK; }

// Config is the beginning of CUlaunchConfig, and Attribute is CUlaunchAttribute.
struct Attribute {
    uint32_t id, none;
    int32_t value;
    uint8_t rest[60];
};
struct Config {
    uint32_t grid_block_shared[7];
    void* stream;
    const Attribute* attributes;
    uint32_t count;
};
API cuLaunchKernelEx(const Config* c, Function* f, void** values, void**) {
    std::vector<uint32_t> launch(10);
    memcpy(launch.data(), c->grid_block_shared, sizeof c->grid_block_shared);
    for (uint32_t i = 0; i < c->count; i++)
        if (c->attributes[i].id == 6) launch[7] = c->attributes[i].value;  // programmatic
    launch[8] = gpu.major * 100;
    launch[9] = gpu.reverse;
    std::vector<std::vector<uint8_t>> args;
    for (uint32_t n; (n = f->module->size(f->name.c_str(), args.size()));) {
        const uint8_t* value = (const uint8_t*)values[args.size()];
        args.emplace_back(value, value + n);
    }
    return queue([module = *f->module, name = f->name, launch, args]() mutable {
        std::vector<void*> at;
        for (auto& a : args) at.push_back(a.data());
        return module.launch(name.c_str(), launch.data(), at.data());
    });
}

// ---- products, of column-major matrices ----

API cublasGetProperty(int32_t, int32_t* v) { *v = 13; return OK; }
EXPORTED const char* cublasGetStatusName(int32_t) { return "an error"; }
EXPORTED const char* cublasGetStatusString(int32_t) { return "of the host's products"; }
API cublasCreate_v2(void** h) { *h = &gpu; return OK; }
API cublasDestroy_v2(void*) { return OK; }
API cublasSetStream_v2(void*, void*) { return OK; }
API cublasSetWorkspace_v2(void*, void*, size_t) { return OK; }
API cublasSetMathMode(void*, int32_t) { return OK; }

// Matrix is of a number type of cudaDataType_t: 0 is float32, 2 float16, 14 bfloat16.
struct Matrix {
    uint8_t* at;
    int32_t type;
    int64_t ld, stride;

    uint8_t* element(int64_t batch, int64_t row, int64_t col) const {
        return at + (batch * stride + col * ld + row) * (type == 0 ? 4 : 2);
    }
    float get(int64_t batch, int64_t row, int64_t col) const {
        const uint8_t* p = element(batch, row, col);
        if (type == 0) return *(const float*)p;
        return type == 2 ? host::float_of_f16(*(const uint16_t*)p) : host::float_of_bf16(*(const uint16_t*)p);
    }
    void set(int64_t batch, int64_t row, int64_t col, float v) const {
        uint8_t* p = element(batch, row, col);
        if (type == 0)
            *(float*)p = v;
        else
            *(uint16_t*)p = type == 2 ? host::f16_of(v) : host::bf16_of(v);
    }
};

static int32_t product(int32_t opA, int32_t opB, int32_t m, int32_t n, int32_t k, float alpha, Matrix a, Matrix b, float beta, Matrix c, int32_t batch) {
    std::vector<float> x((size_t)m * k), y((size_t)n * k);
    for (int32_t i = 0; i < batch; i++) {
        for (int32_t l = 0; l < k; l++) {
            for (int32_t r = 0; r < m; r++) x[(size_t)r * k + l] = opA ? a.get(i, l, r) : a.get(i, r, l);
            for (int32_t r = 0; r < n; r++) y[(size_t)r * k + l] = opB ? b.get(i, r, l) : b.get(i, l, r);
        }
        for (int32_t col = 0; col < n; col++)
            for (int32_t row = 0; row < m; row++) {
                double sums[4] = {};
                const float *p = &x[(size_t)row * k], *q = &y[(size_t)col * k];
                int32_t l = 0;
                for (; l + 4 <= k; l += 4)
                    for (int32_t j = 0; j < 4; j++) sums[j] += (double)p[l + j] * q[l + j];
                for (; l < k; l++) sums[0] += (double)p[l] * q[l];
                double v = alpha * (sums[0] + sums[1] + sums[2] + sums[3]);
                if (beta != 0) v += beta * (double)c.get(i, row, col);
                c.set(i, row, col, (float)v);
            }
    }
    return OK;
}

API cublasGemmEx(void*, int32_t opA, int32_t opB, int32_t m, int32_t n, int32_t k, const float* alpha, uint8_t* a, int32_t ta, int32_t lda,
                 uint8_t* b, int32_t tb, int32_t ldb, const float* beta, uint8_t* c, int32_t tc, int32_t ldc, int32_t, int32_t) {
    return queue([=, alpha = *alpha, beta = *beta] {
        return product(opA, opB, m, n, k, alpha, {a, ta, lda, 0}, {b, tb, ldb, 0}, beta, {c, tc, ldc, 0}, 1);
    });
}
API cublasGemmStridedBatchedEx(void*, int32_t opA, int32_t opB, int32_t m, int32_t n, int32_t k, const float* alpha,
                               uint8_t* a, int32_t ta, int32_t lda, int64_t sa, uint8_t* b, int32_t tb, int32_t ldb, int64_t sb,
                               const float* beta, uint8_t* c, int32_t tc, int32_t ldc, int64_t sc, int32_t batch, int32_t, int32_t) {
    return queue([=, alpha = *alpha, beta = *beta] {
        return product(opA, opB, m, n, k, alpha, {a, ta, lda, sa}, {b, tb, ldb, sb}, beta, {c, tc, ldc, sc}, batch);
    });
}
