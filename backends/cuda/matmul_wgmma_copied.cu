// matmul on Hopper's asynchronous tensor cores, fed by the threads of a warpgroup: for lines that start anywhere.
//
// TMA takes lines at multiples of 16 bytes only, and reads two cache lines for each 128 bytes that do not start with one:
// H200, bf16 3000^3: 141 us with it. Here threads put units of 16 bytes where the swizzle wants them: by cp.async in
// pieces of A_COPY and B_COPY bytes, and through registers where elements of 2 bytes lie at odd places.
#define FILLERS 4  // warps
#include "matmul_wgmma.cuh"

#ifndef A_COPY  // bytes per copy; divides the leading dimension, the contiguous extent and the address
#define A_COPY 16
#endif
#ifndef B_COPY
#define B_COPY 16
#endif

constexpr int UNIT = 16 / sizeof(Element);
// Stages whose copies are under way when the one before them is declared full. Two more are with the consumers, which
// give one back when the next is full.
constexpr int LAG = STAGES > 4 ? 3 : STAGES - 2;
static_assert(LAG > 0, "copies overlap with products");

// Eight elements of 2 bytes from any place: words that hold them, shifted. at, inside: elements in the line before these
// and from there on.
__device__ __forceinline__ void gather(unsigned to, const Element* from, int at, int inside) {
    unsigned x[4] = {};
    if (at > 0 && inside > UNIT + 1) {  // so that the first and the last word are in the line too
        const size_t place = reinterpret_cast<size_t>(from);
        const unsigned* words = reinterpret_cast<const unsigned*>(place & ~size_t(3));
        unsigned word = words[0];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned next = words[i + 1];
            x[i] = __funnelshift_r(word, next, place & 2 ? 16 : 0);
            word = next;
        }
    } else {
        const unsigned short* elements = reinterpret_cast<const unsigned short*>(from);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            if (i < inside) x[i / 2] |= (unsigned)elements[i] << 16 * (i % 2);
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

template <int Copy>
__device__ __forceinline__ void copy_unit(unsigned to, const Element* from, int at, int inside) {
    if constexpr (Copy == 2) {
        gather(to, from, at, inside);
    } else {
        constexpr int Piece = Copy / sizeof(Element);
#pragma unroll
        for (int i = 0; i < UNIT; i += Piece) copy_async<Copy>(to + i * (int)sizeof(Element), from + i, i < inside);
    }
}

// A thread's place in the walk of an operand's tile along K: the same unit of every 16th line of 128 bytes.
template <bool KMajor, int Extent, int Copy>
struct Lines {
    static constexpr int Count = KMajor ? Extent / 16 : BLOCK_K / 16, Boxes = KMajor ? 1 : cdiv(Extent, 64);

    const Element* from;
    i64 ld;
    unsigned to;
    int mn, k, extent, k_end, inner;

    __device__ __forceinline__ Lines(const Element* x, i64 ld, int mn0, int k0, int extent, int k_end)
        : ld(ld), extent(extent), k_end(k_end) {
        const int line = threadIdx.x / 8, unit = threadIdx.x % 8;
        inner = unit * UNIT;
        to = line * 128 + (unit ^ line % 8) * 16;
        mn = mn0 + (KMajor ? line : inner);
        k = k0 + (KMajor ? inner : line);
        from = x + position<KMajor>(mn, k, ld);
    }

    // Copies the next tile.
    __device__ __forceinline__ void load(unsigned tile) {
#pragma unroll
        for (int box = 0; box < Boxes; box++)
#pragma unroll(Copy == 2 ? 2 : 4)
            for (int i = 0; i < Count; i++) {
                const int lines = KMajor ? extent - mn - 16 * i : k_end - k - 16 * i;
                const int at = KMajor ? k : mn + 64 * box, inside = (KMajor ? k_end : extent) - at;
                if (KMajor || 64 * box + inner < Extent)
                    copy_unit<Copy>(tile + to + box * BOX_BYTES + i * 16 * 128, from + i * 16 * ld + 64 * box, at,
                                    lines > 0 ? inside : 0);
            }
        from += KMajor ? BLOCK_K : BLOCK_K * ld;
        k += BLOCK_K;
    }
};

// The same where fp32 elements with K strided are turned on their way: a warp copies 8 neighbours of 4 k's at a time, which
// are whole sectors of 32 bytes there and lie in different banks here.
template <int Extent>
struct Turned {
    const Element* from;
    i64 ld;
    unsigned to;
    int mn, k, extent, k_end;

    __device__ __forceinline__ Turned(const Element* x, i64 ld, int mn0, int k0, int extent, int k_end)
        : ld(ld), extent(extent), k_end(k_end) {
        const int warp = threadIdx.x / 32, line = threadIdx.x % 8, word = threadIdx.x % 32 / 8;
        to = line * 128 + (warp ^ line) * 16 + word * 4;
        mn = mn0 + line;
        k = k0 + 4 * warp + word;
        from = x + position<false>(mn, k, ld);
    }

    // Copies the next tile: units `warp` and `warp` + 4 of each line.
    __device__ __forceinline__ void load(unsigned tile) {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll 8
            for (int i = 0; i < Extent / 8; i++)
                copy_async<4>(tile + (to ^ half * 64) + i * 8 * 128, from + half * 16 * ld + i * 8,
                              mn + i * 8 < extent && k + half * 16 < k_end);
        from += BLOCK_K * ld;
        k += BLOCK_K;
    }
};

template <bool Turns, bool KMajor, int Extent, int Copy>
struct Loader {
    using Type = Lines<KMajor, Extent, Copy>;
};
template <bool KMajor, int Extent, int Copy>
struct Loader<true, KMajor, Extent, Copy> {
    using Type = Turned<Extent>;
};

// Stages that were filled and not yet declared full: the copies of a stage are awaited LAG stages later.
struct Filler {
    const Ring& ring;
    Place place, behind;
    int open = 0;

    __device__ __forceinline__ explicit Filler(const Ring& ring) : ring(ring) {}

    // Declares the oldest stage full: TMA's proxy, through which the tensor cores read, must see the copies of all lanes.
    __device__ __forceinline__ void close() {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        barrier_arrive_if(threadIdx.x % 32 == 0, ring.full[behind.stage]);
        behind.advance();
        open--;
    }

    template <typename A, typename B>
    __device__ __forceinline__ void fill(A& a, B& b) {
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        a.load(shared_address(ring.a(place.stage)));
        b.load(shared_address(ring.b(place.stage)));
        copy_async_commit();
        place.advance();
        if (++open > LAG) copy_async_wait<LAG>(), close();
    }

    __device__ __forceinline__ void finish() {
        copy_async_wait<0>();
        while (open) close();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma_copied(const Element* __restrict__ a, const Element* __restrict__ b,
                        Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, i64 lda, i64 ldb,
                        int k_split, int works BATCH_PARAMETERS) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const Sizes sizes = {M, N, K, k_split, BATCH.products};
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");  // in all no more than 168 each
        Filler filler(ring);
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, sizes);
            const Member member = BATCH.member(work.product, 1, M, N);
            Loader<A_LIES_K_MAJOR && !A_K_MAJOR, A_K_MAJOR, BLOCK_M, A_COPY>::Type left(a + member.a, lda, work.m, work.k_begin, M, work.k_end);
            Loader<B_LIES_K_MAJOR && !B_K_MAJOR, B_K_MAJOR, BLOCK_N, B_COPY>::Type right(b + member.b, ldb, work.n, work.k_begin, N, work.k_end);
            for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) filler.fill(left, right);
        }
        filler.finish();
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        consume(ring, c, EPILOGUE(Output), sizes, works);
    }
}
