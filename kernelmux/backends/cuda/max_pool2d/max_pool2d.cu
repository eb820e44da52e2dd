// max_pool2d: the largest element of each window and its position h * w_of_image + w; comparisons in fp32, which all dtypes
// fit into. The first of equals stays, a NaN beats whatever came before. Windows of any size, images of any strides.
#include "windows.cuh"

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
