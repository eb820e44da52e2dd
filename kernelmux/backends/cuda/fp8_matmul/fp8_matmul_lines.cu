// Copies of matrices of bytes whose lines begin at multiples of 16, as the copy engine reads them.
//
//   -DVECTOR=1, 2 or 4   bytes of a load: as many as divide where the lines begin and their length
//   -DACROSS=32 to 256   threads that have a line in common
#include "common.cuh"

constexpr int THREADS = 256, UNITS = 4;  // words of 4 bytes that a thread has

// Line i of x, of `length` bytes, becomes line i of y. Neighbouring loads of a thread fill a word, so that lines may begin
// anywhere and all stores are whole.
extern "C" __global__ void __launch_bounds__(THREADS)
    fp8_matmul_lines(const unsigned char* __restrict__ x, unsigned char* __restrict__ y, i64 lines, int pieces, int length,
                     i64 from, i64 to) {
    const i64 line = (i64)(blockIdx.x / pieces) * (THREADS / ACROSS) + threadIdx.x / ACROSS;
    const i64 first = ((i64)(blockIdx.x % pieces) * UNITS * ACROSS + threadIdx.x % ACROSS) * 4;
    if (line >= lines) return;
    x += line * from, y += line * to;
    Vec<unsigned char, 4> held[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++)
#pragma unroll
        for (int v = 0; v < 4; v += VECTOR) {
            const i64 at = first + i * ACROSS * 4 + v;
            Vec<unsigned char, VECTOR> some = {};
            if (at < length) some = load_constant<VECTOR>(x + at);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) held[i].v[v + j] = some.v[j];
        }
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const i64 at = first + i * ACROSS * 4;
        if (at < to) store(y + at, held[i]);
    }
}
