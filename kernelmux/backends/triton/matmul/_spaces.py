"""What the tiles of matmul may be: for each variant with a rule, the values that a search may try."""

from __future__ import annotations

import torch

from kernelmux.backends.triton._launch.card import held
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors, shared_bytes
from kernelmux.backends.triton.matmul._problem import MatmulShapes
from kernelmux.backends.triton.matmul._tiles import k_major_rule, persistent_rule, rule, shares_rest, specialised_rule
from kernelmux.registry.backend.search_space import Key, Space
from kernelmux.registry.dtypes import SHORT

FEWEST, SUMS = 8, 128  # fp32 sums to a thread, beside which addresses and operands still have registers
BEYOND, TOO_MUCH = "a tile of which half and more lies beyond the result", "more shared memory than there is"


def _key(p: MatmulShapes) -> Key:
    """Dtype, layouts, what of lines is known to be aligned, whether there is a batch, and the end; the sizes."""
    precision = p.precision if p.dtype == torch.float32 else ""
    end = () if p.end.plain else ("bias" * p.end.bias, p.end.activation)
    parts = SHORT[p.dtype], precision, p.layouts, f"unit{p.unit}", "batched" * (p.batch is not None), *end
    return Key(" ".join(filter(None, parts)), (p.M, p.N, p.K, p.products))


def _too_large(c: Config, p: MatmulShapes) -> str | None:
    """What every variant refuses: tiles beyond the product, with sums that registers do not hold, or hardly any."""
    m, n, k = c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"]
    lengths = ((m, p.M), (n, p.N), (k, p.K))
    if any(block > 16 and block >= 2 * length for block, length in lengths):
        return BEYOND
    return uneven(m * n, c.get("num_warps", 4 * (m // 64)))


def uneven(sums: int, warps: int) -> str | None:
    """Why a tile of so many fp32 sums does not suit so many warps."""
    fit = FEWEST <= sums // (32 * warps) <= SUMS
    return None if fit else f"not {FEWEST} to {SUMS} sums to a thread"


def _ring(c: Config, p: MatmulShapes, stages: int, out: int = 0) -> str | None:
    """Stages of both operands, and `out` elements of the result, have to fit into shared memory."""
    operands = held(stages, p.device) * (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"]
    return TOO_MUCH if (operands + out) * p.dtype.itemsize > shared_bytes(p.device) else None


def _by_shape(c: Config, p: MatmulShapes) -> str | None:
    split, steps = c["SPLIT_K"], cdiv(p.K, c["BLOCK_K"])
    if split > 1 and (steps // split < 4 or p.tiles(c["BLOCK_M"], c["BLOCK_N"]) * split > 4 * processors(p.device)):
        return "K in more shares than multiprocessors need, or of fewer than 4 steps"
    if c["num_stages"] > max(steps, 2):
        return "more stages than steps"
    return _too_large(c, p) or _ring(c, p, c["num_stages"])


def _described(c: Config, p: MatmulShapes) -> str | None:
    if c["SUBTILES"] > 1 and c["BLOCK_N"] < 64:
        return "half a tile narrower than 32 columns"
    return _too_large(c, p) or _ring(c, p, c["num_stages"], c["BLOCK_M"] * c["BLOCK_N"] // c["SUBTILES"])


def _rings(c: Config, p: MatmulShapes) -> str | None:
    m, more = c["BLOCK_M"], c["MORE_N"]
    if more and (m < 256 or c["BLOCK_N"] != 128 or not p.end.plain):
        return "columns beside 128 x 128 sums of a warpgroup only, and with nothing to follow the product"
    if m == 256 and c["BLOCK_N"] > 128:
        return "more sums than registers"
    if (split := c.get("SPLIT", 1)) > 1 and not shares_rest(p, (m, c["BLOCK_N"], more, 0, 0.0), split):
        return "no last round that so many programs may share"
    wide = {**c, "BLOCK_N": c["BLOCK_N"] + more}
    too_large = _too_large({**c, "num_warps": 8 if m > 64 else 4}, p)
    return too_large or _ring(wide, p, c["STAGES"], m * (more or c["BLOCK_N"] // 2))


GROUPS = {"GROUP_M": (4, 8, 16)}
WARPS = {"num_warps": (4, 8)}
BY_SHAPE = Space(
    "triton", "matmul", "by_shape",
    {"BLOCK_M": (16, 32, 64, 128, 256), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (16, 32, 64, 128), **GROUPS, **WARPS,
     "num_stages": (2, 3, 4, 5), "SPLIT_K": (1, 2, 4, 8)},
    rule, _key, _by_shape,
)  # fmt: skip
PERSISTENT = Space(
    "triton", "matmul", "persistent",
    {"BLOCK_M": (64, 128, 256), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (32, 64, 128), **GROUPS, **WARPS,
     "num_stages": (2, 3, 4, 5, 6), "SUBTILES": (1, 2)},
    persistent_rule, _key, _described,
)  # fmt: skip
SPECIALISED = Space(
    "triton", "matmul", "specialised",
    {"BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128, 256), "MORE_N": (0, 32, 64), "BLOCK_K": (64,),
     "GROUP_M": (1, 4, 8, 16), "STAGES": (3, 4, 5, 6, 7, 8), "SPLIT": (1, 2, 3, 4)},
    specialised_rule, _key, _rings,
)  # fmt: skip
K_MAJOR = Space(
    "triton", "matmul", "k_major",
    {"BLOCK_M": (64, 128, 256), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (16, 32, 64), **GROUPS, **WARPS,
     "num_stages": (2, 3, 4, 5, 6), "SUBTILES": (1, 2)},
    k_major_rule, _key, _described,
)  # fmt: skip
