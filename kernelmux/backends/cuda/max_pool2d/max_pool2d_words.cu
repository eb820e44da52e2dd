// max_pool2d of small windows by words: each line of a window gives its best element, these the best of the window, so that
// rows of windows that overlap share what they have in common. ROWS: rows of windows of a thread.
#include "window_words.cuh"

constexpr int Lines = (ROWS - 1) * SH + KH;  // of the image, that these windows have

// Of the threads of a grid: `columns` in a line, `rows` of these in a plane; parts: planes of an image, threads of a pixel.
// extent: elements from the first of the image to its last.
struct Split {
    Divisor across, down, apart;
    int columns, rows, parts;
    i64 extent;
};

// Line l of those of a thread. Those outside of the image stand for its nearest ones, as in each_of_window().
__device__ __forceinline__ int line_of(const Geometry& g, int top, int l) {
    return min(l < PH ? max(top + l, 0) : top + l, g.h - 1);
}

// Where it begins, counted from line `top`; of lines below the image any place, since none of their elements is ever taken.
__device__ __forceinline__ int begin_of(const Geometry& g, int top, int l) { return (l < PH ? max(l, -top) : l) * g.w; }

#if CHANNELS

// A thread makes ROWS results of one column for WIDTH channels, that lie side by side.
extern "C" __global__ void __launch_bounds__(BLOCK) max_pool2d_channels(
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

#else

// For the results of a thread, in ROWS rows of which each has `Columns`.
template <int Columns>
__device__ __forceinline__ void find_nans(const Geometry& g, T* y, int* index, const T* image, int row, int column) {
#pragma unroll 1
    for (int r = 0; r < min(ROWS, g.oh - row); ++r)
#pragma unroll 1
        for (int i = 0; i < min(Columns, g.ow - column); ++i)
            last_nan(y + r * g.ow + i, index + r * g.ow + i, g, image, g.top(row + r), g.left(column + i));
}

#ifdef RESULTS

// A thread makes RESULTS results in each of its rows, with accesses of LOAD elements and of STORE results. Of a line it has
// Chunk elements in such accesses, and some before and after them.
constexpr int Chunk = RESULTS * SW, Before = cdiv(PW, Halves) * Halves;
constexpr int After = KW - PW - SW > 0 ? cdiv(KW - PW - SW, Halves) * Halves : 0;
constexpr int LineWords = (Before + Chunk + After) / Halves;

#if LOAD
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
#else

// The words of a line that may start at any element: those of memory that hold them, and one more, shifted by half a word
// where the line asks for it.
__device__ __forceinline__ void load_line(unsigned (&words)[LineWords], const T* from, int left, int width) {
    const bool odd = reinterpret_cast<unsigned long long>(from) % 4;
    const T* const aligned = from - Before - odd;
    const unsigned order = odd ? 0x5432 : 0x3210, lowest = lowest_word(T());
    unsigned raw[LineWords + 1];
#pragma unroll
    for (int i = 0; i <= LineWords; ++i) raw[i] = bits<unsigned>(load_constant<2>(aligned + 2 * i));
#pragma unroll
    for (int i = 0; i < LineWords; ++i) {
        const unsigned word = __byte_perm(raw[i], raw[i + 1], order);
        const int column = i * Halves - Before;
        if (column < 0) words[i] = left > 0 ? word : lowest;
        else words[i] = left + column + 1 < width ? word : left + column < width ? __byte_perm(word, lowest, 0x7610) : lowest;
    }
}

// Results one by one, where words of the lines would begin before the first element of the tensor or end after the last.
__device__ __forceinline__ void one_by_one(const Geometry& g, T* y, int* index, const T* image, int row, int column) {
#pragma unroll 1
    for (int k = 0; k < ROWS * RESULTS; ++k) {
        const int r = k / RESULTS, i = k % RESULTS, top = g.top(row + r), left = g.left(column + i);
        if (row + r >= g.oh || column + i >= g.ow) continue;
        float best = -infinity();
        int at = max(top, 0) * g.w + max(left, 0);
        each_of_window(g, top, left, [&](int h, int w) {
            const float x = to_float(image[h * g.strides[2] + w]);
            const bool better = beats(best, x);
            best = better ? x : best;
            at = better ? h * g.w + w : at;
        });
        y[r * g.ow + i] = image[at / g.w * g.strides[2] + at % g.w];
        index[r * g.ow + i] = at;
    }
}

#endif

// Element c of each of the windows of word p.
__device__ __forceinline__ unsigned of_windows(const unsigned (&words)[LineWords], int p, int c) {
    const int low = Before - PW + p * Halves * SW + c, high = low + SW;
    if (Halves == 1) return words[low];
    if (high == low + 1 && low % 2 == 0) return words[low / 2];
    return __byte_perm(words[low / 2], words[high / 2], (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x7600 : 0x5400));
}

// Where these stand, counted from column left - PW. For those before the image its first column: they are taken only where
// all elements are -inf.
__device__ __forceinline__ unsigned places(int p, int c, int left) {
    const int low = p * Halves * SW + c, high = low + SW;
    if (Halves == 1) return left > 0 ? low : max(low, PW);
    return left > 0 ? low + (high << 16) : max(low, PW) + (max(high, PW) << 16);
}

// A thread makes ROWS x RESULTS results of one plane whose lines are aligned to its accesses.
extern "C" __global__ void __launch_bounds__(BLOCK) max_pool2d_rows(
    const T* __restrict__ x, T* __restrict__ y, int* __restrict__ index, const Geometry g, const Split split, int units) {
    constexpr int Pairs = RESULTS / Halves;
    const int unit = blockIdx.x * BLOCK + threadIdx.x;
    if (unit >= units) return;
    const int line = split.across.of(unit), plane = split.down.of(line), n = split.apart.of(plane);
    const int column = (unit - line * split.columns) * RESULTS, row = (line - plane * split.rows) * ROWS;
    const T* image = x + n * g.strides[0] + (plane - n * split.parts) * g.strides[1];
    asm volatile("" : "+l"(image));  // one sum from here to an address, not three
    const int top = g.top(row), left = column * SW, base = top * g.w + left - PW;
    const int out = (plane * g.oh + row) * g.ow + column;
#if !LOAD
    const T* const before = image + (line_of(g, top, 0) * (int)g.strides[2] + left - Before - 1);
    const T* const after = image + (line_of(g, top, Lines - 1) * (int)g.strides[2] + left - Before + 2 * (LineWords + 1));
    if (before < x || after > x + split.extent) {
        one_by_one(g, y + out, index + out, image, row, column);
        return;
    }
#endif
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

#else

// A thread makes ROWS results of one column of a plane that may lie anywhere, from accesses of single elements. The two
// windows of a word lie Apart rows of windows from one another.
extern "C" __global__ void __launch_bounds__(BLOCK) max_pool2d_columns(
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

#endif
#endif
