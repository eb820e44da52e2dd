// conv2d and its gradients on the FP32 pipes: 4 x 4 to 8 x 8 sums of a thread in registers, patches and weights of a step
// of K in shared memory, while the next ones travel through registers.
//
// With SHARES above 1 the blocks of a cluster have one tile and a piece of K each. Their sums meet in shared memory, and
// are added in order.
#include "convolution_tiles.cuh"
#include "guard.cuh"

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

constexpr int LANES_M = 8, LANES_N = 4;  // of a warp
constexpr int WARP_M = LANES_M * THREAD_M, WARP_N = LANES_N * THREAD_N;
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
    for (int i = 0; i < Count; i += 4)
        *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(from + i / 4 * Step);
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

// The tables of a block. They are filled by loops that stay loops: an instruction is run a few times, and costs more where
// it has to be fetched from memory first.
struct BlockTables : Tables<BLOCK_M, BLOCK_N, TABLE> {
    // Where rows and columns of the operands begin.
    __device__ __forceinline__ void fill_operands(const Product& product, int m0, int n0) {
#pragma unroll 1
        for (int i = threadIdx.x; i < BLOCK_M; i += THREADS) m[i] = product.left_m(m0 + i);
#pragma unroll 1
        for (int i = threadIdx.x; i < BLOCK_N; i += THREADS) n[i] = product.right_n(n0 + i);
    }

    // The k's of these steps.
    __device__ __forceinline__ void fill_steps(const Product& product, int which, int k_begin, int k_end) {
#pragma unroll 1
        for (int i = threadIdx.x; i < TABLE; i += THREADS) {
            const int k = k_begin + which * TABLE + i;
            left_k[which % 2][i] = product.left_k(k, k_end);
            right_k[which % 2][i] = product.right_k(k, k_end);
        }
    }

    // Where rows and columns of the result begin, negative outside; h: the bias of a column.
    __device__ __forceinline__ void fill_result(const Product& product, int m0, int n0, const Element* bias) {
#pragma unroll 1
        for (int i = threadIdx.x; i < BLOCK_M; i += THREADS) {
            const i64 at = PARTIAL ? product.part(m0 + i, 0) : product.result(m0 + i, 0);
            m[i].offset = m0 + i < product.M ? at : nowhere_in_result();
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < BLOCK_N; i += THREADS) {
            const bool inside = n0 + i < product.N;
            const i64 at = PARTIAL ? product.part(0, n0 + i) : product.result(0, n0 + i) - product.result(0, 0);
            const float more = biased(0, PARTIAL || !inside ? nullptr : bias, n0 + i);
            n[i] = {inside ? at : nowhere_in_result(), __float_as_int(more), 0};
        }
    }
    static __device__ __forceinline__ i64 nowhere_in_result() { return -(1ll << 62); }

    // Stores four neighbours of the result.
    __device__ __forceinline__ void finish(Output* out, bool with_bias, int row, int column, float (&four)[4]) const {
#pragma unroll
        for (int v = 0; v < 4; v += VECTOR) {
            float some[VECTOR];
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const float more = __int_as_float(n[M_CONTIGUOUS ? column : column + v + i].h);
                some[i] = with_bias ? add_gradual(four[v + i], more) : four[v + i];
            }
            const i64 at = m[M_CONTIGUOUS ? row + v : row].offset + n[M_CONTIGUOUS ? column : column + v].offset;
            if (at >= 0) ::store(out + at, from_floats<Output>(some));
        }
    }
};

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
__device__ __forceinline__ void add(const float* sums, const BlockTables& tables, Output* out, bool with_bias) {
#pragma unroll 1
    for (int i = blockIdx.y * THREADS + threadIdx.x; i < UNITS; i += SHARES * THREADS) {
        const int outer = i / (INNER / 4), inner = i % (INNER / 4) * 4;
        float part[SHARES][4];
#pragma unroll
        for (int s = 0; s < SHARES; s++) load_sums(part[s], sums + outer * PITCH + inner, s);
#pragma unroll
        for (int s = 1; s < SHARES; s++)
#pragma unroll
            for (int v = 0; v < 4; v++) part[0][v] = add_gradual(part[0][v], part[s][v]);
        tables.finish(out, with_bias, M_CONTIGUOUS ? inner : outer, M_CONTIGUOUS ? outer : inner, part[0]);
    }
}
#else
#define CLUSTER
#endif

// left [M, K], right [N, K], out [M, N] as `Product` says; blocks (tile of a phase, piece of K).
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS_PER_SM)
    conv2d_tiled(GUARD_PARAMETER const Element* __restrict__ left, const Element* __restrict__ right,
                 const Element* __restrict__ bias, Output* __restrict__ out, const __grid_constant__ Convolution c) {
    RETURN_IF_SPARED();
    __shared__ union alignas(16) {
        struct {
            Panel<BLOCK_M> a[2];  // [k][m]
            Panel<BLOCK_N> b[2];  // [k][n]
        } panels;
#if SHARES > 1
        float sums[BLOCK_M * BLOCK_N / INNER * PITCH];
#endif
    } shared;
    __shared__ BlockTables tables;
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
    tables.fill_operands(product, work.m0, work.n0);
    float sum[THREAD_M][THREAD_N] = {};
#pragma unroll 1
    for (int step = -1; step < steps; step++) {  // the first one loads and multiplies nothing
        Panel<BLOCK_M>& a_panel = shared.panels.a[step & 1];
        Panel<BLOCK_N>& b_panel = shared.panels.b[step & 1];
        if (step >= 0) {
            a.store(a_panel);
            b.store(b_panel);
        }
        if ((step + 1) % STEPS == 0) tables.fill_steps(product, (step + 1) / STEPS, work.k_begin, work.k_end);
        __syncthreads();  // one per step: the other stage, and the other table, were last read before the previous one
        if (step + 1 < steps) load(step + 1);
        if (step < 0) continue;
#pragma unroll 8
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
    Output* const to = Result(out, bias, c).out;
    const bool with_bias = OPERATOR == CONV2D && !PARTIAL && bias;
    tables.fill_result(product, work.m0, work.n0, bias);
    __syncthreads();  // all have read the panels, and the tables are there
#if SHARES > 1
    by_fours(sum, [&](int m, int n, float(&four)[4]) {
        store(&shared.sums[M_CONTIGUOUS ? n * PITCH + m : m * PITCH + n], from_floats<float>(four));
    });
    cluster_sync();
    add(shared.sums, tables, to, with_bias);
    cluster_sync();  // no block leaves while another reads its sums
#else
    by_fours(sum, [&](int m, int n, float(&four)[4]) { tables.finish(to, with_bias, m, n, four); });
#endif
}
