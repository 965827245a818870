// How GPUs that read and write each other's memory send each other small arrays.
//
// Each word of 4 bytes travels with the number of its message beside it, as in NCCL's protocol LL: 8 bytes are written and read
// at once, so that who finds the number has the word, and nothing waits for a fence. Numbers grow by 1 from a message to the next
// and are counted where the kernels run, so that they go on when a graph is launched again.

constexpr u32 PEERS = 8;  // GPUs at most
constexpr u32 BOX_WORDS = 8192;  // that a block sends at most

struct Peers {
    u64* boxes[PEERS];          // of each GPU, in its memory: [blocks][2][ranks][BOX_WORDS], what it was sent
    u32* sent;                  // [blocks]: messages of each block of this GPU so far
    const volatile u32* ended;  // not 0 where a GPU has failed, for which the others need not wait
    u32 rank, ranks;
};

// What a launch does. Both, but in tests, where GPUs take turns.
constexpr u32 SENDS = 1;
constexpr u32 TAKES = 2;

// Mail is a block's part in a message to all others. Two boxes take turns: who sends the message after next has had the next one of
// all others, which sent it after they had taken this one.
struct Mail {
    const Peers& peers;
    u32 block, number;

    __device__ __forceinline__ Mail(const Peers& p, u32 block) : peers(p), block(block), number(*(const volatile u32*)(p.sent + block) + 1) {}

    __device__ __forceinline__ u64* box(u32 of, u32 from) const {
        return peers.boxes[of] + ((u64)(2 * block + (number & 1)) * peers.ranks + from) * BOX_WORDS;
    }
    __device__ __forceinline__ void send(u32 slot, u32 word) const {
#pragma unroll 1
        for (u32 r = 0; r < peers.ranks; r++)
            if (r != peers.rank) *(volatile u64*)(box(r, peers.rank) + slot) = (u64)number << 32 | word;
    }
    // take waits for words that another has sent, at slots stride apart.
    template <u32 N>
    __device__ __forceinline__ void take(u32 (&words)[N], u32 from, u32 slot, u32 stride, u32 count) const {
        const u64* at = box(peers.rank, from) + slot;
        for (u32 tries = 1;; tries++) {
            u64 v[N];
#pragma unroll
            for (u32 j = 0; j < N; j++) v[j] = j < count ? *(const volatile u64*)(at + j * stride) : (u64)number << 32;
            bool all = true;
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                words[j] = (u32)v[j];
                all &= (u32)(v[j] >> 32) == number;
            }
            if (all || tries % 65536 == 0 && *peers.ended) return;  // which is in the host's memory, far away
        }
    }
    // done counts the message. All threads of the block call it, once they have taken what they wait for.
    __device__ __forceinline__ void done() const {
        __syncthreads();
        if (threadIdx.x == 0) peers.sent[block] = number;
    }
};
