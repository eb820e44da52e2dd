"""Row-wise operators: small jit functions of an operator become a kernel over the rows of strided tensors.

    softmax   RowOp(terms, EXPONENTIALS, finish, apply)      rows(op, axis, (x,), numbers=(scale,))
    rms_norm  RowOp(terms, SUMS, finish, apply)              rows(op, -1, (x,), (weight,), (eps,))

    terms(*numbers, *values, *vectors)         of an element: a tuple of what the statistic is taken of
    finish(*numbers, *statistic, n)            of a row: a tuple of what apply needs, each [ROWS, 1]
    apply(*known, *numbers, *values, *vectors) of an element: the output, or a tuple of outputs
    prepare(*loaded)                           optional: what stands for the inputs from here on, a tuple of tiles

values: one fp32 tile per input. vectors: one per tensor that has an element per column. numbers: of the call, fp32.
Of what finish returns, the first so many can be saved: one fp32 number per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES, MapLaunch
from kernelmux.backends.triton._launch.dependent import following
from kernelmux.backends.triton._launch.launch import Config, cdiv, like, overlaps, plan
from kernelmux.backends.triton._launch.strides import Ints, contiguous
from kernelmux.backends.triton._rows.row_kernel import rows_kernel
from kernelmux.backends.triton._rows.row_meta import chunk_meta, shared_meta
from kernelmux.backends.triton._rows.row_pieces import columns_kernel, pieces_kernel
from kernelmux.backends.triton._rows.row_pieces_plan import in_pieces, pieces_rule
from kernelmux.backends.triton._rows.row_plan import Demand, RowAccess, access_of, hints, row_rule
from kernelmux.backends.triton._rows.row_statistics import Pieces, Statistic
from kernelmux.backends.triton._rows.rows import Walk, next_power, walk

Tensors = tuple[torch.Tensor, ...]

# Why a variant does not promise the same bits for a row in another batch.
ACROSS = {
    "BatchInvariant": "across rows a tile has as many as there are, up to its size; the order of a sum follows it"
}
PEELED = {
    "BatchInvariant": "rows that are no multiple of 16 bytes start at different places of a vector, and few rows have more "
    "room; the order of a sum follows that"
}


class RowOp(NamedTuple):
    """Jit functions, as above. follows: of few rows it starts while the kernel ahead still runs.

    pieces: how few long rows are put together of pieces, if they may be.
    """

    terms: Any
    statistic: Statistic
    finish: Any
    apply: Any
    prepare: Any = None
    follows: bool = False
    pieces: Pieces | None = None


class RowLaunch(MapLaunch):
    """A launch whose kernel takes tuples before its scalars: outputs, saved, inputs, vectors, the numbers of the call."""

    __slots__ = ("inputs", "saved")

    def __init__(
        self, kernel: Any, grid: Ints, *scalars: Any, outputs: int, saved: int, inputs: int, **meta: Any
    ) -> None:
        super().__init__(kernel, grid, *scalars, outputs=outputs, **meta)
        self.saved, self.inputs = saved, inputs

    def _grouped(self, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
        a, b, c = self.outputs, self.outputs + self.saved, self.outputs + self.saved + self.inputs
        return tuple(values[:a]), tuple(values[a:b]), tuple(values[b:c]), tuple(values[c:]), tuple(numbers)


class AlignedRowLaunch(RowLaunch):
    """Of a kernel whose copies to shared memory begin at multiples of 16 bytes. An input that begins elsewhere is copied
    first, with what lies between its rows, so that a row is summed in one order wherever it is."""

    __slots__ = ()

    def __call__(self, *tensors: torch.Tensor, numbers: tuple[float, ...] = ()) -> None:
        first = self.outputs + self.saved
        last = first + self.inputs
        super().__call__(*tensors[:first], *map(_aligned, tensors[first:last]), *tensors[last:], numbers=numbers)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    if x.data_ptr() % ACCESS_BYTES == 0:
        return x
    span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,)).clone().as_strided(x.shape, x.stride())


class PiecesPlan(NamedTuple):
    """Launches for pieces of rows and for columns, and the shape of what is known of pieces."""

    pieces: RowLaunch
    columns: RowLaunch
    known: Ints

    def __call__(
        self, outs: Tensors, sums: Tensors, ins: Tensors, vectors: Tensors, numbers: tuple[float, ...]
    ) -> None:
        """sums: of gradients, those of the vectors."""
        known = torch.empty(self.known, dtype=torch.float32, device=ins[0].device)
        self.pieces(known, *ins, *vectors, numbers=numbers)
        self.columns(*outs, *sums, known, *ins, *vectors, numbers=numbers)


def rows(
    op: RowOp, axis: int, ins: Tensors, vectors: Tensors = (), numbers: tuple[float, ...] = (),
    outputs: int = 1, resident: bool = True,
) -> Tensors:  # fmt: skip
    """The operator along one axis of inputs of one shape, into contiguous outputs like the first input.

    resident: hold what fits.
    """
    outs = tuple([like(ins[0]) for _ in range(outputs)])
    if ins[0].numel():
        strides, steps = tuple([x.stride() for x in ins]), tuple([v.stride(0) for v in vectors])
        device = ins[0].get_device()
        launch = _plan(op, ins[0].shape, strides, steps, ins[0].dtype, axis, outputs, resident, device)
        if isinstance(launch, PiecesPlan):
            launch(outs, (), ins, vectors, numbers)
        else:
            launch(*outs, *ins, *vectors, numbers=numbers)
    return outs


@plan
def _plan(
    op: RowOp, shape: Ints, strides: tuple[Ints, ...], vector_steps: Ints, dtype: torch.dtype,
    axis: int, outputs: int, resident: bool, device: int,
) -> RowLaunch | PiecesPlan:  # fmt: skip
    w = walk(axis, shape, contiguous(shape), *strides)
    if w.sizes == (1,):  # as one row of many, so that its bits are the same
        w = w._replace(strides=tuple((w.length,) for _ in w.strides))
    access = access_of(w, dtype.itemsize, resident, len(vector_steps), short=True)
    reach = w.length * max((1, *vector_steps))
    demand = Demand(len(strides), len(vector_steps), reach, op.statistic.values, device)
    config = {**hints(w, dtype.itemsize, demand, resident), **row_rule(w, access, dtype.itemsize, demand, resident)}
    if op.pieces and resident and in_pieces(w, config, demand):
        M, N = w.sizes[0], w.length
        config = pieces_rule(N, dtype.itemsize, demand.inputs)
        return launches_of_pieces(op, device, M, N, dtype.itemsize, demand.inputs, vector_steps, outputs, config)
    return launch_of(op, w, vector_steps, access, outputs, config, 0, device)


def launches_of_pieces(
    op: RowOp, device: int, M: int, N: int, itemsize: int, inputs: int, vector_steps: Ints, outputs: int,
    config: Config, shares: Any = None, saved: int = 0, sums: int = 0,
) -> PiecesPlan:  # fmt: skip
    """config: as `pieces_rule` gives it. The others are those of gradients."""
    first, pieces = launch_of_pieces(op, device, M, N, itemsize, inputs, vector_steps, config)
    unit, early, (_, numbers, empty) = _unit(N, itemsize), overlaps(device), cast("Pieces", op.pieces)
    then = RowLaunch(
        columns_kernel, (cdiv(N, config["BLOCK_N"]), config["PROGRAMS"] or M), M, N, N // unit, vector_steps,
        outputs=outputs, saved=sums + 1, inputs=inputs, finish=op.finish, apply=op.apply, shares=shares, SAVED=saved,
        COUNT=numbers, LANES=next_power(pieces), EMPTY=empty, BLOCK_M=config["BLOCK_M"],
        BLOCK_N=config["BLOCK_N"], num_warps=4, prepare=op.prepare, total=op.statistic.total, PIECES=pieces, UNIT=unit,
        LEADS=early, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return PiecesPlan(first, then, (M, numbers, pieces))


def launch_of_pieces(
    op: RowOp, device: int, M: int, N: int, itemsize: int, inputs: int, vector_steps: Ints, config: Config
) -> tuple[RowLaunch, int]:
    """What finds out about pieces of rows, of which there are so many in each row. It leaves [M, numbers, pieces]."""
    unit, pieces = _unit(N, itemsize), cdiv(N, config["BLOCK"] * config["CHUNKS"])
    launch = RowLaunch(
        pieces_kernel, (M * pieces,), M, N, N // unit, vector_steps, outputs=0, saved=1, inputs=inputs, terms=op.terms,
        lanes=op.statistic.lanes, parts=cast("Pieces", op.pieces).parts, BLOCK=config["BLOCK"], CHUNKS=config["CHUNKS"],
        num_warps=config["num_warps"], prepare=op.prepare, total=op.statistic.total, PIECES=pieces, UNIT=unit,
        LEADS=overlaps(device),
    )  # fmt: skip
    return launch, pieces


def _unit(N: int, itemsize: int) -> int:
    return math.gcd(N, ACCESS_BYTES // itemsize)


def launch_of(
    op: RowOp,
    w: Walk,
    vector_steps: Ints,
    access: RowAccess,
    outputs: int,
    config: Config,
    saved: int = 0,
    device: int = -1,
) -> RowLaunch:
    """config: as `row_rule` gives it."""
    config = dict(config)
    units = [tuple(s // access.unit for s in strides) for strides in w.strides]
    functions = {"lanes": op.statistic.lanes, "merge": op.statistic.merge, "total": op.statistic.total}
    functions |= {"prepare": op.prepare, "terms": op.terms, "finish": op.finish, "apply": op.apply}
    if config.pop("SHARED", False):
        from kernelmux.backends.triton._rows.row_shared import rows_shared_kernel  # imports Gluon, for 0.1 s

        meta = shared_meta(w, access, config)
        return AlignedRowLaunch(
            rows_shared_kernel, w.grid(1), units[0], tuple(units[1:]), w.length, vector_steps,
            outputs=outputs, saved=saved, inputs=len(units) - 1,
            **functions, **meta,
        )  # fmt: skip
    batches, meta = chunk_meta(w, vector_steps, access, config)
    early = following(device, w.grid(config["ROWS"])[0]) if op.follows else {}
    return RowLaunch(
        rows_kernel, w.grid(config["ROWS"]), w.sizes, units[0], contiguous(w.sizes), tuple(units[1:]),
        w.length, w.steps[0], w.steps[1:], vector_steps, batches,
        outputs=outputs, saved=saved, inputs=len(units) - 1,
        **functions, **meta, **early,
    )  # fmt: skip
