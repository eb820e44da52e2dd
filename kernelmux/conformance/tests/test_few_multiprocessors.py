"""Triton's kernels whose programs stay and walk on, on a GPU of one multiprocessor: what small cases give them to do there,
a GPU of many takes at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.conformance.inputs import trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.emulator import recorder
from kernelmux.emulator.launch_log import Launch
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cards

pytestmark = pytest.mark.filterwarnings("ignore")

CALLS = [
    ("matmul", "persistent", "bf16", "a=2x130x24 b=2x24x40"),
    ("matmul", "k_major", "fp32", "a=130x24 b=24x40 precision=tf32"),
    ("matmul", "from_registers", "fp32", "a=130x24 b=24x136 precision=tf32"),
    ("linear", "specialised", "bf16", "x=130x24 weight=40x24 bias=40 activation=gelu"),
    ("int8_matmul", "persistent", "i8", "a=130x32 b=32x48"),
    ("fp8_matmul", "persistent", "e4m3", "a=130x32 b=32x48 scale_a=130x1 scale_b=1x1"),
    ("fp8_matmul", "persistent", "e4m3", "a=130x32 b=32x48 scale_a=scalar scale_b=scalar"),
    ("conv2d", "specialised", "bf16", "x=2x40x9x8 weight=24x40x3x3 padding=1"),
    ("conv2d", "folded", "bf16", "x=2x3x17x15 weight=8x3x7x7 bias=8 stride=2 padding=3"),
    ("attention", "specialised", "bf16", "q=1x3x140x104 k=1x3x260x104 v=1x3x260x104 causal=True"),
    ("attention", "specialised", "fp16", "q=1x2x70x96 k=1x1x130x96 v=1x1x130x96"),
    ("attention", "specialised", "bf16", "q=1x2x150x256 k=1x2x150x256 v=1x2x150x256 causal=True window=70"),
    ("rms_norm_backward", "fused", "bf16", "grad_out=9x1032 x=9x1032 weight=1032"),
]


@pytest.fixture(autouse=True)
def one() -> Iterator[None]:
    with cards.standing_for(replace(cards.table()["h200"], processors=1)):
        yield


@pytest.mark.parametrize(("op", "variant", "dtype", "text"), CALLS, ids=lambda part: str(part).replace(" ", ","))
def test_programs_walk_on(op: str, variant: str, dtype: str, text: str) -> None:
    """A program of one, or two to a multiprocessor, and what it makes is right."""
    assert any(launch.grid[0] <= 2 for launch in launched(op, variant, dtype, text))


def test_four_programs_of_short_rows_walk_on() -> None:
    rows, _ = launched("rms_norm_backward", "fused", "bf16", "grad_out=9x515 x=9x515 weight=515")
    assert rows.grid[0] == 4


def test_no_program_is_without_rows() -> None:
    """Of five rows that begin anywhere, where a multiprocessor has two programs and rows eight apart begin alike."""
    sums, *_ = launched("rms_norm_backward", "fused", "fp16", "grad_out=5x1025 x=5x1025 weight=1025")
    assert sums.grid[0] == 5


def launched(op: str, variant: str, dtype: str, text: str) -> list[Launch]:
    """What a call launches, which is right."""
    spec = catalog.spec(op)
    case = spec.case(text)
    given = trials.values(spec, case, trials.drawn(spec, case, dtypes.parse(dtype), 0), torch.device("cpu"))
    trial = Trial(spec, case.name, text, dtypes.parse(dtype), 0, given)
    with recorder() as launches:
        found = dispatch.outputs(op, *given, backend=f"triton/{variant}")
    for got, want in zip(found, trial.references, strict=True):
        scale = max(float(want.abs().max()), 1e-9)
        assert float((got.double() - want).abs().max()) <= 2**-6 * scale
    return list(launches)
