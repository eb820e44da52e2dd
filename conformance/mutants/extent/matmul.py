"""Matrix product with the offset into a in 32 bits."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._batches import each
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Path(__file__).with_name("rows.cu")


@each
def int_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    m, n = a.shape[0], b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    if c.numel():
        sizes = (np.int32(m), np.int32(n), np.int32(a.shape[1]))
        launch(SOURCE, "matmul_int_a", (-(-m // 8), -(-n // 8)), 64, (a, b, c, *sizes), a.dtype)
    return c


VARIANTS = {
    "int_rows": Implementation(
        fn=int_rows,
        idea="row * K in 32 bits",
        arithmetic="fp32_sequential",
        layout={"a": "contiguous", "b": "contiguous"},
        requires=(AtMost("N", 8 * 65535),),
    )
}

CAUGHT_BY = {"int_rows": "offsets"}
