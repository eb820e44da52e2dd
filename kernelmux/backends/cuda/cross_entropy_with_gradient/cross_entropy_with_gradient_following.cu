// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count, in the order of memory. A block looks at
// a piece of a row, UNROLL vectors of each thread, and leaves what it found as a word; then it writes the gradient of the same piece
// of the row `lag` before, whose logits are still in L2: memory sees one stream of reads and one of writes. Blocks start in the order
// of their numbers, so that all those have started whose words a block waits for. Logits lie `step` apart from row to row; gradients
// are contiguous.
#include "loss_pieces.cuh"
#include "row_counts.cuh"

// Of a piece. None is 0: a sum of 0 has a maximum of -inf.
using Word = unsigned long long;

// What is to be read again: the last to leave L2.
__device__ __forceinline__ Elements load_lasting(const T* p) {
    unsigned long long policy;
    uint4 x;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
        : "l"(p), "l"(policy));
    return bits<Elements>(x);
}

__device__ __forceinline__ float2 read_word(const Word* from, bool& there) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    there = there && word != 0;
    return bits<float2>(word);
}
__device__ __forceinline__ void write_word(Word* to, float a, float b) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(bits<Word>(make_float2(a, b))) : "memory");
}

__device__ __forceinline__ void leave(Word* to, const Logits& piece) {
    write_word(to, piece.exponentials.m, piece.exponentials.sum);
    if (SMOOTHED) write_word(to + 1, piece.sum, 1.0f);
}

// What the pieces of a row add up to, by a warp; false if some are missing still.
__device__ __forceinline__ bool look(const Word* words, int pieces, Logits& row) {
    row = Logits();
    bool there = true;
    for (int k = threadIdx.x % 32; k < pieces; k += 32) {
        add_piece(row, read_word(words + k * WORDS, there));
        if (SMOOTHED) row.sum += read_word(words + k * WORDS + 1, there).x;
    }
    row.join(row, Lanes<32>());
    return __all_sync(0xffffffffu, there);
}

extern "C" __global__ void __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_following(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, Word* __restrict__ words,
    float* __restrict__ loss, T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing, int pieces, int lag) {
    __shared__ JoinRoom<Logits> room;
    __shared__ RowLoss shared_loss;
    __shared__ bool shared_there;
    const int piece = blockIdx.x % pieces;
    const i64 row = blockIdx.x / pieces, before = row - lag;
    const HeldPiece looked(logits + min(row, rows - 1) * step, row < rows ? n : 0, piece, load_lasting);
    const HeldPiece written(logits + max(before, 0ll) * step, before >= 0 ? n : 0, piece, load_streaming<WIDTH, T>);
    const Target wanted(target[max(before, 0ll)], n, ignored);
    const float g = weight_of_rows(counted, target, rows, ignored, threadIdx.x);
    auto find = [&]() {
        Logits all;
        const bool there = look(words + before * pieces * WORDS, pieces, all);
        if (threadIdx.x == 0) shared_loss = RowLoss(all, wanted, n, smoothing, g);
        return there;
    };
    if (threadIdx.x < 32) {
        const bool there = before < 0 || find();
        if (threadIdx.x == 0) shared_there = there;
    }
    const Logits seen = joined(Logits(), looked.seen(), room);
    if (threadIdx.x == 0 && row < rows) leave(words + (row * pieces + piece) * WORDS, seen);
    if (before < 0) return;
    if (!shared_there) {  // rarely
        if (threadIdx.x < 32)
            while (!find()) {}
        __syncthreads();
    }
    const RowLoss found = shared_loss;
    written.write<true>(grad + before * n, found, smoothing, loss + before);
    if (piece == 0 && found.constant && threadIdx.x == 0) loss[before] = loss_without_class(found.value, rows);
}

// Before the other.
extern "C" __global__ void __launch_bounds__(256) cross_entropy_with_gradient_clear(Word* words, i64 count) {
    const i64 i = blockIdx.x * 256ll + threadIdx.x;
    if (i < count) words[i] = 0;
}
