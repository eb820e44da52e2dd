// A block's tile of a convolution's product, for the kernels that keep tiles of both operands in shared memory.
//
// The index arithmetic (divisions, 64-bit strides, borders) is done once per row, column and k of a tile, by one
// thread, and left in tables; an element costs two entries, their sum and a comparison with the borders.
#pragma once
#include "convolution.cuh"

#ifndef LEFT_K_MAJOR  // whether k is the index with unit stride, so that the lanes of a warp follow it
#define LEFT_K_MAJOR 0
#endif
#ifndef RIGHT_K_MAJOR
#define RIGHT_K_MAJOR 1
#endif
#ifndef VECTOR  // elements per store of the result; divides every extent of its contiguous index
#define VECTOR 1
#endif

template <int BlockM, int BlockN, int BlockK>
struct Tables {
    Place m[BlockM], n[BlockN], left_k[2][BlockK], right_k[2][BlockK];  // two tiles of k, one in use and the next one

    template <int Threads>
    __device__ __forceinline__ void fill_rows(const Product& product, int m0, int n0) {
        for (int i = threadIdx.x; i < BlockM; i += Threads) m[i] = product.left_m(m0 + i);
        for (int i = threadIdx.x; i < BlockN; i += Threads) n[i] = product.right_n(n0 + i);
    }

    template <int Threads>
    __device__ __forceinline__ void fill_k(const Product& product, int tile, int k_begin, int k_end) {
        for (int i = threadIdx.x; i < 2 * BlockK; i += Threads) {
            const int k = k_begin + tile * BlockK + i % BlockK;
            if (i < BlockK) left_k[tile % 2][i] = product.left_k(k, k_end);
            else right_k[tile % 2][i - BlockK] = product.right_k(k, k_end);
        }
    }
};

// Blocks are (tile of a phase, piece of K).
__device__ __forceinline__ int phase_of_block(const Convolution& c) { return blockIdx.x / (int)c.tiles; }

// What a block works on: a tile of one phase's product, a piece of K. Tiles count through the columns first: those that
// run together share the patches, the larger operand, in L2.
template <int BlockM, int BlockN>
struct Work {
    int m0, n0, k_begin, k_end;
    bool any;

    __device__ __forceinline__ explicit Work(const Product& product) {
        const int tiles_n = cdiv(product.N, BlockN), tile = blockIdx.x % (int)product.c.tiles, split = product.c.k_split;
        m0 = tile / tiles_n * BlockM;
        n0 = tile % tiles_n * BlockN;
        k_begin = blockIdx.y * split;
        k_end = min(product.K, k_begin + split);
        any = m0 < product.M;  // later phases may have fewer positions
    }
};

#if PARTIAL
using Output = float;
#else
using Output = Element;
#endif

// The result where a block puts it: rounded once with its bias, or as it is among the parts.
struct Result {
    Output* out;
    const Element* bias;

    __device__ __forceinline__ Result(Output* out, const Element* bias, const Convolution& c) : out(out), bias(bias) {
        if constexpr (PARTIAL) this->out += (blockIdx.y * c.phases + phase_of_block(c)) * part_size(c);
    }

    // Width neighbours along the contiguous index, from (m, n) on.
    template <int Width>
    __device__ __forceinline__ void store(const Product& product, int m, int n, float (&sum)[Width]) const {
        if (m >= product.M || n >= product.N) return;
        if constexpr (PARTIAL) {
            ::store(out + product.part(m, n), from_floats<float>(sum));
        } else {
#pragma unroll
            for (int i = 0; i < Width; i++) sum[i] = biased(sum[i], bias, M_CONTIGUOUS ? n : n + i);
            ::store(out + product.result(m, n), from_floats<Element>(sum));
        }
    }
};
