// attention on the FP32 pipes: four lanes share a query row, each holds a quarter of the columns of query and output
// in registers, and all rows of a block read the same tile of keys and values from shared memory. The softmax is
// online: a running maximum and sum, so that no score is kept longer than KEYS keys.
#include "attention.cuh"
#include "guard.cuh"

#define LANES 4
#define THREADS (LANES * BLOCK_M)
#define WIDTH ((HEAD_DIM + 4 * LANES - 1) / (4 * LANES) * 4 * LANES)  // columns in shared memory: the last are zeros
#define COLUMNS (WIDTH / LANES)
#define KEYS 8  // scores computed between two updates of the maximum: each update rescales the output once

// Column i of a lane: the four lanes read 16 adjacent floats, all other rows of the warp the same ones.
__device__ __forceinline__ int column(int i) { return i / 4 * 4 * LANES + threadIdx.x % LANES * 4 + i % 4; }

__device__ __forceinline__ void load_tile(float (&tile)[BLOCK_N][WIDTH], const Element* x, i64 stride, int first,
                                          int limit) {
    for (int i = threadIdx.x; i < BLOCK_N * WIDTH; i += THREADS) {
        const int row = i / WIDTH, d = i % WIDTH;
        tile[row][d] = first + row < limit && d < HEAD_DIM ? to_float(x[(first + row) * stride + d]) : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float (&query)[COLUMNS], const float (&key)[WIDTH]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sum += query[i] * key[column(i)];
    return warp_reduce<LANES>(sum, Sum());
}

// The 1 keeps the compiler from spilling a few registers for the sake of a fourth block per multiprocessor.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_online(GUARD_PARAMETER const Element* __restrict__ q, const Element* __restrict__ k,
                     const Element* __restrict__ v, Element* __restrict__ out, float* __restrict__ lse, int slices,
                     int section, int heads, int group, int M, int N, int shift, int window, i64 q_batch, i64 q_head,
                     i64 q_row, i64 k_batch, i64 k_head, i64 k_row, i64 v_batch, i64 v_head, i64 v_row,
                     float scale_log2) {
    RETURN_IF_SPARED();
    __shared__ float k_tile[BLOCK_N][WIDTH], v_tile[BLOCK_N][WIDTH];
    const Place place = locate(blockIdx.x, {slices, section, heads, group, M, N, shift, window});
    const Element* keys = k + place.batch * k_batch + place.kv_head * k_head;
    const Element* values = v + place.batch * v_batch + place.kv_head * v_head;
    const int row = place.first_row + threadIdx.x / LANES, visible = visible_keys(row, shift, N);
    const int first_visible = first_visible_key(row, shift, window);
    const Element* query_row = q + place.batch * q_batch + place.head * q_head + min(row, M - 1) * q_row;
    float query[COLUMNS], output[COLUMNS] = {}, maximum = -infinity(), sum = 0.0f;
    for (int i = 0; i < COLUMNS; i++)
        query[i] = column(i) < HEAD_DIM ? to_float(query_row[column(i)]) * scale_log2 : 0.0f;

    for (int first = place.first_key; first < place.keys; first += BLOCK_N) {
        __syncthreads();
        load_tile(k_tile, keys, k_row, first, N);
        load_tile(v_tile, values, v_row, first, N);
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j < BLOCK_N; j += KEYS) {
            float p[KEYS], highest = maximum;
#pragma unroll
            for (int n = 0; n < KEYS; n++) {
                const float score = dot(query, k_tile[j + n]);
                const int key = first + j + n;
                p[n] = key < visible && key >= first_visible ? score : -infinity();
                highest = fmaxf(highest, p[n]);
            }
            const float offset = finite_offset(highest), decay = fast_exp2(maximum - offset);
            maximum = highest, sum *= decay;
            for (int i = 0; i < COLUMNS; i++) output[i] *= decay;
#pragma unroll
            for (int n = 0; n < KEYS; n++) {
                p[n] = fast_exp2(p[n] - offset), sum += p[n];
                for (int i = 0; i < COLUMNS; i++) output[i] += p[n] * v_tile[j + n][column(i)];
            }
        }
    }
    if (row >= M) return;
    const i64 target = (i64)place.slice * M + row;
    const float inverse = inverse_or_zero(sum);
    for (int i = 0; i < COLUMNS; i++)
        if (column(i) < HEAD_DIM) out[target * HEAD_DIM + column(i)] = from_float<Element>(output[i] * inverse);
    if (threadIdx.x % LANES == 0) lse[target] = log_of_sum(maximum, sum);
}
