"""What surrounds a call in a process: settings that a user may have changed, and what a call must leave as it was."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernelmux.registry.choice import determinism
from kernelmux.registry.util import torch_modes

Setting = Callable[[torch.device], AbstractContextManager[Any]]


@contextmanager
def _set(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """A global setting with another value inside the `with`."""
    old = get()
    put(value)
    try:
        yield
    finally:
        put(old)


def _default_dtype(dtype: torch.dtype) -> Setting:
    return lambda device: _set(torch.get_default_dtype, torch.set_default_dtype, dtype)


def _deterministic(device: torch.device) -> AbstractContextManager[None]:
    """cuBLAS would refuse without a variable: on a GPU torch only warns."""
    return determinism.asked_for(warn_only=device.type == "cuda")


@contextmanager
def _anomaly(device: torch.device) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection")
        with torch.autograd.set_detect_anomaly(True):
            yield


FLAGS = (
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
)


def _precision() -> str:
    """float32_matmul_precision, which decides allow_tf32 as well; torch refuses to tell once the two have parted."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return f"at odds with allow_tf32 = {torch.backends.cuda.matmul.allow_tf32}"


@contextmanager
def flags_kept() -> Iterator[None]:
    """Whatever happens to torch's flags inside the `with` is undone behind it."""
    old, precision = [getattr(home, name) for home, name in FLAGS], _precision()
    try:
        yield
    finally:
        for (home, name), value in zip(FLAGS, old, strict=True):
            setattr(home, name, value)
        torch.set_float32_matmul_precision(precision if precision in ("highest", "high", "medium") else "highest")


@contextmanager
def _flags(device: torch.device) -> Iterator[None]:
    """Every flag the other way: a call that sets one and forgets it has set it to this value, or to the usual one."""
    with flags_kept():
        torch.set_float32_matmul_precision("high" if _precision() == "highest" else "highest")
        for home, name in FLAGS:
            setattr(home, name, not getattr(home, name))
        yield


ANOMALY = "anomaly detection"
DETERMINISTIC = "deterministic algorithms"
AUTOCAST = "autocast"
SETTINGS: dict[str, Setting] = {
    "default dtype float64": _default_dtype(torch.float64),
    "default dtype float16": _default_dtype(torch.float16),
    "default device meta": lambda device: torch.device("meta"),
    AUTOCAST: lambda device: torch.autocast(device.type, torch.bfloat16),
    DETERMINISTIC: _deterministic,
    ANOMALY: _anomaly,
    "grad mode": lambda device: torch.enable_grad(),
    "inference mode": lambda device: torch.inference_mode(),
    "torch's flags the other way": _flags,
    "another number of threads": lambda device: _set(
        torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() % 2 + 1
    ),
}
# Judged by the bound alone: torch shares a sum among its threads and chooses algorithms by its flags.
ROUNDING = ("another number of threads", "torch's flags the other way")
# Two settings of one thing cannot hold at once; each of these groups can.
APART = ("default dtype float16", "inference mode")
TOGETHER = (
    tuple(n for n in SETTINGS if n not in (*APART, *ROUNDING)),
    (*APART, "default device meta", AUTOCAST),
    ROUNDING,
)


_asked: ContextVar[tuple[str, ...] | None] = ContextVar("kernelmux_global_state", default=None)


@contextmanager
def within(names: tuple[str, ...], device: torch.device) -> Iterator[None]:
    """All of these settings at once."""
    token = _asked.set(names)
    try:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(SETTINGS[name](device))
            yield
    finally:
        _asked.reset(token)


def asked() -> tuple[str, ...] | None:
    """The settings of the `within` that is open, for a call that goes on in another process; None if none is."""
    return _asked.get()


def _subnormals() -> bool:
    """Whether the processor keeps subnormal numbers, which torch.set_flush_denormal changes and nothing tells."""
    return bool((torch.full((1,), 2.0**-1030, dtype=torch.float64, device="cpu") * 0.5).item())


def _gpu_in_use() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _generators() -> list[bytes]:
    """The states of the random generators that the whole process draws from."""
    states = [torch.get_rng_state()]
    if _gpu_in_use():
        states += torch.cuda.get_rng_state_all()
    return [s.numpy().tobytes() for s in states]


def _numpy_generator() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return (name, np.asarray(keys).tobytes(), *rest)


def _on_gpu(read: Callable[[], Any]) -> Any:
    return read() if _gpu_in_use() else None


KEPT: dict[str, Callable[[], Any]] = {
    "the default dtype": torch.get_default_dtype,
    "the default device": torch.get_default_device,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "warnings of deterministic algorithms": torch.is_deterministic_algorithms_warn_only_enabled,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "the number of threads": torch.get_num_threads,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
    "float32_matmul_precision": _precision,
    "torch.backends.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch.backends.cuda.matmul": lambda: {n: getattr(h, n) for h, n in FLAGS if h is torch.backends.cuda.matmul},
    "torch.backends.cudnn": lambda: {n: getattr(h, n) for h, n in FLAGS if h is torch.backends.cudnn},
    "torch.backends.cudnn.enabled": lambda: torch.backends.cudnn.enabled,
    "the kernels that scaled_dot_product_attention may use": lambda: (
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
    ),
    "subnormal numbers on the processor": _subnormals,
    "torch's random generators": _generators,
    "Python's random generator": random.getstate,
    "numpy's random generator": _numpy_generator,
    "numpy's errors": np.geterr,
    "the warnings filters": lambda: list(warnings.filters),
    "the recursion limit": sys.getrecursionlimit,
    "the environment": lambda: dict(os.environ),
    "the working directory": os.getcwd,
    "the current GPU": lambda: _on_gpu(torch.cuda.current_device),
    "the current stream": lambda: _on_gpu(lambda: torch.cuda.current_stream().cuda_stream),
}


def snapshot() -> dict[str, Any]:
    """Everything that a call must leave as it was.

    Read as it is, also where torch only pretends to compute or traces, and inside of torch.func, whose tensors have no
    memory.
    """
    with _disable_current_modes(), torch._C._DisableFuncTorch(), torch_modes.untraced():
        return {name: read() for name, read in KEPT.items()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Which of it is not what it was, with both values where they are short."""
    return [_difference(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _difference(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict):
        changed = [f"{name}.{k}" for k in {**old, **new} if old.get(k) != new.get(k)]
        return ", ".join(changed)
    short = len(str(old)) + len(str(new)) < 60
    return f"{name} ({old} before, {new} after)" if short else name
