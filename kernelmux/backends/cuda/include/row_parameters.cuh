// The parameters of the kernels of row operators: spelt out, one pointer each, as a launch passes them.
#pragma once

#include "row_join.cuh"

#define X_PARAMETERS_1 const T* __restrict__ x0,
#define X_PARAMETERS_2 X_PARAMETERS_1 const T* __restrict__ x1,
#define W_PARAMETERS_0
#define W_PARAMETERS_1 const T* __restrict__ w0,
#define W_PARAMETERS_2 W_PARAMETERS_1 const T* __restrict__ w1,
#define Y_PARAMETERS_1 T* __restrict__ y0,
#define Y_PARAMETERS_2 Y_PARAMETERS_1 T* __restrict__ y1,
#define N_PARAMETERS_0
#define N_PARAMETERS_1 , float a
#define N_PARAMETERS_2 , float a, float b
#define X_PARAMETERS_3 X_PARAMETERS_2 const T* __restrict__ x2,
#define X_VALUES_1 {x0}
#define X_VALUES_2 {x0, x1}
#define X_VALUES_3 {x0, x1, x2}
#define W_VALUES_0 {}
#define W_VALUES_1 {w0}
#define W_VALUES_2 {w0, w1}
#define Y_VALUES_1 {y0}
#define Y_VALUES_2 {y0, y1}
#define N_VALUES_0 {}
#define N_VALUES_1 {a}
#define N_VALUES_2 {a, b}

#if CLUSTER > 1
#define CLUSTER_SHAPE __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_SHAPE
#endif
