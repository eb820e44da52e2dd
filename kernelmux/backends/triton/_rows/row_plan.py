"""How rows are dealt out: how wide accesses are, how many chunks a row is, which of them stay in registers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch.card import of_l2
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors, shared_bytes
from kernelmux.backends.triton._rows import row_chunks
from kernelmux.backends.triton._rows.rows import Walk, looped_rule, resident_rule
from kernelmux.registry.util import cards

# Bytes beyond which a row has programs of its own, and is peeled if it starts misaligned.
LONG = 2048
# Rows of up to LONG bytes that are no multiple of 16 are peeled, several to a program: by accesses of so many elements
# where they begin at multiples of fewer, else by 16 bytes. With vectors, which are read as many elements at a time as rows
# begin at multiples of, the former are up to so many elements. H200, us, and not peeled, or of 5121 columns by 16 bytes:
# bf16, log_softmax of 261123 x 257 69.6 (181.1), of 2033601 x 33 156.8 (461.1), softmax_backward of 130816 x 513 98.4
# (135.6), rms_norm of 87267 x 769 69.1 (99.7), of 13104 x 5121 69.8 (88.6), layer_norm of 261123 x 257 82.4 (207.2), of
# 13104 x 5121 77.4 (106.3); fp32, of 16376 x 2049 70.0 (135.0). Of even lengths: bf16, softmax of 500000 x 130 67.2
# (179.8), softmax_backward of 260000 x 258 98.5 (126.1), rms_norm of 258000 x 260 69.2 (98.8), layer_norm of 13104 x 5122
# 77.2 (105.4); fp32, of 130000 x 258 72.4 (95.5).
SHORT_WIDTH, LONGEST, FROM = 4, 6144, 256
# With vectors other rows are peeled by 16 bytes where accesses would be of less than 8, or of less than 4 up to so many
# columns, or of 8 in 16 bits, of one input and one vector. H200, bf16, us, and peeled, vectors read element by element:
# layer_norm 16384 x 1300 29.7 (39.5), 16384 x 1302 30.9 (39.3), 4096 x 10004 50.2 (63.3); add_rms_norm 4096 x 7212 64.4
# (68.7). With vectors read by 4 or 8 bytes: rms_norm 8122 x 13714 125.2 (113.3), 8122 x 13716 114.1 (111.3), layer_norm
# 8122 x 13714 182.2 (138.6), but 8122 x 13716 133.2 (137.5).
SHORT_WITH_VECTORS = 4096
# Values per thread: that stay in registers at most; of these without vectors, or of which the statistic keeps its terms.
HELD, KEPT = 64, 40
# Values from more of which on, of one input, some are read again: with vectors or by 8 warps; without.
FEW, AGAIN = 24, KEPT
# Values of a thread of 8 warps, of one input with vectors and of two inputs, and of a peeled row without vectors.
OF_8_WARPS, OF_TWO_INPUTS, ALL = 48, 48, 32
WAITING = KEPT  # values in fp32, without vectors, of more of which registers hold all at a cost
IN_QUARTERS = 10240  # elements of the longest row that does not wait in a quarter of the shared memory
REREAD = (8192, 16384)  # elements of rows of which all but the end is read again
# Bytes of an input, several times those of L2 (of an H200), of which what was read is the last to leave it: what is written
# leaves first, and of so much nothing would wait there for the next kernel. H200, 16384 x 8192 in bf16: add_rms_norm 254 us
# (264 without a hint, 277 if what was read once leaves first), log_softmax_backward 187 (190, 205), softmax_backward 192
# (192, 200), softmax and log_softmax 130 (133 and 132; 134), rms_norm 131 (133, 134).
MANY = 2**28
# Elements of a row that is read again, of which what was read stays; of longer ones it need not. H200, bf16, in one run:
# softmax of 32768 x 16384 519 us, 538 where it stays; of 16384 x 16384 264 and 274.
LASTING = 8192
# What leaves L2 first and last: of what is read ONCE, or for the FIRST and SECOND time, and of the results (STORE).
HINTS = {"ONCE": "evict_first", "FIRST": "evict_last", "SECOND": "evict_first", "STORE": ""}
SPARE = 7 * 1024  # bytes of shared memory, left to what Triton needs itself, for sums across warps


class Demand(NamedTuple):
    """Of an operator: tensors that are read, vectors, how far these reach, values per thread that suit its statistic."""

    inputs: int
    vectors: int
    reach: int
    values: int
    device: int


class RowAccess(NamedTuple):
    """How rows are read: strides in units of `unit` elements, `width` elements at once.

    peeled: from the first address of a row on that is aligned to so many.
    """

    unit: int
    width: int
    peeled: bool


def access_of(w: Walk, itemsize: int, peels: bool = True, vectors: int = 0, short: bool = False) -> RowAccess:
    """Whole vectors where rows are dense and start aligned; peeled where all tensors' start equally far from that.

    short: rows may be peeled by accesses of SHORT_WIDTH elements, and several to a program.
    """
    if not w.along:
        return RowAccess(1, 1, False)
    widest = ACCESS_BYTES // itemsize
    unit = math.gcd(widest, w.length, *(s for strides in w.strides for s in strides))
    alike = len(w.sizes) == 1 and set(w.steps) == {1} and len({strides[0] % widest for strides in w.strides}) == 1
    if not peels or not alike or unit == widest:
        return RowAccess(unit, unit, False)
    inputs, width = len(w.strides) - 1, SHORT_WIDTH if unit < SHORT_WIDTH else widest
    if short and _in_short_chunks(w.length, width, itemsize, inputs, vectors):
        return RowAccess(unit, width, True)
    if w.length * itemsize > LONG and _peeled_by_16_bytes(w.length, unit, itemsize, inputs, vectors):
        return RowAccess(unit if vectors else 1, widest, True)
    return RowAccess(unit, unit, False)


def _in_short_chunks(n: int, width: int, itemsize: int, inputs: int, vectors: int) -> bool:
    """Whether rows are peeled as `short_peeled` says: those that are as long as its least chunk, and some long ones.

    `in_half_accesses` serves some up to FROM columns; for even ones of two inputs with a vector see add_rms_norm, H200,
    bf16, peeled and not: 345921 x 194 165.7 and 143.6 us, 260111 x 258 139.1 and 159.7.
    """
    if n * itemsize <= LONG:
        later = width > SHORT_WIDTH or (inputs == 2 and vectors and n % 2 == 0)
        return n >= (FROM if later else row_chunks.least_chunk(width))
    return vectors > 0 and n <= LONGEST and width == SHORT_WIDTH and (itemsize == 4 or inputs == 1)


def _peeled_by_16_bytes(n: int, unit: int, itemsize: int, inputs: int, vectors: int) -> bool:
    """Whether other long rows are peeled, which would be read by accesses of `unit` elements."""
    if not vectors or unit * itemsize < (4 if n <= SHORT_WITH_VECTORS else 8):
        return True
    return unit == SHORT_WIDTH and inputs == vectors == 1


def rows_are_few(w: Walk, device: int) -> bool:
    """Whether a multiprocessor has one row at most, which then is held, with its vectors, from the first read on.

    H200, us, and in the way of many rows: bf16, layer_norm 9 x 4144 5.9 (7.1), rms_norm 16 x 4096 5.6 (6.3), 64 x 8192 6.2
    (6.8); fp16, 42 x 3158 5.9 (6.4).
    """
    return math.prod(w.sizes) <= processors(device)


def hints(w: Walk, itemsize: int, demand: Demand, resident: bool) -> Config:
    """The HINTS of a call: reads that leave first are slow ones, but not where there are two vectors (layer_norm).

    H200, layer_norm of 16384 x 8192 in bf16: 134 us, 136 as the others.
    """
    if not w.along or not resident or demand.vectors > 1:
        return HINTS
    large = math.prod(w.sizes) * w.length * itemsize >= of_l2(MANY, demand.device)
    if large and not (_reread(w, itemsize, demand) and w.length > LASTING):
        return {**HINTS, **dict.fromkeys(("ONCE", "FIRST", "SECOND"), "evict_last")}
    return {**HINTS, "ONCE": ""}


def _reread(w: Walk, itemsize: int, demand: Demand) -> bool:
    return demand.inputs == 1 and not demand.vectors and itemsize == 2 and w.length in REREAD


def row_rule(w: Walk, access: RowAccess, itemsize: int, demand: Demand, resident: bool) -> Config:
    """ROWS and columns (BLOCK) of a chunk, chunks of a batch, chunks that are held (None: all), warps.

    Along contiguous rows it depends on their length alone, so that a row is summed in one order whatever its batch.
    """
    if not w.along:
        return _across(w, itemsize, resident)
    if access.peeled and _in_short_chunks(w.length, access.width, itemsize, demand.inputs, demand.vectors):
        return _short_peeled(w, access, itemsize, demand)
    if w.length * itemsize <= LONG or access.width == 1:
        return _side_by_side(w, access, itemsize, demand, resident)
    row = long_row(w, access, itemsize, demand, resident)
    return next(config for form in FORMS if (config := form(row))) if resident else _looped(row)


def _across(w: Walk, itemsize: int, resident: bool) -> Config:
    """Rows whose elements are not neighbours: their first elements are, and warps read along these."""
    config = resident_rule(w, itemsize) if resident else None
    held = None if config else 1
    config = config or looped_rule(w)
    return {"BLOCK": config.pop("BLOCK_N"), "BATCH": 1, "HELD": held, **config}


def _short_peeled(w: Walk, access: RowAccess, itemsize: int, demand: Demand) -> Config:
    """Peeled rows that several of a program share, or that have vectors. Of long ones these are read late, in 16 bits:
    they would take the registers that one more program needs."""
    late = itemsize == 2 and w.length * itemsize > LONG and not rows_are_few(w, demand.device)
    config = row_chunks.short_peeled(w.length, access.width)
    return {**row_chunks.spread_peeled(config, w, demand.device), "LATE": late}


def _side_by_side(w: Walk, access: RowAccess, itemsize: int, demand: Demand, resident: bool) -> Config:
    """Several rows to a program, and rows of any length whose elements are read one by one."""
    halves = access.width == itemsize == demand.inputs == 2 and not demand.vectors
    halved = access.width == 4 and not (demand.inputs == 2 and demand.vectors)
    in_chunks = row_chunks.in_half_accesses if halved else row_chunks.in_whole_accesses
    whole = resident and itemsize == 2 and (halved or access.width == 8) and in_chunks(w.length)
    config = whole or row_chunks.whole_rows(w.length, itemsize, halves)
    return row_chunks.spread(config, w, access.width, demand.device) if resident else config


class LongRow(NamedTuple):
    """A row that has a program for itself: its chunks are of one access of each thread."""

    w: Walk
    access: RowAccess
    itemsize: int
    demand: Demand
    warps: int
    block: int

    @property
    def chunks(self) -> int:
        return cdiv(self.w.length, self.block)

    @property
    def values(self) -> int:
        """Of a thread, in all inputs."""
        return self.chunks * self.access.width * self.demand.inputs

    @property
    def bare(self) -> bool:
        return not self.demand.vectors

    def of(self, inputs: int, itemsize: int) -> bool:
        return (self.demand.inputs, self.itemsize) == (inputs, itemsize)

    def holding(self, held: int | None, late: bool, batch: int = 1, **more: int) -> Config:
        """The last `held` chunks stay in registers, None: all; the others are read again, in batches."""
        config = {"ROWS": 1, "BLOCK": self.block, "num_warps": self.warps}
        return {**config, "BATCH": batch, "HELD": held, "LATE": late, **more}


def long_row(w: Walk, access: RowAccess, itemsize: int, demand: Demand, resident: bool) -> LongRow:
    """Of 16-bit rows 8 warps may hold more than suits the statistic: of 16 warps' last chunk too much is in vain.

    Of one input without vectors KEPT values, with vectors OF_8_WARPS. H200, bf16: rms_norm of 8192 x 12288 101 us, by 16
    warps 110, of 4096 x 9216 39 (51); softmax of 10000 x 10000 100 us (112), of 8192 x 9216 76 (87), of 11008 115 (94). Of
    two inputs OF_TWO_INPUTS: softmax_backward of 12224 x 6144 110 us (121), add_rms_norm of 8192 x 6144 101 (102).
    """
    many = demand.values
    if resident and itemsize == 2 and demand.inputs < 3:
        of_one = OF_8_WARPS if demand.vectors else KEPT
        many = OF_TWO_INPUTS if demand.inputs == 2 else of_one
    warps, block = row_chunks.chunk_of(w.length, access.width * demand.inputs, access.width, demand.values, many)
    return LongRow(w, access, itemsize, demand, warps, block)


def _looped(row: LongRow) -> Config:
    """Variants that do not hold rows: batch by batch, twice."""
    most = 4 if row.warps < 16 else 2
    return row.holding(1, True, next(b for b in (most, 2, 1) if b < row.chunks or b == 1))


def _at_once(row: LongRow) -> Config | None:
    """Few rows: a multiprocessor has one at most, which is held with its vectors from the first read on."""
    tensors = row.demand.inputs + row.demand.vectors
    values = row.chunks * row.access.width  # of an input; more registers are for what the statistic is taken of
    room = min(255, 2048 // row.warps) - 32
    fits = row.values <= KEPT and values * tensors * row.itemsize // 4 + values <= room
    return row.holding(None, False) if fits and rows_are_few(row.w, row.demand.device) else None


def _but_the_end_again(row: LongRow) -> Config | None:
    """16-bit rows of one input without vectors, of a few lengths: all but the end is read again, in few registers.

    H200, bf16: softmax of 16384 x 8192 134 us and of 32768 x 16384 516 us, where programs that hold the row take 135 to 139
    and 575. At 12288 columns those are the faster ones.
    """
    if not _reread(row.w, row.itemsize, row.demand):
        return None
    return {"ROWS": 1, "BLOCK": 2048, "BATCH": 2, "HELD": 1, "LATE": True, "num_warps": 8, "maxnreg": 40}


def _all_of_peeled(row: LongRow) -> Config | None:
    """Peeled 16-bit rows of one input without vectors: 8 warps hold up to ALL values. softmax of 16384 x 6677 114 us (126
    where a part is read again)."""
    fits = row.access.peeled and row.of(1, 2) and row.bare and row.warps == 8 and row.values <= ALL
    return row.holding(None, False) if fits else None


def _all_with_vectors(row: LongRow) -> Config | None:
    """16-bit rows of one input with vectors, which are read late: 8 warps hold all of more than ALL values.

    rms_norm of 4096 x 9216 39 us, 42 where two chunks are read again. With two vectors up to KEPT: layer_norm of 8192 x
    11008 97 us if two chunks are, else 199.
    """
    most = {0: 0, 1: HELD}.get(row.demand.vectors, KEPT)
    fits = row.of(1, 2) and row.warps == 8 and ALL < row.values <= most
    return row.holding(None, True) if fits else None


def _in_part(row: LongRow) -> Config | None:
    """Rows of one input: more programs fit where a part of the row is read again.

    With vectors to be multiplied by, or by 8 warps in 16 bits, beyond FEW values. H200, bf16, 16384 x 8192: rms_norm 135 us
    and layer_norm 136, where programs that hold all of the row take 138 and 140. Of the five chunks of 18432 columns two:
    layer_norm of 2048 rows 46 us, where four take 55. Others in 16 bits beyond AGAIN: softmax of 4096 x 32000 135 us, 313
    where a program holds the row, in 127 registers, which leaves room for one; of 4096 x 27648 112 (267). Of 8192 x 20000,
    40 values, 168 (166).
    """
    few = FEW if row.demand.vectors or (row.of(1, 2) and row.warps == 8) else AGAIN if row.of(1, 2) else HELD
    if row.demand.inputs > 1 or not few < row.values <= HELD:
        return None
    batch = 4 if row.chunks > 6 else 2
    registers = {} if row.demand.vectors or row.warps < 16 else {"maxnreg": 64}
    return row.holding(row.chunks - batch, True, batch, **registers)


def _by_32_warps(row: LongRow) -> Config | None:
    """Rows of one input in fp32 without vectors, of more than WAITING values: registers of 16 warps would hold all of a row
    for one program of a multiprocessor alone, whose reads and writes take turns.

    H200, 8122 rows, us, held by 16 warps and in shared memory: log_softmax of 27001 430.2 (894.5, 438.7), of 32768 497.0
    (1061.9, 520.0).
    """
    if not (row.of(1, 4) and row.bare and WAITING < row.values <= HELD):
        return None
    return {**row.holding(None, True, maxnreg=64), "BLOCK": 2 * row.block, "num_warps": 32}


def _in_quarters(row: LongRow) -> Config | None:
    """16-bit rows of one input without vectors: four programs of 8 warps hold more than IN_QUARTERS elements in shared
    memory, where 16 warps would hold them in registers.

    H200, 8122 rows, us: log_softmax of 13713 111.6 (142.7), of 13712 109.4 (138.8), of 12288 101.1 (120.7), of 20001 163.1
    (172.1); softmax of 20001 162.9 (177.1), of 12288 101.9 (100.7).
    """
    fits = row.of(1, 2) and row.bare and IN_QUARTERS < row.w.length and row.values <= AGAIN
    return _in_shared_memory(row, 8) if fits else None


def _in_halves(row: LongRow) -> Config | None:
    """What registers do not hold waits in shared memory, for two programs of 16 warps: in fp32 beyond WAITING values,
    without vectors, where they could hold it for one program; so peeled 16-bit rows of two inputs.

    H200, 8122 rows, us, and held in registers: softmax_backward of 13713 in fp32 324.5 (357.2), in bf16 162.7 (194.5).
    """
    beyond = row.itemsize == 4 and row.bare and row.values > WAITING
    return _in_shared_memory(row, 16) if beyond or _many_of_two(row, peeled=True) or row.values > HELD else None


def _all_but_one(row: LongRow) -> Config | None:
    """16-bit rows of two inputs without vectors, of more than OF_TWO_INPUTS values: a chunk of 16 warps is read again.
    softmax_backward of 21894 x 12896 385 us (470), of 8192 x 16000 185 (204)."""
    return row.holding(row.chunks - 1, True) if _many_of_two(row) and row.values <= HELD else None


def _all(row: LongRow) -> Config | None:
    """Other rows that registers hold; vectors are read late where there are two, or many values, or peeled rows of 16 bits:
    rms_norm of 65300 x 1028 68.2 us (68.8 with the vector held), of 13104 x 5122 69.6 (78.0), H200."""
    peeled = row.access.peeled and not row.bare and row.itemsize == 2
    late = row.demand.vectors > 1 or row.values > FEW or peeled
    return row.holding(None, late) if row.values <= HELD else None


def _walked(row: LongRow) -> Config:
    """What fits neither registers nor half of the shared memory is read again, from L2, which results leave first.

    H200, bf16, softmax of 512 x 131072: 83 us, 92 where results stay, and 100 by one program of 32 warps with the row in
    shared memory.
    """
    return {
        "ROWS": 1, "BLOCK": 1024 * row.access.width, "BATCH": 2 if row.access.width > 4 else 4, "HELD": 4, "num_warps": 32,
        "LATE": True, "maxnreg": 64, **HINTS, "STORE": "evict_first",
    }  # fmt: skip


# Forms of long rows: the first that does not refuse a row is its own.
FORMS: tuple[Callable[[LongRow], Config | None], ...] = (
    # inputs, bytes of an element | vectors | values of a thread
    _at_once,  # any | any | up to KEPT, of few rows
    _but_the_end_again,  # 1, 2 | none | REREAD
    _all_of_peeled,  # 1, 2 | none | up to ALL, by 8 warps
    _all_with_vectors,  # 1, 2 | some | more than ALL, by 8 warps
    _in_part,  # 1, any | any | more than FEW, AGAIN
    _by_32_warps,  # 1, 4 | none | more than WAITING
    _in_quarters,  # 1, 2 | none | up to AGAIN, of more than IN_QUARTERS elements
    _in_halves,  # any | any | more than HELD, or WAITING, or OF_TWO_INPUTS
    _all_but_one,  # 2, 2 | none | more than OF_TWO_INPUTS
    _all,  # any | any | up to HELD
    _walked,  # any
)


def _many_of_two(row: LongRow, peeled: bool = False) -> bool:
    return row.of(2, 2) and row.bare and row.values > OF_TWO_INPUTS and (row.access.peeled or not peeled)


def _in_shared_memory(row: LongRow, warps: int) -> Config | None:
    """In a half (16 warps) or a quarter (8) of the shared memory of a multiprocessor; None where that does not hold rows,
    these do not lie alike, or the GPU cannot copy to shared memory while threads go on."""
    w, device = row.w, row.demand.device
    simple = len(w.sizes) == 1 and set(w.steps) == {1} and row.demand.reach < 2**31
    if not simple or cards.of(device).capability < (8, 0):
        return None
    most = (shared_bytes(device) - SPARE) * warps // 32
    return row_chunks.in_shared_memory(w.length, row.access.width, row.itemsize, row.demand.inputs, warps, most)
