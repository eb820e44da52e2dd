// Gradients of add_rms_norm: those of rms_norm at the total, beside the gradient of the total itself.
// grad_y, grad_total, total, grad_x: [rows, n]; weight, grad_weight: [n].
#include "gradient_of_rms_norm.cuh"

ROW_GRADIENTS(RmsNormBackward<3>, 3, 1, 1)
