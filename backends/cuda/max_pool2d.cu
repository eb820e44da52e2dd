// max_pool2d: the largest element of each window and its position h * w_of_image + w; comparisons in fp32, which all dtypes
// fit into, or of keys. The first of equals stays, a NaN beats whatever came before.
#include "window_keys.cuh"

// A block copies the rows of its windows to shared memory, 16 bytes at a time and each once: they are one run of memory,
// whatever the length of a row. Its results are one run too.
extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool2d_staged(const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Tile tile) {
    extern __shared__ uint4 memory[];
    T* const staged = reinterpret_cast<T*>(memory);
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
    __syncthreads();

    const i64 out = (plane * g.oh + first) * g.ow;
    for (int i = threadIdx.x; i < planes * rows * g.ow; i += BLOCK) {
        const int p = tile.together > 1 ? quotient(i, tile.reciprocal_of_plane) : 0, own = i - p * g.oh * g.ow;
        const int row = quotient(own, tile.reciprocal_of_row), column = own - row * g.ow;
        const int top = g.top(first + row), left = g.left(column);
        const int origin = shift - skipped + p * g.h * g.w;  // where element 0 of the plane would be
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

#if ROWS  // of results of a thread, each of 8

struct Split {  // of the threads: groups of 8 results in a row, groups of ROWS rows in a plane
    Divisor across, down;
    int columns, rows;
};

constexpr int Lines = (ROWS - 1) * SH + KH, Columns = 7 * SW + KW;        // elements of 8 results in each of ROWS rows
constexpr int Before = cdiv(PW, 2) * 2, Skipped = Before - PW;             // read before an aligned address; of no window
constexpr int Words = cdiv(Skipped + Columns, 2), Chunked = Before / 2 + 4 * SW;  // 8 results further are SW accesses

// The words of a line: `from` is aligned and in column `left`. Those behind the image are as small as any element in it.
__device__ __forceinline__ void load_line(unsigned (&words)[Chunked + KW], const T* from, int left, int width) {
#pragma unroll
    for (int i = 0; i < Before / 2; ++i) words[i] = left > 0 ? bits<unsigned>(load_constant<2>(from - Before + 2 * i)) : 0;
#pragma unroll
    for (int i = 0; i < SW; ++i) {
        uint4 four = {lowest_pair(T()), lowest_pair(T()), lowest_pair(T()), lowest_pair(T())};
        if (left + 8 * i < width) four = bits<uint4>(load_constant<8>(from + 8 * i));
        unsigned* const chunk = words + Before / 2 + 4 * i;
        chunk[0] = four.x, chunk[1] = four.y, chunk[2] = four.z, chunk[3] = four.w;
    }
#pragma unroll
    for (int i = Chunked; i < Words; ++i)
        words[i] = left + 2 * i - Before < width ? bits<unsigned>(load_constant<2>(from + 2 * i - Before)) : lowest_pair(T());
}

// Stores what 8 keys in a row name, the first `count` of them, in pieces.
__device__ __forceinline__ void store_row(T* y, int* index, const int (&keys)[8], const int (&at)[8], const T* image, int count) {
    constexpr int Four = PIECE < 4 ? PIECE : 4;
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = elements(keys[2 * i], keys[2 * i + 1]);
    T values[8];
    memcpy(values, pairs, sizeof(values));
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (is_zero(keys[i])) values[i] = load_constant<1>(image + at[i]).v[0];  // of either sign
#pragma unroll
    for (int i = 0; i < 8; i += PIECE)
        if (i < count) {
            Vec<T, PIECE> piece;
            memcpy(&piece, values + i, sizeof(piece));
            store(y + i, piece);
        }
#pragma unroll
    for (int i = 0; i < 8; i += Four)
        if (i < count) {
            Vec<int, Four> piece;
            memcpy(&piece, at + i, sizeof(piece));
            store(index + i, piece);
        }
}

// A thread makes ROWS x 8 results of aligned planes without gaps, which lie `strides[1]` apart: its elements come in accesses of
// 16 bytes, and of 4 beside them.
extern "C" __global__ void __launch_bounds__(BLOCK) max_pool2d_rows(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Split split, int units) {
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int line = split.across.of(unit), plane = split.down.of(line);
    const int column = (unit - line * split.columns) * 8, row = (line - plane * split.rows) * ROWS;
    const T* image = x + plane * g.strides[1];
    asm volatile("" : "+l"(image));  // one sum from here to an address, not three
    const int top = g.top(row), left = column * SW;
    unsigned words[Lines][Chunked + KW];
#pragma unroll
    for (int l = 0; l < Lines; ++l) load_line(words[l], image + (min(max(top + l, 0), g.h - 1) * g.w + left), left, g.w);
    int best[ROWS][Columns];
#pragma unroll
    for (int i = 0; i < ROWS * Columns; ++i) best[i / Columns][i % Columns] = LowestKey;
#pragma unroll
    for (int i = 0; i < Lines * Words; ++i) {
        const int l = i / Words, word = i % Words;
        unsigned pair = ordered(words[l][word]);
        if (word < Before / 2 && left == 0) pair = 0x80008000u;  // before the image: below all elements
#pragma unroll
        for (int j = 2 * word - Skipped; j < 2 * word - Skipped + 2; ++j) {
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
        int keys[8], at[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            keys[i] = best[r][i * SW];
#pragma unroll
            for (int j = 1; j < KW; ++j) keys[i] = max(keys[i], best[r][i * SW + j]);
            largest = max(largest, keys[i]);
            at[i] = position(g, keys[i], top, left - PW);
        }
        store_row(y + out + r * g.ow, index + out + r * g.ow, keys, at, image, g.ow - column);
    }
    if (largest < FirstNaN) return;
#pragma unroll 1
    for (int r = 0; r < min(ROWS, g.oh - row); ++r)
#pragma unroll 1
        for (int i = 0; i < min(8, g.ow - column); ++i) {
            const i64 to = out + r * g.ow + i;
            last_nan(y + to, index + to, g, image, top + r * SH, left + i * SW - PW);
        }
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
