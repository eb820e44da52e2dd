"""TMA and mbarrier: missing waits and arrivals, wrong numbers of bytes, and what the asynchronous proxy sees."""

from pathlib import Path

import numpy as np

from kernelmux.emulator import TensorMap
from kernelmux.emulator.validation.arrays import empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "TMA and mbarrier"
SOURCE = Path(__file__).with_suffix(".cu")
TILES, TILE = 5, (8, 32)


def tile_sums() -> CudaLaunch:
    x, y = ramp(TILES * 8, 32), empty(TILES, 32)
    arguments = {"x": TensorMap(x, TILE), "y": y, "tiles": np.int32(TILES)}
    return CudaLaunch(SOURCE, "tile_sums", 1, 64, arguments, {"y": x.reshape(TILES, *TILE).sum(1)})


def twice() -> CudaLaunch:
    x, y = ramp(TILES * 8, 32), empty(TILES * 8, 32)
    arguments = {"x": TensorMap(x, TILE), "y": TensorMap(y, TILE), "tiles": np.int32(TILES)}
    return CudaLaunch(SOURCE, "twice", 1, 64, arguments, {"y": 2 * x})


def unswizzle() -> CudaLaunch:
    x, y = ramp(8, 32), empty(8, 32)
    return CudaLaunch(SOURCE, "unswizzle", 1, 32, {"x": TensorMap(x, TILE, 128), "y": y}, {"y": x})


def bulk() -> CudaLaunch:
    x, y = ramp(48), empty(48)
    return CudaLaunch(SOURCE, "bulk", 1, 64, {"x": x, "y": y, "n": np.int32(48)}, {"y": x[::-1]})


def accumulate() -> CudaLaunch:
    x, y = ramp(6, 64), np.full(64, 3, np.float32)
    arguments = {"x": x, "y": y, "tiles": np.int32(6)}
    return CudaLaunch(SOURCE, "accumulate", 2, 64, arguments, {"y": y + x.sum(0)})


def accumulate_tiles() -> CudaLaunch:
    x, y = ramp(TILES * 8, 32), np.full((TILES * 8, 32), 5, np.float32)
    arguments = {"x": x, "y": TensorMap(y, TILE), "tiles": np.int32(TILES)}
    return CudaLaunch(SOURCE, "accumulate_tiles", 1, 64, arguments, {"y": y + x})


ASYNC = ("asynchronous",)
STALE = "Tiles are read before they have arrived: wrong values that depend on the timing."
HANGS = "The block hangs."
TORN = "Tiles are overwritten while they are read."

DEFECTS = (
    Defect("no_wait_for_tile", "The consumer does not wait for the tile.", STALE, tile_sums, ("uninitialised", "race")),
    Defect("parity_inverted", "The consumer waits for the wrong parity.", HANGS, tile_sums, ("deadlock",)),
    Defect(
        "parity_never_changes",
        "The consumer waits for parity 0 in every round.",
        "Tiles are read before they have arrived, or the block hangs.",
        tile_sums,
        ("deadlock",),
    ),
    Defect(
        "more_bytes_expected", "The barrier expects 16 bytes more than the tile has.", HANGS, tile_sums, ("deadlock",)
    ),
    Defect(
        "fewer_bytes_expected",
        "The barrier expects 16 bytes less than the tile has.",
        "The phase may end before the tile is complete, and the rest spoils the next phase.",
        tile_sums,
        ("deadlock",),
    ),
    Defect(
        "no_bytes_expected",
        "The producer arrives at the barrier without announcing the bytes of the copy.",
        STALE,
        tile_sums,
        ("deadlock",),
    ),
    Defect(
        "no_expected_bytes_in_last_round",
        "The bytes of the last tile are not announced.",
        STALE,
        twice,
        ASYNC,
    ),
    Defect("no_arrival_of_producer", "The producer never arrives at the barrier.", HANGS, tile_sums, ("deadlock",)),
    Defect(
        "full_not_initialised",
        "One of the barriers of the ring is not initialised.",
        "Undefined: mostly the block hangs.",
        tile_sums,
        ASYNC,
    ),
    Defect("stage_not_awaited", "The producer does not wait until a stage is empty.", TORN, tile_sums, ASYNC),
    Defect("stage_never_freed", "The consumer does not say that a stage is empty.", HANGS, tile_sums, ("deadlock",)),
    Defect(
        "freed_twice",
        "Every consumer arrives twice where the barrier counts one arrival.",
        TORN,
        tile_sums,
        ("deadlock",),
    ),
    Defect(
        "reports_to_other_stage",
        "All copies report to the barrier of stage 0.",
        HANGS,
        tile_sums,
        ("deadlock",),
    ),
    Defect(
        "tile_not_aligned",
        "The tile in shared memory begins at a multiple of 64 bytes instead of 128.",
        "The launch ends with an error.",
        tile_sums,
        ("misaligned",),
    ),
    Defect(
        "coordinates_swapped",
        "Row and column of a TMA tile are mixed up.",
        "Other tiles, filled with zeros.",
        tile_sums,
    ),
    Defect(
        "no_fence_after_init",
        "No fence.mbarrier_init (or proxy fence) stands between mbarrier.init and the first copy.",
        "The copy may report to a barrier that the asynchronous proxy does not see yet.",
        tile_sums,
        blind="an mbarrier is visible everywhere at once; fences are checked for data, not for barriers",
    ),
    Defect(
        "no_proxy_fence",
        "Threads write a tile and TMA stores it with no fence.proxy.async between.",
        "TMA may store what was there before.",
        twice,
        ASYNC,
    ),
    Defect(
        "store_before_barrier",
        "One thread starts the store while other threads still write the tile.",
        "Parts of the tile are stored before they are written.",
        twice,
        ("race",),
    ),
    Defect(
        "store_not_awaited",
        "The kernel ends with stores that no thread has waited for.",
        "Part of the output may be lost.",
        twice,
        ASYNC,
    ),
    Defect(
        "store_not_committed",
        "The stores are never committed, so the wait does not cover them.",
        "Part of the output may be lost.",
        twice,
        ASYNC,
    ),
    Defect(
        "source_overwritten",
        "The next tile is written into the buffer that a store still reads.",
        "Rows of two tiles are mixed.",
        twice,
        ASYNC,
    ),
    Defect(
        "swizzle_forgotten",
        "A tile that TMA has swizzled is read in plain order.",
        "The columns are shuffled.",
        unswizzle,
    ),
    Defect(
        "swizzle_of_64_bytes",
        "A tile swizzled over 128 bytes is read with the pattern of 64 bytes.",
        "The columns are shuffled.",
        unswizzle,
    ),
    Defect(
        "bulk_copy_too_long",
        "A bulk copy of bytes reads over the end of its array.",
        "Values of another allocation, or an illegal address.",
        bulk,
        ("out of bounds",),
    ),
    Defect(
        "bulk_copy_not_of_16",
        "The size of a bulk copy is no multiple of 16 bytes.",
        "The launch ends with an error.",
        bulk,
        ("misaligned",),
    ),
    Defect(
        "no_proxy_fence_before_sum",
        "Threads write a tile and a bulk reduction adds it to global memory with no fence.proxy.async between.",
        "It may add what was there before.",
        accumulate,
        ASYNC,
    ),
    Defect(
        "sum_not_awaited",
        "The kernel ends with bulk reductions that no thread has waited for.",
        "Part of the sum may be lost.",
        accumulate,
        ASYNC,
    ),
    Defect(
        "sum_not_committed",
        "The bulk reductions are never committed, so the wait does not cover them.",
        "Part of the sum may be lost.",
        accumulate,
        ASYNC,
    ),
    Defect(
        "sum_source_overwritten",
        "The next tile is written into the buffer that a bulk reduction still reads.",
        "Parts of two tiles are added.",
        accumulate,
        ASYNC,
    ),
    Defect(
        "sum_before_barrier",
        "One thread starts a tensor reduction while other threads still write the tile.",
        "Parts of the tile are added before they are written.",
        accumulate_tiles,
        ("race",),
    ),
)
