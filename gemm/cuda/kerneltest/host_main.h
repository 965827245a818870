// What runs a module's kernels: a program with one launch, which it reads, or a library. Memory is mapped where the launch says and
// ends at an unmapped page; what lies beside it in its pages is checked.

#include <sys/mman.h>

#include <csignal>

namespace host {

constexpr uint64_t PAGES = 64 << 10;  // a multiple of every machine's page
constexpr uint8_t BESIDE = 0xa5;

static void read_all(void* to, size_t n) {
    if (n && fread(to, 1, n, stdin) != n) fail("the launch ends too soon");
}
static uint32_t read_u32() { uint32_t v; read_all(&v, 4); return v; }
static uint64_t read_u64() { uint64_t v; read_all(&v, 8); return v; }
static std::string read_string() {
    std::string s(read_u32(), 0);
    read_all(&s[0], s.size());
    return s;
}

// Buffer is memory of a launch.
struct Buffer {
    uint8_t *pages, *at;
    uint64_t mapped, size;

    Buffer() {
        at = (uint8_t*)read_u64();
        size = read_u64();
        pages = (uint8_t*)((uint64_t)at / PAGES * PAGES);
        mapped = (at + size - pages + PAGES - 1) / PAGES * PAGES;
        if (mmap(pages, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != pages) fail("no memory at %p", pages);
        memset(pages, BESIDE, mapped);
        read_all(at, size);
    }
    void check() const {
        for (uint8_t* p = pages; p < pages + mapped; p++)
            if ((p < at || p >= at + size) && *p != BESIDE) fail("wrote at %td of %llu bytes", p - at, (unsigned long long)size);
    }
};

static const Kernel* find(const char* name) {
    for (const Kernel* k = kernels; k->name; k++)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

static void on_fault(int signal, siginfo_t* info, void*) {
    if (signal != SIGSEGV && signal != SIGBUS) fail("shifts by too much, or accesses an array beyond its end or at a wrong address");
    fail("accesses %p, where no memory is", info->si_addr);
}

// serve runs the launch that standard input describes, and writes what is in memory then.
static int serve() {
    const std::string name = read_string();
    Launch launch;
    read_all(&launch, sizeof launch);
    std::vector<std::string> args(read_u32());
    std::vector<void*> values;
    for (std::string& a : args) {
        a = read_string();
        values.push_back(&a[0]);
    }
    std::vector<Buffer> buffers(read_u32());

    const Kernel* kernel = find(name.c_str());
    if (!kernel) fail("there is no kernel %s", name.c_str());
    uint32_t count = 0;
    while (kernel->sizes[count]) count++;
    if (count != args.size()) fail("%zu arguments where %s takes %u", args.size(), name.c_str(), count);
    for (size_t i = 0; i < args.size(); i++)
        if (args[i].size() != kernel->sizes[i]) fail("argument %zu of %zu bytes where %s takes %u", i, args[i].size(), name.c_str(), kernel->sizes[i]);

    stack_t stack = {};
    stack.ss_size = 64 << 10;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP}) sigaction(signal, &action, nullptr);

    run(*kernel, launch, values.data());
    for (const Buffer& b : buffers) {
        b.check();
        fwrite(b.at, 1, b.size, stdout);
    }
    return fflush(stdout) ? 1 : 0;
}

}  // namespace host

int main() { return host::serve(); }

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int32_t host_has(const char* name) { return host::find(name) != nullptr; }
EXPORTED uint32_t host_size(const char* name, uint32_t i) { return host::find(name)->sizes[i]; }
EXPORTED int32_t host_launch(const char* name, const host::Launch* launch, void** values) {
    host::run(*host::find(name), *launch, values);
    return 0;
}
