"""wgmma: when operands and sums may be touched, and how a descriptor names a tile."""

from pathlib import Path

import numpy as np

from kernelmux.emulator import TensorMap
from kernelmux.emulator.validation.arrays import aligned, empty, normal
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "wgmma"
SOURCE = Path(__file__).with_suffix(".cu")
TILES_BYTES = 2 * (64 + 8) * 128
TOLERANCE = 1e-3


def _operands() -> tuple[np.ndarray, np.ndarray]:
    return normal(64, 128, dtype=np.float16), normal(8, 128, dtype=np.float16)


def product() -> CudaLaunch:
    a, b = _operands()
    arguments = {"a": TensorMap(a, (64, 64), 128), "b": TensorMap(b, (8, 64), 128), "c": empty(64, 8)}
    expected = {"c": a.astype(np.float32) @ b.astype(np.float32).T}
    return CudaLaunch(SOURCE, "product", 1, 128, arguments, expected, TILES_BYTES, TOLERANCE)


def product_of_copies() -> CudaLaunch:
    a, b = _operands()
    weight = aligned(np.where(np.arange(128) < 64, 2, 1)).astype(np.float32)
    expected = {"c": (a.astype(np.float32) * weight) @ b.astype(np.float32).T}
    return CudaLaunch(
        SOURCE, "product_of_copies", 1, 128, {"a": a, "b": b, "c": empty(64, 8)}, expected, TILES_BYTES, TOLERANCE
    )


ASYNC = ("asynchronous",)
SHUFFLED = "The operands are read in another order: a wrong product."
UNDEFINED = "Undefined: the registers hold any part of the sum."

DEFECTS = (
    Defect(
        "no_wgmma_fence",
        "No wgmma.fence stands before the first wgmma.mma_async.",
        "Registers written before may not be seen.",
        product,
        ASYNC,
    ),
    Defect(
        "no_commit_of_products",
        "The products are never committed, so wait_group waits for nothing.",
        UNDEFINED,
        product,
        ASYNC,
    ),
    Defect(
        "product_never_awaited",
        "The kernel ends with products that no thread has waited for.",
        UNDEFINED,
        product,
        ASYNC,
    ),
    Defect(
        "sum_read_before_wait",
        "The sums are read before wgmma.wait_group.",
        UNDEFINED,
        product,
        ASYNC,
    ),
    Defect(
        "wait_leaves_one_group",
        "wgmma.wait_group 1 leaves the last group under way, and the sums are read.",
        UNDEFINED,
        product,
        ASYNC,
    ),
    Defect("first_product_adds", "The first product adds to sums that were not cleared.", UNDEFINED, product),
    Defect(
        "descriptor_stride_of_512",
        "A descriptor says 512 bytes from eight rows to the next eight, where it is 1024.",
        SHUFFLED,
        product,
    ),
    Defect("descriptor_swizzle_of_64", "A descriptor says 64-byte swizzle, the tile has 128.", SHUFFLED, product),
    Defect(
        "descriptor_without_swizzle",
        "A descriptor says no swizzle, the tile has 128 bytes.",
        SHUFFLED,
        product,
    ),
    Defect("k_step_of_16_bytes", "The descriptors go on by 16 bytes per step of K = 16, not by 32.", SHUFFLED, product),
    Defect(
        "descriptor_behind_memory",
        "A descriptor names a tile behind the last one.",
        "Other memory is multiplied, or the launch ends with an error.",
        product,
        ("out of bounds",),
    ),
    Defect(
        "tile_written_unswizzled",
        "Threads write a tile in plain order, and the descriptor says 128-byte swizzle.",
        SHUFFLED,
        product_of_copies,
    ),
    Defect(
        "no_proxy_fence_before_wgmma",
        "Threads write a tile and wgmma reads it with no fence.proxy.async between.",
        "wgmma may read what was there before.",
        product_of_copies,
        ASYNC,
    ),
    Defect(
        "no_barrier_before_wgmma",
        "wgmma begins while other warps still write the tile.",
        "Parts of the old tile are multiplied.",
        product_of_copies,
        ("race",),
    ),
    Defect(
        "operand_overwritten",
        "The next tile is written while wgmma still reads the operand.",
        "Parts of the next tile are multiplied.",
        product_of_copies,
        ASYNC,
    ),
    Defect(
        "no_fence_after_sums_changed",
        "The sums are scaled between two products, with no wgmma.fence after that.",
        "The product may start from the sums before they were scaled.",
        product_of_copies,
        ASYNC,
    ),
)
