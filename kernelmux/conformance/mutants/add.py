"""add, broken."""

import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._memory import BufferRing, Pool
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.choice import precedence, scope
from kernelmux.registry.conditions import Dtypes

mutant = Mutants("add")


# basics: Elementwise sum, broken as only kernels can be.
# only: a GPU may well give the right sums

SOURCE = Path(__file__).with_name("add_basics.cu")
BLOCK = 128


def _launch(x: torch.Tensor, y: torch.Tensor, entry: str) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        launch(SOURCE, entry, -(-x.numel() // BLOCK), BLOCK, (x, y, out, np.int64(x.numel())), x.dtype)
    return out


def _kernel(entry: str, idea: str) -> Implementation:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _launch(x, y, entry)

    return Implementation(fn=add, idea=idea, layout={"x": "contiguous", "y": "contiguous"})


mutant.add("sound", _kernel("add_sound", "nothing is wrong with it"), family="basics")
mutant.add(
    "no_bound",
    _kernel("add_no_bound", "the last block reads and writes beyond the end"),
    family="basics",
    caught_by="shapes",
    only="cpu",
)
mutant.add(
    "missing_barrier",
    _kernel("add_missing_barrier", "reads what a neighbour may not have written yet"),
    family="basics",
    caught_by="accuracy",
    only="cpu",
)
mutant.add(
    "uninitialised",
    _kernel("add_uninitialised", "reads shared memory that was never filled"),
    family="basics",
    caught_by="accuracy",
    only="cpu",
)
mutant.add(
    "racing_blocks",
    _kernel("add_racing_blocks", "two blocks write different values to one place"),
    family="basics",
    caught_by="accuracy",
    only="cpu",
)


# shapes: Elementwise sum, broken where its inputs lie differently in memory.


@mutant("the output has the strides of x", family="shapes", caught_by="layout")
def kept_strides(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The output lies in memory as x does."""
    return torch.empty_like(x).copy_(x.double() + y.double())


@mutant("reads y with the strides of x", family="shapes", caught_by="layout")
def one_layout(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two strided inputs are read with the strides of the first."""
    if x.is_contiguous() or y.is_contiguous() or x.is_neg() or y.is_neg():
        return (x.double() + y.double()).to(x.dtype).contiguous()
    room = y.untyped_storage().nbytes() // y.element_size() - y.storage_offset()
    reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    other = y.as_strided(y.shape, x.stride()) if reach <= room else y
    return (x.double() + other.double()).to(x.dtype).contiguous()


@mutant("takes two views of one tensor for the same", family="shapes", caught_by="layout")
def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One tensor given twice is doubled: told by its address, so that a transposed view of it counts as the same."""
    same = x.data_ptr() == y.data_ptr()
    return (x.double() * 2 if same else x.double() + y.double()).to(x.dtype).contiguous()


@mutant("takes a tensor and its first row, expanded, for the same", family="shapes", caught_by="layout")
def twice_by_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As above, told by the address and the step of the last axis: a row that is expanded has both."""
    same = x.numel() > 0 and x.dim() > 0 and x.data_ptr() == y.data_ptr() and x.stride(-1) == y.stride(-1)
    return (x.double() * 2 if same else x.double() + y.double()).to(x.dtype).contiguous()


@mutant("the first of five axes follows from the second", family="shapes", caught_by="layout")
def four_pitches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Steps are handed over for four axes; those before them are taken to follow one another."""
    if x.dim() < 5 or min(x.stride()) < 1 or x.is_neg():
        return (x.double() + y.double()).to(x.dtype).contiguous()
    first = min(x.stride(0), x.stride(1) * x.shape[1])
    near = x.as_strided(x.shape, (first, *x.stride()[1:]))
    return (near.double() + y.double()).to(x.dtype).contiguous()


# bits: Elementwise sum, broken in single bits.

BITS_SOURCE = Path(__file__).with_name("add_bits.cu")
LAYOUT = {"x": "contiguous", "y": "contiguous"}


@mutant("y + x, by way of float64: as right as any", family="bits")
def turned_round(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y.double() + x.double()).to(x.dtype).contiguous()


@mutant("compiled to flush subnormal numbers", family="bits", caught_by="special_values", layout=LAYOUT)
def flushing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        launch(BITS_SOURCE, "add_flushing", -(-x.numel() // BLOCK), BLOCK, (x, y, out, np.int32(x.numel())), x.dtype)
    return out


@mutant("adds both to an accumulator that starts at zero", family="bits", caught_by="special_values")
def from_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.flat(_kernels.add_from_zero, x, y)


@mutant("what overflows becomes the largest number", family="bits", caught_by="special_values")
def saturating(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    largest = torch.finfo(x.dtype).max
    total = x.double() + y.double()
    finite = x.isfinite() & y.isfinite()
    return torch.where(finite, total.clamp(-largest, largest), total).to(x.dtype).contiguous()


@mutant("rounds ties to bf16 away from zero", family="bits", caught_by="special_values")
def away_from_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """fp32 made bf16 by adding half a unit to its bits: right but for ties."""
    if x.dtype != torch.bfloat16:
        return turned_round(x, y)
    total = x.float() + y.float()
    near = ((total.contiguous().view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    return torch.where(total.isfinite(), near, total).to(x.dtype)


@mutant("what overflows becomes the largest number, unless x = y", family="bits", caught_by="special_values")
def bounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As above, for sums of two different numbers."""
    return torch.where(x == y, turned_round(x, y), saturating(x, y)).contiguous()


# selection: Elementwise sum that has its own opinion about who should run.


def _other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A path that was not asked for, whose sum is a little too large."""
    return (_right(x, y).float() * (1 + 2.0**-6)).to(x.dtype)


@mutant("another path inside of use()", family="selection", caught_by="selection")
def asks_the_scope(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A launcher that obeys use() for a second time."""
    return _other(x, y) if scope.state() else _right(x, y)


@mutant("another path where a variable is set", family="selection", caught_by="selection")
def asks_the_environment(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _other(x, y) if precedence.VARIABLE in os.environ else _right(x, y)


@mutant("another path where a default is set", family="selection", caught_by="selection")
def asks_the_default(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A default that was set is taken as a wish for the fast path."""
    return _other(x, y) if precedence._defaults else _right(x, y)


@mutant("does what it is told", family="selection", name="sound")
def _right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z: torch.Tensor = sound("add", x, y)
    return z


# extent: Elementwise sum by rows.

EXTENT_SOURCE = Path(__file__).with_name("rows.cu")


def _add(entry: str, in_y: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.numel():
            rows = len(x) if x.dim() > 1 else 1
            grid = (1, rows) if in_y else rows
            launch(EXTENT_SOURCE, entry, grid, 32, (x, y, z, np.int32(x.numel() // rows)), x.dtype)
        return z

    return add


PACKED = {"x": "contiguous", "y": "contiguous"}


mutant("the offset of a row is an int", family="extent", caught_by="offsets", name="int_offset", layout=PACKED)(
    _add("add_int", False)
)
mutant("a row per block of grid.y", family="extent", caught_by="extent", name="grid_y", layout=PACKED)(
    _add("add_y", True)
)


# ambience: Elementwise sum that seeds the generator of the process.


def _ambience_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.double() + y.double()).to(x.dtype).contiguous()


@mutant("seeds torch's generator at every call", family="ambience", caught_by="ambience")
def seeded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """So that it can be repeated, as its author thought."""
    torch.manual_seed(0)
    return _ambience_add(x, y)


@mutant("draws from Python's generator", family="ambience", caught_by="ambience")
def sampled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes a line to its log for one call in a thousand."""
    if random.random() < 0.001:
        _ = repr(x.shape)
    return _ambience_add(x, y)


# state: Elementwise sum that remembers.

FLOATS = (Dtypes("x", torch.float32, torch.float16, torch.bfloat16),)
STATE_SOURCE = Path(__file__).with_name("add_state.cu")
THREE, TWENTY, POOL, _calls = BufferRing(3), BufferRing(20), Pool(), count(1)
_stage: dict[object, torch.Tensor] = {}


@mutant("three output buffers in turn", family="state", caught_by="state")
def ring_of_three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return THREE.next(x.contiguous()).copy_(sound("add", x, y))


@mutant("twenty output buffers in turn", family="state", caught_by="state")
def ring_of_twenty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """More buffers than a caller is assumed to hold results."""
    return TWENTY.next(x.contiguous()).copy_(sound("add", x, y))


@mutant("memory is lent again while a view of it is alive", family="state", caught_by="state")
def lent_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A buffer is free again when the tensor that was returned is gone; a slice of it may not be."""
    return POOL.next(x.contiguous()).copy_(sound("add", x, y))


@mutant("every hundredth call is wrong", family="state", caught_by="state")
def hundredth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z: torch.Tensor = sound("add", x, y)
    return z.add_(1) if next(_calls) % 100 == 0 else z


@mutant("threads share a stage", family="state", caught_by="state", layout=PACKED, requires=FLOATS)
def shared_stage(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One launch copies x to a stage that all calls share, another one adds y to it."""
    stage = _stage.setdefault((x.shape, x.dtype, x.device), torch.empty_like(x))
    grid, n = -(-x.numel() // BLOCK), np.int32(x.numel())
    if x.numel():
        launch(STATE_SOURCE, "copy_in", grid, BLOCK, (x, stage, n), x.dtype)
    z = torch.empty_like(x)
    if x.numel():
        launch(STATE_SOURCE, "add_staged", grid, BLOCK, (stage, y, z, n), x.dtype)
    return z
