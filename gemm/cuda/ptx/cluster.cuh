// Two blocks beside each other, a cluster, that send each other numbers through shared memory. For kernels that are launched in clusters
// of two blocks; it follows wgmma.cuh.

// block_number is that of the block in its cluster.
__device__ __forceinline__ u32 block_number() { return blockIdx.x % 2; }

// number_of returns what addresses of shared memory have beside where they are in that of their block: the block's number. Phases are found by
// no address without it.
__device__ __forceinline__ u32 number_of(const u8* shared) { return shared_address(shared) & 0xff000000; }

// meet_cluster is a barrier of all threads of both blocks that have not ended.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// far_shared returns a block's address for one of the caller's own.
__device__ __forceinline__ u32 far_shared(u32 at, u32 block) {
    u32 far;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(at), "r"(block));
    return far;
}

// send writes 16 bytes to a far address, which count for the phase at another there.
__device__ __forceinline__ void send(u32 to, float a, float b, float c, float d, u32 phase) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(phase) : "memory");
}

// expect begins to count bytes that are sent for a phase of the caller's block, which ends with the last.
__device__ __forceinline__ void expect(u32 phase, u32 bytes) { arrive_expecting(phase, bytes); }

// arrive_far is arrive at a far address.
__device__ __forceinline__ void arrive_far(u32 at) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

// wait_far is wait_phase where far threads arrive, or send.
__device__ __forceinline__ void wait_far(u32 at, u32 odd) {
    u32 ended;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                    : "=r"(ended) : "r"(at), "r"(odd) : "memory");
    while (!ended);
}

// receive reads 16 bytes that have been sent.
__device__ __forceinline__ void receive(float (&v)[4], u32 at) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(at) : "memory");
}
