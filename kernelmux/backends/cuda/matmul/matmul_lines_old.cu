// Copies of matrices whose lines begin at multiples of 128 bytes, as the copy engine likes them. Two loads of a thread are
// neighbours and leave as one store: so the lines that are read may begin anywhere.
#include "matmul.cuh"

#ifndef UNITS  // stores of a thread
#define UNITS 4
#endif
#ifndef ACROSS  // threads that have a line in common
#define ACROSS 256
#endif

constexpr int THREADS = 256, WIDTH = 4 / sizeof(Element);  // elements of a store

// Line i of x becomes line i of y, `length` elements and zeros up to the pitch. `ld` and `apart` are the distances of lines
// and of matrices of `rows` lines.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_lines(const Element* __restrict__ x, Element* __restrict__ y, i64 lines, int pieces, int length, int pitch,
                 int rows, i64 ld, i64 apart) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const i64 line = (i64)(blockIdx.x / pieces) * (THREADS / ACROSS) + threadIdx.x / ACROSS;
    const i64 first = ((i64)(blockIdx.x % pieces) * UNITS * ACROSS + threadIdx.x % ACROSS) * WIDTH;
    if (line >= lines) return;
    const Element* from = x + line / rows * apart + line % rows * ld;
    Vec<Element, WIDTH> held[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++)
#pragma unroll
        for (int v = 0; v < WIDTH; v++) {
            const i64 at = first + i * ACROSS * WIDTH + v;
            held[i].v[v] = at < length ? __ldg(from + at) : from_float<Element>(0.0f);
        }
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const i64 at = first + i * ACROSS * WIDTH;
        if (at < pitch) store(y + line * pitch + at, held[i]);
    }
}
