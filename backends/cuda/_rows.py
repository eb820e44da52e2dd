"""Row family: how the elements of a row are dealt to threads, and how a tensor is seen as rows."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernelmux.backends.cuda._elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._runtime import cdiv

REGISTER_LIMIT = 16384  # elements that 1,024 threads hold without spilling; longer rows are read again, from L2
_WARP = 32
_SMALLEST_BLOCK = 128
_MOST_VECTORS = 8  # narrow accesses: more of them per thread would only take longer


@dataclass(frozen=True)
class RowPlan:
    """A row dealt to `group` threads, `vectors` vectors of `width` elements each; a block holds `rows` rows.

    blocks: as many per multiprocessor must find registers.
    """

    width: int
    group: int
    vectors: int
    rows: int
    blocks: int

    @property
    def threads(self) -> int:
        return self.group * self.rows

    @property
    def block(self) -> tuple[int, int]:
        return self.group, self.rows

    @property
    def defines(self) -> dict[str, object]:
        shape = {"WIDTH": self.width, "GROUP": self.group, "VECTORS": self.vectors, "ROWS": self.rows}
        return {**shape, "MIN_BLOCKS": self.blocks}


@lru_cache(maxsize=4096)
def row_plan(n: int, itemsize: int, width: int, bytes_per_thread: int = 64) -> RowPlan:
    """The rule: a thread holds `bytes_per_thread` of the row, or twice as much where that would take 1,024 threads.

    Of two blocks of 512 threads one loads while the other computes (softmax of 32768 x 16384 fp32 on an H200: 1025 us,
    with 1,024 threads 1178). A multiprocessor has 64 registers for each of 1,024 threads (16384 x 8192 bf16: 135 us,
    with the 66 that the compiler prefers 153); narrow accesses need more, for their many addresses. The rule depends
    on the row alone, never on how many rows there are, so a row's result does not depend on its batch.
    """
    units = cdiv(n, width)
    held = bytes_per_thread * (1 if n * itemsize <= 512 * bytes_per_thread else 2)
    wanted = cdiv(units, min(_MOST_VECTORS, max(1, held // (width * itemsize))))
    group = min(1024, max(4, 1 << (wanted - 1).bit_length()))
    rows = max(1, _SMALLEST_BLOCK // group) if group <= _WARP else 1
    threads = 1024 if width * itemsize == ACCESS_BYTES else 512
    return RowPlan(width, group, cdiv(units, group), rows, max(1, threads // (group * rows)))


def row_width(tensors: tuple[torch.Tensor, ...], n: int, widest: int = ACCESS_BYTES) -> int:
    """Elements per access for contiguous rows of `n` elements, all of which must start aligned."""
    width = common_width(tensors, widest)
    while n % width:
        width //= 2
    return width


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
    block = min(1024, max(128, 1 << (cdiv(accesses, 4) - 1).bit_length()))
    return block, 4 if block <= 256 else 2
