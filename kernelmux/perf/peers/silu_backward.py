"""The gradient of SiLU by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.silu_backward(grad_out, x)  # type: ignore[no-any-return]


VARIANTS = {"torch_compile": compiled(with_torch)}
