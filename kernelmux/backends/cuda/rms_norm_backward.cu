// Gradients of rms_norm. grad_out, x, grad_x: [rows, n]; weight, grad_weight: [n].
#include "gradient_of_rms_norm.cuh"

ROW_GRADIENTS(RmsNormBackward<2>, 2, 1, 1)
