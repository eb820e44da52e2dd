"""How many columns a chunk of a row has, of how many warps, by the length of the row alone."""

from __future__ import annotations

from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton._rows.rows import Walk, clamp, next_power

MOST_CHUNKS = 6  # of a short peeled row, each of one access of a thread
FEW_PROGRAMS = 4  # of a multiprocessor, below which one has as few peeled rows as it can


def whole_rows(n: int, itemsize: int, halves: bool) -> Config:
    """Several rows per program, or rows element by element, in chunks that are walked.

    halves: a row is two chunks, the first of which has no mask. H200, bf16, 236965 x 446, not peeled: softmax_backward 152
    us (160), log_softmax_backward 153 (162).
    """
    block = min(next_power(n), 4096)
    rows = max(1, 4096 // itemsize // block)
    held, warps = None if n <= 4096 else 1, clamp(rows * block // 512, 1, 8)
    block = block // 2 if halves and 256 <= n < block <= 4096 else block
    return {"ROWS": rows, "BLOCK": block, "BATCH": 1, "HELD": held, "num_warps": warps}


def least_chunk(width: int) -> int:
    """Columns of a chunk whose threads are enough for what a peeled row has beside whole accesses, at both ends."""
    return 2 * width**2


def short_peeled(n: int, width: int) -> Config:
    """As few elements in vain as so many chunks allow, and as many rows as the threads have accesses for.

    Of equally good chunks the smallest: the fewest threads then look for elements beside whole accesses.
    """
    whole = n // width * width
    blocks = [32 << i for i in range(6) if 32 << i >= least_chunk(width) and cdiv(whole, 32 << i) <= MOST_CHUNKS]
    block = min(blocks, key=lambda block: cdiv(whole, block) * block)
    warps = max(2, block // (32 * width))
    return {"ROWS": 32 * warps * width // block, "BLOCK": block, "BATCH": 1, "HELD": None, "num_warps": warps}


def in_whole_accesses(n: int) -> Config | None:
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
    return _by_two_warps(n, block, 8)


def in_half_accesses(n: int) -> Config | None:
    """The same of rows whose length is an odd multiple of four, in accesses of 8 bytes, one of a thread in each chunk.

    H200, bf16, us by rows in one chunk, peeled, and so: softmax of 986895 x 68 126.2, 153.1 and 79.1, of 508400 x 132
    135.0, 81.1 and 68.6, of 342392 x 196 95.0, 74.0 and 68.8; layer_norm of it 113.6, 91.2 and 83.6.
    """
    if not 32 < n < 256:
        return None
    block = 32 if n <= 160 else 64
    return _by_two_warps(n, block, 4)


def _by_two_warps(n: int, block: int, width: int) -> Config:
    """Rows in chunks of `block` columns, of which a thread has an access each, or as many as make four of a row."""
    accesses = max(1, 4 // cdiv(n, block))
    return {"ROWS": 64 * width * accesses // block, "BLOCK": block, "BATCH": 1, "HELD": None, "num_warps": 2}


def spread(config: Config, w: Walk, width: int, device: int) -> Config:
    """Fewer rows to a program while there are fewer programs than multiprocessors; the order of a sum stays as it is.

    H200, bf16, log_softmax_backward: 5 x 324 5.0 us (5.4), 2432 x 64 5.6 (6.0).
    """
    rows, least = config["ROWS"], 64 * config["num_warps"] * width
    while rows > 1 and rows * config["BLOCK"] >= least and w.grid(rows)[0] < processors(device):
        rows //= 2
    return {**config, "ROWS": rows}


def spread_peeled(config: Config, w: Walk, device: int) -> Config:
    """The same of peeled rows, whose order may change, while a multiprocessor has fewer than FEW_PROGRAMS.

    H200, bf16, log_softmax_backward: 1 x 292 5.3 us (6.0), 264 x 292 5.9 (6.4), 528 x 292 6.0 (6.4), 1 x 516 5.3 (6.0);
    layer_norm of 8 x 577 5.9 (6.7).
    """
    rows = config["ROWS"]
    while rows > 1 and w.grid(rows)[0] < FEW_PROGRAMS * processors(device):
        rows //= 2
    return {**config, "ROWS": rows}


def chunk_of(n: int, values: int, width: int, wanted: int, many: int) -> tuple[int, int]:
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


def in_shared_memory(n: int, width: int, itemsize: int, inputs: int, warps: int, most: int) -> Config | None:
    """All of a row but for its end, in so many bytes; None where it does not fit."""
    block = 32 * warps * width
    chunks = cdiv(n // width * width, block)  # of whole accesses
    fitting = min(most // (block * itemsize * inputs), chunks - 1) // 2 * 2
    if fitting < 2 or (chunks - fitting) * width * itemsize * inputs > 64:
        return None
    # Of two batches one is on its way while the other is looked at. 16 values of a thread in one, as registers are few:
    # softmax_backward of 8122 x 32001 in bf16 416.4 us, 464.5 by 32.
    batch = 2 if fitting > 2 and width * inputs <= 8 else 1
    return {
        "ROWS": 1, "BLOCK": block, "BATCH": batch, "HELD": chunks - fitting, "num_warps": warps, "SHARED": True,
        "maxnreg": 64,
    }  # fmt: skip
