"""How rows are dealt out: how wide accesses are, how many chunks a row is, which of them stay in registers."""

from __future__ import annotations

import math
from typing import NamedTuple

import triton.language as tl

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch.card import of_l2
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors, shared_bytes
from kernelmux.backends.triton._rows.rows import Walk, clamp, looped_rule, next_power, resident_rule
from kernelmux.registry.util import cards

# Bytes beyond which a row has programs of its own, and is peeled if it starts misaligned.
LONG = 2048
# Elements from which a row whose elements would be read one by one is peeled by accesses of so many, in so many chunks at
# most, each of one access of a thread: up to LONG bytes with others of its program, and with vectors, which are read
# element by element then, up to so many elements. H200, us, and element by element, of 5121 columns by 16 bytes: bf16,
# log_softmax of 261123 x 257 69.6 (181.1), of 2033601 x 33 156.8 (461.1), softmax_backward of 130816 x 513 98.4 (135.6),
# rms_norm of 87267 x 769 69.1 (99.7), of 13104 x 5121 69.8 (88.6), layer_norm of 261123 x 257 82.4 (207.2), of 13104 x 5121
# 77.4 (106.3), but add_rms_norm of it 133.8 (132.7); fp32, layer_norm of 16376 x 2049 70.0 (135.0).
SHORTEST, SHORT_WIDTH, MOST_CHUNKS, LONGEST = 32, 4, 6, 6144
# With vectors, which a peeled row has to read element by element, rows are peeled where accesses would be of less than 8
# bytes, or of less than 4 up to so many columns. H200, bf16, us, and peeled: layer_norm 16384 x 1300 29.7 (39.5), 16384 x
# 1302 30.9 (39.3), 4096 x 10004 50.2 (63.3); rms_norm 8192 x 5004 46.0 (58.2); add_rms_norm 4096 x 7212 64.4 (68.7).
SHORT_WITH_VECTORS = 4096
# Values per thread that stay in registers at most, and as many in fp32.
HELD = 64
KEPT = 40
# Beyond so many, with vectors to be multiplied by, more programs fit where a part of the row is read again. H200, bf16,
# 16384 x 8192: rms_norm 135 us and layer_norm 136, where programs that hold all of the row take 138 and 140. Of the five
# chunks of 18432 columns two: layer_norm of 2048 rows 46 us, where four take 55.
FEW = 24
# Of 16-bit rows of one input 8 warps may hold more than suits the statistic, KEPT values, with vectors up to these: of 16
# warps' last chunk too much is in vain. H200: rms_norm of 8192 x 12288 101 us, by 16 warps 110, of 4096 x 9216 39 (51);
# softmax of 10000 x 10000 100 us (112), of 8192 x 9216 76 (87), of 11008 115 (94).
OF_8_WARPS = 48
# Of two inputs likewise, with or without vectors. H200, bf16, softmax_backward of 12224 x 6144: 110 us, by 16 warps 121;
# add_rms_norm of 8192 x 6144 101 (102). Beyond, without vectors, one of the chunks of 16 warps is read again:
# softmax_backward of 21894 x 12896 385 us (470), of 8192 x 16000 185 (204). Peeled it would take too many registers for two
# programs, and half of it waits in shared memory: of 8122 x 13713 162.7 us (194.5).
OF_TWO_INPUTS = 48
# Beyond so many 8 warps hold all of a row that has vectors, which are read late: rms_norm of 4096 x 9216 39 us, 42 where
# two chunks are read again. With two vectors up to KEPT: layer_norm of 8192 x 11008 97 us if two chunks are, else 199. Up
# to so many they hold all of a peeled row without vectors: softmax of 16384 x 6677 114 us (126).
ALL = 32
# Beyond so many, without vectors, a part of the row is read again as well. H200, bf16, Triton 3.6: softmax of 4096 x 32000
# 135 us, 313 where a program holds the row, in 127 registers, which leaves room for one; of 4096 x 27648 112 (267). Of
# 8192 x 20000, 40 values, 168 (166).
AGAIN = KEPT
# Beyond so many in fp32, without vectors, what registers do not hold waits in shared memory: they would hold all of a row
# for one program of a multiprocessor alone, whose reads and writes take turns. H200, 8122 rows, us, and held in registers:
# softmax_backward of 13713 324.5 (357.2). Of one input 32 warps hold a row: log_softmax of 27001 430.2 (894.5, and 438.7 in
# shared memory), of 32768 497.0 (1061.9, 520.0).
WAITING = KEPT
# Elements of 16-bit rows of one input, without vectors, from more of which on four programs of 8 warps hold them in shared
# memory, where 16 warps would hold them in registers. H200, 8122 rows, us: log_softmax of 13713 111.6 (142.7), of 13712
# 109.4 (138.8), of 12288 101.1 (120.7), of 20001 163.1 (172.1); softmax of 20001 162.9 (177.1), of 12288 101.9 (100.7).
IN_QUARTERS = 10240
# Elements of rows without vectors of which all but the end is read again, in few registers. H200, bf16: softmax of
# 16384 x 8192 134 us and of 32768 x 16384 516 us, where programs that hold the row take 135 to 139 and 575. At 12288
# columns those are the faster ones.
REREAD = (8192, 16384)
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
PIECE, MOST_PIECES = 8192, 32  # elements of a row for a program, where rows are in pieces
# Multiprocessors to a row in pieces at least. H200, us, and by a program for each row: bf16, softmax 3 x 100001 8.5 (16.0),
# 65 x 131071 26 (21); log_softmax_backward 1 x 200000 7.0 (22.9); rms_norm 16 x 50257 9.3 (14.3), 120 x 50257 22.5 (17.7);
# in fp32 softmax_backward 4 x 262144 10.5 (41.4), layer_norm 2 x 252224 25.8 (44.2).
FEW_IN_PIECES = 4
# Bytes of shared memory that are left to what Triton needs itself, for sums across warps.
SPARE = 7 * 1024


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

    short: rows may be peeled by accesses of SHORT_WIDTH elements.
    """
    if not w.along:
        return RowAccess(1, 1, False)
    widest = ACCESS_BYTES // itemsize
    unit = math.gcd(widest, w.length, *(s for strides in w.strides for s in strides))
    alike = len(w.sizes) == 1 and set(w.steps) == {1} and len({strides[0] % widest for strides in w.strides}) == 1
    if short and peels and unit == 1 and alike and _in_short_accesses(w.length, itemsize, len(w.strides) - 1, vectors):
        return RowAccess(1, SHORT_WIDTH, True)
    narrow = not vectors or unit * itemsize < (4 if w.length <= SHORT_WITH_VECTORS else 8)
    if peels and unit < widest and alike and narrow and w.length * itemsize > LONG:
        return RowAccess(1, widest, True)
    return RowAccess(unit, unit, False)


def _in_short_accesses(n: int, itemsize: int, inputs: int, vectors: int) -> bool:
    """Whether rows whose elements would be read one by one are peeled by accesses of SHORT_WIDTH elements."""
    if n * itemsize <= LONG:
        return n >= SHORTEST
    return vectors > 0 and n <= LONGEST and (itemsize == 4 or inputs == 1)


def rows_are_few(w: Walk, device: int) -> bool:
    """Whether a multiprocessor has one row at most, which then is held, with its vectors, from the first read on.

    H200, us, and in the way of many rows: bf16, layer_norm 9 x 4144 5.9 (7.1), rms_norm 16 x 4096 5.6 (6.3), 64 x 8192 6.2
    (6.8); fp16, 42 x 3158 5.9 (6.4).
    """
    return math.prod(w.sizes) <= processors(device)


def in_pieces(w: Walk, config: Config, demand: Demand, share: int = FEW_IN_PIECES) -> bool:
    """Whether rows that a program does not hold in registers are few, of `share` multiprocessors each, and dense."""
    dense = len(w.sizes) == 1 and w.along and all(strides == (w.length,) for strides in w.strides)
    held = w.length * demand.inputs <= OF_8_WARPS * 32 * config["num_warps"]
    return dense and not held and share * w.sizes[0] <= processors(demand.device)


def pieces_rule(N: int, itemsize: int, inputs: int) -> Config:
    """Columns of a chunk and CHUNKS of a piece; rows and columns of a tile of the second kernel; a program for each row.

    Pieces are a matter of the length of a row alone.
    """
    length = cdiv(N, clamp(next_power(cdiv(N, PIECE)), 1, MOST_PIECES))
    block = clamp(next_power(length), 128, 2048)
    config = {"BLOCK": block, "CHUNKS": cdiv(length, block), "num_warps": clamp(block // 256, 1, 8)}
    return {**config, "BLOCK_M": 1, "BLOCK_N": 8192 // (itemsize * next_power(inputs)), "PROGRAMS": 0}


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
        config = resident_rule(w, itemsize) if resident else None
        held = None if config else 1
        config = config or looped_rule(w)
        return {"BLOCK": config.pop("BLOCK_N"), "BATCH": 1, "HELD": held, **config}
    short = access.peeled and access.width == SHORT_WIDTH
    if short and _in_short_accesses(w.length, itemsize, demand.inputs, demand.vectors):
        late = itemsize == 2 and w.length * itemsize > LONG and not rows_are_few(w, demand.device)
        return {**_short_peeled(w.length, access.width), "LATE": late}
    if w.length * itemsize <= LONG or access.width == 1:
        halves = access.width == itemsize == demand.inputs == 2 and not demand.vectors
        whole = resident and itemsize == 2 and access.width == 8 and _in_whole_accesses(w.length)
        config = whole or _short(w.length, itemsize, halves)
        return _spread(config, w, access.width, demand.device) if resident else config
    single = resident and itemsize == 2 and demand.inputs == 1
    many = (OF_8_WARPS if demand.vectors else KEPT) if single else demand.values
    many = OF_TWO_INPUTS if resident and itemsize == 2 and demand.inputs == 2 else many
    warps, block = _chunk(w.length, access.width * demand.inputs, access.width, demand.values, many)
    chunks = cdiv(w.length, block)
    config = {"ROWS": 1, "BLOCK": block, "num_warps": warps}
    if not resident:
        most = 4 if warps < 16 else 2
        batch = next(b for b in (most, 2, 1) if b < chunks or b == 1)
        return {**config, "BATCH": batch, "HELD": 1, "LATE": True}
    values = chunks * access.width * demand.inputs
    fits = values <= KEPT and _registers(config, chunks * access.width, itemsize, demand)
    if fits and rows_are_few(w, demand.device):
        return {**config, "BATCH": 1, "HELD": None, "LATE": False}
    if _reread(w, itemsize, demand):
        return {"ROWS": 1, "BLOCK": 2048, "BATCH": 2, "HELD": 1, "LATE": True, "num_warps": 8, "maxnreg": 40}
    if access.peeled and single and not demand.vectors and warps == 8 and values <= ALL:
        return {**config, "BATCH": 1, "HELD": None, "LATE": False}
    if single and warps == 8 and values > ALL and (demand.vectors == 1 or (demand.vectors and values <= KEPT)):
        return {**config, "BATCH": 1, "HELD": None, "LATE": True}
    few = FEW if demand.vectors or (single and warps == 8) else AGAIN if single else HELD
    if demand.inputs == 1 and few < values <= HELD:
        batch = 4 if chunks > 6 else 2
        registers = {} if demand.vectors or warps < 16 else {"maxnreg": 64}
        return {**config, "BATCH": batch, "HELD": chunks - batch, "LATE": True, **registers}
    simple = len(w.sizes) == 1 and set(w.steps) == {1} and demand.reach < 2**31
    two = demand.inputs == 2 and not demand.vectors and itemsize == 2 and values > OF_TWO_INPUTS
    alone = (itemsize == 4 and not demand.vectors and values > WAITING) or (two and access.peeled)
    if itemsize == 4 and demand.inputs == 1 and not demand.vectors and WAITING < values <= HELD:
        return {**config, "BLOCK": 2 * block, "BATCH": 1, "HELD": None, "LATE": True, "num_warps": 32, "maxnreg": 64}
    quarters = single and not demand.vectors and IN_QUARTERS < w.length and values <= AGAIN
    if simple and quarters and (shared := _shared(w.length, access, itemsize, demand, 8)):
        return shared
    shared = _shared(w.length, access, itemsize, demand) if simple and (alone or values > HELD) else None
    if two and values <= HELD and not shared:
        return {**config, "BATCH": 1, "HELD": chunks - 1, "LATE": True}
    if values <= HELD and not shared:
        return {**config, "BATCH": 1, "HELD": None, "LATE": demand.vectors > 1 or values > FEW}
    return shared or _walked(access.width)


def _short(n: int, itemsize: int, halves: bool) -> Config:
    """Several rows per program, or rows element by element, in chunks that are walked.

    halves: a row is two chunks, the first of which has no mask. H200, bf16, 236965 x 446: softmax_backward 152 us (160),
    log_softmax_backward 153 (162).
    """
    block = min(next_power(n), 4096)
    rows = max(1, 4096 // itemsize // block)
    held, warps = None if n <= 4096 else 1, clamp(rows * block // 512, 1, 8)
    block = block // 2 if halves and 256 <= n < block <= 4096 else block
    return {"ROWS": rows, "BLOCK": block, "BATCH": 1, "HELD": held, "num_warps": warps}


def _short_peeled(n: int, width: int) -> Config:
    """As few elements in vain as so many chunks allow, and as many rows as the threads have accesses for.

    Of equally good chunks the smallest: the fewest threads then look for elements beside whole accesses.
    """
    whole = n // width * width
    blocks = [32 << i for i in range(6) if 32 << i >= 2 * width**2 and cdiv(whole, 32 << i) <= MOST_CHUNKS]
    block = min(blocks, key=lambda block: cdiv(whole, block) * block)
    warps = max(2, block // (32 * width))
    return {"ROWS": 32 * warps * width // block, "BLOCK": block, "BATCH": 1, "HELD": None, "num_warps": warps}


def _in_whole_accesses(n: int) -> Config | None:
    """Rows of 16 bits in two to five chunks of whole accesses, as few elements in vain as that allows; None for others.

    H200, bf16, us by rows in one chunk, four warps, and so: layer_norm of 99724 x 816 98.8 and 85.2, of 150000 x 520 129.2
    and 86.3, of 200000 x 384 108.9 and 78.5, of 300000 x 200 79.7 and 68.5; softmax of 150000 x 520 117.9 and 78.4;
    softmax_backward of it 110.2 and 81.9; but add_rms_norm of 300000 x 200 91.6 and 98.0.
    """
    power = next_power(n)
    if not 128 < n < power:
        return None
    blocks = [block for block in (power // 2, power // 4, power // 8) if block >= 128 and cdiv(n, block) <= 5]
    block = min(blocks, key=lambda block: cdiv(n, block) * block)  # of equal ones the first, which is the largest
    accesses = max(1, 4 // cdiv(n, block))  # of a thread in each chunk
    return {"ROWS": 512 * accesses // block, "BLOCK": block, "BATCH": 1, "HELD": None, "num_warps": 2}


def _spread(config: Config, w: Walk, width: int, device: int) -> Config:
    """Fewer rows to a program while there are fewer programs than multiprocessors; the order of a sum stays as it is.

    H200, bf16, log_softmax_backward: 5 x 324 5.0 us (5.4), 2432 x 64 5.6 (6.0).
    """
    rows, least = config["ROWS"], 64 * config["num_warps"] * width
    while rows > 1 and rows * config["BLOCK"] >= least and w.grid(rows)[0] < processors(device):
        rows //= 2
    return {**config, "ROWS": rows}


def _registers(config: Config, values: int, itemsize: int, demand: Demand) -> bool:
    """Whether so many values of an input fit the registers of a thread, with vectors and what the statistic is taken of."""
    tensors = demand.inputs + demand.vectors
    room = min(255, 2048 // int(config["num_warps"])) - 32
    return values * tensors * itemsize // 4 + values <= room


def _chunk(n: int, values: int, width: int, wanted: int, many: int) -> tuple[int, int]:
    """Warps, and columns of a chunk: one access per thread; as few warps as hold the row in `wanted` values, or 16.

    values: of one access, in all inputs. many: for 8 warps. At most a third of the row in vain, or else as little as may
    be in `many` values of a thread. H200, bf16, softmax, by 16 warps in brackets: 8192 x 1101 16 us (108), 16640 x 4200
    73 (109); add_rms_norm of 20352 x 2080 87 (102).
    """
    least = (cdiv(n, 512 * width) * 512 * width, 16)
    for warps, most in ((2, wanted), (4, wanted), (8, max(wanted, many))):
        block = 32 * warps * width
        chunks = cdiv(n, block)
        if chunks * values <= most and chunks * block - n <= n // 3:
            return warps, block
        if chunks * values <= many:
            least = min(least, (chunks * block, warps))
    return least[1], 32 * least[1] * width


def _shared(n: int, access: RowAccess, itemsize: int, demand: Demand, warps: int = 16) -> Config | None:
    """Two programs of 16 warps per multiprocessor, or four of 8, with the row in shared memory but for its end; None where
    it does not fit, or the GPU cannot copy to shared memory while threads go on."""
    if cards.of(demand.device).capability < (8, 0):
        return None
    inputs, most = demand.inputs, (shared_bytes(demand.device) - SPARE) * warps // 32
    block = 32 * warps * access.width
    chunks = cdiv(n // access.width * access.width, block)  # of whole accesses
    fitting = min(most // (block * itemsize * inputs), chunks - 1) // 2 * 2
    if fitting < 2 or (chunks - fitting) * access.width * itemsize * inputs > 64:
        return None
    # Of two batches one is on its way while the other is looked at. 16 values of a thread in one, as registers are few:
    # softmax_backward of 8122 x 32001 in bf16 416.4 us, 464.5 by 32.
    batch = 2 if fitting > 2 and access.width * inputs <= 8 else 1
    return {
        "ROWS": 1, "BLOCK": block, "BATCH": batch, "HELD": chunks - fitting, "num_warps": warps, "SHARED": True,
        "maxnreg": 64,
    }  # fmt: skip


def _walked(width: int) -> Config:
    """What fits neither registers nor half of the shared memory is read again, from L2, which results leave first.

    H200, bf16, softmax of 512 x 131072: 83 us, 92 where results stay, and 100 by one program of 32 warps with the row in
    shared memory.
    """
    return {
        "ROWS": 1, "BLOCK": 1024 * width, "BATCH": 2 if width > 4 else 4, "HELD": 4, "num_warps": 32,
        "LATE": True, "maxnreg": 64, **HINTS, "STORE": "evict_first",
    }  # fmt: skip


def chunk_meta(w: Walk, vector_steps: tuple[int, ...], access: RowAccess, config: Config) -> tuple[int, Config]:
    """How many batches are walked twice, and what the kernel must know at compilation."""
    rows, block, batch = config["ROWS"], config["BLOCK"], config["BATCH"]
    # Elements of a row that chunks have to cover, wherever it begins.
    least = w.length - (access.width - 1) * access.peeled
    most = w.length // access.width * access.width if access.peeled else w.length
    chunks, full = max(1, cdiv(most, block)), max(0, least) // block
    batches = 0
    if config["HELD"] is not None:  # at least one chunk is held: the end of the row
        batches = min(cdiv(max(0, chunks - config["HELD"]), batch), full // batch, (chunks - 1) // batch)
    held = chunks - batches * batch
    reach = (w.length + block) * max((1, *w.steps, *vector_steps))
    return batches, {
        "KEEP": batches == 0 and held * block * rows <= KEPT * 32 * config["num_warps"],
        "LATE": False, **HINTS, **config,
        "HELD": held, "FULL": full - batches * batch, "BATCH": batch if batches else 0,
        "UNIT": access.unit, "WIDTH": access.width, "PEELED": access.width if access.peeled else 0,
        "MASK_ROWS": w.sizes[-1] % rows != 0, "INDEX": tl.int32 if reach < 2**31 else tl.int64,
    }  # fmt: skip


def shared_meta(w: Walk, access: RowAccess, config: Config) -> Config:
    """The same for the kernel that holds the batches in shared memory."""
    batches, meta = chunk_meta(w, (), access, config)
    names = ("BLOCK", "HELD", "FULL", "BATCH", "UNIT", "WIDTH", "PEELED", "num_warps", "maxnreg")
    return {"BATCHES": batches, **{name: meta[name] for name in names}}
