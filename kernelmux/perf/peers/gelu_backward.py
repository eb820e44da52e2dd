"""The gradient of GELU by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(grad_out, x, approximate=approximate)  # type: ignore[no-any-return]


VARIANTS = {"torch_compile": compiled(with_torch)}
