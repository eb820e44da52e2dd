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
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmux.judge.formats import block_scaled, candidate_side
from kernelmux.judge.formats.candidate_side import OnDevice

WIDENED = frozenset({torch.float32, torch.float16, torch.bfloat16})
CASTS = frozenset({torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16})


class OnMeta(OnDevice):
    """Every device is torch's meta device, where tensors have no memory, whatever the text says; no generator is used."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cpu:
            return args[0]
        return super().__torch_function__(
            func, types, args, {n: v for n, v in (kwargs or {}).items() if n != "generator"}
        )

    def _placed(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return self.device
        return str(self.device) if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu") else value


class InFloat64(TorchFunctionMode):
    """Every conversion to a floating format of 16 or 32 bits is one to float64; those to 8 bits stay, as they quantise.

    Bytes that are read as numbers of such a format, `x.view(torch.float32)`, are read so, and then raised.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in CASTS:
            return args[0].double()
        if func is candidate_side.COPIED:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.view and args[1:] and isinstance(args[1], torch.dtype):
            found = func(*args, **(kwargs or {}))  # bytes, read as numbers of that format
            return found.double() if args[1] in WIDENED else found
        args, named = candidate_side.mapped(_widened, (args, dict(kwargs or {})))
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
        if func is candidate_side.COPIED:
            return result
        if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((args, dict(kwargs or {})))):
            if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(result)):
                self.calls.append((getattr(func, "__name__", str(func)), args, dict(kwargs or {}), result))
        return result


class TooManyCalls(Exception):
    """A reference has made more calls of torch than it may."""


class FewCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends what makes more than `most` calls of operators, by `TooManyCalls`."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise TooManyCalls
        return func(*args, **(kwargs or {}))


def placed(device: torch.device) -> AbstractContextManager[None]:
    """Inside, cuda means `device`, in the text of references and for their random generators."""
    return candidate_side.placed(device, block_scaled.product)


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, tensors have a shape, and no memory; torch's distributions do not look at their parameters."""
    checked = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with torch.device("meta"), candidate_side.placed(torch.device("meta"), block_scaled.product, OnMeta):
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)


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
