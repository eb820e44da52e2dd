// matmul on the FP32 pipes, every thread with 4 x 4 to 8 x 16 sums in registers; the next tile travels meanwhile.
//
// Shared memory hands out 128 bytes per cycle, 4 cycles for a 16-byte load of a warp, while the FP32 pipes do 4 warps'
// multiplications. At 8x8 a thread does 64 products per 4 such loads and both run at their limit; at 8x16, 128 per 6, at
// 12x8, 96 per 5.
// fp32 4096^3 on an H200: 47.7 TFLOP/s, 8x8 at most 45, tiles of 8 k's 44.
//
// H200, 4096^3 with 128 x 256 and 8 x 16 sums: 2767 us, with 128 x 128 2861.
//
// Tiles that whole rounds of all multiprocessors leave over are streamed: laid end to end, their steps of K are cut into
// as many equal shares as blocks run at one time. What begins or ends inside a tile leaves a part, and `..._sum` adds those
// of a tile in the order of K.
#include "guard.cuh"
#include "matmul.cuh"

#ifndef A_VECTOR  // elements per global load; divides the leading dimension, the contiguous extent and the address
#define A_VECTOR 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#ifndef THREAD_M  // rows and columns of c per thread
#define THREAD_M 8
#endif
#ifndef THREAD_N
#define THREAD_N 16
#endif
#ifndef LANES_M  // of a warp, down the rows
#define LANES_M 8
#endif
#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef STEP_K  // of K, to a tile
#define STEP_K 16
#endif
#ifndef BLOCKS_PER_SM  // while one waits at a barrier the others compute
#define BLOCKS_PER_SM 2
#endif

constexpr int LANES_N = 32 / LANES_M, WARP_M = LANES_M * THREAD_M, WARP_N = LANES_N * THREAD_N;
constexpr int BLOCK_M = WARPS_M * WARP_M, BLOCK_N = WARPS_N * WARP_N, BLOCK_K = STEP_K, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int GROUPS = THREAD_M * THREAD_N / 4;  // of 4 neighbouring sums of a thread
#ifndef SKEW  // words beyond a row: either these keep a warp's transposed stores apart, or columns that change places (0)
#define SKEW 4
#endif
#ifndef STREAMED  // some blocks share tiles; a loop over these costs the others 5 %
#define STREAMED 0
#endif
template <int Extent>
using Panel = float[BLOCK_K][Extent + SKEW];

// A thread's share of the Extent x BLOCK_K tiles of an operand, on their way from global to shared memory through
// registers: the same units of every Hop-th contiguous line. The object is the thread's place in the walk along K.
template <bool KMajor, int Extent, int Width>
struct Slice {
    static constexpr int PerLine = (KMajor ? BLOCK_K : Extent) / Width, Lines = KMajor ? Extent : BLOCK_K;
    static constexpr int Hop = PerLine < THREADS ? THREADS / PerLine : 1;
    static constexpr int Pieces = PerLine < THREADS ? 1 : PerLine / THREADS;
    static constexpr int Count = cdiv(Lines, Hop) * Pieces;
    static_assert(PerLine % THREADS == 0 || THREADS % PerLine == 0, "all threads load units of as many lines");
    // A warp stores what it has of K-major lines to as many rows of a panel as its units span. Which columns of a row
    // change places, 4 at a time, differs among those, so that its words have banks of their own.
    static constexpr int Apart = 32 / PerLine < 4 ? 4 : 32 / PerLine;
    static constexpr int Span = Extent % 32 == 0 ? 32 : Extent % 16 == 0 ? 16 : 8;  // columns that change places
    static_assert(Extent % 8 == 0, "columns change places within an aligned span");

    const Element* from;
    i64 ld;
    int line, unit, mn, k;
    Vec<Element, Width> held[Count];

    __device__ __forceinline__ Slice(const Element* x, i64 ld, int mn0, int k0)
        : ld(ld), line(threadIdx.x / PerLine % Lines), unit(threadIdx.x % PerLine * Width) {
        mn = mn0 + (KMajor ? line : unit);
        k = k0 + (KMajor ? unit : line);
        from = x + position<KMajor>(mn, k, ld);
    }

    static __device__ __forceinline__ constexpr int turned(int k) {
        return SKEW == 0 && KMajor && Apart < Span ? Apart * (k / Width % (Span / Apart)) : 0;
    }
    static __device__ __forceinline__ constexpr int lines(int i) { return i / Pieces * Hop; }
    static __device__ __forceinline__ constexpr int units(int i) { return i % Pieces * THREADS * Width; }
    __device__ __forceinline__ bool mine(int i) const {  // the last lines may be too few for all threads
        if constexpr (Hop > Lines) return threadIdx.x < PerLine * Lines;
        return Lines % Hop == 0 || line + lines(i) < Lines;
    }

    // Loads the next tile; `whole`: no part of it is outside.
    __device__ __forceinline__ void load(bool whole, int extent, int K) {
        if (whole) {
#pragma unroll
            for (int i = 0; i < Count; i++)
                if (mine(i)) held[i] = ::load<Width>(from + lines(i) * ld + units(i));
        } else {
#pragma unroll
            for (int i = 0; i < Count; i++) {
                const bool inside = KMajor ? mn + lines(i) < extent && k < K : mn + units(i) < extent && k + lines(i) < K;
                held[i] = {};
                if (inside && mine(i)) held[i] = ::load<Width>(from + lines(i) * ld + units(i));
            }
        }
        from += KMajor ? BLOCK_K : BLOCK_K * ld;
        k += BLOCK_K;
    }

    __device__ __forceinline__ void store(Panel<Extent>& panel) const {
        const int turn = turned(unit);
#pragma unroll
        for (int i = 0; i < Count; i++) {
            if (!mine(i)) continue;
            Vec<float, Width> values;
#pragma unroll
            for (int v = 0; v < Width; v++) values.v[v] = to_float(held[i].v[v]);
            if constexpr (KMajor) {
#pragma unroll
                for (int v = 0; v < Width; v++) panel[unit + v][(line + lines(i)) ^ turn] = values.v[v];
            } else {
                ::store(&panel[line + lines(i)][unit + units(i)], values);
            }
        }
    }

    // Count values of row k of a panel, from column `first` on, in 16-byte loads `Step` columns from one another.
    template <int Step, int Values>
    static __device__ __forceinline__ void read(float (&x)[Values], const Panel<Extent>& panel, int k, int first) {
        constexpr bool Fixed = Values / 4 * Step % 32 == 0;  // a warp has whole spans: what differs is known beforehand
        const int turn = turned(k), near = first ^ (turn & (Step - 1));
#pragma unroll
        for (int i = 0; i < Values; i += 4) {
            const int at = Fixed ? near + ((i / 4 * Step) ^ (turn & ~(Step - 1))) : (first + i / 4 * Step) ^ turn;
            *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(&panel[k][at]);
        }
    }
};

// Where sum (i, j) of this thread is in the tile.
__device__ __forceinline__ int row_of(int i) {
    return threadIdx.x / 32 / WARPS_N * WARP_M + threadIdx.x % 32 / LANES_N * 4 + i % 4 + i / 4 * 4 * LANES_M;
}
__device__ __forceinline__ int column_of(int j) {
    return threadIdx.x / 32 % WARPS_N * WARP_N + threadIdx.x % LANES_N * 4 + j % 4 + j / 4 * 4 * LANES_N;
}

// Ends 4 neighbouring sums.
__device__ __forceinline__ void finish(Element* c, const Epilogue<Element>& epilogue, i64 first, int m, int n, int M, int N,
                                       const float* sums) {
#pragma unroll
    for (int j = 0; j < 4; j += C_VECTOR) {
        float out[C_VECTOR];
#pragma unroll
        for (int v = 0; v < C_VECTOR; v++) out[v] = sums[j + v];
        if (m < M && n + j < N) epilogue.store(c, first + (i64)m * N + n + j, n + j, out);
    }
}

// Ends the sums of a tile. Where 4 neighbours are no one store, those of a row of all lanes cross a strip of the warp's
// own, so that lanes store neighbours: single floats 16 bytes apart are partial writes of every sector. `strips`: what the
// stages were, which all threads have left.
constexpr int STRIP = WARP_N + 16;  // 8 lanes of a pass, of one row or two, have banks of their own
static_assert(WARPS_M * WARPS_N * LANES_M * STRIP <= 2 * BLOCK_K * (BLOCK_M + BLOCK_N), "the strips find room");
__device__ __forceinline__ void finish_tile(float* strips, Element* c, const Epilogue<Element>& epilogue, i64 first, int m0,
                                            int n0, int M, int N, const float (&sum)[THREAD_M][THREAD_N]) {
    if constexpr (C_VECTOR == 4) {
#pragma unroll
        for (int i = 0; i < THREAD_M; i++)
#pragma unroll
            for (int j = 0; j < THREAD_N; j += 4)
                finish(c, epilogue, first, m0 + row_of(i), n0 + column_of(j), M, N, &sum[i][j]);
    } else {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = n0 + warp % WARPS_N * WARP_N;
        float *strip = strips + warp * LANES_M * STRIP, *mine = strip + lane / LANES_N * STRIP + lane % LANES_N * 4;
#pragma unroll
        for (int i = 0; i < THREAD_M; i++) {
            const int m = m0 + warp / WARPS_N * WARP_M + i % 4 + i / 4 * 4 * LANES_M;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < THREAD_N; j += 4)
                *reinterpret_cast<float4*>(mine + j * LANES_N) = *reinterpret_cast<const float4*>(&sum[i][j]);
            __syncwarp();
#pragma unroll
            for (int at = lane * C_VECTOR; at < LANES_M * WARP_N; at += 32 * C_VECTOR) {
                const int down = at / WARP_N, right = at % WARP_N, row = m + 4 * down, column = n + right;
                const float* from = strip + down * STRIP + right;
                if (row < M && column < N)
                    epilogue.store(c, first + (i64)row * N + column, column, load<C_VECTOR>(from).v);
            }
        }
    }
}

// Steps of a tile, of which an empty product has one too.
__device__ __forceinline__ int steps_of(int K) { return max(cdiv(K, BLOCK_K), 1); }

// whole: tiles, of `tiles`, that blocks have for themselves; share: steps of each block behind those. parts: two of such a
// block, of its first tile and of its last one, each four sums of all threads after the other.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_register_tiled(GUARD_PARAMETER const Element* __restrict__ a, const Element* __restrict__ b,
                          float4* __restrict__ parts, Element* __restrict__ c EPILOGUE_PARAMETERS(Element), int M, int N,
                          int K, i64 lda, i64 ldb, int tiles, int whole, int share BATCH_PARAMETERS) {
    RETURN_IF_SPARED();
    extern __shared__ __align__(16) float panels[];
    Panel<BLOCK_M>* a_panel = reinterpret_cast<Panel<BLOCK_M>*>(panels);      // [2][k][m]
    Panel<BLOCK_N>* b_panel = reinterpret_cast<Panel<BLOCK_N>*>(a_panel + 2);  // [2][k][n]
    using A = Slice<A_K_MAJOR, BLOCK_M, A_VECTOR>;
    using B = Slice<B_K_MAJOR, BLOCK_N, B_VECTOR>;
    const int tiles_m = cdiv(M, BLOCK_M), tiles_n = cdiv(N, BLOCK_N), steps = steps_of(K);
    const int streamed = STREAMED ? (int)blockIdx.x - whole : -1;
    // A lane's sums are groups of 4 x 4, a row and a column of all lanes apart.
    const int row = row_of(0), column = column_of(0);
    int index = blockIdx.x, step = 0, left = steps;  // of this block
    if (streamed >= 0) {
        const i64 first = (i64)streamed * share;
        index = whole + (int)(first / steps), step = (int)(first % steps);
        left = (int)min((i64)share, (i64)(tiles - whole) * steps - first);
    }
    for (int part = 0; left > 0; index++, part = 1) {
        const int count = STREAMED ? min(left, steps - step) : steps;
        const int begin = step * BLOCK_K, end = min(K, begin + count * BLOCK_K);
        const Member member = BATCH.member(index, (i64)tiles_m * tiles_n, M, N);
        const Tile tile = grouped_tile(member.work, tiles_m, tiles_n);
        const int m0 = tile.m * BLOCK_M, n0 = tile.n * BLOCK_N;
        A a_share(a + member.a, lda, m0, begin);
        B b_share(b + member.b, ldb, n0, begin);
        float sum[THREAD_M][THREAD_N] = {};
        const bool a_whole = m0 + BLOCK_M <= M, b_whole = n0 + BLOCK_N <= N;
        a_share.load(a_whole && begin + BLOCK_K <= end, M, end);
        b_share.load(b_whole && begin + BLOCK_K <= end, N, end);
        for (int k0 = begin, stage = 0; k0 < end; k0 += BLOCK_K, stage ^= 1) {
            a_share.store(a_panel[stage]);
            b_share.store(b_panel[stage]);
            __syncthreads();  // one per step: the other stage was last read before the previous one
            if (k0 + BLOCK_K < end) {
                a_share.load(a_whole && k0 + 2 * BLOCK_K <= end, M, end);
                b_share.load(b_whole && k0 + 2 * BLOCK_K <= end, N, end);
            }
#pragma unroll
            for (int k = 0; k < BLOCK_K; k++) {
                float x[THREAD_M], y[THREAD_N];
                A::template read<4 * LANES_M>(x, a_panel[stage], k, row);
                B::template read<4 * LANES_N>(y, b_panel[stage], k, column);
#pragma unroll
                for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                    for (int j = 0; j < THREAD_N; j++) sum[i][j] = fma_gradual(x[i], y[j], sum[i][j]);
            }
        }
        if (!STREAMED || count == steps) {
            if constexpr (C_VECTOR < 4) __syncthreads();  // the strips are where the stages were
            finish_tile(panels, c, EPILOGUE(Element), member.c, m0, n0, M, N, sum);
        } else {
            float4* to = parts + (i64)(2 * streamed + part) * GROUPS * THREADS + threadIdx.x;
#pragma unroll
            for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j += 4)
                    to[(i * THREAD_N + j) / 4 * THREADS] = *reinterpret_cast<const float4*>(&sum[i][j]);
        }
        if constexpr (!STREAMED) return;
        left -= count, step = 0;
        if (left > 0) __syncthreads();  // the next tile takes the stages
    }
}

// Adds the parts of one group of each thread of a tile in the order of K, and ends it.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_register_tiled_sum(const float4* __restrict__ parts, Element* __restrict__ c EPILOGUE_PARAMETERS(Element), int M,
                              int N, int K, int whole, int share BATCH_PARAMETERS) {
    const int tiles_m = cdiv(M, BLOCK_M), tiles_n = cdiv(N, BLOCK_N), steps = steps_of(K);
    const int index = blockIdx.x / GROUPS, group = blockIdx.x % GROUPS;
    const int first = (int)((i64)index * steps / share), last = (int)(((i64)(index + 1) * steps - 1) / share);
    if (first == last) return;  // one block had all of it
    const Member member = BATCH.member(whole + index, (i64)tiles_m * tiles_n, M, N);
    const Tile tile = grouped_tile(member.work, tiles_m, tiles_n);
    parts += group * THREADS + threadIdx.x;
    float sum[4] = {};
#pragma unroll 4
    for (int block = first; block <= last; block++) {
        const int part = block == first && (i64)block * share / steps != index;
        const float4 x = parts[(i64)(2 * block + part) * GROUPS * THREADS];
        sum[0] = add_gradual(sum[0], x.x), sum[1] = add_gradual(sum[1], x.y);
        sum[2] = add_gradual(sum[2], x.z), sum[3] = add_gradual(sum[3], x.w);
    }
    const int m = tile.m * BLOCK_M + row_of(group * 4 / THREAD_N), n = tile.n * BLOCK_N + column_of(group * 4 % THREAD_N);
    finish(c, EPILOGUE(Element), member.c, m, n, M, N, sum);
}
