// The smallest element; NaN if there is one.
#include "extremum.cuh"

EXTREMUM(reduce_min, "min", infinity())
