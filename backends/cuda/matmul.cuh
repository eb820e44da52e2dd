// What the matmul kernels share: c[M, N] = a[M, K] b[K, N], the order of the tiles and the way out of the registers.
//
// An operand is a matrix with one contiguous index. K-major: K is contiguous (row-major a, or the view b.t()); otherwise
// the index of the output is (row-major b, or a.t()). `ld` is the stride of the other index, in elements.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT __nv_bfloat16
#endif
#ifndef A_K_MAJOR
#define A_K_MAJOR 1
#endif
#ifndef B_K_MAJOR
#define B_K_MAJOR 0
#endif
#ifndef GROUP_M
#define GROUP_M 8
#endif

#ifndef OUTPUT  // of a kernel: the element type, or float for the partial sums of a split K
#define OUTPUT ELEMENT
#endif
#ifndef C_VECTOR  // elements per global store; divides N
#define C_VECTOR 1
#endif

using Element = ELEMENT;
using Output = OUTPUT;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void round_to(float& y, float x) { y = x; }
__device__ __forceinline__ void round_to(__half& y, float x) { y = __float2half_rn(x); }
__device__ __forceinline__ void round_to(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }

template <class E, int COUNT>
struct alignas(sizeof(E) * COUNT) Vector {
    E at[COUNT];
};

// Position of element (mn, k) of an operand, mn being its index in the output.
template <bool K_MAJOR>
__device__ __forceinline__ long long position(long long mn, long long k, long long ld) {
    return K_MAJOR ? mn * ld + k : k * ld + mn;
}

struct Tile {
    int m, n;
};

// Tiles in columns of GROUP_M: the tiles in flight at one time form a block that is nearly square, which shares more of
// its operands in L2 than a row of tiles does.
__device__ __forceinline__ Tile grouped_tile(int index, int tiles_m, int tiles_n) {
    const int group = index / (GROUP_M * tiles_n), within = index % (GROUP_M * tiles_n);
    const int rows = min(GROUP_M, tiles_m - group * GROUP_M);
    return {group * GROUP_M + within % rows, within / rows};
}

__device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Two neighbouring values at once, so that shared memory takes one store.
template <class E>
__device__ __forceinline__ void store_pair(E* to, float low, float high) {
    Vector<E, 2> pair;
    round_to(pair.at[0], low);
    round_to(pair.at[1], high);
    *reinterpret_cast<Vector<E, 2>*>(to) = pair;
}

// A warp's accumulators of 16 x WIDTH: value 4 j + i of a lane is at row lane / 4 + i / 2 * 8, column 8 j + lane % 4 * 2 + i % 2
// (mma m16n8 and wgmma m64nN alike). They cross a private strip of shared memory: lanes hold 2 neighbours, DRAM wants whole
// lines. 8 elements of skew keep the 8 rows of one store in different banks.
template <int WIDTH>
struct Strip {
    static constexpr int PITCH = WIDTH + 8, BYTES = 16 * PITCH * sizeof(Output);

    static __device__ __forceinline__ void store(Output* strip, const float* sum, Output* c, int row, int column, int M,
                                                 int N) {
        const int lane = threadIdx.x % 32;
        Output* mine = strip + lane / 4 * PITCH + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            store_pair(mine + 8 * j, sum[4 * j], sum[4 * j + 1]);
            store_pair(mine + 8 * j + 8 * PITCH, sum[4 * j + 2], sum[4 * j + 3]);
        }
        __syncwarp();
        for (int i = lane * C_VECTOR; i < 16 * WIDTH; i += 32 * C_VECTOR) {
            const int m = row + i / WIDTH, n = column + i % WIDTH;
            using Line = Vector<Output, C_VECTOR>;
            if (m < M && n < N)
                *reinterpret_cast<Line*>(c + (long long)m * N + n) =
                    *reinterpret_cast<const Line*>(strip + i / WIDTH * PITCH + i % WIDTH);
        }
        __syncwarp();
    }
};
