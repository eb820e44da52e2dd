"""Gradient of log_softmax on CUDA."""

from typing import Any

import torch

from kernelmux.backends.cuda._families.rows import Rows, RowWork, row_variant
from kernelmux.backends.cuda._launch.runtime import Kernel, Source


class _ThreeBlocks(Rows):
    """Three blocks of 512 threads on a multiprocessor, with 40 registers each, where the rule has two with 64.

    H200, 16384 x 8192 in bf16: 190.2 us, and 198.0 with two. A thread with four vectors has no room for them in 40
    registers: 8192 x 16384 took 319 us.
    """

    def kernel(self, way: str, walk: str, work: RowWork, **defines: Any) -> Kernel:
        if (defines.get("GROUP"), defines.get("MIN_BLOCKS"), defines.get("VECTORS")) == (512, 2, 2):
            defines["MIN_BLOCKS"] = 3
        return super().kernel(way, walk, work, **defines)


_ROWS = _ThreeBlocks(Source(__file__), "log_softmax_backward", ("grad_out", "y"), outputs=("grad_x",))


def log_softmax_backward(walk: str, grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    return _ROWS.run(walk, (grad_out, y), axis=axis)[0]


VARIANTS = row_variant(log_softmax_backward, "grad_out", "y")
