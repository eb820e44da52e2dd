"""Calls of 2^31 elements, of millions of rows and of batches beyond 65535: what they launch has a grid that GPUs take.

A GPU refuses others, and a call goes on to a lesser variant then. Nothing is compiled here, and tensors have no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernelmux.backends.cuda._launch import runtime
from kernelmux.backends.triton._launch import launch
from kernelmux.emulator.resources import MAX_GRID
from kernelmux.registry import catalog
from kernelmux.registry.observe.recorded_calls import RecordedCall, TensorForm
from kernelmux.registry.util import cards
from kernelmux.warm import pool

Call = tuple[str, dict[str, Any]]


def _tensor(*shape: int, dtype: str = "bf16", channels_last: bool = False) -> TensorForm:
    strides, size = [0] * len(shape), 1
    for axis in (1, 3, 2, 0) if channels_last else reversed(range(len(shape))):
        strides[axis] = size
        size *= shape[axis]
    return TensorForm(shape, tuple(strides), dtype)


def _of_rows(M: int, N: int) -> Iterator[Call]:
    x, weight, targets = _tensor(M, N), _tensor(N), _tensor(M, dtype="i64")
    for op in ("softmax", "log_softmax", "quantize_rowwise", "transpose"):
        yield op, {"x": x}
    yield "layer_norm", {"x": x, "weight": weight, "bias": weight}
    yield "rms_norm", {"x": x, "weight": weight}
    yield "add_rms_norm", {"x": x, "residual": x, "weight": weight}
    for op in ("softmax_backward", "log_softmax_backward"):
        yield op, {"grad_out": x, "y": x}
    for op in ("rms_norm_backward", "layer_norm_backward"):
        yield op, {"grad_out": x, "x": x, "weight": weight}
    for op in ("cross_entropy", "cross_entropy_with_gradient"):
        yield op, {"logits": x, "target": targets}
    for op in ("reduce_sum", "reduce_max", "argmax"):
        yield from ((op, {"x": x, "axis": axis}) for axis in (0, 1, None))


def _of_products(M: int, K: int, N: int) -> Iterator[Call]:
    one = TensorForm((), (), "fp32")
    for dtype in ("bf16", "fp32"):
        yield "matmul", {"a": _tensor(M, K, dtype=dtype), "b": _tensor(K, N, dtype=dtype)}
    yield "linear", {"x": _tensor(M, K), "weight": _tensor(N, K)}
    fp8 = {"a": _tensor(M, K, dtype="e4m3"), "b": TensorForm((K, N), (1, K), "e4m3")}
    yield "fp8_matmul", {**fp8, "scale_a": one, "scale_b": one}
    if K < 2**17:
        yield "int8_matmul", {"a": _tensor(M, K, dtype="i8"), "b": TensorForm((K, N), (1, K), "i8")}


def _of_attention(B: int, H: int, M: int, N: int, D: int) -> Iterator[Call]:
    for dtype in ("bf16", "fp32"):
        q, k, lse = _tensor(B, H, M, D, dtype=dtype), _tensor(B, H, N, D, dtype=dtype), _tensor(B, H, M, dtype="fp32")
        for causal in (False, True) if M <= N else (False,):
            yield "attention", {"q": q, "k": k, "v": k, "causal": causal}
            yield "attention_backward", {"grad_out": q, "q": q, "k": k, "v": k, "y": q, "lse": lse, "causal": causal}


def _of_images(N: int, C: int, H: int, W: int, K: int, side: int) -> Iterator[Call]:
    for last in (True, False):
        yield "max_pool2d", {"x": _tensor(N, C, H, W, channels_last=last), "kernel": 2}
        for dtype in ("bf16", "fp32"):
            x, y = (_tensor(N, n, H, W, dtype=dtype, channels_last=last) for n in (C, K))
            weight = _tensor(K, C, side, side, dtype=dtype, channels_last=last)
            yield "conv2d", {"x": x, "weight": weight, "padding": side // 2}
            yield "conv2d_backward_input", {"grad_out": y, "weight": weight, "padding": side // 2}
            yield "conv2d_backward_weight", {"grad_out": y, "x": x, "kernel": (side, side), "padding": side // 2}


def _calls() -> Iterator[Call]:
    for length in (2**29, 2**31 + 8):
        yield from (("add", {"x": _tensor(length), "y": _tensor(length)}), ("reduce_max", {"x": _tensor(length)}))
    for rows in ((2**28, 8), (8, 2**28), (70_000_000, 64), (1_000_000, 1001), (3, 70_000_001)):
        yield from _of_rows(*rows)
    middle = _tensor(100_000, 64, 100)
    yield from ((op, {"x": middle, "axis": 1}) for op in ("softmax", "reduce_sum", "argmax"))
    for batch in ((100_000, 16, 64, 16), (70_000, 100, 64, 100), (66_000, 1, 128, 128)):
        for dtype in ("bf16", "fp32"):
            yield "matmul", {"a": _tensor(*batch[:3], dtype=dtype), "b": _tensor(batch[0], *batch[2:], dtype=dtype)}
    for product in (
        (9_000_000, 64, 64),
        (64, 64, 9_000_000),
        (64, 9_000_000, 64),
        (9_000_001, 63, 65),
        (17, 64, 9_000_001),
    ):
        yield from _of_products(*product)
    yield "matvec", {"weight": _tensor(20_000_000, 64), "x": _tensor(1, 64)}
    yield "matvec", {"weight": _tensor(64, 20_000_000), "x": _tensor(4, 20_000_000)}
    for heads in (
        (70_000, 1, 64, 64, 64),
        (200_000, 1, 33, 33, 72),
        (100_000, 2, 1, 128, 128),
        (1, 1, 128, 1_000_000, 64),
    ):
        yield from _of_attention(*heads)
    for images in ((70_000, 16, 8, 8, 16, 3), (1, 16, 70_000, 100, 16, 3), (100_000, 64, 4, 4, 64, 1)):
        yield from _of_images(*images)
    for x in ((70_000, 8, 128, 64), (1, 8, 1_000_000, 64), (1, 100_000, 128, 64)):
        angles = _tensor(x[2], x[3] // 2)
        yield "rope", {"x": _tensor(*x), "cos": angles, "sin": angles}


class _Nothing:
    """In place of a compiled function."""

    def launch(self, *_: Any) -> None:
        """Nothing runs."""


@pytest.mark.parametrize("op", sorted({op for op, _ in _calls()}))
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_grids(backend: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(self: launch.Launch, *_: Any, **__: Any) -> None:
        assert all(have <= most for have, most in zip(self.grid, MAX_GRID, strict=True)), f"grid {self.grid}"

    monkeypatch.setattr(launch.Launch, "__call__", planned)
    monkeypatch.setattr(runtime.Kernel, "compiled", lambda *_: _Nothing())  # its launches look at the grid themselves
    known = set(catalog.spec(op).signature.parameters)
    for _, given in (call for call in _calls() if call[0] == op):
        assert given.keys() <= known
        with cards.standing_for(cards.table()["h200"]):
            chosen = pool.choices([RecordedCall(op, backend, tuple(given.items()))])[0]
            done = pool.compile_one(chosen)
        told = f"{chosen.variant} {', '.join(f'{name}={value}' for name, value in given.items())}"
        assert chosen.backend == backend and not done.problem, f"{told}: {done.problem}"
