"""What the kernels of rows must know at compilation."""

from __future__ import annotations

import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, cdiv
from kernelmux.backends.triton._rows.row_plan import HINTS, KEPT, RowAccess
from kernelmux.backends.triton._rows.rows import Walk


def chunk_meta(w: Walk, vector_steps: tuple[int, ...], access: RowAccess, config: Config) -> tuple[int, Config]:
    """How many batches are walked twice, and what the kernel must know at compilation."""
    rows, block, batch = config["ROWS"], config["BLOCK"], config["BATCH"]
    # Elements of a row that chunks have to cover, wherever it begins.
    least = w.length - (access.width - access.unit) * access.peeled
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
