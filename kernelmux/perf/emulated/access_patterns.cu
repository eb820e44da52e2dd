// One warp, one access pattern each: what a profiler counts for it shows how the hardware splits a request.
// Lane l accesses element ((l & mask) * stride >> shift) + offset; lanes from `active` on take no part.
// Results go through `out`, one coalesced word per lane, so that no access can be left out.

#define INDEX (((((int)threadIdx.x & mask) * stride) >> shift) + offset)
#define PARAMETERS int stride, int offset, int mask, int shift, int active

template <typename V>
__device__ float sum(V v) {  // of all words: the compiler does not load a word that is not used
    float total = 0.0f;
    for (int i = 0; i < (int)(sizeof(V) / 4); ++i) total += reinterpret_cast<const float*>(&v)[i];
    return total;
}

template <typename V>
__device__ V filled(float value) {
    V v;
    for (int i = 0; i < (int)(sizeof(V) / 4); ++i) reinterpret_cast<float*>(&v)[i] = value;
    return v;
}

// ---- global memory

template <typename V>
__device__ void global_load(const float* x, float* out, PARAMETERS) {
    if ((int)threadIdx.x < active) out[threadIdx.x] = sum(reinterpret_cast<const V*>(x)[INDEX]);
}

template <typename V>
__device__ void global_store(float* out, PARAMETERS) {
    if ((int)threadIdx.x < active) reinterpret_cast<V*>(out)[INDEX] = filled<V>(1.0f);
}

#define GLOBAL(V, bytes)                                                                                     \
    extern "C" __global__ void global_load_##bytes(const float* x, float* out, PARAMETERS) {                 \
        global_load<V>(x, out, stride, offset, mask, shift, active);                                              \
    }                                                                                                        \
    extern "C" __global__ void global_store_##bytes(const float* x, float* out, PARAMETERS) {                \
        global_store<V>(out, stride, offset, mask, shift, active);                                                \
    }
GLOBAL(float, 4)
GLOBAL(float2, 8)
GLOBAL(float4, 16)

extern "C" __global__ void global_atomic_4(const float* x, float* out, PARAMETERS) {
    if ((int)threadIdx.x < active) out[2048 + threadIdx.x] = atomicAdd(out + INDEX, 1.0f);
}

extern "C" __global__ void global_reduction_4(const float* x, float* out, PARAMETERS) {
    if ((int)threadIdx.x < active) atomicAdd(out + INDEX, 1.0f);
}

extern "C" __global__ void global_copy_16(const float* x, float* out, PARAMETERS) {
    __shared__ float4 held[32];
    const unsigned to = (unsigned)__cvta_generic_to_shared(held + threadIdx.x);
    if ((int)threadIdx.x < active)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * INDEX));
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    out[threadIdx.x] = sum(held[threadIdx.x]);
}

// ---- shared memory: 32 KiB, cleared without conflicts

constexpr int WORDS = 8192;

__device__ float* cleared() {
    __shared__ __align__(128) float held[WORDS];
    for (int i = threadIdx.x; i < WORDS; i += 32) held[i] = 0.0f;
    __syncthreads();
    return held;
}

template <typename V>
__device__ void shared_load(float* out, PARAMETERS) {
    const V* held = reinterpret_cast<const V*>(cleared());
    if ((int)threadIdx.x < active) out[threadIdx.x] = sum(held[INDEX]);
}

template <typename V>
__device__ void shared_store(float* out, PARAMETERS) {
    float* held = cleared();
    if ((int)threadIdx.x < active) reinterpret_cast<V*>(held)[INDEX] = filled<V>(1.0f);
    __syncthreads();
    out[threadIdx.x] = held[threadIdx.x];
}

#define SHARED(V, bytes)                                                                                     \
    extern "C" __global__ void shared_load_##bytes(const float* x, float* out, PARAMETERS) {                 \
        shared_load<V>(out, stride, offset, mask, shift, active);                                                 \
    }                                                                                                        \
    extern "C" __global__ void shared_store_##bytes(const float* x, float* out, PARAMETERS) {                \
        shared_store<V>(out, stride, offset, mask, shift, active);                                                \
    }
SHARED(float, 4)
SHARED(float2, 8)
SHARED(float4, 16)

extern "C" __global__ void shared_atomic_4(const float* x, float* out, PARAMETERS) {
    int* held = reinterpret_cast<int*>(cleared());
    if ((int)threadIdx.x < active) out[threadIdx.x] = atomicAdd(held + INDEX, (int)threadIdx.x);
}

// ldmatrix.x4: lane l has the address of row l % 8 of matrix l / 8; here element INDEX of 16 bytes.
extern "C" __global__ void shared_matrix_16(const float* x, float* out, PARAMETERS) {
    const float4* held = reinterpret_cast<const float4*>(cleared());
    unsigned a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"((unsigned)__cvta_generic_to_shared(held + INDEX)));
    out[threadIdx.x] = __uint_as_float(a ^ b ^ c ^ d);
}
