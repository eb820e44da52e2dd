// Squares with one thing wrong each: for the tools that should name it.

constexpr int LINE = 32, WARPS = 32;  // a block moves WARPS lines of LINE elements

// Loads are coalesced. Neighbouring lanes store LINE elements apart: 32 sectors per request, one element of each used.
extern "C" __global__ void square_stores_scattered(const float* x, float* y, long long n) {
    __shared__ float tile[WARPS * (LINE + 1)];
    const long long first = blockIdx.x * (long long)(LINE * WARPS);
    const int warp = threadIdx.x / LINE, lane = threadIdx.x % LINE;
    const long long from = first + warp * LINE + lane, to = first + lane * LINE + warp;
    tile[warp * (LINE + 1) + lane] = from < n ? x[from] : 0.f;
    __syncthreads();
    const float value = tile[lane * (LINE + 1) + warp];
    if (to < n) y[to] = value * value;
}

// 96 values at a time, and a launch bound that leaves 32 registers: x and y may overlap, so every load comes first.
extern "C" __global__ void __launch_bounds__(1024, 2) square_spilled(const float* x, float* y, long long n) {
    constexpr int HELD = 96;
    const long long step = gridDim.x * (long long)blockDim.x, first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    float held[HELD];
    for (long long base = first; base < n; base += HELD * step) {
#pragma unroll
        for (int i = 0; i < HELD; i++) held[i] = base + i * step < n ? x[base + i * step] : 0.f;
#pragma unroll
        for (int i = HELD - 1; i >= 0; i--)
            if (base + i * step < n) y[base + i * step] = held[i] * held[i];
    }
}

// The last element goes to an address that belongs to nobody.
extern "C" __global__ void square_beyond(const float* x, float* y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i == n - 1 ? i + (1ll << 42) : i] = x[i] * x[i];
}
