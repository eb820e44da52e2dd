// Sums in fp32, rounded once.
#include "reduce.cuh"

REDUCTION(reduce_sum, Values<GradualSum>)
