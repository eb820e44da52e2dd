"""attention: softmax(scale * q k^T) v for each head, in one pass over the keys (Dao et al., FlashAttention, 2022).

online       a running maximum and sum rescale what was added so far; scores never leave the SM
bf16x6       fp32 on Hopper's tensor cores, each number as three of bf16; warps as in specialised
descriptors  online with loads and stores by the copy engine (TMA)
split_keys   for few queries: those of all heads that share keys as one tile, the keys divided among programs
specialised  one warp only loads; one or two warpgroups overlap products of a block with exponentials of another
Blocks of keys that every query of a block may see are walked without a mask; only the rest pay for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernelmux.backends.triton._launch.card import TensorCores, narrow
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton.attention._bf16x6 import bf16x6
from kernelmux.backends.triton.attention._descriptors import descriptors
from kernelmux.backends.triton.attention._forms import specialised_rule
from kernelmux.backends.triton.attention._online import online
from kernelmux.backends.triton.attention._planes import RepaysPlanesOfHeads, pieces
from kernelmux.backends.triton.attention._problem import AttentionProblem
from kernelmux.backends.triton.attention._specialised import QUERIES as QUERIES_OF_GROUP
from kernelmux.backends.triton.attention._specialised import specialised
from kernelmux.backends.triton.attention._split_keys import QUERIES, split_keys
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, AtMost, Capability, Condition, Dtypes, Multiple, OneOf, sm
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


def bf16x6_rule(p: AttentionProblem) -> Config:
    """Two warpgroups, which share keys, where they have work for all multiprocessors.

    H200, us, with one and two: causal, 1 x 16 x 4096, D = 128, 769 and 642, 2 x 16 x 2048, D = 64, 281 and 231, and 3 x
    2/1 x 448, D = 144, 35 and 73. In blocks of 32 keys 720, 264 and 40.
    """
    width = sum(pieces(p.D))
    if width > 192:
        return {"GROUPS": 1, "BLOCK_N": 32, "STAGES": 1}
    groups = 2 if width <= 128 and cdiv(p.M, 2 * QUERIES_OF_GROUP) * p.B * p.H >= processors(p.device) else 1
    return {"GROUPS": groups, "BLOCK_N": 64, "STAGES": 2 if 3 * 2 * (64 * groups + 256) * width < 220000 else 1}


MANY_SPLITS = 16
SHORTEST = 64, 256  # keys of a split, of so many splits and of more
MOST_SPLITS = 128
START = 128  # what a program takes besides its keys, in keys
MERGE = 128  # and the second kernel
PART = 12  # and in it each of up to MANY_SPLITS
LONG = 4096  # keys from which wider tiles pay


def split_keys_rule(p: AttentionProblem) -> Config:
    """Splits so that the programs, mostly two at a time on a multiprocessor, end together; many batches need none.

    H200, 8 heads of 8192 keys, D = 128, 32 batches: 255 us (4.2 TB/s) for 4 queries of 32 heads, in two splits 273;
    256 us for 16 queries, in two splits 276. One batch, 1 query: of 4096 keys 16.7 us in tiles of 64 keys, 18.2 of 32, of
    65536 keys 80.5 and 82.3. 64 rows, 8 batches of 4096 keys, have one program on each: 52.6 us, with two 62.0. 128 rows,
    32 batches with 4 heads: 171 us in one tile, 181 in two. 1 x 32/8 of 2048 keys: 14.6 us in 8 splits, 14.2 in 16; 1 x 10
    of 1154, D = 240, 18.6 in 5, 15.4 in 10, 16.6 in 19; 3 x 64/8 of 706, D = 96, 17.7 in 3, 15.0 in 6, 14.3 in 8. 23 x 8/1
    x 3 of 58050, D = 224: 328 in tiles of 64 keys, 356 of 32.
    """
    packed = p.H // p.G * p.M
    rows = min(64, max(16, triton.next_power_of_2(packed)))
    if packed > 64 and p.columns <= 128 and p.B * p.G * cdiv(packed, 128) >= processors(p.device) * 3 // 4:
        rows = 128
    works = p.B * p.G * cdiv(packed, rows)
    seen = min(p.N, p.mask.window + p.M - 1) if p.mask.window else p.N
    if p.columns > 128 and rows == 32 and seen >= LONG and not narrow(p.device):
        tile = _tile(rows, 64, warps=4, stages=2)
    elif p.columns > 128:
        tile = _tile(rows, 32, warps=4, stages=3)
    elif rows == 16 and works > 16:
        tile = _tile(rows, 32, warps=2, stages=4)
    else:
        tile = _tile(rows, 64, warps=8 if rows == 128 else 4, stages=3)
    single = rows == 128 or (packed > 32 and packed <= 64 and works <= processors(p.device))
    programs = processors(p.device) * (1 if single else 2)
    blocks = cdiv(seen, tile["BLOCK_N"])

    def time(splits: int) -> int:
        length = cdiv(blocks, splits)
        waves = cdiv(works * cdiv(blocks, length), programs)
        keys: int = length * tile["BLOCK_N"]
        return waves * (keys + START) + (MERGE + PART * min(splits, MANY_SPLITS) if splits > 1 else 0)

    few, many = (cdiv(seen, keys) for keys in SHORTEST)
    most = max(1, min(few, MANY_SPLITS), min(many, MOST_SPLITS))
    return {"SPLITS": min(range(1, most + 1), key=time), **tile}


def attention_online(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return online(q, k, v, causal, scale, window, precision, ahead, rule)


def attention_bf16x6(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return bf16x6(q, k, v, causal, scale, window, precision, ahead, bf16x6_rule)


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


FEW_LINES = 128  # heads of all batches
FEW_KEYS = 576
ONLINE_FP32 = 5.7e6  # operations per microsecond; H200, 1 x 16 x 4096, D = 128, causal: 11973 us, bf16x6 642
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


@dataclass(frozen=True)
class WorkPerExponential:
    """Of half as many columns the products take no longer than the exponentials, which then nothing hides.

    H200, bf16, us, D = 64: 4 x 16 x 640 27.8, descriptors 29.5; causal, 63 x 8 x 507 71.1 and 85.6, 2 x 32/8 x 4096 325
    and 363. Without a mask, 4 x 32 x 4096, 398 TFLOP/s with two warpgroups, descriptors 444.
    """

    text: str = "D > 64, a mask, or up to 1024 keys"

    def check(self, call: Call) -> str | None:
        """None, or the length of rows and their number."""
        columns, keys = call.axes["D"], call.axes["N"]
        masked = call.arguments["causal"] or any(call.arguments[name] is not None for name in ("window", "ahead"))
        if columns > 64 or masked or keys <= 1024:
            return None
        return f"D = {columns} and {keys} keys without a mask, needs D > 64 or up to 1024 keys there"


@dataclass(frozen=True)
class WorkPerQuery:
    """A few queries do not fill a block of 64; where there are few keys too, one program of a head is done soonest.

    H200, us: 9 x 6 x 13 x 543, D = 104, 15.1, split_keys 18.3; 5 x 1 x 2 x 155, D = 168, 11.1 and 12.6. 4 x 16 x 8 x 600,
    D = 64, split_keys 14.5.
    """

    text: str = f"M > {QUERIES}, or up to {FEW_LINES} heads and few keys"

    def check(self, call: Call) -> str | None:
        """None, or what there are few of."""
        lines, queries, keys = call.axes["B"] * call.axes["H"], call.axes["M"], call.axes["N"]
        few = FEW_KEYS if queries > QUERIES // 2 else FEW_KEYS // 2
        if queries > QUERIES or (lines <= FEW_LINES and keys <= few):
            return None
        return f"{queries} queries of {lines} heads and {keys} keys, needs M > {QUERIES} or fewer of them"


VARIANTS = {
    "online": Implementation(
        fn=attention_online, idea="running maximum and sum",
        requires=(TensorCores("q"), AtMost("D", 256)), layout=LAST, arithmetic="mma",
    ),
    "bf16x6": Implementation(
        fn=attention_bf16x6, idea="fp32 as three numbers of bf16, a product as six; one warp loads, warpgroups multiply",
        requires=(
            Dtypes("q", torch.float32), OneOf("precision", "ieee"), Capability((9, 0), below=(10, 0)), AtMost("D", 256),
        ), layout=LAST, arithmetic="mma", pays=(RepaysPlanesOfHeads(2, ONLINE_FP32, 1),),
    ),
    "descriptors": Implementation(
        fn=attention_descriptors, idea="the same with TMA loads and stores",
        requires=(Capability((9, 0)), QueriesFit(), *WIDTHS, *ALIGNED), layout=LAST, arithmetic="mma",
    ),
    "split_keys": Implementation(
        fn=attention_split_keys, idea="programs divide the keys, which all heads that share them read once",
        requires=(Capability((8, 0)), AtMost("M", QUERIES), *WIDTHS, *ALIGNED), layout=LAST, arithmetic="mma",
    ),
    "specialised": Implementation(
        fn=attention_specialised, idea="one warp loads, one or two warpgroups multiply and exponentiate in turn",
        requires=(
            Capability((9, 0), below=(10, 0)), AtLeast("D", 56), WorkPerExponential(), WorkPerQuery(), *WIDTHS, *ALIGNED,
        ), layout=LAST, arithmetic="mma",
    ),
}  # fmt: skip
