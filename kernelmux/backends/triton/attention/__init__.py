"""attention: softmax(scale * q k^T) v for each head, in one pass over the keys (Dao et al., FlashAttention, 2022).

online       a running maximum and sum rescale what was added so far; scores never leave the SM
descriptors  the same with loads and stores by the copy engine (TMA)
specialised  one warp only loads; two warpgroups overlap the products of one block with the exponentials of another
split_keys   for few queries: those of all heads that share keys as one tile, the keys divided among programs
Blocks of keys that every query of a block may see are walked without a mask; only the rest pay for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernelmux.backends.triton._launch.card import TensorCores, narrow
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton.attention._descriptors import descriptors
from kernelmux.backends.triton.attention._online import online
from kernelmux.backends.triton.attention._problem import AttentionProblem
from kernelmux.backends.triton.attention._specialised import specialised
from kernelmux.backends.triton.attention._split_keys import QUERIES, split_keys
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, AtMost, Capability, Condition, Dtypes, Multiple, sm
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
Pair = tuple[T, T]


def _tile(m: int, n: int, warps: int, stages: int) -> Config:
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def _fp32_rule(p: AttentionProblem) -> Config:
    """Sums of products without tensor cores hold whole rows of both operands in registers."""
    if p.columns <= 64:
        return _tile(32, 32, warps=4, stages=1)
    if p.precision == "tf32":
        return _tile(32, 32, warps=8, stages=1)
    return _tile(32, 16, warps=8, stages=1) if p.columns <= 128 else _tile(16, 16, warps=16, stages=1)


def rule(p: AttentionProblem) -> Config:
    """64 queries per warpgroup of 4 warps; fewer where the blocks of 128 would not fill the GPU."""
    if p.dtype == torch.float32:
        return _fp32_rule(p)
    if p.columns > 128:
        return _tile(64, 32, warps=8, stages=2)
    if p.M <= 64:
        return _tile(64, 64, warps=4, stages=2)
    # H200, 4 x 32 x 4096, D = 128: 479 TFLOP/s. With 4 warps it is 517, but that spills on sm_80 and sm_100.
    return _tile(128, 64, warps=8, stages=3)


def descriptors_rule(p: AttentionProblem) -> Config:
    """H200, 4 x 32 x 4096: 479 TFLOP/s at D = 64, the best; 508 at D = 128, where 128 queries reach 554.

    Those would spill on sm_100, and where they do not there is the next variant.
    """
    if narrow(p.device):  # products read queries from registers, of which 4 warps have too few
        return _tile(128, 64, warps=8, stages=3)
    if p.columns > 128:
        return _tile(64, 64, warps=4, stages=2)
    if p.columns <= 64 and not p.mask.causal:
        return _tile(64, 128, warps=4, stages=2)
    return _tile(64, 64, warps=4, stages=3)


def specialised_rule(p: AttentionProblem) -> Config:
    """H200: in blocks of 128 keys, which fit up to D = 160, and of 64, of which the last may be less empty.

    Causal, D = 128, 2 x 32/8 x 8192: 1680 us and 1876; D = 160, 4 x 16/4 x 4096: 531 and 597. Full, D = 128, 52 x 8/4 x
    307: 71 and 69.
    """
    narrow = 1.12 * cdiv(p.N, 64) * 64 < cdiv(p.N, 128) * 128 and not p.mask.causal and not p.mask.window
    return {"BLOCK_N": 64 if narrow or p.D > 160 else 128, "STAGES": 2}


SHORTEST = 256  # keys of a split
MOST_SPLITS = 128
START = 128  # what a program takes besides its keys, in keys
MERGE = 192  # and the second kernel


def split_keys_rule(p: AttentionProblem) -> Config:
    """Splits so that the programs, mostly two at a time on a multiprocessor, end together; many batches need none.

    H200, 8 heads of 8192 keys, D = 128, 32 batches: 255 us (4.2 TB/s) for 4 queries of 32 heads, in two splits 273;
    256 us for 16 queries, in two splits 276. One batch, 1 query: of 4096 keys 16.7 us in tiles of 64 keys, 18.2 of 32, of
    65536 keys 80.5 and 82.3. 64 rows, 8 batches of 4096 keys, have one program on each: 52.6 us, with two 62.0. 128 rows,
    32 batches with 4 heads: 171 us in one tile, 181 in two.
    """
    packed = p.H // p.G * p.M
    rows = min(64, max(16, triton.next_power_of_2(packed)))
    if packed > 64 and p.columns <= 128 and p.B * p.G * cdiv(packed, 128) >= processors(p.device) * 3 // 4:
        rows = 128
    works = p.B * p.G * cdiv(packed, rows)
    if p.columns > 128:
        tile = _tile(rows, 32, warps=4, stages=3)
    elif rows == 16 and works > 16:
        tile = _tile(rows, 32, warps=2, stages=4)
    else:
        tile = _tile(rows, 64, warps=8 if rows == 128 else 4, stages=3)
    single = rows == 128 or (packed > 32 and packed <= 64 and works <= processors(p.device))
    programs = processors(p.device) * (1 if single else 2)
    seen = min(p.N, p.mask.window + p.M - 1) if p.mask.window else p.N
    blocks = cdiv(seen, tile["BLOCK_N"])

    def time(splits: int) -> int:
        length = cdiv(blocks, splits)
        waves = cdiv(works * cdiv(blocks, length), programs)
        keys: int = length * tile["BLOCK_N"]
        return waves * (keys + START) + (MERGE if splits > 1 else 0)

    return {"SPLITS": min(range(1, max(1, min(cdiv(seen, SHORTEST), MOST_SPLITS)) + 1), key=time), **tile}


def attention_online(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return online(q, k, v, causal, scale, window, precision, ahead, rule)


def attention_descriptors(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    return descriptors(q, k, v, causal, scale, window, precision, ahead, descriptors_rule)


def attention_specialised(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    return specialised(q, k, v, causal, scale, window, precision, ahead, specialised_rule)


def attention_split_keys(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    return split_keys(q, k, v, causal, scale, window, precision, ahead, split_keys_rule)


LAST = {"q": "last", "k": "last", "v": "last"}
ALIGNED: tuple[Condition, ...] = (Dtypes("q", torch.float16, torch.bfloat16), *(Aligned(name) for name in "qkv"))
# Rows of whole 16 bytes, as the copy engine takes them and split_keys reads them.
WIDTHS: tuple[Condition, ...] = (Multiple("D", 8), AtMost("D", 256))


@dataclass(frozen=True)
class QueriesFit:
    """A block of queries of D numbers stays in registers, from where products of sm_120 read it."""

    text: str = "D <= 128 on sm_120 or newer"

    def check(self, call: Call) -> str | None:
        """None, or the length of the queries."""
        have, columns = call.capability, call.axes["D"]
        if have is None or have < (12, 0) or columns <= 128:
            return None
        return f"D = {columns} on {sm(have)}, needs D <= 128 there"


VARIANTS = {
    "online": Implementation(
        fn=attention_online, idea="running maximum and sum",
        requires=(TensorCores("q"), AtMost("D", 256)), layout=LAST, arithmetic="mma",
    ),
    "descriptors": Implementation(
        fn=attention_descriptors, idea="the same with TMA loads and stores",
        requires=(Capability((9, 0)), QueriesFit(), *WIDTHS, *ALIGNED), layout=LAST, arithmetic="mma",
    ),
    # Not D = 64: with half the work per exponential it reaches 398 TFLOP/s on an H200, descriptors 444.
    "specialised": Implementation(
        fn=attention_specialised, idea="one warp loads, two warpgroups multiply and exponentiate in turn",
        requires=(Capability((9, 0), below=(10, 0)), AtLeast("D", 65), *WIDTHS, *ALIGNED), layout=LAST,
        arithmetic="mma",
    ),
    "split_keys": Implementation(
        fn=attention_split_keys, idea="programs divide the keys, which all heads that share them read once",
        requires=(Capability((8, 0)), AtMost("M", QUERIES), *WIDTHS, *ALIGNED), layout=LAST, arithmetic="mma",
    ),
}  # fmt: skip
