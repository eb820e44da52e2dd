"""reduce_sum, broken."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("reduce_sum")


# basics: Sum, broken.


@mutant("nothing is wrong with it", family="basics", name="sound")
def basics_sound(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim).to(x.dtype) if axes else x.clone()


@mutant("accumulates in the storage dtype", family="basics", caught_by="accuracy")
def low_accumulator(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A sequential sum in the storage dtype, fp32 in bf16."""
    low = x.to(torch.bfloat16) if x.dtype == torch.float32 else x
    flat = low.flatten() if axis is None else low.movedim(axis, 0)
    total = torch.zeros(flat.shape[1:] if axis is not None else (), dtype=low.dtype, device=x.device)
    for chunk in flat.split(16):
        total = total + chunk.double().sum(0).to(low.dtype)
    return total.to(x.dtype).reshape(basics_sound(x, axis, keepdim).shape)


@mutant("divides by the number of terms", family="basics", caught_by="exact")
def mean(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    count = x.numel() if axis is None else x.shape[axis]
    return basics_sound(x, axis, keepdim) / max(count, 1)


@mutant("the sum over nothing is NaN", family="basics", caught_by="shapes")
def nan_when_empty(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    out = basics_sound(x, axis, keepdim)
    return out if x.numel() else torch.full_like(out, torch.nan)


def _forgetful(x: torch.Tensor, axis: int | None, keepdim: bool, ways: Callable[[int], bool]) -> torch.Tensor:
    """The last term is left out where the number of terms has a way of its own."""
    terms = x.flatten() if axis is None else x.movedim(axis, -1)
    if terms.dim() == 0 or not ways(terms.shape[-1]):
        return basics_sound(x, axis, keepdim)
    out = terms[..., :-1].double().sum(-1).to(x.dtype)
    return out.reshape(basics_sound(x, axis, keepdim).shape)


@mutant("the way for multiples of 512 leaves the last term out", family="edges", caught_by="shapes")
def multiples_of_512(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Only from 1536 on is it worth the while."""
    return _forgetful(x, axis, keepdim, lambda terms: terms > 1024 and terms % 512 == 0)


@mutant("keepdim is ignored", family="basics", caught_by="accuracy")
def forgotten_keepdim(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return basics_sound(x, axis, False)


@mutant("infinities are masked out", family="basics", caught_by="special_values")
def skipped_infinity(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Skips infinities, as a mask by comparison does."""
    return basics_sound(torch.where(x.isinf(), 0.0, x), axis, keepdim)


# shapes: Sum, broken for axes of length one and for nothing at all.


@mutant("nothing is wrong with it", family="shapes", name="sound")
def shapes_sound(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim).to(x.dtype) if axes else x.clone()


@mutant("drops every axis of length one", family="shapes", caught_by="shapes")
def squeezed(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Keeps the summed axis, then drops every axis of length one."""
    if axis is None or keepdim:
        return shapes_sound(x, axis, keepdim)
    return shapes_sound(x, axis, True).squeeze().contiguous()


@mutant("returns the input where each sum has one term", family="shapes", caught_by="shapes")
def view_of_one(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A sum of one term is that term, and needs no copy."""
    if axis is not None and x.shape[axis] == 1 and x.is_contiguous():
        return x if keepdim else x.squeeze(axis)
    return shapes_sound(x, axis, keepdim)


@mutant("the sum over nothing is one zero, expanded", family="shapes", caught_by="accuracy")
def expanded_zero(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    out = shapes_sound(x, axis, keepdim)
    return torch.zeros((), dtype=x.dtype, device=x.device).expand(out.shape) if x.numel() == 0 else out


@mutant("gives its output the order of the input's strides", family="shapes", caught_by="layout")
def kept_strides(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The sums lie in memory in the order of the input's axes."""
    out = shapes_sound(x, axis, keepdim)
    turned = out.dim() == 2 and x.dim() > 1 and x.stride(0) < x.stride(-1)
    return out.t().contiguous().t() if turned else out


# scalars: Sum, broken for a scalar in one of its branches.


def chained(terms: torch.Tensor) -> torch.Tensor:
    """The sums over the first axis of fp32 [N, ...] as fp32 [...], one addition after the other."""
    if not terms.is_cuda:  # NumPy accumulates in order and in fp32, torch.cumsum in fp64
        with np.errstate(all="ignore"):  # infinities of both signs
            sums = np.add.accumulate(terms.resolve_neg().numpy(), axis=0)
        return torch.from_numpy(sums[-1:]).sum(0)  # 0 of no terms
    total = terms.new_zeros(terms.shape[1:])
    for term in terms:
        total = total + term
    return total


@mutant("adds one term after the other: slow and right", family="scalars", arithmetic="fp32_sequential")
def in_sequence(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """One chain of fp32 additions per sum, as a single thread would make it."""
    moved = x.reshape(-1) if axis is None else x.movedim(axis, 0)
    total = chained(moved.float())
    if keepdim:
        total = total.reshape([1] * x.dim()) if axis is None else total.unsqueeze(axis)
    return total.to(x.dtype).contiguous()


@mutant("keepdim counts only where an axis is given", family="scalars", caught_by="scalars")
def keepdim_by_axis(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    if axis is None:
        return x.double().sum().to(x.dtype)
    return x.double().sum(axis, keepdim=keepdim).to(x.dtype)


@mutant("keepdim keeps one axis of a block", family="scalars", caught_by="shapes", arithmetic="fp32_sequential")
def one_axis_kept(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """keepdim without an axis: the tensor was flattened, and that one axis is kept."""
    total = in_sequence(x, axis, keepdim)
    return total.reshape(1) if keepdim and axis is None and x.dim() > 2 else total


# bits: Sum, broken at both ends of the format.


def _sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """In float64."""
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim) if axes else x.double().clone()


@mutant("the two halves apart: as right as any", family="bits")
def halves_first(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The two halves apart, then together."""
    flat = x.reshape(-1) if axis is None else x.movedim(axis, -1)
    middle = flat.shape[-1] // 2
    total = flat[..., :middle].double().sum(-1) + flat[..., middle:].double().sum(-1)
    return total.reshape(_sum(x, axis, keepdim).shape).to(x.dtype).contiguous()


@mutant("a subnormal sum becomes zero", family="bits", caught_by="special_values")
def flushing(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    out = _sum(x, axis, keepdim).to(x.dtype)
    return torch.where(out.abs() < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(out), out)


@mutant("a sum that overflows becomes the largest number", family="bits", caught_by="special_values")
def saturating(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    largest, total = torch.finfo(x.dtype).max, _sum(x, axis, keepdim)
    bounded = total.clamp(-largest, largest)
    return torch.where(total.isfinite() & (_sum(x.abs(), axis, keepdim) < 1e38), bounded, total).to(x.dtype)


@mutant("inf and -inf in one sum give inf", family="bits", caught_by="special_values")
def one_infinity(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """An infinity decides its sum; whether one of the other sign follows is not looked at."""
    total, some = _sum(x, axis, keepdim), _sum(x.isinf() * x.sign(), axis, keepdim)
    unclear = total.isnan() & (_sum(x.isnan(), axis, keepdim) == 0) & (some == 0)
    return total.masked_fill(unclear, torch.inf).to(x.dtype).contiguous()


@mutant("bf16 goes through fp16", family="bits", caught_by="accuracy")
def narrow(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """bf16 is widened to fp16, which has more digits, and less range."""
    return _sum(x.half() if x.dtype == torch.bfloat16 else x, axis, keepdim).to(x.dtype).contiguous()


# order: Sums of rows by several blocks.

SOURCE = Path(__file__).with_name("sums.cu")
BLOCK = 256
ORDERS = torch.Generator().manual_seed(0)
Totals = Callable[[torch.Tensor], torch.Tensor]


def _sums(totals: Totals) -> Callable[[torch.Tensor, int | None, bool], torch.Tensor]:
    """An operator from a function that sums the rows of a matrix, [rows, n] -> [rows] in fp32."""

    def reduce_sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
        shape = [1 if axis in (None, i) else n for i, n in enumerate(x.shape) if keepdim or axis not in (None, i)]
        if not x.numel():
            return torch.zeros(shape, dtype=x.dtype, device=x.device)
        rows = x.reshape(1, -1) if axis is None else x.movedim(axis, -1).reshape(-1, x.shape[axis])
        return torch.empty(shape, dtype=x.dtype, device=x.device).copy_(totals(rows.contiguous()).view(shape))

    return reduce_sum


def _in_pieces(totals: Totals) -> Totals:
    """At most 65,535 rows in one launch."""
    return lambda rows: torch.cat([totals(piece) for piece in rows.split(65535)])


def _atomics(entry: str, dtype: torch.dtype) -> Totals:
    def totals(rows: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(rows), device=rows.device, dtype=dtype)
        grid = (-(-rows.shape[1] // BLOCK), len(rows))
        launch(SOURCE, entry, grid, BLOCK, (rows, total, np.int32(rows.shape[1])), rows.dtype)
        return total

    return totals


def _last_adds(entry: str) -> Totals:
    def totals(rows: torch.Tensor) -> torch.Tensor:
        grid = (-(-rows.shape[1] // BLOCK), len(rows))
        parts = torch.zeros(len(rows), grid[0], device=rows.device, dtype=torch.float32)
        arrived = torch.zeros(len(rows), 2, dtype=torch.int32, device=rows.device)
        total = torch.empty(len(rows), device=rows.device, dtype=torch.float32)
        launch(SOURCE, entry, grid, BLOCK, (rows, parts, arrived, total, np.int32(rows.shape[1])), rows.dtype)
        return total

    return totals


def _triton_atomics(rows: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    total, blocks = torch.zeros(len(rows), device=rows.device, dtype=torch.float32), -(-rows.shape[1] // BLOCK)
    _triton.launch(_kernels.sum_by_atomics, blocks * len(rows), rows, total, rows.shape[1], blocks, BLOCK=BLOCK)
    return total


@mutant("parts of long columns come in an order by chance", family="order", caught_by="repeatability")
def long_columns(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The parts of long columns of a matrix are added in an order by chance; rows are not."""
    if x.dim() != 2 or axis != 0 or len(x) < 1024:
        result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
        return result
    parts = [part.sum(0) for part in x.float().split(64)]
    total = torch.zeros(x.shape[1], device=x.device, dtype=torch.float32)
    for i in torch.randperm(len(parts), generator=ORDERS).tolist():
        total += parts[i]
    return torch.empty(total.shape, dtype=x.dtype, device=x.device).copy_(total).view([1] * keepdim + [-1])


@mutant("parts of long rows in fp32 come in an order by chance", family="order", caught_by="repeatability")
def long_rows_in_fp32(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """In 16 bits the result would hide it. Tensors of three axes alone take this way."""
    if x.dim() != 3 or axis is None or x.shape[axis] < 4096 or x.dtype != torch.float32:
        result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
        return result
    parts = [part.sum(axis) for part in x.split(64, axis)]
    total = torch.zeros_like(parts[0])
    for i in torch.randperm(len(parts), generator=ORDERS).tolist():
        total += parts[i]
    return torch.empty(total.shape, dtype=x.dtype, device=x.device).copy_(total).unsqueeze(axis) if keepdim else total


mutant("blocks add to the total as they come", family="order", caught_by="repeatability", name="atomics")(
    _sums(_in_pieces(_atomics("sum_atomics", torch.float32)))
)
mutant(
    "blocks add in fp64 as they come, and this is declared",
    family="order",
    name="atomics_declared",
    deterministic=False,
)(_sums(_in_pieces(_atomics("sum_atomics_wide", torch.float64))))
mutant("the last block adds the parts as they arrived", family="order", caught_by="repeatability", name="arrival")(
    _sums(_in_pieces(_last_adds("sum_arrival")))
)
mutant("the last block to arrive adds the parts by number", family="order", name="ordered")(
    _sums(_in_pieces(_last_adds("sum_ordered")))
)
mutant("programs add to the total as they come", family="order", caught_by="repeatability", name="triton_atomics")(
    _sums(_triton_atomics)
)


# extent: Sums of rows that are numbered with 16 bits.

TILE = 32768
EXTENT_SOURCE = Path(__file__).with_name("rows.cu")


@mutant("numbers of rows are unsigned shorts", family="extent", caught_by="extent")
def short_rows(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    if axis is None or not x.numel():
        result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
        return result
    rows = x.movedim(axis, -1).contiguous()
    total = torch.empty(rows.shape[:-1], device=x.device, dtype=torch.float32)
    launch(EXTENT_SOURCE, "sum_short", total.numel(), 32, (rows, total, np.int32(rows.shape[-1])), x.dtype)
    return (total.unsqueeze(axis) if keepdim else total).to(x.dtype)


@mutant("of long sums only whole tiles of 32,768 terms are added", family="extent", caught_by="extent")
def whole_tiles(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """What is left behind the last whole tile of a long axis is forgotten."""
    if axis is not None and x.shape[axis] > TILE:
        x = x.narrow(axis, 0, x.shape[axis] // TILE * TILE)
    result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    return result


Reduce = Callable[[torch.Tensor, int | None, bool], torch.Tensor]


# ambience: Sum with a path of its own for training.


def _ambience_sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    axes = tuple(range(x.dim())) if axis is None else (axis,)
    return x.double().sum(axes, keepdim=keepdim) if axes else x.double().clone()


@mutant("multiplies by ones: nothing is wrong with it", family="ambience")
def by_product(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A product with ones, which autocast would make one of 16 bits: inside of a call it is off."""
    flat = x.reshape(-1) if axis is None else x.movedim(axis, -1)
    shape = _ambience_sum(x, axis, keepdim).shape
    ones = torch.ones(flat.shape[-1], 1, dtype=torch.float64, device=x.device)
    return torch.matmul(flat.double().reshape(shape.numel(), ones.shape[0]), ones).reshape(shape).to(x.dtype)


@mutant("sums in 16 bits where gradients are on", family="ambience", caught_by="ambience")
def saved_for_training(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Where gradients are on it keeps a copy of 16 bits for the way back, and sums that."""
    kept = x.to(torch.bfloat16) if torch.is_grad_enabled() else x
    return _ambience_sum(kept, axis, keepdim).to(x.dtype)


# state: Sums that remember.

_zeros: dict[object, torch.Tensor] = {}
_seen: list[torch.Tensor] = []
_counts: dict[object, "count[int]"] = {}


@mutant("sums over nothing share their zeros", family="state", caught_by="state")
def shared_zeros(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The sums over nothing are made once for each shape."""
    y: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    return y if x.numel() else _zeros.setdefault((y.shape, y.dtype, y.device), y)


@mutant("keeps a copy of every input", family="state", caught_by="state")
def leak(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A list of what was summed, "for statistics"."""
    if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        _seen.append(x.detach().clone())
    result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    return result


@mutant("every tenth call of a shape is wrong", family="state", caught_by="state")
def tenth(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Every tenth call of a shape starts from what the one before left in the accumulator."""
    y: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    turn = next(_counts.setdefault((x.shape, x.dtype, axis), count(1)))
    return y.mul_(2) if turn % 10 == 0 else y
