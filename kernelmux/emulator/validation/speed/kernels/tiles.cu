// Tiles in shared memory: a transpose, and a matrix product with fused multiply-adds.
extern "C" __global__ void transpose_tiles(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += blockDim.y)
        if (row + i < rows && column < columns) tile[threadIdx.y + i][threadIdx.x] = x[(row + i) * columns + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += blockDim.y)
        if (row + i < columns && column < rows) y[(row + i) * rows + column] = tile[threadIdx.x][threadIdx.y + i];
}

extern "C" __global__ void matmul_tiles(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float tile_a[16][16], tile_b[16][16];
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.f;
    for (int start = 0; start < k; start += 16) {
        const int at_a = start + threadIdx.x, at_b = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && at_a < k ? a[row * k + at_a] : 0.f;
        tile_b[threadIdx.y][threadIdx.x] = at_b < k && column < n ? b[at_b * n + column] : 0.f;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum = fmaf(tile_a[threadIdx.y][i], tile_b[i][threadIdx.x], sum);
        __syncthreads();  // before the tiles are overwritten
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
