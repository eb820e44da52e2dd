// Copies of the rows of a for lines of b that begin anywhere: x[TURNS, M, pitch], a copy for each distance from a multiple
// of 16 bytes that lines of b have. It begins with the element of a that meets the first such multiple, and behind the
// last whole 16 bytes there are zeros.
#include "common.cuh"
#include "dependent_launch.cuh"

using Element = ELEMENT;
constexpr int VECTOR = 16 / sizeof(Element);

extern "C" __global__ void __launch_bounds__(256)
    matmul_turns(Element* __restrict__ x, const Element* __restrict__ a, int K, int pitch, i64 a_line, i64 b_line) {
    let_next_start();
    const int at = blockIdx.x * 256 + threadIdx.x, m = blockIdx.y, turn = blockIdx.z;
    const int first = (VECTOR - turn * b_line % VECTOR) % VECTOR, length = (K - first) / VECTOR * VECTOR;
    if (at < pitch)
        x[((i64)turn * gridDim.y + m) * pitch + at] = at < length ? a[m * a_line + first + at] : Element(0.0f);
}
