// gelu: y = x * P(normal variable < x), exact (erf) or with the tanh formula. x, y: n elements.
#include "elementwise.cuh"

#ifndef TANH
#define TANH 0
#endif
