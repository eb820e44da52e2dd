// What the warpgroup kernels of attention share, and shapes of products that head sizes other than 64 and 128 need, 16 to
// 256 columns in steps of 16.
#pragma once
#include "warpgroup.cuh"

// The warpgroup of this thread, which the compiler knows to be the same for the whole warp: descriptors made from it need
// no copies between registers.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }

// As matrix_descriptor of what lies `offset` bytes behind `tile`; a constant offset costs one addition.
__device__ __forceinline__ Descriptor descriptor_behind(const void* tile, int leading, int offset) {
    const unsigned start = (shared_address(tile) >> 4) + (unsigned)(leading >> 4 << 16);
    return (Descriptor)(1024 >> 4 | 1 << 30) << 32 | (start + offset / 16);
}

#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_32 TEN() "%10, %11, %12, %13, %14, %15"
#define NAMES_48 TEN() TEN(1) "%20, %21, %22, %23"
#define NAMES_80 TEN() TEN(1) TEN(2) "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_96 TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_112 FIFTY "%50, %51, %52, %53, %54, %55"
#define NAMES_144 FIFTY TEN(5) TEN(6) "%70, %71"
#define NAMES_160 FIFTY TEN(5) TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_208 FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) "%100, %101, %102, %103"
#define NAMES_224 FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) "%110, %111"
#define NAMES_240 \
    FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119"
#define SUMS_16 FOUR_SUMS(0), FOUR_SUMS(1)
#define SUMS_32 SIXTEEN_SUMS(0)
#define SUMS_48 SIXTEEN_SUMS(0), FOUR_SUMS(4), FOUR_SUMS(5)
#define SUMS_80 SUMS_64, FOUR_SUMS(8), FOUR_SUMS(9)
#define SUMS_96 SUMS_64, SIXTEEN_SUMS(8)
#define SUMS_112 SUMS_64, SIXTEEN_SUMS(8), FOUR_SUMS(12), FOUR_SUMS(13)
#define SUMS_144 SUMS_128, FOUR_SUMS(16), FOUR_SUMS(17)
#define SUMS_160 SUMS_128, SIXTEEN_SUMS(16)
#define SUMS_208 SUMS_192, FOUR_SUMS(24), FOUR_SUMS(25)
#define SUMS_224 SUMS_192, SIXTEEN_SUMS(24)
#define SUMS_240 SUMS_192, SIXTEEN_SUMS(24), FOUR_SUMS(28), FOUR_SUMS(29)

#define MORE_PRODUCTS(TYPE, ELEMENT_TYPE) \
    SHARED_PRODUCT(32, 16, TYPE, ELEMENT_TYPE, 16, 17, 18, ", %19, %20")   \
    SHARED_PRODUCT(80, 16, TYPE, ELEMENT_TYPE, 40, 41, 42, ", %43, %44")   \
    SHARED_PRODUCT(96, 16, TYPE, ELEMENT_TYPE, 48, 49, 50, ", %51, %52")   \
    SHARED_PRODUCT(112, 16, TYPE, ELEMENT_TYPE, 56, 57, 58, ", %59, %60")  \
    SHARED_PRODUCT(144, 16, TYPE, ELEMENT_TYPE, 72, 73, 74, ", %75, %76")  \
    SHARED_PRODUCT(160, 16, TYPE, ELEMENT_TYPE, 80, 81, 82, ", %83, %84")  \
    REGISTER_PRODUCT(16, TYPE, ELEMENT_TYPE, 8, 9, 10, 11, 12)             \
    REGISTER_PRODUCT(32, TYPE, ELEMENT_TYPE, 16, 17, 18, 19, 20)           \
    REGISTER_PRODUCT(48, TYPE, ELEMENT_TYPE, 24, 25, 26, 27, 28)           \
    REGISTER_PRODUCT(80, TYPE, ELEMENT_TYPE, 40, 41, 42, 43, 44)           \
    REGISTER_PRODUCT(96, TYPE, ELEMENT_TYPE, 48, 49, 50, 51, 52)           \
    REGISTER_PRODUCT(112, TYPE, ELEMENT_TYPE, 56, 57, 58, 59, 60)          \
    REGISTER_PRODUCT(144, TYPE, ELEMENT_TYPE, 72, 73, 74, 75, 76)          \
    REGISTER_PRODUCT(160, TYPE, ELEMENT_TYPE, 80, 81, 82, 83, 84)          \
    REGISTER_PRODUCT(176, TYPE, ELEMENT_TYPE, 88, 89, 90, 91, 92)          \
    REGISTER_PRODUCT(192, TYPE, ELEMENT_TYPE, 96, 97, 98, 99, 100)         \
    REGISTER_PRODUCT(208, TYPE, ELEMENT_TYPE, 104, 105, 106, 107, 108)     \
    REGISTER_PRODUCT(224, TYPE, ELEMENT_TYPE, 112, 113, 114, 115, 116)     \
    REGISTER_PRODUCT(240, TYPE, ELEMENT_TYPE, 120, 121, 122, 123, 124)     \
    REGISTER_PRODUCT(256, TYPE, ELEMENT_TYPE, 128, 129, 130, 131, 132)
MORE_PRODUCTS("f16", __half)
MORE_PRODUCTS("bf16", __nv_bfloat16)
