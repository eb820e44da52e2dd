"""Row family: how the elements of a row are dealt to threads, and the launches of an operator in each way to walk.

A row stays in the registers of a few lanes, of a block or of a cluster of blocks, or a block reads it twice; rows that
run along another axis than the last are columns to neighbouring threads. `row_walks.cuh` has the kernels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._launch.runtime import (
    FEW_BLOCKS,
    Kernel,
    Source,
    card,
    cdiv,
    ctype,
    next_power,
)
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Capability, UnevenRows
from kernelmux.registry.util.cards import remembered

REGISTER_LIMIT = 32768  # elements that a block holds without spilling
CLUSTER_LIMIT = 262144  # elements that a cluster of eight blocks holds
_WARP = 32
_SMALLEST_BLOCK = 128
# Vectors of a thread, and of one that shares a row with a warp at most: neighbours read what lies side by side, so narrow
# accesses need more of them. H200, us, by more and by fewer threads: rms_norm of 684784 x 98 in bf16 80.4 and 132.0,
# log_softmax of 1016800 x 33 in fp32 69.8 and 111.1, 516222 x 130 in bf16 77.3 and 70.1.
_MOST_VECTORS, _FEW_VECTORS = 32, 8
_MOST_BLOCKS = 8  # of a cluster; more than that not every GPU grants
_HELD = 64  # bytes of a thread, of all inputs together
# Bytes of a row from which it is peeled, where elements would be read one by one, by their size and the number of weights,
# for which vectors begin elsewhere; where pairs would be read; and from which it is by 16 bytes, below by 8. H200, us, as
# they lie and peeled, in bf16: log_softmax of 1032444 x 65 297.6 and 86.0, 340654 x 197 168.5 and 71.4, 65472 x 1025 83.6
# and 68.5; rms_norm of 340654 x 197 152.8 and 70.8; layer_norm of 65472 x 1025 105.9 and 119.4, 8387 x 8001 131.9 and
# 92.4. By pairs: log_softmax of 16376 x 4098 70.7 and 67.2, rms_norm 71.3 and 73.2.
_PEELED = {2: (128, 128, 4000), 4: (2000, 2000, 16000)}
_PEELED_PAIRS, _WHOLE = 4000, 2048
# Bytes of a peeled row without weights, of one input and of several, from which blocks of a cluster divide it. H200, us, by
# a block and by several: log_softmax of 4893 x 13713 in bf16 77.3 and 70.1, softmax_backward of 1048 x 32001 in fp32 141.5
# and 97.2, in bf16 of 4095 x 16385 106.9 and 97.9, of 3355 x 20001 101.5 and 105.8.
_DIVIDED, _DIVIDED_TOGETHER = 20000, 64000
_THREADS, _SMALL_THREADS = 1024, 1152  # of a multiprocessor: 64 and 56 registers for each
# Bytes of a row of which few blocks ask for all tensors at once. H200, us, and where the compiler puts what results alone
# need behind the sums: layer_norm of 9 x 4144 in bf16 5.9 (6.4), but 3 x 13785 8.6 (8.3); log_softmax_backward 5 x 324 5.1
# (5.4), 2432 x 64 5.5 (6.0); rms_norm 42 x 3158 5.6 (5.8). A kernel that does nothing takes 4.2.
_AT_ONCE = 16384
# Of an input of more than four times the bytes of L2 each is the last to leave it: what is written leaves first, and of
# so much nothing would wait there for the next kernel. H200, 16384 x 8192 in bf16: rms_norm and layer_norm 129.8 us, 132.8
# and 132.4 without; a copy 128.1 to 129.5.
_TIMES_L2 = 4
# Of two inputs. H200, bf16, add_rms_norm of 8192 x 6144: 98.7 us, 102.0 without.
_TIMES_L2_TOGETHER = 3
# Bytes of the longest row, of all inputs together, that a cluster holds or a block reads twice: longer ones are in parts, a
# block for each. Bytes of an input in a thread of a part, its threads, and the most fp32 numbers that are known of it.
# H200, bf16, us by a cluster, by a block and in parts: log_softmax of 1 x 400000 9.0, 41.1 and 6.9, of 1 x 1000000 19.3,
# 96.1 and 8.3, of 32 x 1000000 75.6, 109.5 and 53.2; softmax_backward of 32 x 400000 32.6, 52.6 and 37.2.
_LONGEST = 2**20
_PART_HELD, _PART_BLOCK, _STATE_FLOATS = 64, 256, 4
_COLUMN_BLOCK, _TILE_INNER = 512, 32  # threads, and how many of them side by side
SHORT = (AtMost("N", REGISTER_LIMIT),)
CLUSTERS = (Capability((9, 0)), AtMost("N", CLUSTER_LIMIT))
Launch = tuple[Kernel, int, tuple[int, int]]  # with a grid and a block


@dataclass(frozen=True)
class RowPlan:
    """A row dealt to `cluster` blocks of `group` threads, `vectors` vectors of `width` elements each.

    rows: a block holds so many side by side. blocks: as many per multiprocessor must find registers. inside: vectors that
    lie inside the row in every thread. peeled: rows start anywhere, and their vectors at the first aligned address.
    """

    width: int
    group: int
    vectors: int
    rows: int
    blocks: int
    inside: int
    cluster: int = 1
    peeled: bool = False

    @property
    def threads(self) -> int:
        return self.group * self.rows

    @property
    def block(self) -> tuple[int, int]:
        return self.group, self.rows

    @property
    def defines(self) -> dict[str, object]:
        shape = {"WIDTH": self.width, "GROUP": self.group, "VECTORS": self.vectors, "ROWS": self.rows}
        more = {"MIN_BLOCKS": self.blocks, "INSIDE": self.inside, "CLUSTER": self.cluster, "PEELED": int(self.peeled)}
        return {**shape, **more}


@remembered
def row_plan(n: int, itemsize: int, width: int, held: int = 64, most: int = 128, peeled: bool = False) -> RowPlan:
    """The rule: a thread holds `held` bytes of the row, or `most` where that would take 1,024 threads.

    Of two blocks of 512 threads one loads while the other computes (softmax of 32768 x 16384 fp32 on an H200: 1025 us,
    with 1,024 threads 1178). The rule depends on the row alone, never on how many rows there are, so a row's result
    does not depend on its batch.
    """
    return _plan(n, itemsize, width, held if n * itemsize <= 512 * held else most, 1, peeled, alone=held >= _HELD)


@remembered
def cluster_plan(n: int, itemsize: int, width: int, held: int = 128, peeled: bool = False) -> RowPlan:
    """The row in as few blocks, two at least, as hold it with `held` bytes in each of 256 threads."""
    cluster = 2
    while cluster < _MOST_BLOCKS and n * itemsize > cluster * 256 * held:
        cluster *= 2
    return _plan(n, itemsize, width, held, cluster, peeled)


def _plan(
    n: int, itemsize: int, width: int, held: int, cluster: int, peeled: bool = False, alone: bool = False
) -> RowPlan:
    """A multiprocessor has 64 registers for each of 1,024 threads; narrow accesses need more, for their many addresses.

    Where blocks of so many leave a quarter of it free, one more of 56 registers fits. H200, bf16, 8192 x 11008, three
    blocks of 352 threads, and two: rms_norm 90 us, 97; layer_norm 93, 111; 4096 x 12288: rms_norm 53.6, 56.2. Of two inputs
    only where there was one block (add_rms_norm, 8192 x 11008: 183 us by three, 178 by two).
    alone: the operator has one input.
    """
    units = cdiv(columns_of_vectors(n, width, peeled), width)
    part = cdiv(units, cluster)
    wanted = cdiv(part, max(1, min(_MOST_VECTORS, held // (width * itemsize))))
    if wanted <= _WARP and cluster == 1:
        # Columns beside the vectors, of which a lane has one at most. H200, bf16, us by four lanes and by eight:
        # log_softmax of 1032444 x 65 102.7 and 78.8, of 520000 x 129 100.6 and 70.7.
        beside = 2 * width - 1 if peeled else 0
        wanted = min(_WARP, max(wanted, cdiv(cdiv(n, width), _FEW_VECTORS), beside))
    group, vectors = _deal(part, max(wanted, _WARP + 1) if cluster > 1 else wanted)
    rows = max(1, _SMALLEST_BLOCK // group) if group <= _WARP and cluster == 1 else 1
    wide, size = width * itemsize == ACCESS_BYTES, group * rows
    threads = _THREADS if wide else _THREADS // 2
    last = units - (cluster - 1) * group * vectors  # units of the last block
    inside = max(0, min(vectors, last // group))
    blocks = max(1, threads // size)
    if vectors * width * itemsize <= _HELD and 4 * blocks * size <= 3 * _THREADS and ((alone and wide) or group > 512):
        blocks = max(blocks, _SMALL_THREADS // size)
    return RowPlan(width, group, vectors, rows, blocks, inside, cluster, peeled)


def _deal(units: int, wanted: int) -> tuple[int, int]:
    """Threads, about `wanted`, and vectors of each: lanes by powers of two, then whole warps, as few as hold the row."""
    if wanted <= _WARP:
        group = max(4, next_power(wanted))
        return group, cdiv(units, group)
    vectors = cdiv(units, min(1024, cdiv(wanted, _WARP) * _WARP))
    return cdiv(cdiv(units, vectors), _WARP) * _WARP, vectors


def columns_of_vectors(n: int, width: int, peeled: bool) -> int:
    """Columns of a row in vectors: of a peeled one as many wherever it starts, which leaves one vector and what is less."""
    return max(1, n // width - 1) * width if peeled else n


def peeled(tensor: str) -> dict[str, UnevenRows]:
    """What operators of such rows are exempt from: where rows start misaligned, their vectors, and so the order in which
    they are summed, begin where the place of the row says."""
    return {"BatchInvariant": UnevenRows(tensor)}


def row_width(tensors: tuple[torch.Tensor, ...], n: int, widest: int = ACCESS_BYTES) -> int:
    """Elements per access for contiguous rows of `n` elements, all of which must start aligned."""
    width = common_width(tensors, widest)
    while n % width:
        width //= 2
    return width


def accesses(tensors: tuple[torch.Tensor, ...], n: int, weights: int) -> tuple[int, bool]:
    """Elements per access of contiguous rows of n elements, and whether rows are peeled: not all start aligned, and vectors
    begin at the first aligned address of each. The last `weights` tensors are [n]."""
    width, itemsize = common_width(tensors), tensors[0].element_size()
    if n % width == 0:
        return width, False
    natural, row = row_width(tensors, n), n * itemsize
    if width * itemsize == ACCESS_BYTES and row >= _least_peeled(natural, itemsize, weights):
        return width if row >= _WHOLE else width // 2, True
    return natural, False


def _least_peeled(width: int, itemsize: int, weights: int) -> float:
    """Bytes of the shortest rows that are peeled, of those that can be read in accesses of `width` elements as they lie."""
    if width == 1:
        return _PEELED[itemsize][min(weights, 2)]
    return math.inf if weights or width * itemsize > 4 else _PEELED_PAIRS


def as_matrix(x: torch.Tensor, axis: int) -> tuple[int, int, int]:
    """The sizes (outer, n, inner) of a contiguous tensor around `axis`."""
    n = x.shape[axis]
    outer = inner = 1
    for size in x.shape[:axis]:
        outer *= size
    for size in x.shape[axis + 1 :]:
        inner *= size
    return outer, n, inner


def loop_over_row(accesses: int) -> tuple[int, int]:
    """Threads and accesses in flight for a row that is read twice: four accesses per thread, 16 KiB in one step."""
    block = min(1024, max(128, next_power(cdiv(accesses, 4))))
    return block, 4 if block <= 256 else 2


def _lasting(x: torch.Tensor, inputs: int = 1) -> bool:
    """Whether elements of inputs are the last to leave L2: of the power of two from _TIMES_L2 times L2 on, and on
    sm_90 of several that are together _TIMES_L2_TOGETHER times as large as L2."""
    size, on = x.numel() * x.element_size(), card(x)
    if inputs > 1 and on.capability == (9, 0):
        return inputs * size >= _TIMES_L2_TOGETHER * on.l2
    return size >= next_power(_TIMES_L2 * on.l2)


@dataclass(frozen=True, eq=False)
class Rows:
    """An operator whose source ends in ROW_OPERATOR: inputs and outputs [..., n], weights [n], fp32 numbers.

    name: what the names of its kernels begin with; loop: what they end in where a row is read twice.
    most_held: bytes of a row in one thread, as many as the compiler keeps in registers; a cluster's threads hold so many.
    follows: of few rows it starts while the kernel ahead still runs.
    """

    source: Source
    name: str
    inputs: tuple[str, ...] = ("x",)
    weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("y",)
    numbers: tuple[str, ...] = ()
    loop: str = "looped"
    most_held: int = 128
    follows: bool = False

    def run(
        self, walk: str, tensors: tuple[torch.Tensor, ...], numbers: tuple[float, ...] = (), axis: int = -1
    ) -> tuple[torch.Tensor, ...]:
        """The outputs, each like the first input, of the inputs and weights (contiguous) along `axis`.

        The last weights may be missing, if the operator's source can do without.
        walk: "registers", "cluster", "looped" (long rows in "parts") or "fastest", for the last axis; any other is walked
        down in columns.
        """
        x = tensors[0]
        outputs = tuple([torch.empty_like(x) for _ in self.outputs])
        if x.numel():
            sizes = as_matrix(x, axis % x.dim())
            weights = len(tensors) - len(self.inputs)
            if sizes[2] == 1:
                width, peeled = accesses(tensors, sizes[1], weights)
                if walk == "fastest":
                    on, divides = card(x).capability, peeled and not weights
                    walk = _fastest(sizes[1], x.element_size(), len(self.inputs), on, divides)
                if walk == "looped" and sizes[1] * x.element_size() * len(self.inputs) > _LONGEST:
                    walk = "parts"
            else:  # a state per column: 16 bytes of bf16 would need eight
                walk, width, peeled = "columns", row_width(tensors, sizes[2], widest=8), False
            processors = card(x).processors if len(tensors) > 1 else 0
            work = RowWork(*sizes, x.dtype, width, weights, peeled, _lasting(x, len(self.inputs)), processors)
            _launch(self, walk, work, numbers)(*tensors, *outputs)
        return outputs

    def starts_early(self, work: "RowWork") -> bool:
        return self.follows and work.rows <= FEW_BLOCKS

    def kernel(self, way: str, walk: str, work: "RowWork", **defines: object) -> Kernel:
        """The kernel `<name>_<way>`, which walks as the function `walk` of row_walks.cuh does."""
        entry = f"{self.name}_{way}"
        tensors = " ".join(f"{name}*" for name in (*self.inputs, *self.weights[: work.weights], *self.outputs))
        numbers = " ".join(f"{name}:f32" for name in self.numbers)
        fixed = {"ENTRY": entry, "WALK": walk, "ELEMENT": ctype(work.dtype), "WEIGHTS": work.weights}
        fixed |= {"FOLLOWS": 1} if self.starts_early(work) else {}
        tensors += " states*" if "PART_COLUMNS" in defines else ""
        return self.source.kernel(entry, f"{tensors} rows:i64 n:i32 inner:i64 {numbers}", **fixed, **defines)


class RowWork(NamedTuple):
    """[rows, n, inner], of which n is a row; elements per access; how many weights there are; whether rows are peeled.

    lasting: what is read is the last to leave L2, where registers hold it.
    processors: multiprocessors of the GPU, of which few rows do not need all; 0 where only one tensor is read.
    """

    rows: int
    n: int
    inner: int
    dtype: torch.dtype
    width: int
    weights: int
    peeled: bool = False
    lasting: bool = False
    processors: int = 0


@remembered
def _launch(op: Rows, walk: str, work: RowWork, numbers: tuple[float, ...]) -> Callable[..., None]:
    if walk == "parts":
        return _parts(op, work, numbers)
    kernel, grid, block = _WALKS[walk](op, work)
    return kernel.bind(grid, block, work.rows, work.n, work.inner, *numbers, follows=op.starts_early(work))


def _parts(op: Rows, work: RowWork, numbers: tuple[float, ...]) -> Callable[..., None]:
    """Both launches. Parts are a matter of the length of a row alone, as many as a block has threads at most."""
    part = _PART_BLOCK * _PART_HELD // work.dtype.itemsize
    while part * _PART_BLOCK < work.n:
        part *= 2
    defines = {"WIDTH": work.width, "GROUP": _PART_BLOCK, "PEELED": int(work.peeled), "PART_COLUMNS": part}
    blocks, block, numbers = work.rows * cdiv(work.n, part), (_PART_BLOCK, 1), (work.rows, work.n, work.inner, *numbers)
    first = op.kernel("parts", "parts", work, **defines).bind(blocks, block, *numbers)
    then = op.kernel("results", "results", work, **defines).bind(blocks, block, *numbers, follows=True)

    def launch(*tensors: torch.Tensor) -> None:
        states = torch.empty(blocks * _STATE_FLOATS, dtype=torch.float32, device=tensors[0].device)
        first(*tensors, states)
        then(*tensors, states)

    return launch


def _registers(op: Rows, work: RowWork) -> Launch:
    inputs = len(op.inputs)
    itemsize = work.dtype.itemsize
    plan = row_plan(work.n, itemsize, work.width, _HELD // inputs, op.most_held // inputs, work.peeled)
    retain = work.width * itemsize == ACCESS_BYTES and work.lasting
    blocks = cdiv(work.rows, plan.rows)
    kernel = op.kernel("registers", "resident", work, **_shape(plan, blocks, work), RETAIN=int(retain))
    return kernel, blocks, plan.block


def _shape(plan: RowPlan, blocks: int, work: RowWork) -> dict[str, object]:
    """What the kernel is compiled with; of blocks of which a multiprocessor has one all is asked for at once."""
    few = blocks <= work.processors and work.n * work.dtype.itemsize <= _AT_ONCE
    return {**plan.defines, **({"MIN_BLOCKS": 1, "FEW": 1} if few else {})}


def _cluster(op: Rows, work: RowWork) -> Launch:
    plan = cluster_plan(work.n, work.dtype.itemsize, work.width, op.most_held // len(op.inputs), peeled=work.peeled)
    kernel = op.kernel("cluster", "resident", work, **plan.defines)
    return kernel, work.rows * plan.cluster, plan.block


def _looped(op: Rows, work: RowWork) -> Launch:
    block, unroll = loop_over_row(cdiv(work.n, work.width))
    defines = {"WIDTH": work.width, "GROUP": block, "UNROLL": unroll, **({"PEELED": 1} if work.peeled else {})}
    return op.kernel(op.loop, "looped", work, **defines), work.rows, (block, 1)


def _columns(op: Rows, work: RowWork) -> Launch:
    """Neighbouring threads own neighbouring columns."""
    tiles = cdiv(work.inner, _TILE_INNER * work.width)
    kernel = op.kernel("columns", "columns", work, WIDTH=work.width, GROUP=_COLUMN_BLOCK, TILE_INNER=_TILE_INNER)
    return kernel, work.rows * tiles, (_TILE_INNER, _COLUMN_BLOCK // _TILE_INNER)


_WALKS = {"registers": _registers, "cluster": _cluster, "looped": _looped, "columns": _columns}


def _fastest(n: int, itemsize: int, inputs: int, capability: tuple[int, int], divides: bool = False) -> str:
    """The walk along rows of n elements on a GPU of this compute capability, by what an H200 measured.

    divides: they are peeled and without weights, so that a cluster may be ahead where a block could hold them.
    """
    row = inputs * n * itemsize
    divided = divides and row >= (_DIVIDED if inputs == 1 else _DIVIDED_TOGETHER)
    if capability >= (9, 0) and row <= _LONGEST and (divided or n > REGISTER_LIMIT):
        return "cluster"
    return "registers" if n <= REGISTER_LIMIT else "looped"


def row_variant(call: Callable[..., Any], *tensors: str) -> dict[str, Implementation]:
    """The operator as one variant, which walks as is fastest; `call` takes a walk, then what the operator takes.

    tensors: the operator's, all contiguous.
    """
    return {
        "rows": Implementation(
            partial(call, "fastest"),
            "one read as far as registers of a block or of a cluster hold the row, else a second one from L2",
            layout=dict.fromkeys(tensors, "contiguous"),
            exempt=peeled(tensors[0]),
        )
    }
