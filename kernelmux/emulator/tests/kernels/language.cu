// Things of the language that take other ways through the emulator: calls, recursion, switches, local arrays, printf.
struct Line { float slope; int offset; char unused; };

__device__ __noinline__ float horner(float x, int depth) { return depth ? x * horner(x, depth - 1) + 1.f : x; }

__device__ __noinline__ Line make_line(float slope, int offset) { return {slope, offset, 'x'}; }

extern "C" __global__ void calls(const float* x, float* y) {
    int i = threadIdx.x;
    y[i] = horner(x[i], i % 4);
}

extern "C" __global__ void structs(const float* x, float* y, Line line) {
    int i = threadIdx.x;
    Line other = make_line(line.slope * 2.f, i);
    y[i] = x[i] * line.slope + line.offset + other.slope + other.offset;
}

extern "C" __global__ void switches(const int* x, int* y) {
    int i = threadIdx.x, v = x[i];
    switch (v) {
        case 0: v = i * 3; break;
        case 1: v = i + 100; break;
        case 2: v = i ^ 5; break;
        case 3: v = i / 7; break;
        case 4: v = -i; break;
        case 5: v = i << 2; break;
        case 6: v = i % 3; break;
        default: v = 1000;
    }
    y[i] = v;
}

extern "C" __global__ void sorted_windows(const float* x, float* y, int n) {
    float window[8];
    int i = threadIdx.x;
    for (int j = 0; j < 8; j++) window[j] = x[(i + j) % n];
    for (int top = 7; top > 0; top--)
        for (int j = 0; j < top; j++)
            if (window[j] > window[j + 1]) { float t = window[j]; window[j] = window[j + 1]; window[j + 1] = t; }
    y[i] = window[(int)fabsf(x[i] * 100.f) & 7];
}

extern "C" __global__ void prints(const float* x) {
    if (threadIdx.x % 16 == 3) printf("thread %d has %.3f, %s\n", threadIdx.x, x[threadIdx.x], "done");
}

extern "C" __global__ void asserts(const int* x) { assert(x[threadIdx.x] < 40); }

__constant__ float table[4] = {1.f, 2.f, 4.f, 8.f};
__device__ int counter = 7;

extern "C" __global__ void variables(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x] * table[threadIdx.x & 3] + counter;
    __syncthreads();
    if (threadIdx.x == 0) counter++;
}

extern "C" __global__ void spaces(const float* x, float* y) {
    __shared__ float near[64];
    near[threadIdx.x] = 2.f * x[threadIdx.x];
    __syncthreads();
    const float* from = threadIdx.x & 1 ? near : x;  // a generic pointer: lanes in two spaces
    y[threadIdx.x] = from[threadIdx.x] + (__isShared(from) ? 100.f : 0.f);
}
