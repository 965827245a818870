// What runs kernels on a CPU, and does what host.h declares.
//
// The blocks of a grid run one after the other. The threads of a block are fibers of one
// thread: each runs until it meets others, the lanes of its warp run before those of the
// next warp, and the order can be turned around. So what a barrier is missing for shows
// as a wrong result. Shared memory begins as NaNs. What goes wrong ends the process.

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

Dim threadIdx, blockIdx, blockDim, gridDim;

extern "C" uint8_t __start_shared_memory[], __stop_shared_memory[];  // the linker's

namespace host {

// fail ends the process with a message that names the thread.
[[noreturn]] static void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "block (%u, %u), thread %u: ", blockIdx.x, blockIdx.y, threadIdx.x);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    _exit(3);
}

// ---- threads ----

constexpr uint32_t WARP = 32, WARPGROUP = 4 * WARP, MOST_THREADS = 1024;
constexpr size_t STACK = 256 << 10;

struct Thread;

// Place is where a thread goes on, on its own stack: what functions must leave as it was, as setjmp keeps it. That of the
// library takes a fifth of all time for what nobody needs here.
#if defined __x86_64__
using Place = void*[8];
extern "C" int host_set_place(Place&) __attribute__((returns_twice));
extern "C" [[noreturn]] void host_go_on_at(Place&);
asm(R"(
    .text
host_set_place:
    movq (%rsp), %rax
    leaq 8(%rsp), %rdx
    movq %rax, (%rdi)
    movq %rdx, 8(%rdi)
    movq %rbx, 16(%rdi)
    movq %rbp, 24(%rdi)
    movq %r12, 32(%rdi)
    movq %r13, 40(%rdi)
    movq %r14, 48(%rdi)
    movq %r15, 56(%rdi)
    xorl %eax, %eax
    ret
host_go_on_at:
    movq 8(%rdi), %rsp
    movq 16(%rdi), %rbx
    movq 24(%rdi), %rbp
    movq 32(%rdi), %r12
    movq 40(%rdi), %r13
    movq 48(%rdi), %r14
    movq 56(%rdi), %r15
    movl $1, %eax
    jmp *(%rdi)
)");
#else
using Place = jmp_buf;
#define host_set_place(place) _setjmp(place)
#define host_go_on_at(place) _longjmp(place, 1)
#endif

// Copy is one of 16 bytes to shared memory, done when the thread waits for it.
struct Copy {
    uint32_t group, to, bytes;  // of which the others are zeros
    const void* from;
};

// Product is one of a warpgroup: D += A·B, of which a thread has four registers of A and its part of D.
struct Product {
    uint32_t group;
    uint32_t columns;  // of B and D
    Number type;       // of A and B
    bool adds;         // or D begins anew
    uint32_t a[4];
    uint64_t descriptor;  // of B
    bool sparse;          // whether every four columns of A keep two
    uint32_t pattern, selector;
    std::vector<float*> d;
};

// Collective is what threads wait for each other at. run gets all of them, with the
// operands of each.
struct Collective {
    const char* name;
    uint32_t of;  // threads: a warp's, a warpgroup's, or the block's, which are MOST_THREADS
    void (*run)(Thread* threads, uint32_t n);
    bool orders;  // what they did before in memory and what they do behind
};

struct Thread {
    ucontext_t context;  // to begin with
    bool begun;
    Place place;  // to go on at: switching contexts would take system calls
    const Collective* at;  // that it waits at, or null
    void* operands;
    bool done;
    bool waited;  // for the grids before
    std::vector<Copy> copies;  // to shared memory that are under way
    uint32_t copy_groups;      // that have been ended
    std::vector<Product> products;  // that are under way
    uint32_t product_groups;        // that have been ended
    bool fenced;                    // whether what registers hold counts for the next product

    template <class T>
    T& as() { return *(T*)operands; }
};

static Thread threads[MOST_THREADS];  // of the block
static Thread* self;
static Place scheduler;
static const std::function<void()>* body;

// leave goes back to the scheduler until the thread is resumed.
static __attribute__((noinline)) void leave() {
    if (!host_set_place(self->place)) host_go_on_at(scheduler);
}

static __attribute__((noinline)) void resume(Thread& t) {
    self = &t;
    if (host_set_place(scheduler)) return;
    if (t.begun) host_go_on_at(t.place);
    t.begun = true;
    setcontext(&t.context);
}

// meet waits for the others, and until the collective has been run.
static void meet(const Collective& c, void* operands) {
    self->at = &c;
    self->operands = operands;
    leave();
}

// live is the life of a thread, in block after block.
static void live() {
    for (;;) {
        (*body)();
        if (!self->copies.empty()) fail("ends while copies are under way");
        if (!self->products.empty()) fail("ends while products are under way");
        self->done = true;
        leave();
    }
}

// A thread waits for a phase alone; its operand is which.
struct Phase {
    uint32_t at, odd;
};
static const Collective phase_end = {"the end of a phase", MOST_THREADS, nullptr};
static bool has_ended(const Phase&);
static void hear_of(uint32_t thread, const Phase&);
static void meet_in_memory(uint32_t first, uint32_t n);
static void watch_block();
static bool copy_late();

struct Block {
    uint32_t n;  // threads
    bool reverse;

    uint32_t ordered(uint32_t i, uint32_t n) const { return reverse ? n - 1 - i : i; }

    // together runs the collective that threads wait at.
    void together(uint32_t first, uint32_t n) {
        const Collective* c = nullptr;
        for (uint32_t i = first; i < first + n; i++) {
            Thread& t = threads[i];
            threadIdx.x = i;
            if (t.done) {
                // A barrier does without threads that have ended.
                if (c && c->of < MOST_THREADS) fail("ended where others are at %s", c->name);
                continue;
            }
            if (c && t.at != c) fail("is at %s where others are at %s", t.at->name, c->name);
            if (t.at->of < MOST_THREADS && i > first && !c) fail("is at %s where others have ended", t.at->name);
            c = t.at;
        }
        if (!c) return;
        c->run(&threads[first], n);
        if (c->orders) meet_in_memory(first, n);
        for (uint32_t i = first; i < first + n; i++) threads[i].at = nullptr;
    }

    // run_warp runs a warp until each lane waits for more than it or is done.
    void run_warp(uint32_t first) {
        for (;;) {
            bool waits = true;
            for (uint32_t i = 0; i < WARP; i++) {
                const uint32_t lane = first + ordered(i, WARP);
                threadIdx.x = lane;
                if (!threads[lane].done && !threads[lane].at) resume(threads[lane]);
                waits &= threads[lane].done || threads[lane].at->of > WARP;
            }
            if (waits) return;
            together(first, WARP);
        }
    }

    // run_groups runs what whole warpgroups wait at, and returns whether there was any.
    bool run_groups() {
        bool any = false;
        for (uint32_t first = 0; first + WARPGROUP <= n; first += WARPGROUP) {
            bool all = true;
            for (uint32_t i = first; i < first + WARPGROUP; i++) all &= !threads[i].done && threads[i].at->of == WARPGROUP;
            if (all) together(first, WARPGROUP);
            any |= all;
        }
        return any;
    }

    // release lets threads go whose phase has ended, and returns whether there were any. If nothing else goes on, what
    // is being copied arrives.
    bool release(bool other) {
        bool any = other, waiting = false;
        for (uint32_t i = 0; i < n; i++) {
            if (threads[i].done || threads[i].at != &phase_end) continue;
            threadIdx.x = i;
            waiting = true;
            if (!has_ended(threads[i].as<Phase>())) continue;
            hear_of(i, threads[i].as<Phase>());
            threads[i].at = nullptr;
            any = true;
        }
        if (waiting && !any && !(any = copy_late())) fail("waits for a phase that does not end");
        return any;
    }

    void run() {
        for (uint32_t i = 0; i < n; i++) {
            threads[i].done = threads[i].waited = false;
            threads[i].copy_groups = threads[i].product_groups = 0;
            threads[i].fenced = false;
        }
        while (!std::all_of(threads, threads + n, [](const Thread& t) { return t.done; })) {
            for (uint32_t w = 0; w < n / WARP; w++) run_warp(ordered(w, n / WARP) * WARP);
            if (!release(run_groups())) together(0, n);
        }
        if (copy_late()) fail("ends while copies are under way");
    }
};

// ---- shared memory ----

constexpr size_t SHARED_BESIDE = 4 << 10;
__align__(1024) uint8_t dynamic_shared[SHARED_MOST];
__shared__ __attribute__((used)) uint8_t static_shared;  // so that there is some
static size_t shared_bytes;    // of the launch
static uint32_t shared_first;  // the address where it begins
static bool hopper;            // whether the GPU is of that architecture

template <class T>
static const T* shared_at(uint32_t address) {
    if (address < shared_first || address - shared_first + sizeof(T) > shared_bytes || address % sizeof(T) != 0)
        fail("reads %zu bytes at %u of shared memory, %zu from %u on", sizeof(T), address, shared_bytes, shared_first);
    return (const T*)(dynamic_shared + (address - shared_first));
}

static uint8_t* written_at(uint32_t address, uint32_t bytes) {
    if (address < shared_first || address - shared_first + bytes > shared_bytes || address % bytes != 0)
        fail("writes %u bytes at %u of shared memory, %zu from %u on", bytes, address, shared_bytes, shared_first);
    return dynamic_shared + (address - shared_first);
}

}  // namespace host
WATCH
namespace host {

// read_at is shared_at, for a thread.
template <class T>
static const T* read_at(uint32_t address, uint32_t thread) {
    const T* p = shared_at<T>(address);
    on_shared(thread, address - shared_first, sizeof(T), READS);
    return p;
}

// ---- collectives ----

static const Collective barrier = {"a barrier", MOST_THREADS, [](Thread*, uint32_t) {}, true};
static const Collective barrier_or = {"a barrier with a vote", MOST_THREADS, [](Thread* t, uint32_t n) {
    int any = 0;
    for (uint32_t i = 0; i < n; i++) any |= !t[i].done && t[i].as<int>();
    for (uint32_t i = 0; i < n; i++)
        if (!t[i].done) t[i].as<int>() = any != 0;
}, true};
static const Collective warp_barrier = {"a warp's barrier", WARP, [](Thread*, uint32_t) {}, true};
static const Collective registers = {"setmaxnreg", WARP, [](Thread*, uint32_t) {}};

struct Shuffle {
    uint64_t from, to;
    uint32_t lane;  // that to comes from
};
static const Collective shuffle = {"a shuffle", WARP, [](Thread* t, uint32_t) {
    for (uint32_t i = 0; i < WARP; i++) t[i].as<Shuffle>().to = t[t[i].as<Shuffle>().lane].as<Shuffle>().from;
}};

// Mma is what a lane holds of D = A·B + C, with C in d.
struct Mma {
    uint32_t a[4], b[2];
    float d[4];
};

// add_products adds A·B to what lanes hold of D, whose element j in lane 4g + t is of row g + 8(j/2) and column 2t + j%2.
template <typename M, typename Value, uint32_t K>
static void add_products(Thread* threads, const Value (&a)[16][K], const Value (&b)[K][8]) {
    for (uint32_t lane = 0; lane < WARP; lane++) {
        M& m = threads[lane].as<M>();
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t row = lane / 4 + j / 2 * 8, col = lane % 4 * 2 + j % 2;
            double sum = m.d[j];  // of integers less than 2⁵³ exact
            for (uint32_t k = 0; k < K; k++) sum += (double)a[row][k] * b[k][col];
            m.d[j] = sum;
        }
    }
}

// The places of the fragments are those of PTX's "Matrix fragments for mma.m16n8k16": with lane =
// 4g + t, pair r of A is of row g + 8(r%2) and columns 2t + 8(r/2), that of B of column g
// and rows 2t + 8r.
template <float (*VALUE)(uint16_t)>
static void multiply(Thread* threads, uint32_t) {
    float a[16][16], b[16][8];
    for (uint32_t lane = 0; lane < WARP; lane++) {
        const Mma& m = threads[lane].as<Mma>();
        const uint32_t g = lane / 4, t = lane % 4;
        for (uint32_t e = 0; e < 2; e++) {
            for (uint32_t r = 0; r < 4; r++) a[g + r % 2 * 8][2 * t + e + r / 2 * 8] = VALUE(m.a[r] >> 16 * e);
            for (uint32_t r = 0; r < 2; r++) b[2 * t + e + r * 8][g] = VALUE(m.b[r] >> 16 * e);
        }
    }
    add_products<Mma>(threads, a, b);
}
static const Collective mma_f16 = {"mma", WARP, multiply<float_of_f16>};
static const Collective mma_bf16 = {"mma", WARP, multiply<float_of_bf16>};

// SparseMma is what a lane holds of D = A·B + C, with C in d, where every four columns of A keep two. Bits of a
// pattern say which.
struct SparseMma {
    uint32_t a[4], b[4];
    float d[4];
    uint32_t pattern, selector;
};

// The places are those of PTX's "Matrix fragments for sparse mma.m16n8k32" for 16 bits: A, of what is kept, D and of B each
// 16 rows as in m16n8k16. The patterns of lanes 4g + 2·selector and the next, for columns 0 to 15 and 16 to 31, have row
// g in the low half and row g + 8 in the high one: nibble c is i0 | i1<<2 of columns 4c + i0 and 4c + i1, and in ordered
// metadata i0 < i1.
template <float (*VALUE)(uint16_t)>
static void multiply_sparse(Thread* threads, uint32_t) {
    float a[16][32] = {}, b[32][8];
    for (uint32_t lane = 0; lane < WARP; lane++) {
        const SparseMma& m = threads[lane].as<SparseMma>();
        const uint32_t g = lane / 4, t = lane % 4;
        if (m.selector > 1 || m.selector != threads[0].as<SparseMma>().selector) fail("selector %u of a sparse mma", m.selector);
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t row = g + r % 2 * 8, chunk = t + r / 2 * 4;
            const uint32_t pattern = threads[4 * g + 2 * m.selector + chunk / 4].as<SparseMma>().pattern >> r % 2 * 16 >> chunk % 4 * 4;
            const uint32_t i0 = pattern & 3, i1 = pattern >> 2 & 3;
            if (i0 >= i1) fail("a sparse mma keeps columns %u and %u of row %u, chunk %u", i0, i1, row, chunk);
            a[row][4 * chunk + i0] = VALUE(m.a[r]);
            a[row][4 * chunk + i1] = VALUE(m.a[r] >> 16);
            for (uint32_t e = 0; e < 2; e++) b[2 * t + e + r * 8][g] = VALUE(m.b[r] >> 16 * e);
        }
    }
    add_products<SparseMma>(threads, a, b);
}

// SparseByteMma is SparseMma of bytes, and of integers in d.
struct SparseByteMma {
    uint32_t a[4], b[4];
    int32_t d[4];
    uint32_t pattern, selector;
};

// The places are those of PTX's "Matrix fragments for sparse mma.m16n8k64" for 8 bits: register r of A, of what is kept, is of row
// g + 8(r%2) and of chunks 2t + 8(r/2) and the next of four columns, that of B of rows 4t + 16r to 4t + 16r + 3. The pattern
// of lane 4g + i is that of row g + 8(i%2), for chunks 8(i/2) to 8(i/2) + 7; a nibble is as in SparseMma.
static void multiply_sparse_bytes(Thread* threads, uint32_t) {
    float a[16][64] = {}, b[64][8];
    for (uint32_t lane = 0; lane < WARP; lane++) {
        const SparseByteMma& m = threads[lane].as<SparseByteMma>();
        const uint32_t g = lane / 4, t = lane % 4;
        if (m.selector != 0) fail("selector %u of a sparse mma of bytes", m.selector);
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t row = g + r % 2 * 8;
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t chunk = 2 * t + r / 2 * 8 + e;
                const uint32_t pattern = threads[4 * g + chunk / 8 * 2 + r % 2].as<SparseByteMma>().pattern >> chunk % 8 * 4;
                const uint32_t i0 = pattern & 3, i1 = pattern >> 2 & 3;
                if (i0 >= i1) fail("a sparse mma keeps columns %u and %u of row %u, chunk %u", i0, i1, row, chunk);
                a[row][4 * chunk + i0] = (int8_t)(m.a[r] >> 16 * e);
                a[row][4 * chunk + i1] = (int8_t)(m.a[r] >> (16 * e + 8));
            }
            for (uint32_t e = 0; e < 4; e++) b[4 * t + 16 * r + e][g] = (int8_t)(m.b[r] >> 8 * e);
        }
    }
    add_products<SparseByteMma>(threads, a, b);
}
static const Collective sparse_mma_f16 = {"mma.sp", WARP, multiply_sparse<float_of_f16>};
static const Collective sparse_mma_bf16 = {"mma.sp", WARP, multiply_sparse<float_of_bf16>};
static const Collective sparse_mma_s8 = {"mma.sp", WARP, multiply_sparse_bytes};

// Turned is what a lane gives of four matrices of 8×8 numbers that are stored turned, and where it stores eight
// numbers, a column.
struct Turned {
    uint32_t to, v[4];
};
static const Collective store_turned = {"stmatrix", WARP, [](Thread* t, uint32_t) {
    for (uint32_t lane = 0; lane < WARP; lane++) {
        uint16_t column[8];
        for (uint32_t row = 0; row < 8; row++) column[row] = t[4 * row + lane % 8 / 2].as<Turned>().v[lane / 8] >> lane % 2 * 16;
        const uint32_t to = t[lane].as<Turned>().to;
        memcpy(written_at(to, 16), column, 16);
        on_shared(index_of(&t[lane]), to - shared_first, 16, WRITES);
    }
}};

// address_of returns where a part of 16 bytes of a column of B lies.
static uint32_t address_of(const Product& p, uint32_t column, uint32_t part) {
    const uint32_t at = ((uint32_t)p.descriptor & 0x3fff) * 16 + column * 128 + part * 16;
    return at ^ (at >> 7 & 7) << 4;
}

// multiply_group does the first product that each thread of a warpgroup has under way. Of B there are rows of 64 numbers,
// 8 of them in 1024 bytes, whose 16-byte parts change places by bits 7 to 9 of their address; the fields of its descriptor
// are those of PTX's "Matrix descriptor format" for K-major operands with the swizzle of 128 bytes.
// Where A is sparse each warp's 16 rows of it, and their pattern, are those of mma.sp (CUTLASS's ELayout_64x32).
static void multiply_group(Thread* threads) {
    const Product& p = threads[0].products[0];
    const uint64_t known = 0x3fff | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62;
    if (p.descriptor & ~known || p.descriptor >> 62 != 1 || (p.descriptor >> 32 & 0x3fff) != 64 || (p.descriptor >> 16 & 0x3fff) != 1)
        fail("a product by a matrix of descriptor %#llx", (unsigned long long)p.descriptor);
    const uint32_t first = (p.descriptor & 0x3fff) << 4;
    if (first % (p.sparse ? 64 : 32) != 0) fail("a product by a matrix at %u of shared memory", first);
    const uint32_t size = p.type == E4M3 ? 1 : 2, each = 4 / size;  // numbers of a register
    const uint32_t held = 32 / size, deep = p.sparse ? 2 * held : held;  // columns of A that registers hold, and all
    const auto value = [type = p.type](uint32_t bits) {
        return type == E4M3 ? float_of_e4m3(bits) : type == BF16 ? float_of_bf16(bits) : float_of_f16(bits);
    };
    std::vector<float> a(64 * deep), b(p.columns * deep);
    for (uint32_t c = 0; c < p.columns; c++)
        for (uint32_t k = 0; k < deep; k++) {
            const uint32_t from = address_of(p, c, k * size / 16) + k * size % 16;
            b[c * deep + k] = value(size == 1 ? *shared_at<uint8_t>(from) : *shared_at<uint16_t>(from));
            if (from % 16 != 0) continue;
            for (uint32_t i = 0; i < WARPGROUP; i += WARP) {
                const uint32_t thread = index_of(&threads[i]), place = from - shared_first;
                after_writes(thread, place, 16, "multiplies by");
                seen_apart(thread, place, 16, "multiplies by");
                now_read(thread, place, 16);
            }
        }
    for (uint32_t i = 0; i < WARPGROUP; i++) {
        const Product& m = threads[i].products[0];
        if (m.descriptor != p.descriptor || m.columns != p.columns || m.type != p.type || m.adds != p.adds || m.sparse != p.sparse || m.selector != p.selector)
            fail("another product than others of its warpgroup");
        for (uint32_t r = 0; r < 4; r++) {
            float* row = &a[(i / WARP * 16 + i % WARP / 4 + r % 2 * 8) * deep];
            if (p.sparse) {
                const uint32_t chunk = i % 4 + r / 2 * 4;
                const uint32_t pattern = threads[i / 4 * 4 + 2 * p.selector + chunk / 4].products[0].pattern >> r % 2 * 16 >> chunk % 4 * 4;
                const uint32_t i0 = pattern & 3, i1 = pattern >> 2 & 3;
                if (i0 >= i1) fail("a sparse product keeps columns %u and %u of chunk %u in register %u of lane %u", i0, i1, chunk, r, i);
                row[4 * chunk + i0] = value(m.a[r]);
                row[4 * chunk + i1] = value(m.a[r] >> 16);
            } else {
                for (uint32_t e = 0; e < each; e++) row[i % 4 * each + r / 2 * (deep / 2) + e] = value(m.a[r] >> 8 * size * e);
            }
        }
    }
    for (uint32_t i = 0; i < WARPGROUP; i++) {
        Product& m = threads[i].products[0];
        for (uint32_t j = 0; j < p.columns / 2; j++) {
            const float* row = &a[(i / WARP * 16 + i % WARP / 4 + j / 2 % 2 * 8) * deep];
            const float* column = &b[(j / 4 * 8 + i % 4 * 2 + j % 2) * deep];
            double sum = p.adds ? *m.d[j] : 0;
            for (uint32_t k = 0; k < deep; k++) sum += (double)row[k] * column[k];
            *m.d[j] = (float)sum;
        }
        m.d.clear();
    }
    for (uint32_t i = 0; i < WARPGROUP; i++) threads[i].products.erase(threads[i].products.begin());
}
static const Collective product_now = {"a product", WARPGROUP, [](Thread* t, uint32_t) { multiply_group(t); }};

// The operand of each thread is how many groups are left under way.
static const Collective product_end = {"the end of products", WARPGROUP, [](Thread* t, uint32_t) {
    for (uint32_t i = 1; i < WARPGROUP; i++)
        if (t[i].products.size() != t[0].products.size() || t[i].product_groups != t[0].product_groups || t[i].as<uint32_t>() != t[0].as<uint32_t>())
            fail("waits for other products than its warpgroup");
    while (!t[0].products.empty() && t[0].products[0].group + t[0].as<uint32_t>() < t[0].product_groups) multiply_group(t);
}};

// Tiles is what a lane has of the four 8×8 tiles of ldmatrix: the address of a row, and what it gets.
struct Tiles {
    uint32_t row;
    uint32_t d[4];
};

// Lane 8i + r has the address of row r of tile i. Lane 4g + t gets columns 2t and 2t + 1 of row g of
// each, or rows 2t and 2t + 1 of column g.
template <bool TURNED>
static void load_tiles(Thread* threads, uint32_t) {
    std::array<uint16_t, 8> rows[4][8];
    struct alignas(16) Row { std::array<uint16_t, 8> at; };
    for (uint32_t lane = 0; lane < WARP; lane++) {
        threadIdx.x = threadIdx.x / WARP * WARP + lane;
        rows[lane / 8][lane % 8] = read_at<Row>(threads[lane].as<Tiles>().row, index_of(&threads[lane]))->at;
    }
    for (uint32_t lane = 0; lane < WARP; lane++) {
        const uint32_t g = lane / 4, t = lane % 4;
        for (uint32_t i = 0; i < 4; i++) {
            const auto& m = rows[i];
            const uint16_t lo = TURNED ? m[2 * t][g] : m[g][2 * t], hi = TURNED ? m[2 * t + 1][g] : m[g][2 * t + 1];
            threads[lane].as<Tiles>().d[i] = lo | (uint32_t)hi << 16;
        }
    }
}
static const Collective load_rows = {"ldmatrix", false, load_tiles<false>};
static const Collective load_columns = {"ldmatrix.trans", false, load_tiles<true>};

// Tile is what a lane holds of an 8×8 tile, two neighbours of row lane/4, and of it turned.
struct Tile {
    uint32_t from, to;
};
static const Collective turn_tile = {"movmatrix", false, [](Thread* t, uint32_t) {
    for (uint32_t i = 0; i < WARP; i++) {
        uint32_t to = 0;
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t row = 2 * (i % 4) + e, col = i / 4;
            to |= (t[4 * row + col / 2].as<Tile>().from >> col % 2 * 16 & 0xffff) << 16 * e;
        }
        t[i].as<Tile>().to = to;
    }
}};

// ---- memory ----

template <class T, size_t N>
static void load_global(std::array<T*, N> to, const void* from) {
    if ((uint64_t)from % (N * sizeof(T)) != 0) fail("reads %zu bytes at %p, which is not a multiple", N * sizeof(T), from);
    for (size_t i = 0; i < N; i++) *to[i] = ((const T*)from)[i];
}

static bool programmatic;

// after_wait is said before what the grids before may have written is read.
static void after_wait() {
    if (programmatic && !self->waited) fail("reads activations before the grids before have ended");
}

static void do_copy(const Copy& c) {
    uint8_t* to = written_at(c.to, 16);
    memset(to, 0, 16);
    memcpy(to, c.from, c.bytes);
}

// wait_copies does a thread's copies but for those of the last groups.
static void wait_copies(uint32_t groups) {
    std::vector<Copy> left;
    for (const Copy& c : self->copies) {
        if (c.group + groups >= self->copy_groups) {
            left.push_back(c);
            continue;
        }
        do_copy(c);
        on_shared(index_of(self), c.to - shared_first, 16, WRITES);  // and no sooner
    }
    self->copies = left;
}

// Phases is what 8 bytes of shared memory hold that count phases.
struct Phases {
    uint16_t mark;         // BEGUN, unless others have written there
    uint16_t count, left;  // threads that end a phase, and that are still to arrive
    uint16_t number;       // of the phase
};
constexpr uint16_t BEGUN = 0xba55;

// Counted is what else is known of phases.
struct Counted {
    uint32_t actor;  // that makes copies which a phase counts
    uint32_t thread;  // that has begun them
    bool shown;       // to copies
    int64_t to_copy;  // bytes, until the phase can end
    Heard arrived, ended;  // what threads had heard of that have arrived, and those by the end of the last phase
};
static std::map<uint32_t, Counted> counted;  // by where they are

static Phases& phases_at(uint32_t address) {
    Phases& p = *(Phases*)shared_at<uint64_t>(address);
    if (p.mark != BEGUN) fail("no phases have begun at %u of shared memory", address);
    return p;
}

// counts fails unless the thread has heard that phases have begun.
static void counts(uint32_t address) {
    phases_at(address);
    after_writes(index_of(self), address - shared_first, 8, "counts phases at");
}

// settle ends a phase that nothing is missing to.
static void settle(uint32_t at) {
    Phases& p = phases_at(at);
    Counted& c = counted[at];
    if (p.left != 0 || c.to_copy != 0) return;
    p.left = p.count, p.number++;
    add(c.ended, c.arrived);
}

static bool late;  // whether what is asynchronous is done as late as it may, or at once

// Copies of which a phase is told, as they are under way.
static std::deque<std::function<void()>> told;

static void do_later(std::function<void()> copies) {
    told.push_back(copies);
    if (!late) copy_late();
}

// copy_late does what has been under way the longest, if anything.
static bool copy_late() {
    if (told.empty()) return false;
    told.front()();
    told.pop_front();
    return true;
}

static void arrive(uint32_t at) {
    Phases& p = phases_at(at);
    if (p.left-- == 0) fail("arrives where all have");
    settle(at);
}

void product(uint32_t columns, Number type, bool sparse, const Operand* operands) {
    // Behind D: A, the descriptor, of sparse ones the pattern and the selector, whether it adds, and signs.
    const Operand *a = operands + columns / 2, *last = a + (sparse ? 7 : 5);
    Product p = {self->product_groups, columns, type, last[0].bits != 0, {}, a[4].bits, sparse};
    for (uint32_t i = 0; i < 4; i++) p.a[i] = a[i].bits;
    if (sparse) p.pattern = a[5].bits, p.selector = a[6].bits;
    if (p.selector > 1) fail("selector %u of a sparse product", p.selector);
    if (last[0].bits > 1 || last[1].bits != 1 || last[2].bits != 1) fail("a product that is negative");
    if (type != E4M3 && last[3].bits != 0) fail("a product by another matrix than one of rows of K");
    if (!self->fenced) fail("a product without a fence before");
    for (uint32_t i = 0; i < columns / 2; i++) p.d.push_back(operands[i].number);
    self->products.push_back(p);
    if (!late) meet(product_now, nullptr);
}

static bool has_ended(const Phase& phase) { return phases_at(phase.at).number % 2 != phase.odd; }
static void hear_of(uint32_t thread, const Phase& phase) { add(watched[thread].heard, counted[phase.at].ended); }

uint64_t shuffled(uint64_t v, uint32_t lane) {
    Shuffle s = {v, 0, lane};
    meet(shuffle, &s);
    return s.to;
}

}  // namespace host

// ---- CUDA's functions ----

void __syncthreads() { host::meet(host::barrier, nullptr); }
int __syncthreads_or(int any) {
    host::meet(host::barrier_or, &any);
    return any;
}
void __syncwarp(uint32_t) { host::meet(host::warp_barrier, nullptr); }

// Blocks run one after another.
uint32_t __reduce_max_sync(uint32_t mask, uint32_t v) {
    for (uint32_t lane = 16; lane > 0; lane /= 2) {
        const uint32_t other = __shfl_xor_sync(mask, v, lane);
        if (other > v) v = other;
    }
    return v;
}
uint32_t __reduce_min_sync(uint32_t mask, uint32_t v) { return ~__reduce_max_sync(mask, ~v); }

void __threadfence() {}
uint32_t atomicMax(uint32_t* p, uint32_t v) {
    const uint32_t old = *p;
    host::on_access(p, 4, host::CHANGES);
    *p = max(old, v);
    return old;
}
uint32_t atomicAdd(uint32_t* p, uint32_t v) {
    const uint32_t before = *p;
    host::on_access(p, 4, host::CHANGES);
    *p += v;
    return before;
}

[[noreturn]] void __trap() { host::fail("trap"); }

// ---- PTX's instructions: operands in PTX's order, results first ----

void ld_global_nc_L1_no_allocate_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* p) {
    host::load_global<uint32_t, 4>({&a, &b, &c, &d}, p);
}
void ld_global_nc_L1_no_allocate_v2_u32(uint32_t& a, uint32_t& b, const void* p) { host::load_global<uint32_t, 2>({&a, &b}, p); }
void ld_global_nc_L1_no_allocate_u32(uint32_t& a, const void* p) { host::load_global<uint32_t, 1>({&a}, p); }
void ld_global_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* p) {
    host::after_wait();
    host::load_global<uint32_t, 4>({&a, &b, &c, &d}, p);
}

void prefetch_global_L2(const void* p) { (void)*(const volatile uint8_t*)p; }  // which is to be memory

void cvta_to_shared_u64(unsigned long long& a, const void* p) {
    a = (const uint8_t*)p - host::dynamic_shared + host::shared_first;
}
void ld_shared_u32(uint32_t& v, uint32_t address) { v = *host::read_at<uint32_t>(address, host::index_of(host::self)); }
void ld_shared_v2_u32(uint32_t& lo, uint32_t& hi, uint32_t address) {
    const uint64_t v = *host::read_at<uint64_t>(address, host::index_of(host::self));
    lo = (uint32_t)v;
    hi = v >> 32;
}

void ld_shared_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t address) {
    const auto v = *host::read_at<std::array<uint32_t, 4>>(address, host::index_of(host::self));
    a = v[0], b = v[1], c = v[2], d = v[3];
}
#define LDMATRIX(NAME, COLLECTIVE)                                                                   \
    void NAME(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t row) {             \
        host::Tiles m = {row};                                                                       \
        host::meet(host::COLLECTIVE, &m);                                                            \
        a = m.d[0], b = m.d[1], c = m.d[2], d = m.d[3];                                              \
    }
LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_shared_b16, load_rows)
LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, load_columns)
#undef LDMATRIX
void cp_async_cg_shared_global(uint32_t to, const void* from, uint32_t size, uint32_t bytes) {
    host::after_wait();
    if (size != 16 || bytes > 16 || (uint64_t)from % 16 != 0) host::fail("copies %u of %u bytes from %p", bytes, size, from);
    host::written_at(to, 16);
    host::on_shared(host::index_of(host::self), to - host::shared_first, 16, host::WRITES);
    host::self->copies.push_back({host::self->copy_groups, to, bytes, from});
}
void cp_async_cg_shared_global_L2_128B(uint32_t to, const void* from, uint32_t size) {
    if (size != 16 || (uint64_t)from % 16 != 0) host::fail("copies %u bytes from %p", size, from);
    host::written_at(to, 16);
    host::on_shared(host::index_of(host::self), to - host::shared_first, 16, host::WRITES);
    host::self->copies.push_back({host::self->copy_groups, to, 16, from});
}
void st_global_v4_u32(void* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    host::after_wait();
    if ((uint64_t)p % 16 != 0) host::fail("writes 16 bytes at %p, which is not a multiple", p);
    const uint32_t v[4] = {a, b, c, d};
    memcpy(p, v, 16);
    host::on_access(p, 16, host::WRITES);
}
void cp_async_commit_group() { host::self->copy_groups++; }
void cp_async_wait_group(uint32_t groups) { host::wait_copies(groups); }

void mbarrier_init_shared_b64(uint32_t at, uint32_t count) {
    *(host::Phases*)host::shared_at<uint64_t>(at) = {host::BEGUN, (uint16_t)count, (uint16_t)count, 0};
    const uint32_t thread = host::index_of(host::self);
    host::on_shared(thread, at - host::shared_first, 8, host::WRITES);
    host::counted[at] = {(uint32_t)host::counted.size(), thread};
    if (host::counted.size() > host::MOST_PHASES) host::fail("phases in more than %u places", host::MOST_PHASES);
}
void mbarrier_arrive_shared_b64(unsigned long long& state, uint32_t at) {
    host::counts(at);
    state = host::phases_at(at).number;
    host::tell(host::counted[at].arrived, host::index_of(host::self));
    host::arrive(at);
}
void mbarrier_arrive_expect_tx_shared_b64(unsigned long long& state, uint32_t at, uint32_t bytes) {
    host::counted[at].to_copy += bytes;
    mbarrier_arrive_shared_b64(state, at);
}
void fence_mbarrier_init_release_cluster() {
    for (auto& c : host::counted) c.second.shown |= c.second.thread == host::index_of(host::self);
}
void fence_proxy_async() {
    host::fence_proxies();
    fence_mbarrier_init_release_cluster();
}
void fence_proxy_async_shared_cta() { fence_proxy_async(); }
void fence_proxy_async_global() { host::fence_proxies(); }
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t phase) {
    host::after_wait();
    if (bytes == 0 || bytes % 16 != 0 || (uint64_t)from % 16 != 0 || to % 16 != 0) host::fail("copies %u bytes from %p to %u", bytes, from, to);
    host::counts(phase);
    host::Counted& c = host::counted[phase];
    if (!c.shown) host::fail("copies for phases at %u, which have not been shown to copies", phase);
    const uint32_t thread = host::index_of(host::self), place = to - host::shared_first;
    for (uint32_t i = 0; i < bytes; i += 16) host::written_at(to + i, 16);
    host::after_writes(thread, place, bytes, "copies to");
    host::after_reads(thread, place, bytes, "copies to");
    host::seen_apart(thread, place, bytes, "copies to");
    host::seen_apart_far(thread, from, bytes);
    c.arrived.all[c.actor] = ++host::now;
    host::now_written(place, bytes, {host::now, (uint16_t)c.actor, true, false});
    host::do_later([=] {
        memcpy(host::written_at(to, 16), from, bytes);
        host::counted[phase].to_copy -= bytes;
        host::settle(phase);
    });
}
void cp_async_mbarrier_arrive_noinc_shared_b64(uint32_t at) {
    const auto copies = host::self->copies;
    host::self->copies.clear();
    host::counts(at);
    for (const host::Copy& c : copies) host::on_shared(host::index_of(host::self), c.to - host::shared_first, 16, host::WRITES);
    host::tell(host::counted[at].arrived, host::index_of(host::self));
    host::do_later([=] {
        for (const host::Copy& c : copies) host::do_copy(c);
        host::arrive(at);
    });
}
void mbarrier_try_wait_parity_shared_b64(uint32_t& ended, uint32_t at, uint32_t odd) {
    host::Phase phase = {at, odd};
    host::counts(at);
    host::meet(host::phase_end, &phase);  // or it would be asked for ever
    ended = 1;
}
void mbarrier_test_wait_parity_shared_b64(uint32_t& ended, uint32_t at, uint32_t odd) {
    if (host::hopper) {
        host::counts(at);
        ended = host::has_ended({at, odd});
        if (ended) host::hear_of(host::index_of(host::self), {at, odd});
    } else {
        mbarrier_try_wait_parity_shared_b64(ended, at, odd);  // which is not there, so that it is asked again and again
    }
}

void prmt_b32(uint32_t& d, uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = selector >> 4 * i & 15;
        uint32_t byte = bytes >> s % 8 * 8 & 0xff;
        if (s & 8) byte = byte & 0x80 ? 0xff : 0;  // its sign, repeated
        v |= byte << 8 * i;
    }
    d = v;
}
void lop3_b32(uint32_t& d, uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t v = 0;
    for (uint32_t i = 0; i < 32; i++) v |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
    d = v;
}

void ex2_approx_ftz_f32(float& y, float x) { y = exp2f(x); }

void cvt_f32_f16(float& f, uint16_t h) { f = host::float_of_f16(h); }
void cvt_rn_f16_f32(uint16_t& h, float f) { h = host::f16_of(f); }
void cvt_rn_bf16_f32(uint16_t& h, float f) { h = host::bf16_of(f); }
void cvt_rn_f16x2_f32(uint32_t& d, float hi, float lo) { d = host::f16_of(lo) | uint32_t(host::f16_of(hi)) << 16; }
void cvt_rn_satfinite_e4m3x2_f32(uint16_t& d, float hi, float lo) { d = host::e4m3_of(lo) | uint16_t(host::e4m3_of(hi)) << 8; }
void cvt_rn_bf16x2_f32(uint32_t& d, float hi, float lo) { d = host::bf16_of(lo) | uint32_t(host::bf16_of(hi)) << 16; }

#define MMA(TYPE)                                                                                                             \
    void mma_sync_aligned_m16n8k16_row_col_f32_##TYPE##_##TYPE##_f32(                                                  \
        float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, \
        float c0, float c1, float c2, float c3) {                                                                             \
        host::Mma m = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                                         \
        host::meet(host::mma_##TYPE, &m);                                                                                     \
        d0 = m.d[0], d1 = m.d[1], d2 = m.d[2], d3 = m.d[3];                                                                   \
    }
MMA(f16)
MMA(bf16)
#undef MMA
#define SPARSE_MMA(TYPE)                                                                                                      \
    void mma_sp_ordered_metadata_sync_aligned_m16n8k32_row_col_f32_##TYPE##_##TYPE##_f32(                              \
        float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, \
        uint32_t b2, uint32_t b3, float c0, float c1, float c2, float c3, uint32_t pattern, uint32_t selector) {              \
        host::SparseMma m = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, pattern, selector};                        \
        host::meet(host::sparse_mma_##TYPE, &m);                                                                              \
        d0 = m.d[0], d1 = m.d[1], d2 = m.d[2], d3 = m.d[3];                                                                   \
    }
SPARSE_MMA(f16)
SPARSE_MMA(bf16)
#undef SPARSE_MMA
void mma_sp_ordered_metadata_sync_aligned_m16n8k64_row_col_s32_s8_s8_s32(
    int32_t& d0, int32_t& d1, int32_t& d2, int32_t& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, uint32_t b2,
    uint32_t b3, int32_t c0, int32_t c1, int32_t c2, int32_t c3, uint32_t pattern, uint32_t selector) {
    host::SparseByteMma m = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, pattern, selector};
    host::meet(host::sparse_mma_s8, &m);
    d0 = m.d[0], d1 = m.d[1], d2 = m.d[2], d3 = m.d[3];
}
void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t& d, uint32_t from) {
    host::Tile t = {from};
    host::meet(host::turn_tile, &t);
    d = t.to;
}

void wgmma_fence_sync_aligned() { host::self->fenced = true; }
void wgmma_commit_group_sync_aligned() {
    host::self->product_groups++;
    host::self->fenced = false;
}
void wgmma_wait_group_sync_aligned(uint32_t groups) { host::meet(host::product_end, &groups); }
void setmaxnreg_inc_sync_aligned_u32(uint32_t) { host::meet(host::registers, nullptr); }
void setmaxnreg_dec_sync_aligned_u32(uint32_t) { host::meet(host::registers, nullptr); }

void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    host::Turned t = {to, {a, b, c, d}};
    host::meet(host::store_turned, &t);
}

template <uint16_t (*ROUNDED)(float), float (*VALUE)(uint16_t)>
static uint32_t of_pairs(uint32_t a, uint32_t b, uint32_t c, bool adds) {
    uint32_t d = 0;
    for (uint32_t i = 0; i < 32; i += 16) {
        const double v = (double)VALUE(a >> i) * VALUE(b >> i);
        d |= (uint32_t)ROUNDED(adds ? v + VALUE(c >> i) : v) << i;
    }
    return d;
}
void mul_rn_f16x2(uint32_t& d, uint32_t a, uint32_t b) { d = of_pairs<host::f16_of, host::float_of_f16>(a, b, 0, false); }
void mul_rn_bf16x2(uint32_t& d, uint32_t a, uint32_t b) { d = of_pairs<host::bf16_of, host::float_of_bf16>(a, b, 0, false); }
void add_rn_f16x2(uint32_t& d, uint32_t a, uint32_t b) { d = of_pairs<host::f16_of, host::float_of_f16>(a, 0x3c003c00, b, true); }
void fma_rn_f16x2(uint32_t& d, uint32_t a, uint32_t b, uint32_t c) { d = of_pairs<host::f16_of, host::float_of_f16>(a, b, c, true); }
void fma_rn_bf16x2(uint32_t& d, uint32_t a, uint32_t b, uint32_t c) { d = of_pairs<host::bf16_of, host::float_of_bf16>(a, b, c, true); }

// Flags between blocks, which run one after the other: one that is not set is never.
void fence_acq_rel_gpu() {}
void st_relaxed_gpu_global_u32(uint32_t* flag, uint32_t v) {
    host::after_wait();
    *flag = v;
}
void st_relaxed_gpu_global_v4_f32(void* p, float a, float b, float c, float d) {
    st_global_v4_u32(p, __float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d));
}
void ld_acquire_gpu_global_u32(uint32_t& v, const uint32_t* flag) {
    host::after_wait();
    if ((v = *flag) == 0) host::fail("waits for a flag that nobody sets");
}
void ld_relaxed_gpu_global_v4_f32(float& a, float& b, float& c, float& d, const void* p) {
    host::after_wait();
    host::load_global<float, 4>({&a, &b, &c, &d}, p);
}

void griddepcontrol_launch_dependents() {}
void griddepcontrol_wait() { host::self->waited = true; }

// ---- launches ----

namespace host {

// Launch is how a kernel runs.
struct Launch {
    Dim grid, block;
    uint32_t shared;       // bytes
    uint32_t programmatic; // whether the grids before may still run
    uint32_t arch;         // 800 for compute capability 8.0
    uint32_t reverse;      // the order of threads; in order, what is asynchronous is done as late as it may
};

static void run(const Kernel& kernel, const Launch& launch, void** values) {
    const uint32_t n = launch.block.x;
    if (n == 0 || n % WARP != 0 || n > MOST_THREADS || launch.block.y > 1 || launch.block.z > 1 || launch.shared + SHARED_BESIDE > SHARED_MOST)
        fail("a block of %u×%u×%u threads with %u bytes", n, launch.block.y, launch.block.z, launch.shared);
    const std::function<void()> call = [&] { kernel.call(values); };
    body = &call;
    hopper = launch.arch >= 900;
    shared_first = hopper ? 1024 : 0;  // the system has what is before
    gridDim = launch.grid;
    blockDim = {n, 1, 1};
    shared_bytes = launch.shared;
    programmatic = launch.programmatic;
    late = launch.reverse == 0;
    written_far.clear();
    if (!stacks) stacks = (uint8_t*)mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    for (uint32_t i = 0; i < n; i++) {
        ucontext_t& c = threads[i].context;
        if (c.uc_stack.ss_sp) continue;
        getcontext(&c);
        c.uc_stack.ss_sp = stacks + i * STACK;
        c.uc_stack.ss_size = STACK;
        makecontext(&c, live, 0);
    }
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
                memset(dynamic_shared, 0xff, shared_bytes + SHARED_BESIDE);
                counted.clear();
                watch_block();
                Block{n, launch.reverse != 0}.run();
                for (size_t i = shared_bytes; i < shared_bytes + SHARED_BESIDE; i++)
                    if (dynamic_shared[i] != 0xff) fail("wrote at %zu of %zu bytes of shared memory", i, shared_bytes);
            }
}

}  // namespace host
