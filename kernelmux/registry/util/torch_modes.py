"""What surrounds a call beyond its arguments: gradients, tracing, wrapped and fake tensors, autocast.

A backend made of torch's operators takes part in all of it. A kernel sees addresses, and nothing that torch keeps beside
them: its calls are nodes of autograd (`autograd`), or operators of torch where something traces or wraps (`torch_ops`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

_C: Any = torch._C
transformed = _C._are_functorch_transforms_active  # whether a transform of torch.func runs, on whichever tensors
_MODES = tuple(getattr(_C._TorchDispatchModeKey, name) for name in ("FUNCTIONAL", "PROXY", "FAKE"))
LARGE = 2**30  # bytes that a device may not have
_BATCHED = _C._parse_dispatch_key("Batched")  # of autograd's `is_grads_batched`; torch.func has a key of its own


def traces() -> bool:
    """Whether a dispatch mode traces. One that only watches, as the conformance suite's, lets kernels run."""
    return any(_C._get_dispatch_mode(key) is not None for key in _MODES)


class Surroundings(NamedTuple):
    """What surrounds a call beyond its arguments, read once and passed on.

    watched: torch stands between the call and the memory of its tensors. traced: torch.jit.trace looks. modes: there are
    dispatch modes. memory: each tensor has memory of its own (`has_memory`). forward: forward derivatives are computed.
    grad: gradients are recorded. deterministic: torch.get_deterministic_debug_mode().
    """

    watched: bool
    traced: bool
    modes: bool
    memory: bool
    forward: bool
    grad: bool
    deterministic: int


def surroundings(values: Iterable[Any]) -> Surroundings:
    """The surroundings of a call with these arguments."""
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    traced, modes = _C._get_tracing_state() is not None, _C._len_torch_dispatch_stack() > 0
    memory = all(map(has_memory, tensors))
    watched = traced or transformed() or (modes and traces()) or not memory or any([x.is_meta for x in tensors])
    forward, grad = forward_ad._current_level >= 0, torch.is_grad_enabled()
    return Surroundings(watched, traced, modes, memory, forward, grad, torch.get_deterministic_debug_mode())


def watched(values: Iterable[Any]) -> bool:
    """Whether torch stands between a call and the memory of its tensors: then it runs as an operator of torch.

    A trace (a dispatch mode, torch.jit), a transform of torch.func, a tensor whose operators are Python code, or one
    without memory.
    """
    return surroundings(values).watched


Lack = Callable[[str], str | None]


def reasons(name: str, tensors: dict[str, torch.Tensor], lack: Lack, instead: str) -> list[str]:
    """Why the backend `name`, whose kernels see nothing but addresses, cannot run a call.

    lack: why there is no gradient for a tensor of the call, or None. instead: what could run it.
    """
    return [text for key, x in tensors.items() if (text := _reason(name, key, x, lack, instead))]


def _reason(name: str, key: str, x: torch.Tensor, lack: Lack, instead: str) -> str | None:
    if is_dual(x):
        return f"{key} carries a forward derivative, which {name} does not compute: pass its primal, or {instead}"
    if x.requires_grad and torch.is_grad_enabled() and (why := lack(key)):
        return f"{key} requires a gradient, and {why}: call it under torch.no_grad(), pass {key}.detach(), or {instead}"
    return None


def mapped(x: torch.Tensor) -> bool:
    """Whether vmap maps over x, at any depth."""
    functorch = _C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def innermost(x: torch.Tensor) -> torch.Tensor:
    """The tensor behind all that torch.func wraps around x, with the axes of all levels of vmap."""
    while _C._functorch.is_functorch_wrapped_tensor(x):
        x = _C._functorch.get_unwrapped(x)
    return x


def without_examples(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether vmap maps over a batch of none, which torch's own rules do not all take."""
    return transformed() and any(mapped(x) and x.numel() and not innermost(x).numel() for x in tensors)


def is_dual(x: torch.Tensor) -> bool:
    """Whether x carries a tangent of forward automatic differentiation."""
    return forward_ad._current_level >= 0 and carries_tangent(x)


def carries_tangent(x: torch.Tensor) -> bool:
    """Whether x has a tangent at the one level that torch has; a graph of torch.compile enters it unseen by Python."""
    return torch._VF._unpack_dual(x, level=0)[1] is not None


def has_memory(x: torch.Tensor) -> bool:
    """Whether x has a place in memory of its own.

    It has none where it stands for other tensors (inside of vmap, grad, jvp, functionalize or autograd's
    `is_grads_batched`), and where torch's operators on it are Python code of a class (FakeTensor, DTensor).
    """
    if _C._functorch.is_functorch_wrapped_tensor(x) or torch._is_functional_tensor(x):
        return False
    keys = _C._dispatch_keys(x)
    return not (keys.has(_C.DispatchKey.Python) or keys.has(_BATCHED))


@contextmanager
def outside() -> Iterator[None]:
    """Inside, nothing of what a caller has put around a call: what is made there stays when the call is over.

    No mode and no transform of torch.func, no trace, no default device, no inference mode.
    """
    with (
        _disable_current_modes(),
        _C._DisableFuncTorch(),
        _C.DisableTorchFunction(),
        torch.inference_mode(False),
        untraced(),
    ):
        yield


@contextmanager
def untraced() -> Iterator[None]:
    """Inside, torch.jit.trace does not look: sizes are numbers and not nodes of its graph."""
    state = _C._get_tracing_state()
    if state is None:
        yield
        return
    _C._set_tracing_state(None)
    try:
        yield
    finally:
        _C._set_tracing_state(state)


@contextmanager
def plain(device: torch.device) -> Iterator[None]:
    """Inside, autocast is off: dtypes are the spec's."""
    if device.type not in ("cpu", "cuda"):  # without memory, nothing is computed
        yield
        return
    with torch.autocast(device.type, enabled=False):
        if device.type == "cpu":
            yield
        else:
            with torch.autocast("cpu", enabled=False):  # operands in host memory
                yield


def shortage(device: torch.device, size: int) -> str | None:
    """Why `size` bytes cannot be had on a device, or None; asks for the whole of its memory, used or not."""
    if size < LARGE:
        return None
    whole = _whole(device)
    return f"{size / 2**30:.0f} GiB, and {device} has {whole / 2**30:.0f} GiB" if whole and size > whole else None


def _whole(device: torch.device) -> int:
    """The memory of a device in bytes; 0 if that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) if torch.cuda.is_available() else 0
    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
