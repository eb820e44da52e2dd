"""How a stranger's reference is run: on a device of ours, in float64, or with its calls noted.

A reference says `device="cuda"` and `.float()` in its own text. These modes of torch change what such words mean while it
runs; its file stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernelmux.judge.formats import block_scaled, candidate_side
from kernelmux.judge.formats.candidate_side import OnDevice

WIDENED = frozenset({torch.float32, torch.float16, torch.bfloat16})
CASTS = frozenset({torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16})


class OnOurDevice(OnDevice):
    """`OnDevice`, and products of 4-bit floats, which a CPU does not have, are ours."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch._scaled_mm and args[0].dtype == block_scaled.FLOAT4:
            args, named = pytree.tree_map(self._placed, (args, dict(kwargs or {})))
            return block_scaled.product(*args, **named)
        return super().__torch_function__(func, types, args, kwargs)


class InFloat64(TorchFunctionMode):
    """Every conversion to a floating format of 16 or 32 bits is one to float64; those to 8 bits stay, as they quantise."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in CASTS:
            return args[0].double()
        args, named = pytree.tree_map(_widened, (args, dict(kwargs or {})))
        return func(*args, **named)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in WIDENED else value


class NotedCall(TorchFunctionMode):
    """Keeps the calls of torch that make tensors, in order: function name, arguments, named arguments, result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((args, dict(kwargs or {})))):
            if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(result)):
                self.calls.append((getattr(func, "__name__", str(func)), args, dict(kwargs or {}), result))
        return result


def placed(device: torch.device) -> AbstractContextManager[None]:
    """Inside, cuda means `device`, in the text of references and for their random generators."""
    return candidate_side.placed(device, OnOurDevice)


@contextmanager
def exactly() -> Iterator[None]:
    """Inside, references compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            yield
    finally:
        torch.set_default_dtype(before)
