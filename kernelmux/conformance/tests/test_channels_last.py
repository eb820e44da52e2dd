"""Convolutions of channels-last images as deep as a tile, which kernels read in vectors, emulated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch

from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.variations import soak
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch

Call = tuple[tuple[tuple[int, ...], ...], dict[str, Any]]
CALLS: dict[str, Call] = {
    "conv2d": (((1, 64, 5, 6), (64, 64, 3, 3)), {"padding": 1, "stride": (1, 2)}),
    "conv2d_backward_input": (((1, 64, 4, 3), (64, 64, 2, 3)), {"stride": (2, 1), "dilation": (1, 2)}),
    "conv2d_backward_weight": (((2, 64, 5, 4), (2, 64, 5, 6)), {"kernel": (3, 3), "padding": (1, 0)}),
}
SIDE_BY_SIDE: dict[str, Call] = {  # for those whose windows do not overlap
    "conv2d": (((2, 3, 9, 12), (64, 3, 4, 4)), {"stride": (4, 4)}),
    "conv2d_backward_input": (((2, 64, 2, 3), (64, 3, 4, 4)), {"stride": (4, 4), "output_padding": (1, 0)}),
    "conv2d_backward_weight": (((2, 64, 2, 3), (2, 9, 9, 12)), {"kernel": (4, 4), "stride": (4, 4)}),
}
ROWS = "cuda/implicit_gemm_rows"
PHASES = "cuda/implicit_gemm_phases"
SUMS = "triton/sums"  # of fp32, where both tensors lie alike and strides are 1
SINGLE = SUMS, "cuda/bf16x6"
TURNED: Call = (((1, 64, 4, 3), (64, 64, 2, 3)), {"dilation": (1, 2)})  # of conv2d_backward_input, for those
FEW: Call = (((1, 64, 4, 3), (64, 3, 2, 3)), {"stride": (2, 1)})  # of conv2d_backward_input, for who has few channels
SHALLOW: Call = (
    ((1, 16, 5, 6), (64, 16, 3, 3)),
    {"padding": 1, "stride": (1, 2)},
)  # of conv2d, for who has no deep tiles
SHARE = 2.0**-9  # of the largest sum, twice what fp16 rounds by


def _variants() -> Iterator[tuple[str, str]]:
    for op in CALLS:
        for backend in ("triton", "cuda"):
            if not registered.unavailable(backend, torch.device("cpu")):
                found = (v for v in registered.variants(backend, op) if v != "pointwise")  # of contiguous images alone
                yield from ((op, f"{backend}/{variant}") for variant in found)


def _orders() -> Iterator[tuple[str, str, tuple[bool, bool]]]:
    """Every variant with both tensors channels-last, and with one of them: the first for one variant, then the second."""
    for (op, variant), one in zip(_variants(), cycle(((True, False), (False, True)))):
        yield from ((op, variant, last) for last in ((True, True), one) if variant != SUMS or all(last))


@pytest.mark.parametrize(("op", "variant", "last"), list(_orders()), ids=str)
@pytest.mark.filterwarnings("ignore::kernelmux.EmulationWarning")
def test_channels_last_images_give_the_sums_of_contiguous_ones(op: str, variant: str, last: tuple[bool, bool]) -> None:
    own = SIDE_BY_SIDE[op] if variant.endswith("/patches") else CALLS[op]
    shapes, along = {ROWS: SHALLOW, PHASES: FEW, SUMS: TURNED if op == "conv2d_backward_input" else own}.get(
        variant, own
    )
    rng, dtype = torch.Generator().manual_seed(0), torch.float32 if variant in SINGLE else torch.float16
    plain = [torch.randn(shape, generator=rng).to(dtype) for shape in shapes]
    formats = (torch.channels_last if yes else torch.contiguous_format for yes in last)
    tensors = [x.contiguous(memory_format=form) for x, form in zip(plain, formats, strict=True)]
    given: dict[str, Any] = dict(zip((t.name for t in catalog.spec(op).tensors), tensors, strict=False)) | along
    call = catalog.spec(op).bind(**given)
    (want,) = call.spec.evaluate(call)
    got = dispatch.call(call.spec, tuple(call.arguments.values()), variant)
    assert float((got - want).abs().max()) <= SHARE * float(want.abs().max())
    assert got.is_contiguous(memory_format=call.spec.outputs[0].memory_format(call))


def _with_gaps() -> list[tuple[str, str]]:
    """Those that take windows with columns between them, and deep images."""
    pairs = (pair for pair in _variants() if pair[0] != "conv2d_backward_input")
    return [pair for pair in pairs if pair[1] not in ("cuda/implicit_gemm_folded", ROWS)]


@pytest.mark.parametrize(("op", "variant"), _with_gaps())
@pytest.mark.filterwarnings("ignore::kernelmux.EmulationWarning")
def test_elements_between_the_places_are_not_read_into_the_sums(op: str, variant: str) -> None:
    channels = 24 if variant.endswith("/patches") else 80 if variant == "cuda/tiled" else 48
    dtype = torch.float32 if variant in SINGLE else torch.float16
    x = torch.ones(4, channels, 4, 8, dtype=dtype).contiguous(memory_format=torch.channels_last)
    x[:, :, 1::2], x[:, :, :, 1::2] = torch.inf, torch.inf
    out = 48 if variant == "triton/folded" else 16  # of fewer it leaves gradients of 1x1 kernels to `implicit_gemm`
    other = torch.ones(*((out, channels, 1, 1) if op == "conv2d" else (4, out, 2, 4)), dtype=dtype)
    if variant == SUMS:  # whose tensors lie alike
        other = other.contiguous(memory_format=torch.channels_last)
    given = (x, other, None) if op == "conv2d" else (other, x, (1, 1))
    got = dispatch.call(catalog.spec(op), (*given, (2, 2), (0, 0), (1, 1)), variant)
    assert torch.equal(got, torch.full_like(got, channels if op == "conv2d" else 32))


def test_many_calls_have_new_tensors_that_lie_alike() -> None:
    """What torch computes of channels-last images may have other bits than of contiguous ones, and lies otherwise."""
    spec = catalog.spec("conv2d")
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 2, 2)
    trial = Trial(spec, "", "", torch.float32, 0, (x, weight, None, 1, 0, 1))
    for fresh, given in zip(soak._fresh(trial)[:2], (x, weight), strict=True):
        assert torch.equal(fresh, given) and fresh.stride() == given.stride() and fresh.data_ptr() != given.data_ptr()
