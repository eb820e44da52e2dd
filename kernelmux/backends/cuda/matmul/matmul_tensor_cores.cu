// matmul on the tensor cores through mma.sync: cp.async brings tiles STAGES ahead, ldmatrix feeds 16 x 8 products.
//
// Operands keep their major order in shared memory; a transposing ldmatrix (16-bit) or single-word loads (tf32) turn
// the MN-major ones into fragments. fp32 operands are rounded to tf32 as fragments, to nearest.
#include "matmul.cuh"
#include "tensor_cores.cuh"

#ifndef BLOCK_M
#define BLOCK_M 128
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef BLOCK_K
#define BLOCK_K 32
#endif
#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 4
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
#ifndef A_COPY  // bytes per copy; divides the leading dimension, the contiguous extent and the address
#define A_COPY 2
#endif
#ifndef B_COPY
#define B_COPY 2
#endif
#ifndef A_SHIFTED  // lines that begin anywhere arrive in whole 16 bytes, and are shifted to their places within shared memory
#define A_SHIFTED 0
#endif
#ifndef B_SHIFTED
#define B_SHIFTED 0
#endif

constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int STEP = 32 / sizeof(Element);  // of K per mma: 16 halves or 8 floats
constexpr int STEPS = BLOCK_K / STEP;
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
constexpr bool TF32 = sizeof(Element) == 4;
constexpr int SUMS = WARP_M * WARP_N / 32;  // of a thread
static_assert(STEPS % 2 == 0, "two sets of fragments alternate, tile after tile");

__device__ __forceinline__ void store_half(unsigned to, unsigned short x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}

// As copy_async of 16 bytes, the first `bytes` of which are read; zeros for the others.
__device__ __forceinline__ void copy_async_some(unsigned to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void load_four(unsigned* x, unsigned address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// One operand's tiles: Extent x BLOCK_K elements, in shared memory as lines along the contiguous index. The object is a
// thread's place in the walk along K; a thread copies the same unit of every Hop-th line.
template <bool Right, int Extent, bool KMajor, int Copy, bool Shifted>
struct Operand {
    static constexpr int Lines = KMajor ? Extent : BLOCK_K;
    static constexpr int LineBytes = (KMajor ? BLOCK_K : Extent) * (int)sizeof(Element);
    static constexpr int Bytes = Lines * LineBytes;
    static constexpr int Arriving = LineBytes + 16, StageBytes = Shifted ? Lines * Arriving : Bytes;
    static constexpr int PerLine = Shifted ? 1 : LineBytes / Copy, Hop = THREADS / PerLine;
    static_assert(Shifted || (THREADS % PerLine == 0 && Lines % Hop == 0), "every thread copies the same number of units");

    const Element* from;
    i64 ld;
    int line, byte, mn, k, extent, k_end;

    __device__ __forceinline__ Operand(const Element* x, i64 ld, int mn0, int k0, int extent, int k_end)
        : ld(ld), line(Shifted ? 0 : threadIdx.x / PerLine), byte(Shifted ? 0 : threadIdx.x % PerLine * Copy), extent(extent),
          k_end(k_end) {
        const int inner = byte / (int)sizeof(Element);
        mn = mn0 + (KMajor ? line : inner);
        k = k0 + (KMajor ? inner : line);
        from = x + position<KMajor>(mn, k, ld);
    }

    // The 16-byte units of a line change places with the line, so that the 8 units of one ldmatrix, which come from 8
    // lines, lie in different banks; for the word loads of tf32, 4 lines of 32 bytes each.
    static __device__ __forceinline__ int offset(int line, int byte) {
        constexpr int Units = LineBytes < 128 ? LineBytes / 16 : 8, Siblings = LineBytes < 128 ? 128 / LineBytes : 1;
        const int twist = TF32 && !KMajor ? line / Siblings % (Units / 2) * 2 : line / Siblings % Units;
        return line * LineBytes + (byte ^ twist * 16);
    }

    // Elements between a multiple of 16 bytes and the begin of a line, of every tile: those are whole lines of 16 bytes apart.
    __device__ __forceinline__ int shift_of(int line) const {
        return ((int)(reinterpret_cast<size_t>(from) >> 1) + line * (int)(ld % 8)) % 8;
    }

    // Copies the next tile as it lies: of each line all 16 bytes of which it has a part, and zeros behind its end.
    __device__ __forceinline__ void load_arriving(unsigned stage) {
        constexpr int Units = Arriving / 16;
        const int length = min(LineBytes / 2, KMajor ? k_end - k : extent - mn);
#pragma unroll
        for (int first = 0; first < Lines * Units; first += THREADS) {
            const int i = first + threadIdx.x, line = i / Units, unit = i % Units;
            const char* begin = reinterpret_cast<const char*>(from + line * ld);
            const char* at = reinterpret_cast<const char*>(reinterpret_cast<size_t>(begin) / 16 * 16) + 16 * unit;
            const bool inside = KMajor ? mn + line < extent : k + line < k_end;
            const int bytes = inside ? min(16, max(0, (int)(begin + 2 * length - at))) : 0;
            if (Lines * Units % THREADS == 0 || i < Lines * Units)
                copy_async_some(stage + line * Arriving + 16 * unit, bytes ? at : reinterpret_cast<const char*>(from), bytes);
        }
        from += KMajor ? BLOCK_K : BLOCK_K * ld;
        k += BLOCK_K;
    }

    // What has arrived to where fragments are read, every line from its begin on.
    __device__ __forceinline__ void shift(unsigned stage, unsigned tile) const {
        constexpr int Units = LineBytes / 16;
#pragma unroll
        for (int first = 0; first < Lines * Units; first += THREADS) {
            const int i = first + threadIdx.x, line = i / Units, unit = i % Units, by = shift_of(line);
            if (Lines * Units % THREADS && i >= Lines * Units) break;
            unsigned x[8];
            load_four(x, stage + line * Arriving + 16 * unit);
            load_four(x + 4, stage + line * Arriving + 16 * unit + 16);
#pragma unroll
            for (int j = 0; j < 6; j++) x[j] = by & 4 ? x[j + 2] : x[j];
#pragma unroll
            for (int j = 0; j < 5; j++) x[j] = by & 2 ? x[j + 1] : x[j];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = __byte_perm(x[j], x[j + 1], by & 1 ? 0x5432 : 0x3210);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(tile + offset(line, 16 * unit)), "r"(x[0]), "r"(x[1]),
                         "r"(x[2]), "r"(x[3])
                         : "memory");
        }
    }

    // Copies the next tile.
    __device__ __forceinline__ void load(unsigned stage) {
        if constexpr (Shifted) load_arriving(stage);
        else load_units(stage);
    }

    // Copies the next tile to where fragments are read.
    __device__ __forceinline__ void load_units(unsigned tile) {
        constexpr int Count = Lines / Hop;
        const auto inside = [&](int i) {
            return KMajor ? mn + i * Hop < extent && k < k_end : mn < extent && k + i * Hop < k_end;
        };
        if constexpr (Copy == 2) {  // through registers, as many at a time as there are: each wait is that for memory
            constexpr int Most = SUMS > 64 ? 4 : 16, Each = Count < Most ? Count : Most;
#pragma unroll 1
            for (int first = 0; first < Count; first += Each) {
                unsigned short held[Each];
#pragma unroll
                for (int i = 0; i < Each; i++) {
                    const Element* at = from + (first + i) * Hop * ld;
                    held[i] = inside(first + i) ? *reinterpret_cast<const unsigned short*>(at) : 0;
                }
#pragma unroll
                for (int i = 0; i < Each; i++) store_half(tile + offset(line + (first + i) * Hop, byte), held[i]);
            }
        } else {
            constexpr int Most = TF32 ? 4 : 8;  // more at a time would spill
#pragma unroll(Count < Most ? Count : Most)
            for (int i = 0; i < Count; i++)
                copy_async<Copy>(tile + offset(line + i * Hop, byte), from + i * Hop * ld, inside(i));
        }
        from += KMajor ? BLOCK_K : BLOCK_K * ld;
        k += BLOCK_K;
    }

    // The 16 x STEP piece at (mn, step) in four registers, one per quarter. The right operand has the two k's of the
    // same mn side by side: an mma wants them in neighbouring registers, and would else be preceded by moves.
    static __device__ __forceinline__ void fragment(unsigned (&x)[4], unsigned tile, int mn, int step) {
        const int lane = threadIdx.x % 32;
        const auto high_mn = [](int i) { return Right ? i / 2 : i % 2; };
        const auto high_k = [](int i) { return Right ? i % 2 : i / 2; };
        if constexpr (KMajor) {
            const int line = mn + high_mn(lane / 8) * 8 + lane % 8;
            load_matrices<false>(x, tile + offset(line, step * 32 + high_k(lane / 8) * 16));
        } else if constexpr (!TF32) {
            const int line = step * STEP + high_k(lane / 8) * 8 + lane % 8;
            load_matrices<true>(x, tile + offset(line, (mn + high_mn(lane / 8) * 8) * 2));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int line = step * STEP + lane % 4 + high_k(i) * 4;
                x[i] = load_word(tile + offset(line, (mn + lane / 4 + high_mn(i) * 8) * 4));
            }
        }
        if constexpr (TF32) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = round_to_tf32(x[i]);
        }
    }
};

using A = Operand<false, BLOCK_M, A_K_MAJOR, A_COPY, A_SHIFTED>;
using B = Operand<true, BLOCK_N, B_K_MAJOR, B_COPY, B_SHIFTED>;
constexpr int STAGE_BYTES = A::StageBytes + B::StageBytes;

// Where the tiles of a step are read from: its stage, or what of it has been shifted.
struct Tiles {
    unsigned a, b;

    __device__ __forceinline__ Tiles(unsigned stages, int slot) {
        const unsigned stage = stages + slot * STAGE_BYTES, shifted = stages + STAGES * STAGE_BYTES;
        a = A_SHIFTED ? shifted : stage;
        b = B_SHIFTED ? shifted + (A_SHIFTED ? A::Bytes : 0) : stage + A::StageBytes;
    }
};

struct Fragments {
    unsigned a[WARP_M / 16][4], b[WARP_N / 16][4];

    __device__ __forceinline__ void load(const Tiles& tiles, int m, int n, int step) {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++) A::fragment(a[i], tiles.a, m + 16 * i, step);
#pragma unroll
        for (int j = 0; j < WARP_N / 16; j++) B::fragment(b[j], tiles.b, n + 16 * j, step);
    }

    __device__ __forceinline__ void multiply(float (&sum)[WARP_M / 16][WARP_N / 8][4]) const {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_N / 16; j++) {
                mma(sum[i][2 * j], a[i], b[j][0], b[j][1], Element());
                mma(sum[i][2 * j + 1], a[i], b[j][2], b[j][3], Element());
            }
    }
};

// Waits until the calling thread's copies of the next stage are done, then for everybody's.
__device__ __forceinline__ void await_stage() {
    copy_async_wait<STAGES - 2>();
    __syncthreads();
}

// blockIdx.y takes k_split of K and writes its own [M, N] slices of c; k_split is a multiple of BLOCK_K, or K.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_tensor_cores(const Element* __restrict__ a, const Element* __restrict__ b, Output* __restrict__ c
                        EPILOGUE_PARAMETERS(Output), int M, int N, int K, i64 lda, i64 ldb, int k_split
                        BATCH_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char shared[];  // STAGES x STAGE_BYTES, in the end a strip per warp
    const unsigned stages = shared_address(shared);
    const int tiles_m = cdiv(M, BLOCK_M), tiles_n = cdiv(N, BLOCK_N);
    const Member member = BATCH.member(blockIdx.x, (i64)tiles_m * tiles_n, M, N);
    const Tile tile = grouped_tile(member.work, tiles_m, tiles_n);
    const int m0 = tile.m * BLOCK_M, n0 = tile.n * BLOCK_N;
    const int k_begin = blockIdx.y * k_split, k_end = min(K, k_begin + k_split), tiles = cdiv(k_end - k_begin, BLOCK_K);
    const int warp = threadIdx.x / 32, m = warp / WARPS_N * WARP_M, n = warp % WARPS_N * WARP_N;
    A a_tiles(a + member.a, lda, m0, k_begin, M, k_end);
    B b_tiles(b + member.b, ldb, n0, k_begin, N, k_end);
    const auto issue = [&](int t, int slot) {
        if (t < tiles) {
            a_tiles.load(stages + slot * STAGE_BYTES);
            b_tiles.load(stages + slot * STAGE_BYTES + A::StageBytes);
        }
        copy_async_commit();  // an empty group keeps the count
    };
    float sum[WARP_M / 16][WARP_N / 8][4] = {};
    Fragments fragments[2];
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++) issue(t, t);
    // No thread reads what was shifted before: all have the last fragments of it. first: the stage was not awaited before.
    const auto await = [&](int slot, bool first) {
        await_stage();
        if (!first) return;
        if constexpr (A_SHIFTED) a_tiles.shift(stages + slot * STAGE_BYTES, Tiles(stages, slot).a);
        if constexpr (B_SHIFTED) b_tiles.shift(stages + slot * STAGE_BYTES + A::StageBytes, Tiles(stages, slot).b);
        if constexpr (A_SHIFTED || B_SHIFTED) __syncthreads();
    };
    await(0, true);
    fragments[0].load(Tiles(stages, 0), m, n, 0);
    for (int t = 0, slot = 0; t < tiles; t++) {
        const int next = slot + 1 < STAGES ? slot + 1 : 0, previous = slot ? slot - 1 : STAGES - 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            // The fragments of the next step load while this one multiplies, across the border of two stages too.
            if (step + 1 < STEPS) {
                fragments[(step + 1) % 2].load(Tiles(stages, slot), m, n, step + 1);
            } else {  // without a branch, which would cost 60 moves of fragments; the last tile loads its own once more
                await(t + 1 < tiles ? next : slot, t + 1 < tiles);
                fragments[0].load(Tiles(stages, t + 1 < tiles ? next : slot), m, n, 0);
            }
            // All warps have left the previous tile since await_stage(): its slot may take the tile STAGES - 1 ahead.
            if (step == 0) issue(t + STAGES - 1, previous);
            fragments[step % 2].multiply(sum);
        }
        slot = next;
    }
    __syncthreads();
    Output* strip = reinterpret_cast<Output*>(shared + warp * Strip<WARP_N>::Bytes);
    c += member.c + (i64)blockIdx.y * BATCH.products * M * N;
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++)
        Strip<WARP_N>::store_out(strip, sum[i], c, EPILOGUE(Output), m0 + m + 16 * i, n0 + n, M, N);
}
