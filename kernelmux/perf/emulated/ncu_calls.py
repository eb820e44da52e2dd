"""The launches that the emulator's trace and Nsight Compute are compared on: access patterns, and operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelmux import emulator
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import draw, generator, parse
from kernelmux.registry.spec import value_domains

SOURCE = Path(__file__).with_name("access_patterns.cu")
ELEMENTS = 1 << 14  # floats that a pattern may address
# Patterns as (stride, offset, mask, shift, active lanes), in elements of the entry's size; see the source.
STRAIGHT, EVERY_OTHER, SHIFTED, SAME = (1, 0, 31, 0, 32), (2, 0, 31, 0, 32), (1, 1, 31, 0, 32), (0, 0, 31, 0, 32)
HALF, FAR, FOUR_APART = (1, 0, 31, 0, 16), (32, 0, 31, 0, 32), (4, 0, 31, 0, 32)
HALVES_ALIKE, QUARTERS_ALIKE, TWO_PLACES = (1, 0, 15, 0, 32), (1, 0, 7, 0, 32), (1, 0, 1, 0, 32)
PAIRS_ALIKE, FOURS_ALIKE, NEXT_BUT_ONE_ALIKE, FIFTHS_ALIKE = (
    (1, 0, 30, 1, 32),
    (1, 0, 28, 2, 32),
    (1, 0, 29, 0, 32),
    (1, 0, 27, 0, 32),
)
SOME_PAIRS_ALIKE = (1, 0, 30, 1, 23)
PATTERNS = {
    "global_load_4": (STRAIGHT, EVERY_OTHER, SHIFTED, SAME, HALF, FAR, HALVES_ALIKE),
    "global_load_8": (STRAIGHT, EVERY_OTHER, SHIFTED, SAME, HALF, FAR, HALVES_ALIKE),
    "global_load_16": (STRAIGHT, EVERY_OTHER, SHIFTED, SAME, HALF, HALVES_ALIKE, QUARTERS_ALIKE),
    "global_store_4": (STRAIGHT, EVERY_OTHER, SHIFTED, SAME, HALF, FAR, HALVES_ALIKE),
    "global_store_8": (STRAIGHT, EVERY_OTHER, SHIFTED, SAME, HALF),
    "global_store_16": (STRAIGHT, EVERY_OTHER, SHIFTED, SAME, HALF, QUARTERS_ALIKE),
    "global_atomic_4": (STRAIGHT, EVERY_OTHER, SAME, FAR, TWO_PLACES, QUARTERS_ALIKE, HALVES_ALIKE, PAIRS_ALIKE),
    "global_reduction_4": (STRAIGHT, EVERY_OTHER, SAME, FAR, TWO_PLACES, QUARTERS_ALIKE),
    "global_copy_16": (STRAIGHT, EVERY_OTHER, SAME, HALF, SHIFTED),
    "shared_load_4": (STRAIGHT, EVERY_OTHER, FOUR_APART, FAR, SAME, HALF, (33, 0, 31, 0, 32), HALVES_ALIKE),
    "shared_load_8": (
        STRAIGHT,
        EVERY_OTHER,
        FOUR_APART,
        (16, 0, 31, 0, 32),
        SAME,
        HALF,
        HALVES_ALIKE,
        QUARTERS_ALIKE,
        PAIRS_ALIKE,
        FOURS_ALIKE,
        NEXT_BUT_ONE_ALIKE,
        FIFTHS_ALIKE,
        SOME_PAIRS_ALIKE,
    ),
    "shared_load_16": (
        STRAIGHT,
        EVERY_OTHER,
        FOUR_APART,
        (8, 0, 31, 0, 32),
        SAME,
        HALF,
        HALVES_ALIKE,
        QUARTERS_ALIKE,
        PAIRS_ALIKE,
        FOURS_ALIKE,
        NEXT_BUT_ONE_ALIKE,
        FIFTHS_ALIKE,
        SOME_PAIRS_ALIKE,
    ),
    "shared_store_4": (STRAIGHT, EVERY_OTHER, FOUR_APART, FAR, SAME, HALF, (33, 0, 31, 0, 32)),
    "shared_store_8": (STRAIGHT, EVERY_OTHER, FOUR_APART, (16, 0, 31, 0, 32), SAME, HALVES_ALIKE, PAIRS_ALIKE),
    "shared_store_16": (
        STRAIGHT,
        EVERY_OTHER,
        FOUR_APART,
        (8, 0, 31, 0, 32),
        SAME,
        HALVES_ALIKE,
        QUARTERS_ALIKE,
        PAIRS_ALIKE,
    ),
    "shared_atomic_4": (STRAIGHT, EVERY_OTHER, FAR, SAME, TWO_PLACES),
    "shared_matrix_16": (STRAIGHT, EVERY_OTHER, (8, 0, 31, 0, 32), QUARTERS_ALIKE, SAME, PAIRS_ALIKE),
}
CALLS = tuple(
    (op, backend, shape)
    for op, backends, shapes in (
        ("transpose", ("cuda", "triton"), ("x=64x64:fp32", "x=512x512:fp32")),
        ("softmax", ("cuda", "triton"), ("x=37x1000:fp32",)),
        ("reduce_sum", ("cuda",), ("x=64x1000:fp32,axis=1", "x=4096:fp32")),
        ("matmul", ("cuda",), ("a=128x128:fp32,b=128x128:fp32", "a=128x128:fp16,b=128x128:fp16")),
    )
    for backend in backends
    for shape in shapes
)


@dataclass(frozen=True)
class ComparedCall:
    """Something to launch on a device, with the words that name it."""

    label: str
    run: Any  # device -> None


def compared_calls() -> Iterator[ComparedCall]:
    """Everything that is compared, in the order in which it is launched."""
    for entry, patterns in PATTERNS.items():
        for pattern in patterns:
            stride, offset, mask, shift, lanes = pattern
            label = f"{entry} stride {stride} offset {offset} mask {mask} shift {shift} lanes {lanes}"
            yield ComparedCall(label, _Pattern(entry, pattern))
    for op, backend, shape in CALLS:
        for variant in registered.variants(backend, op):
            if (call := _Operator(op, f"{backend}/{variant}", shape)).runs:
                yield ComparedCall(f"{op} {backend}/{variant} {shape}", call)


class _Pattern:
    """One of the patterns of the source beside this file."""

    def __init__(self, entry: str, pattern: tuple[int, ...]) -> None:
        self.entry, self.pattern = entry, pattern

    def __call__(self, device: str) -> None:
        x, out = torch.zeros(ELEMENTS).to(device), torch.zeros(ELEMENTS).to(device)
        numbers = [np.int32(n) for n in self.pattern]
        if device == "cpu":
            _emulated().kernel(self.entry).launch(1, 32, (x, out, *numbers), names=("x", "out"))
        else:
            _compiled().get_function(self.entry)((1,), (32,), (x.data_ptr(), out.data_ptr(), *numbers))
            torch.cuda.synchronize()


@cache
def _emulated() -> Any:
    return emulator.load(emulator.compile_ptx(SOURCE.read_text(), filename=SOURCE.name))


@cache
def _compiled() -> Any:
    import cupy

    return cupy.RawModule(code=SOURCE.read_text(), options=("-std=c++17",))


class _Operator:
    """One call of an operator on a variant."""

    def __init__(self, op: str, backend: str, shape: str) -> None:
        self.spec, self.backend = catalog.spec(op), backend
        shapes, self.scalars, formats = parse(shape, self.spec)
        kinds = self.spec.dtypes_for(formats.get(self.spec.leading.name, dtypes.parse("fp32")), formats)
        drawn = {name: draw(shape, kinds[name], generator(op, name)) for name, shape in shapes.items()}
        self.tensors = value_domains.lawful(self.spec, drawn, self.scalars)

    @property
    def runs(self) -> bool:
        """Whether the variant takes such a call on an H200."""
        name, variant = self.backend.split("/")
        arguments: dict[str, Any] = {**self.tensors, **self.scalars}
        call = self.spec.bind(**arguments, capability=(9, 0))
        return not registered.variants(name, self.spec.name)[variant].reasons(call)

    def __call__(self, device: str) -> None:
        from kernelmux.registry.call import dispatch

        tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        dispatch.function(self.spec.name)(**tensors, **self.scalars, backend=self.backend)
        if device != "cpu":
            torch.cuda.synchronize()
