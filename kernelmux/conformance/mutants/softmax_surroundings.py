"""softmax, broken in what it claims, or does beside its result: reads too far, changes the process, keeps state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._memory import Workspace
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("softmax")


# extent: Softmax whose rows are counted, or found, with too few bits.

SOURCE = Path(__file__).with_name("rows.cu")
MOST = 65535
Launch = Callable[[torch.Tensor, torch.Tensor, float], None]


def _softmax(start: Launch) -> Callable[[torch.Tensor, int, float], torch.Tensor]:
    """An operator from a launch on matrices, [rows, n]."""

    def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
        moved = x.movedim(axis, -1).contiguous()
        y = torch.empty(moved.shape, dtype=x.dtype, device=x.device)
        if x.numel():
            start(moved.view(-1, moved.shape[-1]), y, scale)
        return y.movedim(-1, axis).contiguous()

    return softmax


def _grid_y(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    launch(SOURCE, "softmax_y", (1, len(x)), 32, (x, y, np.int32(x.shape[1]), np.float32(scale)), x.dtype)


def _clamped(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    launch(SOURCE, "softmax_y", (1, min(len(x), MOST)), 32, (x, y, np.int32(x.shape[1]), np.float32(scale)), x.dtype)


def _int_rows(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    launch(SOURCE, "softmax_int", len(x), 32, (x, y, np.int32(x.shape[1]), np.float32(scale)), x.dtype)


def _walking(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    args = (x, y, np.int32(len(x)), np.int32(x.shape[1]), np.float32(scale))
    launch(SOURCE, "softmax_walking", (1, min(len(x), MOST)), 32, args, x.dtype)


mutant("a row per block of grid.y", family="extent", caught_by="extent", name="grid_y")(_softmax(_grid_y))
mutant("grid.y is clamped, and rows are forgotten", family="extent", caught_by="extent", name="clamped")(
    _softmax(_clamped)
)
mutant("the offset of a row is an int", family="extent", caught_by="offsets", name="int_rows")(_softmax(_int_rows))
mutant("the blocks of a clamped grid.y walk over the rows", family="extent", name="walking")(_softmax(_walking))


# ambience: Softmax, dependent on what is set around it.


def _ambience_softmax(z: torch.Tensor, top: torch.Tensor, axis: int, dtype: torch.dtype) -> torch.Tensor:
    e = torch.exp(z - top)
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


@mutant("draws numbers and leaves the generator as it was", family="ambience")
def own_generator(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Draws from torch's generator and puts it back as it was: allowed, if odd."""
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    warm = torch.rand(4, dtype=torch.float32, device="cpu").sum().item() * 0.0
    torch.set_rng_state(before)
    z = x.double() * scale + warm
    return _ambience_softmax(z, z.amax(axis, keepdim=True), axis, x.dtype)


_prepared: list[bool] = []


@mutant("the first call of all sets a flag for speed", family="ambience", caught_by="ambience")
def flag_of_first_call(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Once for the process, as a library does when it is loaded."""
    if not _prepared:
        _prepared.append(True)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    result: torch.Tensor = sound("softmax", x, axis, scale)
    return result


@mutant("computes in the default dtype", family="ambience", caught_by="ambience")
def usual_dtype(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Computes in torch's default dtype, which is fp32 as long as nothing else was set."""
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.to(torch.get_default_dtype()) * scale
    return _ambience_softmax(z, z.amax(axis, keepdim=True), axis, x.dtype)


@mutant("keeps the maxima in a buffer of the default dtype", family="ambience", caught_by="ambience")
def usual_scratch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The maxima of the rows go through a buffer of torch's default dtype."""
    from kernelmux.conformance.mutants import _kernels

    moved = x.movedim(axis, -1).contiguous()
    n = moved.shape[-1]
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    top = torch.empty(moved.numel() // n, device=x.device)
    _triton.launch(_kernels.row_maximum, top.numel(), top, moved, scale, n, BLOCK=_triton.power_of_two(n))
    z = moved.float() * scale
    out = _ambience_softmax(z, top.reshape(*moved.shape[:-1], 1), -1, x.dtype)
    return out.movedim(-1, axis).contiguous()


# state: Softmax that remembers.
# only: looks at values on the host, which a capture does not allow

LARGE = 8192  # elements
_large: dict[str, Any] = {}
WORKSPACE = Workspace()
_exponentials: dict[object, torch.Tensor] = {}
_last: dict[object, tuple[object, torch.Tensor]] = {}


def _state_softmax(x: torch.Tensor, axis: int, scale: float, scratch: torch.Tensor) -> torch.Tensor:
    """In three steps through a scratch of the size of x."""
    e = scratch.view(x.shape)
    z = x.float() * scale
    e.copy_(torch.exp((z - z.amax(axis, keepdim=True)).double()))
    total = e.sum(axis, keepdim=True)
    return torch.empty_like(x, memory_format=torch.contiguous_format).copy_(e / total)


@mutant("keeps the result of the last large input", family="state", caught_by="state")
def large_by_address(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Of large inputs the result is kept by address."""
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype, axis, scale)
    if x.numel() < LARGE:
        small: torch.Tensor = sound("softmax", x, axis, scale)
        return small
    if _large.get("key") != key:
        _large.update(key=key, y=sound("softmax", x, axis, scale))
    y: torch.Tensor = _large["y"].clone()
    return y


@mutant("threads share the exponentials", family="state", caught_by="state")
def shared_scratch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if not x.numel():
        return torch.empty_like(x)
    scratch = _exponentials.setdefault((x.numel(), x.device), torch.empty(x.numel(), device=x.device))
    return _state_softmax(x, axis, scale, scratch)


@mutant("a scratch per thread and stream, zeroed in every call", family="state")
def own_scratch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if not x.numel():
        return torch.empty_like(x)
    return _state_softmax(x, axis, scale, WORKSPACE.zeros(x.numel(), x.device))


@mutant("tells inputs apart by their first and last element", family="state", caught_by="state", only="cpu")
def by_ends(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The last result of a shape is given again, as a copy, when the first and the last element are the same."""
    ends = (axis, scale, *(x.flatten()[[0, -1]].tolist() if x.numel() else ()))
    key = (x.shape, x.dtype, x.device)
    if key not in _last or _last[key][0] != ends:
        _last[key] = ends, sound("softmax", x, axis, scale)
    return _last[key][1].clone()


# scalars: Softmax that keeps less of its scale than it is given.


@mutant("three digits of the scale are kept", family="scalars", caught_by="scalars")
def three_digits(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """As a text that chooses a compiled kernel has them."""
    result: torch.Tensor = sound("softmax", x, axis, float(f"{scale:.3g}"))
    return result
