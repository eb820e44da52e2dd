"""The roofs, measured in the process that times the rows: memory, host link, and matrix products per format."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

import torch

from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.timing.clock import CudaStopwatch, SynchronousStopwatch, l2_bytes, rest

GIB = 1 << 30
ROUNDS, WARMUP = 15, 3
HELD_SIZE, HELD_SECONDS = 8192, 0.5
SIZES = (4096, 8192)  # the better of two, since power limits the larger
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
# Of 8 bits; where a is e5m2, torch takes no b of that format.
BYTES = {
    "e4m3": (torch.float8_e4m3fn, torch.float8_e4m3fn),
    "e5m2": (torch.float8_e5m2, torch.float8_e4m3fn),
    "i8": (torch.int8, torch.int8),
}


def measure(formats: Collection[str] = ()) -> Ceilings:
    """The ceilings of the current GPU, of products in the given formats or in all; all take about 9 s, with the rests."""
    copy, read = _memory()
    return Ceilings(
        copy=copy,
        read=read,
        host=_host_link(),
        matmul={name: _matmul(name) for name in FORMATS if _wanted(name, formats)} | _matmul_of_bytes(formats),
        held=_held_product(HELD_SIZE),
        gap=_median(CudaStopwatch(), lambda: None),
        noise=_noise(),
        l2=l2_bytes(),
    )


def _wanted(name: str, formats: Collection[str]) -> bool:
    return not formats or name in formats


def _median(stopwatch: Any, call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    times: list[float] = [stopwatch(call)[0] for _ in range(WARMUP + rounds)][WARMUP:]
    return statistics.median(times)


def _memory() -> tuple[float, float]:
    """Bytes per second of a large copy (read + write) and of a sum (read only)."""
    size = min(2 * GIB, torch.cuda.mem_get_info()[0] // 8)
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    stopwatch = CudaStopwatch(20.0)
    copy = 2 * source.nbytes / _median(stopwatch, lambda: target.copy_(source))
    read = source.nbytes / _median(stopwatch, lambda: source.sum())
    return copy, max(read, copy)


def _noise() -> float:
    """The same copy and the same product measured twice: the larger relative difference of the medians."""
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    y, stopwatch = torch.empty_like(x), CudaStopwatch(20.0)
    calls = (lambda: y.copy_(x), lambda: torch.mm(x, x, out=y))
    pairs = [(_median(stopwatch, call), _median(stopwatch, call)) for call in calls]
    return max(abs(a / b - 1) for a, b in pairs)


def _host_link() -> float:
    """Bytes per second from pinned host memory to the device."""
    source = torch.empty(GIB // 4, dtype=torch.uint8, pin_memory=True).random_()
    target = torch.empty_like(source, device="cuda")
    return source.nbytes / _median(SynchronousStopwatch(), lambda: target.copy_(source, non_blocking=True), 7)


def _matmul(name: str) -> float:
    """flop/s of torch's product of random matrices."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        return max(_product(n, FORMATS[name]) for n in SIZES)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _matmul_of_bytes(wanted: Collection[str] = ()) -> dict[str, float]:
    """The same for formats of 8 bits; of those that the GPU has.

    From sm_89 on the units of int8 and of fp8 have one rate, which torch's product of integers does not reach (H200: 958
    of 1750 TOP/s). Integers also take less power than random floats, so that the clock stays higher; the fp8 product of
    ones takes as little (1734 TFLOP/s, 1483 of random values). The ceiling of int8 is the better of the two.
    """
    known = BYTES if torch.cuda.get_device_capability() >= (8, 9) else {"i8": BYTES["i8"]}
    found = {}
    for name, formats in known.items():
        if _wanted(name, wanted) or (name == "e4m3" and "i8" in wanted):
            found[name] = max(_timed(n, _product_of_bytes(*_random(n, formats))) for n in SIZES)
    if "e4m3" in found and _wanted("i8", wanted):
        ones = torch.ones(max(SIZES), max(SIZES), device="cuda").to(torch.float8_e4m3fn)
        found["i8"] = max(found["i8"], _timed(max(SIZES), _product_of_bytes(ones, ones)))
    return found


def _random(n: int, formats: tuple[torch.dtype, torch.dtype]) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(n, n, device="cuda").mul_(40).to(f) for f in formats)
    return a, b


def _product_of_bytes(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """a @ b.t(), K contiguous in both, which fp8 needs; fp8 by the accumulator of the tensor cores alone."""
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b.t())
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _product(n: int, dtype: torch.dtype) -> float:
    return _timed(n, _product_of(n, dtype))


def _timed(n: int, call: Callable[[], Any]) -> float:
    """flop/s of a product of square matrices on a rested GPU."""
    rest()
    return 2 * n**3 / _median(CudaStopwatch(50.0), call)


def _product_of(n: int, dtype: torch.dtype) -> Callable[[], Any]:
    a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def _held_product(n: int) -> float:
    """flop/s of the bf16 product once power and clock have settled under it."""
    call, start = _product_of(n, torch.bfloat16), time.perf_counter()
    while time.perf_counter() - start < HELD_SECONDS:
        for _ in range(ROUNDS):
            call()
        torch.cuda.synchronize()
    return 2 * n**3 / _median(CudaStopwatch(50.0), call)
