// conv2d and its gradients on the FP32 pipes: 4 x 4 to 8 x 8 sums of a thread in registers, patches and weights of a step
// of K in shared memory, while the next ones travel through registers.
//
// With SHARES above 1 the blocks of a cluster have one tile and a piece of K each. Their sums meet in shared memory, and
// are added in order.
#include "convolution_tiles.cuh"

#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef STEP_K  // of K, to a step
#define STEP_K 16
#endif
#ifndef THREAD_M  // rows and columns of a thread
#define THREAD_M 8
#endif
#ifndef THREAD_N
#define THREAD_N 4
#endif
#ifndef LANES_M  // of a warp, along m
#define LANES_M 8
#endif
#ifndef WARPS_M
#define WARPS_M 1
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 4
#endif
#ifndef LEFT_VECTOR  // elements per load; divides the extent and the strides of what they lie side by side in
#define LEFT_VECTOR 1
#endif
#ifndef RIGHT_VECTOR
#define RIGHT_VECTOR 1
#endif
#ifndef SHARES
#define SHARES 1
#endif

constexpr int LANES_N = 32 / LANES_M, WARP_M = LANES_M * THREAD_M, WARP_N = LANES_N * THREAD_N;
constexpr int WARPS_N = BLOCK_N / WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int TABLE = 64, STEPS = TABLE / STEP_K;  // k's whose places are found at a time, and how many steps they are
static_assert(WARPS_M * WARP_M == BLOCK_M && WARPS_N * WARP_N == BLOCK_N && STEPS > 1, "");
template <int Extent>
using Panel = float[STEP_K][Extent + 4];  // skews the k's by 4 words; rows of float4 stay aligned

// A thread's part of the tiles of an operand, on its way from memory to shared memory: one unit of every Hop-th line.
template <bool KMajor, int Extent, int Width>
struct Slice {
    static constexpr int PerLine = (KMajor ? STEP_K : Extent) / Width, Lines = KMajor ? Extent : STEP_K;
    static constexpr int Hop = THREADS / PerLine, Count = Lines / Hop;
    static_assert(THREADS % PerLine == 0 && Lines % Hop == 0, "all threads load as many units");
    Vec<Element, Width> held[Count];

    static __device__ __forceinline__ int unit() { return threadIdx.x % PerLine * Width; }
    static __device__ __forceinline__ int line(int i) { return threadIdx.x / PerLine + i * Hop; }

    __device__ __forceinline__ void load(const Element* x, const Place* mn, const Place* k, int rows, int columns) {
        const Place along = KMajor ? k[unit()] : mn[unit()], *across = KMajor ? mn : k;
#pragma unroll
        for (int i = 0; i < Count; i++) {
            const Place at = along + across[line(i)];
            held[i] = {};
            if (at.within(rows, columns)) held[i] = load_constant<Width>(x + at.offset);
        }
    }

    __device__ __forceinline__ void store(Panel<Extent>& panel) const {
#pragma unroll
        for (int i = 0; i < Count; i++) {
            Vec<float, Width> values;
#pragma unroll
            for (int v = 0; v < Width; v++) {
                values.v[v] = to_float(held[i].v[v]);
                if (KMajor) panel[unit() + v][line(i)] = values.v[v];
            }
            if (!KMajor) ::store(&panel[line(i)][unit()], values);
        }
    }
};

// Values of a row of a panel, in 16-byte loads `Step` columns from one another.
template <int Step, int Count>
__device__ __forceinline__ void read(float (&x)[Count], const float* from) {
#pragma unroll
    for (int i = 0; i < Count; i += 4) *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(from + i / 4 * Step);
}

// Where sum (i, j) of this thread is in the tile.
__device__ __forceinline__ int row_of(int i) {
    return threadIdx.x / 32 / WARPS_N * WARP_M + threadIdx.x % 32 / LANES_N * 4 + i % 4 + i / 4 * 4 * LANES_M;
}
__device__ __forceinline__ int column_of(int j) {
    return threadIdx.x / 32 % WARPS_N * WARP_N + threadIdx.x % LANES_N * 4 + j % 4 + j / 4 * 4 * LANES_N;
}

// Calls put(i, j, four) for each four sums of a thread that are neighbours along the contiguous index of the result.
template <typename F>
__device__ __forceinline__ void by_fours(const float (&sum)[THREAD_M][THREAD_N], F put) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += M_CONTIGUOUS ? 4 : 1)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += M_CONTIGUOUS ? 1 : 4) {
            float four[4];
#pragma unroll
            for (int v = 0; v < 4; v++) four[v] = M_CONTIGUOUS ? sum[i + v][j] : sum[i][j + v];
            put(row_of(i), column_of(j), four);
        }
}

// Stores four neighbours of the result.
__device__ __forceinline__ void finish(const Result& result, const Product& product, int m, int n, const float (&four)[4]) {
#pragma unroll
    for (int v = 0; v < 4; v += VECTOR) {
        float some[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) some[i] = four[v + i];
        result.store(product, M_CONTIGUOUS ? m + v : m, M_CONTIGUOUS ? n : n + v, some);
    }
}

#if SHARES > 1
#define CLUSTER __cluster_dims__(1, SHARES, 1)
constexpr int INNER = M_CONTIGUOUS ? BLOCK_M : BLOCK_N, PITCH = INNER + 4, UNITS = BLOCK_M * BLOCK_N / 4;

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Four sums of the block of this rank, at the same place of its shared memory.
__device__ __forceinline__ void load_sums(float (&x)[4], const float* from, int rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
        : "r"((unsigned)__cvta_generic_to_shared(from)), "r"(rank)
        : "memory");
}

// Adds the sums of all blocks of the cluster, each a part of the tile.
__device__ __forceinline__ void add(const float* sums, const Result& result, const Product& product, int m0, int n0) {
    for (int i = blockIdx.y * THREADS + threadIdx.x; i < UNITS; i += SHARES * THREADS) {
        const int outer = i / (INNER / 4), inner = i % (INNER / 4) * 4;
        float part[SHARES][4];
#pragma unroll
        for (int s = 0; s < SHARES; s++) load_sums(part[s], sums + outer * PITCH + inner, s);
#pragma unroll
        for (int s = 1; s < SHARES; s++)
#pragma unroll
            for (int v = 0; v < 4; v++) part[0][v] = add_gradual(part[0][v], part[s][v]);
        finish(result, product, m0 + (M_CONTIGUOUS ? inner : outer), n0 + (M_CONTIGUOUS ? outer : inner), part[0]);
    }
}
#else
#define CLUSTER
#endif

// left [M, K], right [N, K], out [M, N] as `Product` says; blocks (tile of a phase, piece of K).
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS_PER_SM)
    conv2d_tiled(const Element* __restrict__ left, const Element* __restrict__ right, const Element* __restrict__ bias,
                 Output* __restrict__ out, const __grid_constant__ Convolution c) {
    __shared__ union alignas(16) {
        struct {
            Panel<BLOCK_M> a[2];  // [k][m]
            Panel<BLOCK_N> b[2];  // [k][n]
        } panels;
#if SHARES > 1
        float sums[BLOCK_M * BLOCK_N / INNER * PITCH];
#endif
    } shared;
    __shared__ Tables<BLOCK_M, BLOCK_N, TABLE> tables;
    const Product product(c, phase_of_block(c));
    const Work<BLOCK_M, BLOCK_N> work(product);
    if (!work.any) return;
    const int row = row_of(0), column = column_of(0), steps = cdiv(work.k_end - work.k_begin, STEP_K);
    Slice<LEFT_K_MAJOR, BLOCK_M, LEFT_VECTOR> a;
    Slice<RIGHT_K_MAJOR, BLOCK_N, RIGHT_VECTOR> b;
    const auto load = [&](int step) {
        const int which = step / STEPS % 2, k = step % STEPS * STEP_K;
        a.load(left, tables.m, tables.left_k[which] + k, product.left_rows(), product.left_columns());
        b.load(right, tables.n, tables.right_k[which] + k, product.right_rows(), product.right_columns());
    };
    tables.template fill_rows<THREADS>(product, work.m0, work.n0);
    tables.template fill_k<THREADS>(product, 0, work.k_begin, work.k_end);
    __syncthreads();
    float sum[THREAD_M][THREAD_N] = {};
    load(0);
    for (int step = 0; step < steps; step++) {
        Panel<BLOCK_M>& a_panel = shared.panels.a[step % 2];
        Panel<BLOCK_N>& b_panel = shared.panels.b[step % 2];
        a.store(a_panel);
        b.store(b_panel);
        __syncthreads();  // one per step: the other stage was last read before the previous one
        if (step + 1 < steps) load(step + 1);
        // The table that these steps do not read; the first step that does is behind another barrier.
        if (step % STEPS == 0 && step + STEPS < steps)
            tables.template fill_k<THREADS>(product, step / STEPS + 1, work.k_begin, work.k_end);
#pragma unroll
        for (int k = 0; k < STEP_K; k++) {
            float x[THREAD_M], y[THREAD_N];
            read<4 * LANES_M>(x, &a_panel[k][row]);
            read<4 * LANES_N>(y, &b_panel[k][column]);
#pragma unroll
            for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j++) sum[i][j] = fma_gradual(x[i], y[j], sum[i][j]);
        }
    }
    const Result result(out, bias, c);
#if SHARES > 1
    __syncthreads();  // all have read the panels
    by_fours(sum, [&](int m, int n, const float(&four)[4]) {
        store(&shared.sums[M_CONTIGUOUS ? n * PITCH + m : m * PITCH + n], from_floats<float>(four));
    });
    cluster_sync();
    add(shared.sums, result, product, work.m0, work.n0);
    cluster_sync();  // no block leaves while another reads its sums
#else
    by_fours(sum, [&](int m, int n, const float(&four)[4]) { finish(result, product, work.m0 + m, work.n0 + n, four); });
#endif
}
