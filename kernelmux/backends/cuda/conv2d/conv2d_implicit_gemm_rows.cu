// conv2d of few channels: rows of the images stay in shared memory, and every window is read from there.
//
// Where TMA's im2col brings a pixel once for each tap that meets it, a block here loads a pixel once. In a row of the ring
// pixels lie one after the other, of CHANNELS numbers each, so that what a row of a filter meets at position q is a line of
// TAPS_W * CHANNELS neighbours, which begins q * STRIDE_W pixels from the first one. That is a multiple of 16 bytes:
// ldmatrix takes eight positions at once, overlapping as they are, and wgmma multiplies them from registers by the filters,
// which stay in shared memory as well. While a block multiplies, it loads the rows that the next ones of its results need.
#include "convolution.cuh"
#include "warpgroup.cuh"

#ifndef REAL  // channels of the images; CHANNELS: the same, rounded up so that STRIDE_W pixels are whole vectors
#define REAL 3
#define CHANNELS 4
#define TAPS_H 7
#define TAPS_W 7
#define STRIDE_H 2
#define STRIDE_W 2
#define DILATION_H 1
#endif
#ifndef BLOCK_N  // filters of a block: 64 or 128
#define BLOCK_N 64
#endif
#ifndef USED  // of those, that are stored: all, or how many there are, a multiple of 16
#define USED BLOCK_N
#endif
#ifndef ROWS  // of the result, at once, of 128 / ROWS positions each: 1, 2 or 4
#define ROWS 1
#endif
#ifndef BLOCKS  // that share a multiprocessor
#define BLOCKS 2
#endif
#ifndef VECTOR  // results per store
#define VECTOR 1
#endif
#ifndef WHOLE_PIXELS  // whether channels of the image come in whole vectors, all of which can be read at once
#define WHOLE_PIXELS 0
#endif
#ifndef WHOLE_FILTERS  // the same of filters
#define WHOLE_FILTERS 0
#endif

constexpr int THREADS = 256, HALVES = 8, COLUMNS = 128 / ROWS;         // HALVES: of a vector
constexpr int ALONG = COLUMNS / 16;                                    // warps that share a row, of 16 positions each
constexpr int TERMS = TAPS_W * CHANNELS, STEPS = cdiv(TERMS, 16);      // of a row of a filter; products that cover them
constexpr int STRIDE = STRIDE_W * CHANNELS / HALVES;                   // vectors from a position to the next
constexpr int LENGTH = (COLUMNS - 1) * STRIDE + 2 * STEPS;             // vectors of a row of the ring
constexpr int SPAN = (ROWS - 1) * STRIDE_H + (TAPS_H - 1) * DILATION_H + 1, FRESH = ROWS * STRIDE_H, RING = SPAN + FRESH;
constexpr int EACH = cdiv(FRESH * LENGTH, THREADS);                    // vectors that a thread loads ahead
constexpr int FILTERS = TAPS_H * STEPS * 2, BOX_BYTES = BLOCK_N * 128;  // vectors of a filter; 64 terms of each filter
constexpr int RING_BYTES = RING * LENGTH * 16, RING_AT = cdiv(FILTERS, 8) * BOX_BYTES, TILE_AT = RING_AT + RING_BYTES;
constexpr int PITCH = M_CONTIGUOUS ? 64 + HALVES : BLOCK_N + HALVES;   // of the tile of a warpgroup, in which results change places
constexpr int TILE_BYTES = (M_CONTIGUOUS ? BLOCK_N : 64) * PITCH * 2;
static_assert(CHANNELS % 2 == 0 && STRIDE_W * CHANNELS % HALVES == 0, "positions are whole vectors apart");
static_assert(CHANNELS >= HALVES ? CHANNELS % HALVES == 0 : HALVES % CHANNELS == 0, "vectors hold whole pixels, or parts of one");

// Vector v of pixels, or taps, side by side, counted from number `first` of the `count` in a row; zeros for those that it has
// not, and for channels that they have not. Whole: as WHOLE_PIXELS says.
template <bool Whole>
__device__ __forceinline__ Vec<Element, HALVES> vector_of(const Element* row, const Strides& by, int first, int count, int v,
                                                          bool any) {
    constexpr int Vectors = CHANNELS >= HALVES ? CHANNELS / HALVES : 1, Pixels = CHANNELS >= HALVES ? 1 : HALVES / CHANNELS;
    const int pixel = first + v / Vectors * Pixels, channel = v % Vectors * HALVES;
    Vec<Element, HALVES> x = {};
    if constexpr (Whole) {
        if (any && channel < REAL && (unsigned)pixel < (unsigned)count) x = load<HALVES>(row + pixel * by.w + channel);
    } else {
        const Element* at = row + pixel * by.w + channel * by.c;
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
            const int along = i % (HALVES / Pixels), next = i / (HALVES / Pixels);
            const bool real = any && channel + along < REAL && (unsigned)(pixel + next) < (unsigned)count;
            x.v[i] = real ? at[next * by.w + along * by.c] : from_float<Element>(0.0f);
        }
    }
    return x;
}

// Vector v of row h of an image, whose first pixel is w0.
__device__ __forceinline__ Vec<Element, HALVES> pixels(const Element* image, const Convolution& c, int h, int w0, int v) {
    return vector_of<WHOLE_PIXELS>(image + h * c.image.h, c.image, w0, (int)c.w.size, v, (unsigned)h < (unsigned)c.h.size);
}

// Filters n0 to n0 + BLOCK_N as wgmma reads them: a line of 64 terms of each filter, then the next 64 terms, under the 128-byte
// swizzle. Terms are (r, s, c), each row of a filter filled up to whole steps.
__device__ __forceinline__ void load_filters(unsigned char* to, const Element* weight, const Convolution& c, int n0) {
#pragma unroll 4
    for (int i = threadIdx.x; i < FILTERS * BLOCK_N; i += THREADS) {
        const int n = i / FILTERS, k = i % FILTERS, r = k / (STEPS * 2);
        const Element* row = weight + (n0 + n) * c.other.n + r * c.other.h;
        const auto terms = vector_of<WHOLE_FILTERS>(row, c.other, 0, TAPS_W, k % (STEPS * 2), n0 + n < c.filters);
        store(reinterpret_cast<Element*>(to + k / 8 * BOX_BYTES + n * 128 + (k % 8 ^ n % 8) * 16), terms);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads what this thread wrote
}

// Numbers behind the terms of a line are pixels of the next window: zero, so that a NaN among them does no harm.
__device__ __forceinline__ void cut(unsigned (&a)[4], int step) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int first = step * 16 + i / 2 * 8;
        if (first + 8 > TERMS && first + threadIdx.x % 4 * 2 >= TERMS) a[i] = 0;
    }
}

using Sums = float[BLOCK_N / 8][4];

// d += a b, a in registers as for mma m16n8k16, b in shared memory with contiguous terms.
#define FILTER_PRODUCT(N, TYPE, ELEMENT_TYPE, A0, A1, A2, A3, B)                                                     \
    __device__ __forceinline__ void wgmma_filters(float(&d)[N / 8][4], const unsigned(&a)[4], Descriptor b, ELEMENT_TYPE) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; " INSTRUCTION(                                           \
                         N, 16, TYPE) "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0; }"            \
                     : SUMS_##N                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                         \
    }
FILTER_PRODUCT(64, "f16", __half, 32, 33, 34, 35, 36)
FILTER_PRODUCT(64, "bf16", __nv_bfloat16, 32, 33, 34, 35, 36)
FILTER_PRODUCT(128, "f16", __half, 64, 65, 66, 67, 68)
FILTER_PRODUCT(128, "bf16", __nv_bfloat16, 64, 65, 66, 67, 68)

// 64 positions of a warpgroup times all filters. lines: where a lane's first line is in row 0 of the ring. slot: of the first row.
__device__ __forceinline__ void multiply(Sums& sum, unsigned lines, const unsigned char* filters, int slot) {
    unsigned a[2][STEPS][4];
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[j][i] = 0.0f;
#pragma unroll
    for (int r = 0; r < TAPS_H; r++) {
        if (r >= 2) wgmma_wait<1>(), pin(a[r % 2]);
        const unsigned row = lines + (slot >= RING ? slot - RING : slot) * (LENGTH * 16);
#pragma unroll
        for (int step = 0; step < STEPS; step++) load_matrices<false>(a[r % 2][step], row + step * 32), cut(a[r % 2][step], step);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int k = r * STEPS + step;
            wgmma_filters(sum, a[r % 2][step], matrix_descriptor(filters + k / 4 * BOX_BYTES + k % 4 * 32, 0), Element());
        }
        wgmma_commit();
        slot = (slot >= RING ? slot - RING : slot) + DILATION_H;
    }
    wgmma_wait<0>(sum);
    pin(a[0]), pin(a[1]);
}

// The results of a warpgroup, of filters from n0 on. out: the image; p, q: where the band begins.
__device__ __forceinline__ void store_out(Element* tile, const Sums& sum, Element* out, const Element* bias, const Convolution& c,
                                          int p, int q, int n0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % 4;
    unsigned rounded[USED / 8][2];
#pragma unroll
    for (int j = 0; j < USED / 8; j++) {
        const int n = n0 + j * 8 + lane % 4 * 2;
        float x[4] = {sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
        if (bias) {
            const int last = (int)c.filters - 1;  // sums behind it are not stored
            const float low = to_float(bias[min(n, last)]), high = to_float(bias[min(n + 1, last)]);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = add_gradual(x[i], i % 2 ? high : low);
        }
        rounded[j][0] = pair_from_floats<Element>(x[0], x[1]), rounded[j][1] = pair_from_floats<Element>(x[2], x[3]);
    }
    const int positions = (int)c.w.count, rows = (int)c.h.count, filters = (int)c.filters;
    if constexpr (M_CONTIGUOUS) {
#pragma unroll
        for (int j = 0; j < USED / 8; j += 2) {
            const unsigned four[4] = {rounded[j][0], rounded[j][1], rounded[j + 1][0], rounded[j + 1][1]};
            store_transposed(tile + (j * 8 + lane / 16 * 8 + lane % 8) * PITCH + part * 16 + lane / 8 % 2 * 8, four);
        }
        asm volatile("bar.sync %0, 128;" ::"r"(1 + warp / 4) : "memory");
        const int first = threadIdx.x % 128 * VECTOR, in_tile = first % 64, their = warp / 4 * 4 + in_tile / 16;
        const int row = p + their / ALONG, column = q + their % ALONG * 16 + in_tile % 16;
        if (row >= rows || column >= positions) return;
        constexpr int Step = 128 * VECTOR / 64;  // filters
        Element* to = out + row * c.out.h + column + (n0 + first / 64) * c.out.c;
#pragma unroll
        for (int n = first / 64; n < USED; n += Step, to += Step * c.out.c)
            if (n0 + n < filters) store(to, load<VECTOR>(tile + n * PITCH + in_tile));
    } else {
        Element* const mine = tile + part * 16 * PITCH;
#pragma unroll
        for (int j = 0; j < USED / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<unsigned*>(mine + (lane / 4 + 8 * half) * PITCH + j * 8 + lane % 4 * 2) = rounded[j][half];
        __syncwarp();
        const int row = p + warp / ALONG, column = q + warp % ALONG * 16;
        if (row >= rows) return;
        Element* const to = out + row * c.out.h + column * c.out.w + n0;
#pragma unroll 4
        for (int i = lane * VECTOR; i < 16 * USED; i += 32 * VECTOR)
            if (column + i / USED < positions && n0 + i % USED < filters)
                store(to + i / USED * (int)c.out.w + i % USED, load<VECTOR>(mine + i / USED * PITCH + i % USED));
    }
}

// A block computes neighbouring bands, of ROWS x COLUMNS positions, down strip after strip, for BLOCK_N filters; blocks that
// follow one another have the same bands and other filters.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv2d_implicit_gemm_rows(const Element* __restrict__ image, const Element* __restrict__ weight,
                              const Element* __restrict__ bias, Element* __restrict__ out,
                              const __grid_constant__ Convolution c) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* const ring = shared + RING_AT;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
    const int tiles = (int)((c.filters + BLOCK_N - 1) / BLOCK_N), n0 = blockIdx.x % tiles * BLOCK_N;
    const int part = blockIdx.x / tiles, parts = gridDim.x / tiles;  // of the bands
    Element* const tile = reinterpret_cast<Element*>(shared + TILE_AT + group * TILE_BYTES);
    const int down = warp / ALONG, position = warp % ALONG * 16 + lane % 16;  // of a lane's window, in a band
    const unsigned lines = shared_address(ring) + (position * STRIDE + lane / 16) * 16;
    const int bands = ((int)c.h.count + ROWS - 1) / ROWS, strips = ((int)c.w.count + COLUMNS - 1) / COLUMNS;
    const i64 all = c.batch * strips * bands, begin = all * part / parts;
    int left = (int)(all * (part + 1) / parts - begin);  // bands that the block has not computed yet
    int band = (int)(begin % bands), strip = (int)(begin / bands % strips);
    const Element* own = image + begin / bands / strips * c.image.n;
    out += begin / bands / strips * c.out.n;
    load_filters(shared, weight, c, n0);

    bool enters = true;  // a strip, or begins within one
    int base = 0;        // the row of the ring that a band's first window begins with
    for (; left > 0; left--) {
        const int q = strip * COLUMNS, h = band * FRESH - (int)c.h.padding, w = q * STRIDE_W - (int)c.w.padding;
        if (enters) {
            base = 0;
            for (int v = threadIdx.x; v < SPAN * LENGTH; v += THREADS)
                store(reinterpret_cast<Element*>(ring + v * 16), pixels(own, c, h + v / LENGTH, w, v % LENGTH));
            __syncthreads();
        }
        enters = band + 1 == bands;
        const bool ahead = !enters && left > 1;
        Vec<Element, HALVES> next[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int v = threadIdx.x + j * THREADS;
            if (ahead && v < FRESH * LENGTH) next[j] = pixels(own, c, h + SPAN + v / LENGTH, w, v % LENGTH);
        }
        Sums sum;
        multiply(sum, lines, shared, base + down * STRIDE_H);
        store_out(tile, sum, out, bias, c, band * ROWS, q, n0);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int v = threadIdx.x + j * THREADS, row = base + SPAN + v / LENGTH;
            if (ahead && v < FRESH * LENGTH)
                store(reinterpret_cast<Element*>(ring + ((row >= RING ? row - RING : row) * LENGTH + v % LENGTH) * 16), next[j]);
        }
        base += FRESH;
        if (base >= RING) base -= RING;
        if (++band == bands) {
            band = 0;
            if (++strip == strips) strip = 0, own += c.image.n, out += c.out.n;
        }
        __syncthreads();
    }
}
