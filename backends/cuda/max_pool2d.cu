// max_pool2d: the largest element of each window and its position h * w_of_image + w; comparisons in fp32, which all dtypes
// fit into, or by words. The first of equals stays, a NaN beats whatever came before.
#include "window_words.cuh"

#ifndef WORDS  // whether the staged kernel compares words: the size of a window is known, and places fit
#define WORDS 0
#endif

// A window of some planes in shared memory: where its plane begins, its first line and column.
struct Staged {
    int plane, top, left;

    // Its first element within the image, and how much further that of line l, column c is; outside it is the nearest one.
    __device__ __forceinline__ int begin(const Geometry& g) const { return max(top, 0) * g.w + max(left, 0); }
    __device__ __forceinline__ int further(const Geometry& g, int l, int c) const {
        const int down = PH ? min(max(top + l, 0), g.h - 1) - max(top, 0) : l;
        return down * g.w + (PW ? min(max(left + c, 0), g.w - 1) - max(left, 0) : c);
    }
};

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

    T* const to_y = y + (plane * g.oh + first) * g.ow;
    int* const to_index = index + (plane * g.oh + first) * g.ow;
    const T* const image = from - skipped;
    const int windows = planes * rows * g.ow, half = WORDS ? cdiv(windows, Halves) : windows;
    for (int i = threadIdx.x; i < half; i += BLOCK) {
        Staged own[Halves];
#pragma unroll
        for (int k = 0; k < (WORDS ? Halves : 1); ++k) {
            const int j = min(i + k * half, windows - 1);
            const int p = tile.together > 1 ? quotient(j, tile.reciprocal_of_plane) : 0, rest = j - p * g.oh * g.ow;
            const int row = quotient(rest, tile.reciprocal_of_row);
            own[k] = {p * g.h * g.w, g.top(first + row), g.left(rest - row * g.ow)};
        }
#if WORDS
        const T* at[Halves];
#pragma unroll
        for (int k = 0; k < Halves; ++k) at[k] = staged + (shift - skipped + own[k].plane + own[k].begin(g));
        Best best;
        Watch watch;
#pragma unroll
        for (int l = 0; l < KH; ++l)
#pragma unroll
            for (int c = 0; c < KW; ++c) {
                T halves[Halves];
                unsigned word, place = 0;
#pragma unroll
                for (int k = 0; k < Halves; ++k) {
                    const int further = own[k].further(g, l, c);
                    halves[k] = at[k][further], place += further << 16 * k;
                }
                memcpy(&word, halves, sizeof(word));
                asm volatile("" : "+r"(word));  // put together once
                watch.add(word);
                if (l + c == 0) best = {word, place};
                else best.meet(word, place);
            }
        T values[Halves];
        memcpy(values, &best.value, sizeof(values));
#pragma unroll
        for (int k = 0; k < Halves; ++k) {
            const int j = i + k * half, begin = own[k].begin(g);
            if (j >= windows) break;
            to_y[j] = values[k];
            to_index[j] = k ? place_of<1>(best.place, begin) : place_of<0>(best.place, begin);
            if (watch.nan()) last_nan(to_y + j, to_index + j, g, image + own[k].plane, own[k].top, own[k].left);
        }
#else
        const T* const held = staged + (shift - skipped + own[0].plane);
        int at = own[0].begin(g);
        float best = -infinity();
        each_of_window(g, own[0].top, own[0].left, [&](int h, int w) {
            const float value = to_float(held[h * g.w + w]);
            const bool better = beats(best, value);
            best = better ? value : best;
            at = better ? h * g.w + w : at;
        });
        to_y[i] = held[at];
        to_index[i] = at;
#endif
    }
}

#if ROWS  // of windows of a thread
#ifndef RESIDENT  // blocks of a multiprocessor
#define RESIDENT 1
#endif
#ifndef RESULTS  // of each of these rows, in max_pool2d_rows
#define RESULTS 4
#define LOAD 4  // elements of an access
#define STORE 4  // results of an access
#endif
constexpr int Lines = (ROWS - 1) * SH + KH;  // of the image, that these windows have

// Of the threads of a grid: `columns` in a line, `rows` of these in a plane, and of planes in an image or of a pixel's channels.
struct Split {
    Divisor across, down, apart;
    int columns, rows, parts;
};

// Line l of those of a thread. Those outside of the image stand for its nearest ones, as in each_of_window().
__device__ __forceinline__ int line_of(const Geometry& g, int top, int l) {
    return min(l < PH ? max(top + l, 0) : top + l, g.h - 1);
}

// Where it begins, counted from line `top`; of lines below the image any place, since none of their elements is ever taken.
__device__ __forceinline__ int begin_of(const Geometry& g, int top, int l) { return (l < PH ? max(l, -top) : l) * g.w; }

// For the results of a thread, in ROWS rows of which each has `Columns`.
template <int Columns>
__device__ __forceinline__ void find_nans(const Geometry& g, T* y, int* index, const T* image, int row, int column) {
#pragma unroll 1
    for (int r = 0; r < min(ROWS, g.oh - row); ++r)
#pragma unroll 1
        for (int i = 0; i < min(Columns, g.ow - column); ++i)
            last_nan(y + r * g.ow + i, index + r * g.ow + i, g, image, g.top(row + r), g.left(column + i));
}

constexpr int Chunk = RESULTS * SW, Before = cdiv(PW, Halves) * Halves;  // elements of a line in wide accesses; left of them
constexpr int After = KW - PW - SW > 0 ? cdiv(KW - PW - SW, Halves) * Halves : 0, LineWords = (Before + Chunk + After) / Halves;

// The words of a line: `from` is aligned and in column `left`. Those beside the image are as small as any element in it.
__device__ __forceinline__ void load_line(unsigned (&words)[LineWords], const T* from, int left, int width) {
    constexpr int Piece = LOAD / Halves;
#pragma unroll
    for (int i = 0; i < Before / Halves; ++i)
        words[i] = left > 0 ? bits<unsigned>(load_constant<Halves>(from - Before + i * Halves)) : lowest_word(T());
#pragma unroll
    for (int i = 0; i < Chunk; i += LOAD) {
        unsigned piece[Piece];
#pragma unroll
        for (unsigned& word : piece) word = lowest_word(T());
        if ((i == 0 && 2 * PW < KW) || left + i < width) {
            const Vec<T, LOAD> some = load_constant<LOAD>(from + i);
            memcpy(piece, &some, sizeof(piece));
        }
#pragma unroll
        for (int k = 0; k < Piece; ++k) words[(Before + i) / Halves + k] = piece[k];
    }
#pragma unroll
    for (int i = (Before + Chunk) / Halves; i < LineWords; ++i) {
        const int beyond = i * Halves - Before;
        words[i] = left + beyond < width ? bits<unsigned>(load_constant<Halves>(from + beyond)) : lowest_word(T());
    }
}

// Element c of each of the windows of word p.
__device__ __forceinline__ unsigned of_windows(const unsigned (&words)[LineWords], int p, int c) {
    const int low = Before - PW + p * Halves * SW + c, high = low + SW;
    if (Halves == 1) return words[low];
    if (high == low + 1 && low % 2 == 0) return words[low / 2];
    return __byte_perm(words[low / 2], words[high / 2], (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x7600 : 0x5400));
}

// Where these stand, counted from column left - PW. In place of those before the image stands its first column: only where all
// elements are -inf do they matter.
__device__ __forceinline__ unsigned places(int p, int c, int left) {
    const int low = p * Halves * SW + c, high = low + SW;
    if (Halves == 1) return left > 0 ? low : max(low, PW);
    return left > 0 ? low + (high << 16) : max(low, PW) + (max(high, PW) << 16);
}

// A thread makes ROWS x RESULTS results of one plane, from accesses of LOAD elements, to which all lines are aligned: first the
// best of each line, then the best of these.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) max_pool2d_rows(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Split split, int units) {
    constexpr int Pairs = RESULTS / Halves;
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int line = split.across.of(unit), plane = split.down.of(line), n = split.apart.of(plane);
    const int column = (unit - line * split.columns) * RESULTS, row = (line - plane * split.rows) * ROWS;
    const T* image = x + n * g.strides[0] + (plane - n * split.parts) * g.strides[1];
    asm volatile("" : "+l"(image));  // one sum from here to an address, not three
    const int top = g.top(row), left = column * SW, base = top * g.w + left - PW;
    unsigned words[Lines][LineWords];
#pragma unroll
    for (int l = 0; l < Lines; ++l)
        load_line(words[l], image + (line_of(g, top, l) * (int)g.strides[2] + left), left, g.w);
    Best best[ROWS][Pairs];
    Watch watch;
#pragma unroll
    for (int l = 0; l < Lines; ++l) {
        const unsigned further = in_halves(begin_of(g, top, l));
#pragma unroll
        for (unsigned word : words[l]) watch.add(word);
#pragma unroll
        for (int p = 0; p < Pairs; ++p) {
            Best own = {of_windows(words[l], p, 0), places(p, 0, left)};
#pragma unroll
            for (int c = 1; c < KW; ++c) own.meet(of_windows(words[l], p, c), places(p, c, left));
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (l == r * SH) best[r][p] = {own.value, own.place + further};
                else if (l > r * SH && l < r * SH + KH) best[r][p].meet(own, further);
            }
        }
    }
    const int out = (plane * g.oh + row) * g.ow + column;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (row + r >= g.oh) break;
        unsigned values[Pairs];
        int at[RESULTS];
#pragma unroll
        for (int p = 0; p < Pairs; ++p) values[p] = best[r][p].value;
#pragma unroll
        for (int i = 0; i < RESULTS; ++i) {
            const unsigned place = best[r][i / Halves].place;
            at[i] = i % Halves ? place_of<1>(place, base) : place_of<0>(place, base);
        }
#pragma unroll
        for (int i = 0; i < RESULTS; i += STORE) {
            if (column + i >= g.ow) break;
            Vec<T, STORE> some;
            memcpy(&some, reinterpret_cast<const T*>(values) + i, sizeof(some));
            store(y + out + r * g.ow + i, some);
        }
        constexpr int Four = STORE < 4 ? STORE : 4;
#pragma unroll
        for (int i = 0; i < RESULTS; i += Four)
            if (column + i < g.ow) store(index + out + r * g.ow + i, *reinterpret_cast<const Vec<int, Four>*>(at + i));
    }
    if (watch.nan()) find_nans<RESULTS>(g, y + out, index + out, image, row, column);
}

// A thread makes ROWS results of one column of a plane that may lie anywhere, from accesses of single elements. A word has the
// elements of two windows that lie Apart rows of windows from one another.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) max_pool2d_columns(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Split split, int units) {
    constexpr int Apart = cdiv(ROWS, Halves), Step = (Halves - 1) * Apart * SH;  // lines from one half to the other
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int line = split.across.of(unit), plane = split.down.of(line), n = split.apart.of(plane);
    const int column = unit - line * split.columns, row = (line - plane * split.rows) * ROWS;
    const T* image = x + n * g.strides[0] + (plane - n * split.parts) * g.strides[1];
    asm volatile("" : "+l"(image));
    const int top = g.top(row), left = g.left(column), begin = PW ? max(left, 0) : left, base = top * g.w + begin;
    T elements[Lines][KW];
    int shift[KW];
#pragma unroll
    for (int c = 0; c < KW; ++c) shift[c] = PW ? min(max(left + c, 0), g.w - 1) - begin : c;
#pragma unroll
    for (int l = 0; l < Lines; ++l) {
        const T* const from = image + (line_of(g, top, l) * (int)g.strides[2] + begin);
#pragma unroll
        for (int c = 0; c < KW; ++c) elements[l][c] = load_constant<1>(from + shift[c]).v[0];
    }
    Best best[Apart];
    Watch watch;
#pragma unroll
    for (int l = 0; l + Step < Lines; ++l) {
        const auto word = [&](int c) {
            unsigned both;
            const T halves[2] = {elements[l][c], elements[l + Step][c]};
            memcpy(&both, halves, sizeof(both));
            asm volatile("" : "+r"(both));  // put together once
            watch.add(both);
            return both;
        };
        const unsigned further = begin_of(g, top, l) + (Step ? begin_of(g, top, l + Step) << 16 : 0);
        Best own = {word(0), in_halves(shift[0])};
#pragma unroll
        for (int c = 1; c < KW; ++c) own.meet(word(c), in_halves(shift[c]));
#pragma unroll
        for (int r = 0; r < Apart; ++r) {
            if (l == r * SH) best[r] = {own.value, own.place + further};
            else if (l > r * SH && l < r * SH + KH) best[r].meet(own, further);
        }
    }
    const int out = (plane * g.oh + row) * g.ow + column;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (row + r >= g.oh) break;
        const Best& found = best[r % Apart];
        T halves[Halves];
        memcpy(halves, &found.value, sizeof(halves));
        y[out + r * g.ow] = halves[r / Apart];
        index[out + r * g.ow] = r / Apart ? place_of<1>(found.place, base) : place_of<0>(found.place, base);
    }
    if (watch.nan()) find_nans<1>(g, y + out, index + out, image, row, column);
}

// A thread makes ROWS results of one column for WIDTH channels, that lie side by side.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) max_pool2d_channels(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Split split, int units) {
    constexpr int Count = WIDTH / Halves ? WIDTH / Halves : 1, Together = WIDTH < 4 ? WIDTH : 4;
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int window = split.apart.of(unit), line = split.across.of(window), n = split.down.of(line);
    const int channel = (unit - window * split.parts) * WIDTH;
    const int column = window - line * split.columns, row = (line - n * split.rows) * ROWS;
    const T* image = x + n * g.strides[0] + channel;
    asm volatile("" : "+l"(image));
    const int top = g.top(row), left = g.left(column), begin = PW ? max(left, 0) : left, base = top * g.w + begin;
    Best best[ROWS][Count];
    Watch watch;
#pragma unroll
    for (int l = 0; l < Lines; ++l) {
        const int h = line_of(g, top, l);
        const unsigned further = in_halves(begin_of(g, top, l));
        Best own[Count];
#pragma unroll
        for (int c = 0; c < KW; ++c) {
            const int w = PW ? min(max(left + c, 0), g.w - 1) : left + c;
            unsigned words[Count];
            const Vec<T, WIDTH> some = load_constant<WIDTH>(image + (h * (int)g.strides[2] + w * (int)g.strides[3]));
            memcpy(words, &some, sizeof(words));
#pragma unroll
            for (int i = 0; i < Count; ++i) {
                watch.add(words[i]);
                if (c == 0) own[i] = {words[i], in_halves(w - begin)};
                else own[i].meet(words[i], in_halves(w - begin));
            }
        }
#pragma unroll
        for (int i = 0; i < Count; ++i)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (l == r * SH) best[r][i] = {own[i].value, own[i].place + further};
                else if (l > r * SH && l < r * SH + KH) best[r][i].meet(own[i], further);
            }
    }
    const int step = g.ow * g.channels, out = ((n * g.oh + row) * g.ow + column) * g.channels + channel;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (row + r >= g.oh) break;
        unsigned values[Count];
        int at[WIDTH];
#pragma unroll
        for (int i = 0; i < Count; ++i) values[i] = best[r][i].value;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const unsigned place = best[r][i / Halves].place;
            at[i] = i % Halves ? place_of<1>(place, base) : place_of<0>(place, base);
        }
        store(y + out + r * step, *reinterpret_cast<const Vec<T, WIDTH>*>(values));
#pragma unroll
        for (int i = 0; i < WIDTH; i += Together)
            store(index + out + r * step + i, *reinterpret_cast<const Vec<int, Together>*>(at + i));
    }
    if (!watch.nan()) return;
#pragma unroll 1
    for (int r = 0; r < min(ROWS, g.oh - row); ++r)
#pragma unroll 1
        for (int i = 0; i < WIDTH; ++i)
            last_nan(y + out + r * step + i, index + out + r * step + i, g, image + i, g.top(row + r), left);
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
