// max_pool2d_backward: the gradient of each window goes to the element that its index names, sums in fp32 in a fixed order.
// An index outside of its window adds nothing. No atomics.
#include "windows.cuh"

// Windows that lie a whole number of Colours apart do not overlap.
constexpr int ColoursH = KH ? cdiv(KH, SH) : 1, ColoursW = KH ? cdiv(KW, SW) : 1, Colours = ColoursH * ColoursW;
constexpr int Unroll = 4;  // windows of a thread between barriers

// A block owns some rows of the images in shared memory, reads each of their windows once, 4 + 2 or 4 bytes, and adds colour
// by colour: windows of one colour have no element in common, so that every sum is one thread's at a time.
extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool2d_backward_staged(
    const T* __restrict__ grad, const int* __restrict__ index, T* __restrict__ out, const Geometry g, const Tile tile) {
    extern __shared__ uint4 memory[];
    float* const sums = reinterpret_cast<float*>(memory);
    const i64 plane = (i64)(blockIdx.x / tile.per_plane) * tile.together;
    const int planes = (int)min((i64)tile.together, tile.planes - plane), pixels = g.h * g.w;
    const int begin = blockIdx.x % tile.per_plane * tile.rows, end = min(begin + tile.rows, g.h);
    const int count = planes > 1 ? planes * pixels : (end - begin) * g.w, skipped = begin * g.w;
    T* const to = out + plane * pixels + skipped;
    const int shift = (int)((plane * pixels + skipped) % Wide);  // the results begin at a multiple of 16 bytes
    for (int i = threadIdx.x; i < shift + count; i += BLOCK) sums[i] = 0.0f;
    __syncthreads();

    const int first = first_window(begin, g.kh(), g.sh(), g.padding[0]);
    const int rows = last_window(end, g.sh(), g.padding[0], g.oh) - first + 1, windows = planes * rows * g.ow;
    const i64 from = (plane * g.oh + first) * g.ow;
    for (int base = threadIdx.x; base - (int)threadIdx.x < windows; base += BLOCK * Unroll) {
        int place[Unroll], colour[Unroll];
        float value[Unroll];
#pragma unroll
        for (int u = 0; u < Unroll; ++u) {
            const int i = base + u * BLOCK;
            colour[u] = -1;
            if (i >= windows) continue;
            const int at = __ldg(index + from + i);
            value[u] = to_float(grad[from + i]);
            const int p = tile.together > 1 ? quotient(i, tile.reciprocal_of_plane) : 0, own = i - p * g.oh * g.ow;
            const int row = quotient(own, tile.reciprocal_of_row), column = own - row * g.ow;
            const int h = (int)((unsigned)at / (unsigned)g.w), w = (int)((unsigned)at - (unsigned)h * g.w);
            const int down = h - g.top(first + row), along = w - g.left(column);
            const bool inside = at >= 0 && h >= begin && h < end && down >= 0 && down < g.kh() && along >= 0 && along < g.kw();
            place[u] = shift + p * pixels + at - skipped;
            colour[u] = inside ? (first + row) % ColoursH * ColoursW + column % ColoursW : -1;
        }
        for (int k = 0; k < Colours; ++k) {
#pragma unroll
            for (int u = 0; u < Unroll; ++u)
                if (colour[u] == k) sums[place[u]] = add_gradual(sums[place[u]], value[u]);
            __syncthreads();
        }
    }

    const int head = min(count, (Wide - shift) % Wide), tail = head + (count - head) / Wide * Wide;
    for (int i = head + threadIdx.x * Wide; i < tail; i += BLOCK * Wide) {
        float values[Wide];
#pragma unroll
        for (int j = 0; j < Wide; j += 4) *reinterpret_cast<Vec<float, 4>*>(values + j) = load<4>(sums + shift + i + j);
        store(to + i, from_floats<T>(values));
    }
    const Peel peel = {head, tail, head + count - tail};
    if (threadIdx.x < peel.few) to[peel.beside(threadIdx.x)] = from_float<T>(sums[shift + peel.beside(threadIdx.x)]);
}

#if ROWS  // of windows that a thread's pixels lie under, each of 8

// Numbers of 8 neighbouring windows from `first` on, in accesses of Piece; `none` stands for those outside of the row.
template <int Piece, typename Any>
__device__ __forceinline__ void load_eight(Any* to, const Any* row, int first, int count, Any none) {
#pragma unroll
    for (int i = 0; i < 8; i += Piece) {
        Vec<Any, Piece> some;
#pragma unroll
        for (int k = 0; k < Piece; ++k) some.v[k] = none;
        if (first + i < count) some = load_constant<Piece>(row + first + i);
#pragma unroll
        for (int k = 0; k < Piece; ++k) to[i + k] = some.v[k];
    }
}

// A thread gathers for ROWS * SH x 8 * SW pixels of a plane. Of a row of windows it reads eight in vectors of PIECE, and one by
// one the few beside them that its pixels are in too.
extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool2d_backward_rows(
    const T* __restrict__ grad, const int* __restrict__ index, T* __restrict__ out, const Geometry g, i64 units) {
    constexpr int High = ROWS * SH, Along = 8 * SW, Four = PIECE < 4 ? PIECE : 4;
    // Windows with some of the pixels, counted from the one that would begin at the first pixel if there were no padding.
    constexpr int Top = -((KH - 1 - PH) / SH), Bottom = (High - 1 + PH) / SH;
    constexpr int Left = -((KW - 1 - PW) / SW), Last = (Along - 1 + PW) / SW, Right = Last < 7 ? 7 : Last;
    const INDEX unit = (INDEX)blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int across = (g.w + Along - 1) / Along, down = (g.h + High - 1) / High;
    const INDEX band = unit / across, plane = band / down;
    const int column = (int)(unit - band * across) * 8, row = (int)(band - plane * down) * ROWS;
    const int h0 = row * SH, w0 = column * SW;
    float sums[High][Along] = {};
#pragma unroll
    for (int o = Top; o <= Bottom; ++o) {
        const bool there = row + o >= 0 && row + o < g.oh;
        const i64 line = ((i64)plane * g.oh + (there ? row + o : 0)) * g.ow;
        const int windows = there ? g.ow : 0;
        T values[Right - Left + 1];
        int at[Right - Left + 1];
        load_eight<PIECE>(values - Left, grad + line, column, windows, T());
        load_eight<Four>(at - Left, index + line, column, windows, -1);
#pragma unroll
        for (int c = Left; c <= Right; ++c) {
            if (c >= 0 && c < 8) continue;
            const bool inside = column + c >= 0 && column + c < windows;
            values[c - Left] = inside ? grad[line + column + c] : T();
            at[c - Left] = inside ? __ldg(index + line + column + c) : -1;
        }
#pragma unroll
        for (int c = Left; c <= Last; ++c) {
            const float value = to_float(values[c - Left]);
#pragma unroll
            for (int y = 0; y < High; ++y) {
                if (y < o * SH - PH || y >= o * SH - PH + KH) continue;
                const int x = at[c - Left] - ((h0 + y) * g.w + w0);  // the pixel that the index names, if it is in this row
#pragma unroll
                for (int k = 0; k < Along; ++k)
                    if (k >= c * SW - PW && k < c * SW - PW + KW && x == k) sums[y][k] = add_gradual(sums[y][k], value);
            }
        }
    }
#pragma unroll
    for (int y = 0; y < High; ++y) {
        if (h0 + y >= g.h) continue;
        T* const to = out + ((i64)plane * g.h + h0 + y) * g.w + w0;
#pragma unroll
        for (int k = 0; k < Along; k += OUT) {
            float some[OUT];
#pragma unroll
            for (int j = 0; j < OUT; ++j) some[j] = sums[y][k + j];
            if (w0 + k < g.w) store(to + k, from_floats<T>(some));
        }
    }
}
#endif

#ifndef TILE_H  // pixels of a thread, that share most of their windows
#define TILE_H 1
#define TILE_W 1
#endif
struct Steps {
    i64 index[4];
};

// A thread gathers for TILE_H x TILE_W pixels of WIDTH channels: it looks at every window that holds one of them.
extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool2d_backward_direct(
    const T* __restrict__ grad, const int* __restrict__ index, T* __restrict__ out, const Geometry g, const Steps steps, i64 units) {
    const INDEX unit = (INDEX)blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int vectors = CHANNELS ? g.channels / WIDTH : 1;
    const int down = (g.h + TILE_H - 1) / TILE_H, along = (g.w + TILE_W - 1) / TILE_W;
    const INDEX block = unit / vectors, plane = block / along / down;
    const int w0 = (int)(block % along) * TILE_W, h0 = (int)(block / along % down) * TILE_H;
    const i64 n = CHANNELS ? plane : plane / g.channels;
    const int c = CHANNELS ? (int)(unit % vectors) * WIDTH : (int)(plane % g.channels);
    const T* const grads = grad + n * g.strides[0] + c * g.strides[1];
    const int* const indices = index + n * steps.index[0] + c * steps.index[1];
    float sums[TILE_H * TILE_W][WIDTH] = {};
    const int bottom = last_window(min(h0 + TILE_H, g.h), g.sh(), g.padding[0], g.oh);
    const int right = last_window(min(w0 + TILE_W, g.w), g.sw(), g.padding[1], g.ow);
    for (int oh = first_window(h0, g.kh(), g.sh(), g.padding[0]); oh <= bottom; ++oh)
        for (int ow = first_window(w0, g.kw(), g.sw(), g.padding[1]); ow <= right; ++ow) {
            constexpr int Together = WIDTH < 4 ? WIDTH : 4;
            float values[WIDTH];
            Vec<int, Together> at[WIDTH / Together];
            to_floats(values, load_constant<WIDTH>(grads + oh * g.strides[2] + ow * g.strides[3]));
#pragma unroll
            for (int i = 0; i < WIDTH / Together; ++i)
                at[i] = load_constant<Together>(indices + oh * steps.index[2] + ow * steps.index[3] + i * Together);
#pragma unroll
            for (int k = 0; k < TILE_H * TILE_W; ++k) {
                const int h = h0 + k / TILE_W, w = w0 + k % TILE_W, top = g.top(oh), left = g.left(ow);
                if (h < top || h >= top + g.kh() || w < left || w >= left + g.kw() || w >= g.w) continue;
#pragma unroll
                for (int i = 0; i < WIDTH; ++i)
                    if (at[i / Together].v[i % Together] == h * g.w + w) sums[k][i] = add_gradual(sums[k][i], values[i]);
            }
        }
#pragma unroll
    for (int k = 0; k < TILE_H * TILE_W; ++k) {
        const int h = h0 + k / TILE_W, w = w0 + k % TILE_W;
        if (h >= g.h || w >= g.w) continue;
        const i64 pixel = (i64)plane * g.h * g.w + h * g.w + w;
        store(out + (CHANNELS ? pixel * g.channels + c : pixel), from_floats<T>(sums[k]));
    }
}
