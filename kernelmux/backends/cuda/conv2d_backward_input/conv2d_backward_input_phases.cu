// conv2d_backward_input of few channels: all phases are columns of one product, and grad_out is loaded once.
//
// Pixels that are equal modulo the stride meet other taps than the rest, but at places that lie side by side. So a row
// of the product here is a square of STRIDE_H x STRIDE_W pixels, its columns are all of their channels, and K is every
// place near the square, NEAR_H x NEAR_W of them, times the channels of grad_out; where a pixel does not meet a place
// the filter is zero. For 7 x 7 and a stride of 2 these are 16 places instead of the 49 that the phases meet one by
// one. A block keeps the places near a tile of squares in shared memory, as lines of DEPTH channels, and reads them for
// every tap from there; the filters stay in shared memory too, while the block goes from tile to tile. Results change
// places there and leave as whole rows.
#define OPERATOR 1
#include "convolution.cuh"
#include "tensor_cores.cuh"

#ifndef CHANNELS  // of the result
#define CHANNELS 3
#define TAPS_H 7
#define TAPS_W 7
#define STRIDE_H 2
#define STRIDE_W 2
#define PADDING_H 3
#define PADDING_W 3
#endif
#ifndef LAST  // whether channels of the result are neighbours, else pixels
#define LAST 1
#endif
#ifndef DEPTH  // channels of grad_out at once: 16, 32 or 64
#define DEPTH 64
#endif
#ifndef HEIGHT  // rows of 16 squares of a warp
#define HEIGHT 4
#endif
#ifndef BLOCKS  // that share a multiprocessor
#define BLOCKS 2
#endif
#ifndef VECTOR  // results per store; divides a row of the result
#define VECTOR 1
#endif

// a / b, rounded up.
__host__ __device__ constexpr int ceiling(int a, int b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

constexpr int WARPS = 4, THREADS = 32 * WARPS, TILE_H = HEIGHT * WARPS, TILE_W = 16;  // squares
// From a square to the first of the places near it; how many there are.
constexpr int FIRST_H = ceiling(PADDING_H - TAPS_H + 1, STRIDE_H), NEAR_H = ceiling(PADDING_H, STRIDE_H) - FIRST_H + 1;
constexpr int FIRST_W = ceiling(PADDING_W - TAPS_W + 1, STRIDE_W), NEAR_W = ceiling(PADDING_W, STRIDE_W) - FIRST_W + 1;
constexpr int ROWS = TILE_H + NEAR_H - 1, COLUMNS = TILE_W + NEAR_W - 1;  // of the places near a tile
constexpr int UNITS = DEPTH / 8, STEPS = DEPTH / 16, STAGE_BYTES = ROWS * COLUMNS * DEPTH * 2;
// Columns of the product: runs of neighbours in the result, of INNER for each square.
constexpr int INNER = STRIDE_W * (LAST ? CHANNELS : 1), LINES = STRIDE_H * (LAST ? 1 : CHANNELS), N = LINES * INNER;
constexpr int TILES_N = cdiv(N, 8), RUN = TILE_W * INNER, STEP_BYTES = NEAR_H * TILES_N * 256;  // of filters
constexpr int OUT_AT = 2 * STAGE_BYTES, FILTERS_AT = OUT_AT + LINES * TILE_H * RUN * 2;
constexpr int FILTERS_BYTES = NEAR_W * STEPS * STEP_BYTES;  // of DEPTH channels
static_assert(FILTERS_AT % 16 == 0 && RUN % VECTOR == 0, "vectors are aligned");

// Where 8 channels of a place are in a stage: eight places side by side have theirs in different banks.
__device__ __forceinline__ int unit_at(int row, int column, int unit) {
    return ((row * COLUMNS + column) * UNITS + (unit ^ column / (8 / UNITS) % UNITS)) * 16;
}

// A tile of squares: of which image, and its first row and column.
struct Tile {
    int n, i, j;

    __device__ __forceinline__ Tile(int tile, const Convolution& c) {
        const int down = cdiv(cdiv((int)c.h.count, STRIDE_H), TILE_H);
        const int across = cdiv(cdiv((int)c.w.count, STRIDE_W), TILE_W);
        n = tile / across / down, i = tile / across % down * TILE_H, j = tile % across * TILE_W;
    }
};

// The places near a tile, DEPTH channels from o on, each warp every WARPS-th row; zeros outside of grad_out.
__device__ __forceinline__ void load_places(unsigned stage, const Element* image, const Convolution& c,
                                            const Tile& tile, int o) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, p = tile.i + FIRST_H;
    image += tile.n * c.image.n + (p + warp) * c.image.h + o;
#pragma unroll
    for (int first = 0; first < COLUMNS * UNITS; first += 32) {
        const int column = (first + lane) / UNITS, unit = lane % UNITS, q = tile.j + FIRST_W + column;
        if (column >= COLUMNS) break;
        const bool inside = (unsigned)q < (unsigned)c.w.size && o + unit * 8 < (int)c.channels;
        const Element* from = image + q * c.image.w + unit * 8;
        unsigned to = stage + unit_at(warp, column, unit);
        for (int row = warp; row < ROWS; row += WARPS, from += WARPS * c.image.h, to += WARPS * COLUMNS * UNITS * 16)
            copy_async<16>(to, from, inside && (unsigned)(p + row) < (unsigned)c.h.size);
    }
}

// All filters as mma reads them, the four numbers of a lane side by side: DEPTH channels after DEPTH channels, of these
// each column of places, 16 channels, each of its places, 8 columns of the product. An element of a filter is at one
// place in one column; there are zeros elsewhere.
__device__ __forceinline__ void load_filters(Element* to, const Element* weight, const Convolution& c, int filters) {
    const int size = cdiv(filters, DEPTH) * FILTERS_BYTES / 2;
    for (int i = threadIdx.x * 8; i < size; i += THREADS * 8) store(to + i, Vec<Element, 8>{});
    __syncthreads();
    for (int i = threadIdx.x; i < filters * CHANNELS; i += THREADS) {
        const int o = i / CHANNELS, channel = i % CHANNELS;
        const Element* from = weight + channel * c.other.n + o * c.other.c;
        Element* const its = to + o / DEPTH * (FILTERS_BYTES / 2) + o % DEPTH / 16 * (STEP_BYTES / 2) +
                             o % 16 / 8 * 2 + o % 8 / 2 * 4 + o % 2;
#pragma unroll(TAPS_H * TAPS_W <= 64 ? TAPS_H : 1)
        for (int r = 0; r < TAPS_H; r++, from += c.other.h) {
            const int y = ceiling(PADDING_H - r, STRIDE_H), h = y * STRIDE_H - PADDING_H + r;  // of a place, a pixel
#pragma unroll
            for (int s = 0; s < TAPS_W; s++) {
                const int x = ceiling(PADDING_W - s, STRIDE_W), w = x * STRIDE_W - PADDING_W + s;
                const int n = LAST ? h * INNER + w * CHANNELS + channel : (channel * STRIDE_H + h) * INNER + w;
                const int eight = ((x - FIRST_W) * STEPS * NEAR_H + y - FIRST_H) * TILES_N + n / 8;
                its[eight * 128 + n % 8 * 16] = __ldg(from + s * c.other.w);
            }
        }
    }
}

using Sums = float[HEIGHT][TILES_N][4];  // of a warp: rows of 16 squares

// Adds the products of a stage. A row of places is loaded once for all rows of squares near it.
__device__ __forceinline__ void multiply(Sums& sum, unsigned stage, const unsigned char* filters) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * HEIGHT, column = lane % 16;
    filters += lane * 8;
#pragma unroll(NEAR_W <= 4 ? NEAR_W : 1)
    for (int v = 0; v < NEAR_W; v++) {
        const unsigned at = stage + unit_at(row, column + v, lane / 16);
#pragma unroll
        for (int step = 0; step < STEPS; step++, filters += STEP_BYTES) {
            Vec<unsigned, 2> b[NEAR_H][TILES_N];
#pragma unroll
            for (int j = 0; j < NEAR_H * TILES_N; j++)
                b[j / TILES_N][j % TILES_N] = load<2>(reinterpret_cast<const unsigned*>(filters + j * 256));
#pragma unroll
            for (int i = 0; i < HEIGHT + NEAR_H - 1; i++) {
                unsigned a[4];
                load_matrices<false>(a, (at ^ step * 32) + i * COLUMNS * DEPTH * 2);
#pragma unroll
                for (int u = 0; u < NEAR_H; u++)
                    if (0 <= i - u && i - u < HEIGHT)
#pragma unroll
                        for (int j = 0; j < TILES_N; j++) mma(sum[i - u][j], a, b[u][j].v[0], b[u][j].v[1], Element());
            }
        }
    }
}

// Where a result is among the rows of a tile, [LINES][TILE_H][RUN]. Vectors change places where many neighbours belong
// to a square: of 32 those of four squares would lie in the same banks.
__device__ __forceinline__ unsigned result_at(unsigned i) { return INNER % 16 ? i : i ^ i / 64 % 8 * 8; }

// The sums of a warp, rounded, to where they are among the rows of a tile.
__device__ __forceinline__ void round_sums(Element* rows, const Sums& sum) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * HEIGHT;
#pragma unroll
    for (int j = 0; j < TILES_N; j++)
#pragma unroll
        for (int one = 0; one < 2; one++) {
            const int n = j * 8 + lane % 4 * 2 + one;
            if (n >= N || (INNER % 2 == 0 && one)) continue;  // pairs do not cross runs of even length
            const int first = (n / INNER * TILE_H + row) * RUN + lane / 4 * INNER + n % INNER;
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    Element* const at = rows + result_at(first + i * RUN + half * 8 * INNER);
                    const float* x = sum[i][j] + half * 2;
                    if constexpr (INNER % 2) *at = from_float<Element>(x[one]);
                    else *reinterpret_cast<unsigned*>(at) = pair_from_floats<Element>(x[0], x[1]);
                }
        }
}

__device__ __forceinline__ void store_rows(Element* out, const Element* rows, const Convolution& c, const Tile& tile) {
    const int length = (int)c.w.count * (LAST ? CHANNELS : 1);
    out += tile.n * c.out.n + tile.j * INNER;
    for (int v = threadIdx.x * VECTOR; v < LINES * TILE_H * RUN; v += THREADS * VECTOR) {
        const int x = v % RUN, line = v / RUN / TILE_H;
        const int h = (tile.i + v / RUN % TILE_H) * STRIDE_H + line % STRIDE_H;
        if (h < c.h.count && tile.j * INNER + x < length)
            store(out + line / STRIDE_H * c.out.c + h * c.out.h + x, load<VECTOR>(rows + result_at(v)));
    }
}

// image: grad_out [N, O, P, Q], channels in whole vectors. weight [O, C, R, S], the strides of its first axes
// exchanged. filters: O of the weight, the image may have more. Block i computes tiles i, i + gridDim.x, ...
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d_backward_input_phases(const Element* __restrict__ image, const Element* __restrict__ weight, const Element*,
                                 Element* __restrict__ out, const __grid_constant__ Convolution c, int tiles,
                                 int filters) {
    extern __shared__ __align__(128) unsigned char shared[];  // two stages, rows of the result, filters
    Element* const rows = reinterpret_cast<Element*>(shared + OUT_AT);
    const int deep = cdiv(filters, DEPTH), steps = cdiv(tiles - blockIdx.x, gridDim.x) * deep;
    const auto tile_of = [&](int t) { return Tile(blockIdx.x + t / deep * gridDim.x, c); };
    const auto issue = [&](int t) {
        const unsigned stage = shared_address(shared) + t % 2 * STAGE_BYTES;
        if (t < steps) load_places(stage, image, c, tile_of(t), t % deep * DEPTH);
        copy_async_commit();  // an empty group keeps the count
    };
    issue(0);
    load_filters(reinterpret_cast<Element*>(shared + FILTERS_AT), weight, c, filters);
    Sums sum = {};
    for (int t = 0; t < steps; t++) {
        issue(t + 1);
        copy_async_wait<1>();
        __syncthreads();
        multiply(sum, shared_address(shared) + t % 2 * STAGE_BYTES, shared + FILTERS_AT + t % deep * FILTERS_BYTES);
        const bool done = (t + 1) % deep == 0;
        if (done) {
            round_sums(rows, sum);
#pragma unroll
            for (int i = 0; i < HEIGHT; i++)
#pragma unroll
                for (int j = 0; j < TILES_N; j++)
#pragma unroll
                    for (float& x : sum[i][j]) x = 0.0f;
        }
        __syncthreads();  // the stage may be filled again, and the rows are complete
        if (done) store_rows(out, rows, c, tile_of(t));
    }
    copy_async_wait<0>();
}
