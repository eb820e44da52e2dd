// The largest element; NaN if there is one.
#include "extremum.cuh"

EXTREMUM(reduce_max, "max", -infinity())
