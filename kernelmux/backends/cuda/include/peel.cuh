// Rows that start anywhere, read in whole vectors from the first aligned address of each.
#pragma once

#include "shifted.cuh"

// The columns [head, tail) of a row are whole vectors; beside(k), k < few, are the others: fewer than a vector at each end.
struct Peel {
    int head, tail, few;

    template <int Width, typename T>
    static __device__ __forceinline__ Peel of(const T* row, int n) {
        const int past = (int)(reinterpret_cast<unsigned long long>(row) / sizeof(T) % Width);
        const int head = min(n, (Width - past) % Width), tail = head + (n - head) / Width * Width;
        return {head, tail, head + n - tail};
    }
    __device__ __forceinline__ int beside(int k) const { return k < head ? k : tail + k - head; }
};

// Columns [i, i + Width) of a row that begins aligned and has n of them: shifted together from the two aligned vectors in
// which they lie, where both lie in the row. One by one they would take Width loads, each of as many lines as the two. H200,
// 8387 x 8001 in bf16, us, so and one by one: rms_norm 71.6 and 75.2, layer_norm 92.4 and 99.4.
template <int Width, typename T>
__device__ __forceinline__ Vec<T, Width> load_across(const T* row, int i, int n) {
    const int past = i % Width;
    const T* low = row + i - past;
    if (past == 0) return load<Width>(low);
    if (i - past + 2 * Width <= n)
        return shifted<sizeof(T)>(load<Width>(low), load<Width>(low + Width), past * (int)sizeof(T));
    Vec<T, Width> found;
#pragma unroll
    for (int j = 0; j < Width; ++j) found.v[j] = row[i + j];
    return found;
}
