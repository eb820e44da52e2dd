"""softmax, with the largest number taken off first."""

import numpy as np
import torch

from kernelmux.registry.backend import Implementation
from kernels_in_numpy._arrays import array, silent, tensor


@silent
def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    z = array(x) * np.float32(scale)
    if not z.size:
        return tensor(z, x.dtype)
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return tensor(e / e.sum(axis=axis, keepdims=True), x.dtype)


VARIANTS = {"formula": Implementation(fn=softmax, idea="three passes over an array in fp32")}
