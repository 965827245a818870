// The clock of a multiprocessor: cycles and nanoseconds that go by while one thread waits.
extern "C" __global__ void clockrate(u64* passed, u64 wait) {
    u64 began, from, now, to;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(from));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - began < wait);
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(to));
    passed[0] = to - from;
    passed[1] = now - began;
}
