// max_pool2d: the largest element of each window and its position h * w_of_image + w; comparisons in fp32, which all dtypes
// fit into. The first of equals stays, a NaN beats whatever came before.
#include "windows.cuh"

#ifndef ROWS  // of results of a thread, each of 8
#define ROWS 0
#define PIECE 1  // results of one access
#endif

#if KEYED
// What a thread of the staged kernel does with one window, in 32-bit reads of keys that lie at any element of shared memory.
__device__ __forceinline__ int largest_of_staged(const Geometry& g, const T* plane, int top, int left) {
    int best[KW ? KW : 1];
#pragma unroll
    for (int& key : best) key = LowestKey;
#pragma unroll
    for (int i = 0; i < KH; ++i) {
        const T* const from = plane + min(max(top + i, 0), g.h - 1) * g.w + left;
        const unsigned address = (unsigned)__cvta_generic_to_shared(from), odd = address % 4 * 8;
        unsigned words[KW / 2 + 1];
#pragma unroll
        for (int k = 0; k <= KW / 2; ++k) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[k]) : "r"(address / 4 * 4 + 4 * k));
#pragma unroll
        for (int j = 0; j < KW; ++j) {
            const unsigned pair = __funnelshift_r(words[j / 2], words[min(j / 2 + 1, KW / 2)], odd);
            best[j] = max(best[j], key_of(pair, j % 2, i, j));
        }
    }
    int key = LowestKey;
#pragma unroll
    for (int j = 0; j < KW; ++j) {
        const bool inside = PW == 0 || (left + j >= 0 && left + j < g.w);
        key = max(key, inside ? best[j] : LowestKey);
    }
    return key;
}
#endif

constexpr int Margin = KEYED ? 24 : 0;  // elements before and behind the rows, that windows may reach into

// A block copies the rows of its windows to shared memory, 16 bytes at a time and each once: they are one run of memory,
// whatever the length of a row. Its results are one run too.
extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool2d_staged(const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Tile tile) {
    extern __shared__ uint4 memory[];
    T* const staged = reinterpret_cast<T*>(memory) + Margin;
    const i64 plane = (i64)(blockIdx.x / tile.per_plane) * tile.together;
    const int planes = (int)min((i64)tile.together, tile.planes - plane);
    const int first = blockIdx.x % tile.per_plane * tile.rows, rows = min(tile.rows, g.oh - first);
    const int begin = max(g.top(first), 0), end = min(g.top(first + rows - 1) + g.kh(), g.h);
    const int count = planes > 1 ? planes * g.h * g.w : (end - begin) * g.w, skipped = planes > 1 ? 0 : begin * g.w;
    const T* const from = x + plane / g.channels * g.strides[0] + plane % g.channels * g.strides[1] + skipped;
    const Peel peel = Peel::of<Wide>(from, count);
    const int shift = (int)(reinterpret_cast<unsigned long long>(from) / sizeof(T) % Wide);
    const unsigned to = (unsigned)__cvta_generic_to_shared(staged + shift);
    for (int i = peel.head + threadIdx.x * Wide; i < peel.tail; i += BLOCK * Wide)
        copy_async<16>(to + i * (int)sizeof(T), from + i, true);
    if (threadIdx.x < peel.few) staged[shift + peel.beside(threadIdx.x)] = from[peel.beside(threadIdx.x)];
    copy_async_commit();
    copy_async_wait<0>();
    const int i = threadIdx.x;
    if (i < shift + Margin) staged[i - Margin] = T();
    if (i < Margin) staged[shift + count + i] = T();
#if KEYED
    {  // each thread what it copied
        for (int i = peel.head + threadIdx.x * Wide; i < peel.tail; i += BLOCK * Wide) {
            uint4* const held = reinterpret_cast<uint4*>(staged + shift + i);
            *held = {ordered(held->x), ordered(held->y), ordered(held->z), ordered(held->w)};
        }
        if (threadIdx.x < peel.few) {
            unsigned short* const held = reinterpret_cast<unsigned short*>(staged + shift + peel.beside(threadIdx.x));
            *held = (unsigned short)ordered(*held);
        }
    }
#endif
    __syncthreads();

    const i64 out = (plane * g.oh + first) * g.ow;
    for (int i = threadIdx.x; i < planes * rows * g.ow; i += BLOCK) {
        const int p = tile.together > 1 ? quotient(i, tile.reciprocal_of_plane) : 0, own = i - p * g.oh * g.ow;
        const int row = quotient(own, tile.reciprocal_of_row), column = own - row * g.ow;
        const int top = g.top(first + row), left = g.left(column);
        const int origin = shift - skipped + p * g.h * g.w;  // where element 0 of the plane would be
#if KEYED
        {
            const T* const own_plane = from + p * g.h * g.w - skipped;
            const int key = largest_of_staged(g, staged + origin, top, left), at = position(g, key, top, left);
            y[out + i] = is_zero(key) ? own_plane[at] : element(key);
            index[out + i] = at;
            if (key >= FirstNaN) last_nan(y + out + i, index + out + i, g, top, left, [&](int h, int w) { return own_plane[h * g.w + w]; });
            continue;
        }
#endif
        int at = origin + max(top, 0) * g.w + max(left, 0);
        float best = -infinity();
        each_of_window(g, top, left, [&](int h, int w) {
            const int place = origin + h * g.w + w;
            const float value = to_float(staged[place]);
            const bool better = beats(best, value);
            best = better ? value : best;
            at = better ? place : at;
        });
        y[out + i] = staged[at];
        index[out + i] = at - origin;
    }
}

#if KEYED && ROWS

struct Split {  // of the threads: groups of 8 results in a row, groups of ROWS rows in a plane
    Divisor across, down;
    int columns, rows;
};

// A thread makes ROWS x 8 results of aligned planes without gaps, which lie `strides[1]` apart: all of its elements come in
// accesses of 16 bytes, and of 4 beside them.
extern "C" __global__ void __launch_bounds__(BLOCK) max_pool2d_rows(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Split split, int units) {
    constexpr int Lines = (ROWS - 1) * SH + KH, Columns = 7 * SW + KW, Before = cdiv(PW, 2) * 2, Skipped = Before - PW;
    constexpr int Words = cdiv(Skipped + Columns, 2), Chunked = Before / 2 + 4 * SW;  // 8 results further are SW accesses
    constexpr int Four = PIECE < 4 ? PIECE : 4;
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int line = split.across.of(unit), plane = split.down.of(line);
    const int column = (unit - line * split.columns) * 8, row = (line - plane * split.rows) * ROWS;
    const T* image = x + plane * g.strides[1];
    asm volatile("" : "+l"(image));  // one sum from here to an address, not three
    const int top = g.top(row), left = column * SW;
    unsigned words[Lines][Chunked + KW];
#pragma unroll
    for (int l = 0; l < Lines; ++l) {
        const T* const from = image + (min(max(top + l, 0), g.h - 1) * g.w + left);
        unsigned* const to = words[l];
#pragma unroll
        for (int i = 0; i < Before / 2; ++i)
            if (left > 0) to[i] = bits<unsigned>(load_constant<2>(from - Before + 2 * i));
#pragma unroll
        for (int i = 0; i < SW; ++i) {
            uint4 four = {lowest_pair(T()), lowest_pair(T()), lowest_pair(T()), lowest_pair(T())};
            if (left + 8 * i < g.w) four = bits<uint4>(load_constant<8>(from + 8 * i));
            unsigned* const chunk = to + Before / 2 + 4 * i;
            chunk[0] = four.x, chunk[1] = four.y, chunk[2] = four.z, chunk[3] = four.w;
        }
#pragma unroll
        for (int i = Chunked; i < Words; ++i)
            to[i] = left + 2 * i - Before < g.w ? bits<unsigned>(load_constant<2>(from + 2 * i - Before)) : lowest_pair(T());
    }
    int best[ROWS][Columns];
#pragma unroll
    for (int i = 0; i < ROWS * Columns; ++i) best[i / Columns][i % Columns] = LowestKey;
#pragma unroll
    for (int l = 0; l < Lines; ++l)
#pragma unroll
        for (int i = 0; i < Words; ++i) {
            unsigned pair = ordered(words[l][i]);
            if (i < Before / 2 && left == 0) pair = 0x80008000u;  // below all elements
#pragma unroll
            for (int j = 2 * i - Skipped; j < 2 * i - Skipped + 2; ++j) {
                if (j < 0 || j >= Columns) continue;
                const int key = key_of(pair, (j + Skipped) % 2, l, j);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    if (l >= r * SH && l < r * SH + KH) best[r][j] = max(best[r][j], key);
            }
        }
    const i64 out = ((i64)plane * g.oh + row) * g.ow + column;
    int largest = LowestKey;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (row + r >= g.oh) break;
        int keys[8];
        Vec<T, PIECE> values[8 / PIECE];
        Vec<int, Four> places[8 / Four];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            keys[i] = best[r][i * SW];
#pragma unroll
            for (int j = 1; j < KW; ++j) keys[i] = max(keys[i], best[r][i * SW + j]);
            largest = max(largest, keys[i]);
            places[i / Four].v[i % Four] = position(g, keys[i], top, left - PW);
        }
        unsigned pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = elements(keys[2 * i], keys[2 * i + 1]);
        memcpy(values, pairs, sizeof(values));
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (is_zero(keys[i])) values[i / PIECE].v[i % PIECE] = load_constant<1>(image + places[i / Four].v[i % Four]).v[0];  // of either sign
        const i64 to = out + r * g.ow;
#pragma unroll
        for (int i = 0; i < 8 / PIECE; ++i)
            if (column + i * PIECE < g.ow) store(y + to + i * PIECE, values[i]);
#pragma unroll
        for (int i = 0; i < 8 / Four; ++i)
            if (column + i * Four < g.ow) store(index + to + i * Four, places[i]);
    }
    if (largest < FirstNaN) return;
#pragma unroll 1
    for (int r = 0; r < min(ROWS, g.oh - row); ++r)
#pragma unroll 1
        for (int i = 0; i < min(8, g.ow - column); ++i)
            last_nan(y + out + r * g.ow + i, index + out + r * g.ow + i, g, top + r * SH, left + i * SW - PW,
                     [&](int h, int w) { return image[h * g.w + w]; });
}
#endif

#if KEYED && CHANNELS && WIDTH > 1
struct Places {  // of the threads: vectors of channels, windows of a row, rows
    Divisor vectors, columns, rows;
    int each, across, down;
};

// A thread takes WIDTH channels of one window. The elements of rows and columns outside of the image are its nearest ones.
extern "C" __global__ void __launch_bounds__(BLOCK) max_pool2d_channels(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Places places, int units) {
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int window = places.vectors.of(unit), line = places.columns.of(window), n = places.rows.of(line);
    const int c = (unit - window * places.each) * WIDTH, column = window - line * places.across, row = line - n * places.down;
    const int top = g.top(row), left = g.left(column);
    const T* const image = x + n * g.strides[0] + c * g.strides[1];
    i64 along[KW];
#pragma unroll
    for (int j = 0; j < KW; ++j) along[j] = min(max(left + j, 0), g.w - 1) * g.strides[3];
    int keys[WIDTH];
#pragma unroll
    for (int& key : keys) key = LowestKey;
#pragma unroll
    for (int i = 0; i < KH; ++i) {
        const T* const from = image + min(max(top + i, 0), g.h - 1) * g.strides[2];
#pragma unroll
        for (int j = 0; j < KW; ++j) {
            const Vec<T, WIDTH> held = load_constant<WIDTH>(from + along[j]);
            unsigned words[WIDTH / 2];
            memcpy(words, &held, sizeof(held));
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) keys[k] = max(keys[k], key_of(ordered(words[k / 2]), k % 2, i, j));
        }
    }
    const auto at = [&](int h, int w) { return image + h * g.strides[2] + w * g.strides[3]; };
    Vec<T, WIDTH> values;
    constexpr int Four = WIDTH < 4 ? WIDTH : 4;
    Vec<int, Four> positions[WIDTH / Four];
    unsigned pairs[WIDTH / 2];
    int largest = LowestKey;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) pairs[i] = elements(keys[2 * i], keys[2 * i + 1]);
    memcpy(&values, pairs, sizeof(values));
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const int h = max(top + (~keys[i] & 0xffff) / KeyRow, 0), w = max(left + (~keys[i] & (KeyRow - 1)), 0);
        positions[i / Four].v[i % Four] = h * g.w + w;
        largest = max(largest, keys[i]);
        if (is_zero(keys[i])) values.v[i] = load_constant<1>(at(h, w) + i).v[0];  // of either sign
    }
    const i64 to = (i64)unit * WIDTH;
    store(y + to, values);
#pragma unroll
    for (int i = 0; i < WIDTH / Four; ++i) store(index + to + i * Four, positions[i]);
    if (largest < FirstNaN) return;
#pragma unroll 1
    for (int i = 0; i < WIDTH; ++i)
        last_nan(y + to + i, index + to + i, g, top, left, [&](int h, int w) { return at(h, w)[i]; });
}
#endif

// A thread takes WIDTH channels of one window, where they lie. Images of any strides; overlaps come from the caches.
extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool2d_direct(const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, i64 units) {
    const INDEX unit = (INDEX)blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int vectors = CHANNELS ? g.channels / WIDTH : 1;
    const INDEX window = unit / vectors, plane = window / g.ow / g.oh;
    const int column = (int)(window % g.ow), row = (int)(window / g.ow % g.oh);
    const i64 n = CHANNELS ? plane : plane / g.channels;
    const int c = CHANNELS ? (int)(unit % vectors) * WIDTH : (int)(plane % g.channels);
    const T* const image = x + n * g.strides[0] + c * g.strides[1];
    const int top = g.top(row), left = g.left(column);
    float best[WIDTH];
    int at[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) best[i] = -infinity(), at[i] = max(top, 0) * g.w + max(left, 0);
    each_of_window(g, top, left, [&](int h, int w) {
        float values[WIDTH];
        to_floats(values, load_constant<WIDTH>(image + h * g.strides[2] + w * g.strides[3]));
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const bool better = beats(best[i], values[i]);
            best[i] = better ? values[i] : best[i];
            at[i] = better ? h * g.w + w : at[i];
        }
    });
    constexpr int Together = WIDTH < 4 ? WIDTH : 4;
    store(y + (i64)unit * WIDTH, from_floats<T>(best));
#pragma unroll
    for (int i = 0; i < WIDTH; i += Together)
        store(index + (i64)unit * WIDTH + i, *reinterpret_cast<const Vec<int, Together>*>(at + i));
}
