// The largest element; NaN if there is one.
#include "extremum.cuh"

EXTREMUM(reduce_max, "max.NaN.f32", -infinity())
