// What finds races and missing fences, as far as threads do what they do in another order than they must: the compiler calls
// on_access for every access of a kernel, as for its own detector of races, and instructions do so.
//
// Time goes on where a thread lets others know of what it has done: at barriers and where it arrives. A thread knows up to
// which time it has heard of each other's accesses. Of shared memory's bytes it is kept who wrote them last and when, and
// of words which thread of each warp read them last. An access is a race unless its thread has heard of those before that it
// must come after. Copies that a phase counts are made by nobody among the threads: by one more for each phase.
//
// Copies of whole pieces and products of a warpgroup go past the caches of the others, in what PTX calls another proxy: what
// a thread wrote before is theirs to read only if a fence is between, of who wrote it or of one who has heard of that. So of
// fences, too, it is kept up to which time they are known of.

namespace host {

// Who accesses memory: copies by their phase, and threads behind those.
constexpr uint32_t MOST_PHASES = 64, MOST_ACTORS = MOST_PHASES + MOST_THREADS;
using Times = uint32_t[MOST_ACTORS];

// Heard is up to which time somebody has heard of others' accesses, and of those that a fence is behind.
struct Heard {
    Times all, fenced;
};

static uint32_t now = 1;    // time, of all launches
static uint32_t block_begin;  // when the block began: what was before has come before
static uint32_t heard_all;    // what every thread of the block has heard of
static bool any_fence;        // in the block

struct Watched {
    uint32_t since;  // the thread has told others of what it did before
    Heard heard;
};
static Watched watched[MOST_THREADS];

static uint32_t index_of(const Thread* t) { return t - threads; }
static uint32_t actor_of(uint32_t thread) { return MOST_PHASES + thread; }
static bool has_heard(uint32_t thread, uint32_t actor, uint32_t time) {
    return actor == actor_of(thread) || time < block_begin || (actor >= MOST_PHASES && time < heard_all) || time <= watched[thread].heard.all[actor];
}

static void add(Heard& to, const Heard& from) {
    const uint32_t n = MOST_PHASES + blockDim.x;
    for (uint32_t i = 0; i < n; i++) to.all[i] = max(to.all[i], from.all[i]);
    if (any_fence)
        for (uint32_t i = 0; i < n; i++) to.fenced[i] = max(to.fenced[i], from.fenced[i]);
}

// tell has others hear of what a thread has done and heard of.
static void tell(Heard& others, uint32_t thread) {
    Watched& w = watched[thread];
    w.heard.all[actor_of(thread)] = w.since;
    add(others, w.heard);
    w.since = ++now;
}

// meet_in_memory is a barrier of threads.
static void meet_in_memory(uint32_t first, uint32_t n) {
    static Heard together;
    const bool all = n == blockDim.x;
    if (all && !any_fence) {  // of threads, heard_all says it
        memset(together.all, 0, MOST_PHASES * 4);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < MOST_PHASES; j++) together.all[j] = max(together.all[j], watched[i].heard.all[j]);
        for (uint32_t i = 0; i < n; i++) memcpy(watched[i].heard.all, together.all, MOST_PHASES * 4);
    } else {
        memset(&together, 0, sizeof together);
        for (uint32_t i = first; i < first + n; i++) tell(together, i);
        for (uint32_t i = first; i < first + n; i++) add(watched[i].heard, together);
    }
    now++;
    for (uint32_t i = first; i < first + n; i++) watched[i].since = now;
    if (all) heard_all = now;
}

// fence_proxies is a fence behind what the thread has done and heard of.
static void fence_proxies() {
    const uint32_t thread = index_of(self);
    Watched& w = watched[thread];
    any_fence = true;
    w.heard.all[actor_of(thread)] = w.since;
    for (uint32_t i = MOST_PHASES; i < MOST_PHASES + blockDim.x; i++) w.heard.fenced[i] = max(w.heard.all[i], heard_all ? heard_all - 1 : 0);
    w.since = ++now;
}

// ---- shared memory ----

enum Access { READS, WRITES, CHANGES };  // the last at once, whoever else does

struct Written {
    uint32_t time;
    uint16_t actor;
    bool apart;   // by a copy of a piece
    bool atomic;
};
struct Seen {
    uint32_t time;
    uint16_t thread;
    uint8_t bytes;  // of the word
};

constexpr uint32_t STATIC_MOST = 64 << 10;
static Written written[SHARED_MOST + STATIC_MOST];
static Seen seen[(SHARED_MOST + STATIC_MOST) / 4 * (MOST_THREADS / WARP)];

// place_of returns the number of a byte of shared memory.
static bool place_of(const void* p, uint32_t& place) {
    const uint8_t* at = (const uint8_t*)p;
    if (at >= dynamic_shared && at < dynamic_shared + SHARED_MOST) {
        place = at - dynamic_shared;
        return true;
    }
    if (at < __start_shared_memory || at >= __stop_shared_memory) return false;
    place = at - __start_shared_memory + SHARED_MOST;
    if (place >= SHARED_MOST + STATIC_MOST) fail("more than %u bytes of static shared memory", STATIC_MOST);
    return true;
}

static void name_place(char (&to)[64], uint32_t place) {
    if (place < SHARED_MOST)
        snprintf(to, sizeof to, "%u of shared memory", place + shared_first);
    else
        snprintf(to, sizeof to, "%u of static shared memory", place - SHARED_MOST);
}
[[noreturn]] static void race(uint32_t thread, const char* does, uint32_t place, uint32_t actor, const char* did) {
    char at[64], by[64];
    name_place(at, place);
    if (actor >= MOST_PHASES)
        snprintf(by, sizeof by, "thread %u %s", actor - MOST_PHASES, did);
    else
        snprintf(by, sizeof by, "a copy %s", did);
    threadIdx.x = thread;
    fail("a race: %s %s, which %s, and has not heard of that", does, at, by);
}

static void after_writes(uint32_t thread, uint32_t place, uint32_t bytes, const char* does, bool atomic = false) {
    for (uint32_t i = place; i < place + bytes; i++) {
        const Written& w = written[i];
        if (!(atomic && w.atomic) && !has_heard(thread, w.actor, w.time)) race(thread, does, i, w.actor, "has written");
    }
}
static void after_reads(uint32_t thread, uint32_t place, uint32_t bytes, const char* does) {
    const uint32_t warps = blockDim.x / WARP;
    for (uint32_t word = place / 4; word <= (place + bytes - 1) / 4; word++)
        for (uint32_t i = 0; i < warps; i++) {
            const Seen& s = seen[word * warps + i];
            if (s.time < heard_all || s.time < block_begin || has_heard(thread, actor_of(s.thread), s.time)) continue;
            for (uint32_t b = 0; b < 4; b++)
                if (s.bytes >> b & 1 && word * 4 + b >= place && word * 4 + b < place + bytes) race(thread, does, word * 4 + b, actor_of(s.thread), "has read");
        }
}
static void now_read(uint32_t thread, uint32_t place, uint32_t bytes) {
    const uint32_t warps = blockDim.x / WARP;
    for (uint32_t word = place / 4; word <= (place + bytes - 1) / 4; word++) {
        Seen& s = seen[word * warps + thread / WARP];
        const uint32_t from = word * 4 < place ? place - word * 4 : 0, to = min(place + bytes - word * 4, 4u);
        const uint8_t these = (1 << to) - (1 << from);
        const uint32_t since = watched[thread].since;
        s = {since, (uint16_t)thread, (uint8_t)(s.time == since && s.thread == thread ? s.bytes | these : these)};
    }
}
static void now_written(uint32_t place, uint32_t bytes, Written w) { std::fill_n(written + place, bytes, w); }

static void on_shared(uint32_t thread, uint32_t place, uint32_t bytes, Access how) {
    const char* does = how == READS ? "reads" : how == WRITES ? "writes" : "changes";
    after_writes(thread, place, bytes, does, how == CHANGES);
    if (how == READS) return now_read(thread, place, bytes);
    after_reads(thread, place, bytes, does);
    now_written(place, bytes, {watched[thread].since, (uint16_t)actor_of(thread), false, how == CHANGES});
}

// seen_apart fails unless a fence is behind what a thread wrote that a copy of a piece or a product is about to access.
static void seen_apart(uint32_t thread, uint32_t place, uint32_t bytes, const char* does) {
    for (uint32_t i = place; i < place + bytes; i++) {
        const Written& w = written[i];
        if (w.time < block_begin || w.apart || w.time <= watched[thread].heard.fenced[w.actor]) continue;
        char at[64];
        name_place(at, i);
        threadIdx.x = thread;
        fail("%s %s, which thread %u has written, without a fence of proxies since", does, at, w.actor - MOST_PHASES);
    }
}

// ---- other memory ----

// Who wrote 16 bytes of memory in this launch, and when.
static std::unordered_map<uint64_t, Written> written_far;

static uint8_t* stacks;  // of all threads

static void on_far(uint32_t thread, const void* p, uint32_t bytes) {
    for (uint64_t part = (uint64_t)p / 16; part <= ((uint64_t)p + bytes - 1) / 16; part++) written_far[part] = {watched[thread].since, (uint16_t)actor_of(thread), false, false};
}

// seen_apart_far is seen_apart of other memory. Of other blocks' writes a fence has to be behind that the thread itself makes.
static void seen_apart_far(uint32_t thread, const void* p, uint32_t bytes) {
    if (written_far.empty()) return;
    for (uint64_t part = (uint64_t)p / 16; part < ((uint64_t)p + bytes) / 16; part++) {
        const auto found = written_far.find(part);
        if (found == written_far.end()) continue;
        const Written& w = found->second;
        if (w.time < block_begin ? w.time > watched[thread].heard.fenced[actor_of(thread)] : w.time > watched[thread].heard.fenced[w.actor])
            fail("copies from %p, which thread %u of some block has written, without a fence of proxies since", (void*)(part * 16), w.actor - MOST_PHASES);
    }
}

// ---- accesses ----

static void on_access(const void* p, uint32_t bytes, Access how) {
    const uint8_t* at = (const uint8_t*)p;
    uint32_t place;
    if (at >= stacks && at < stacks + MOST_THREADS * STACK) return;
    if (place_of(p, place)) return on_shared(index_of(self), place, bytes, how);
    if (how != READS) on_far(index_of(self), p, bytes);
}

static void watch_block() {
    any_fence = false;
    block_begin = ++now;
    heard_all = 0;
    for (uint32_t i = 0; i < blockDim.x; i++) {
        watched[i].since = block_begin;
        memset(&watched[i].heard, 0, sizeof watched[i].heard);
    }
}

}  // namespace host

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define ACCESSES(BYTES)                                                                                   \
    void __tsan_read##BYTES(const void* p) { host::on_access(p, BYTES, host::READS); }                     \
    void __tsan_write##BYTES(const void* p) { host::on_access(p, BYTES, host::WRITES); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
#undef ACCESSES
void __tsan_read_range(const void* p, size_t bytes) { host::on_access(p, bytes, host::READS); }
void __tsan_write_range(const void* p, size_t bytes) { host::on_access(p, bytes, host::WRITES); }
}
