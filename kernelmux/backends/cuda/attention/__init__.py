"""attention: softmax(scale * q k^T) v without the matrix of scores; grouped queries, causal aligned to the last key.

online        four lanes share a row, on the FP32 pipes; any head size to 256, fp32 too
tensor_cores  mma.sync behind cp.async
wgmma         TMA feeds warpgroup products that overlap with the softmax
split_keys    few queries: bound by reading keys and values, which are split over blocks
split_wgmma   the same for more rows than mma.sync keeps up with, as wgmma
bf16x6        fp32 by six warpgroup products of bf16 for each product, as exact as on the FP32 pipes

Every rung walks the keys in tiles with an online softmax (Milakov and Gimelshein 2018; Dao, FlashAttention-2, 2023) and
leaves out those that no query of a block sees. The overlap is that of FlashAttention-3 (Shah et al., 2024), the split
that of Flash-Decoding (Dao et al., 2023).
"""

from __future__ import annotations

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles
from kernelmux.backends.cuda.attention import _bf16x6, _split_keys
from kernelmux.backends.cuda.attention._bf16x6 import PlanesOfAttention
from kernelmux.backends.cuda.attention._call import (
    SHAPE,
    AttentionCall,
    AttentionPlan,
    Config,
    Pair,
    call_of,
    nothing_seen,
    section_for_balance,
    section_for_l2,
)
from kernelmux.backends.cuda.attention._forms import wgmma_config
from kernelmux.backends.cuda.attention._split_keys import SplitPlan
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Capability, Condition, Dtypes, Multiple, Multiplies
from kernelmux.registry.spec.sliding_windows import Limit
from kernelmux.registry.util.cards import remembered

T = torch.Tensor

_ONLINE = Source(__file__, "attention_online.cu")
_TENSOR_CORES = Source(__file__, "attention_tensor_cores.cu")
_WGMMA = Source(__file__, "attention_wgmma.cu")

_STRIDES = " ".join(f"{x}_{axis}:i64" for x in "qkv" for axis in ("batch", "head", "row"))
_POINTERS = f"q* k* v* out* lse* {SHAPE} {_STRIDES} scale_log2:f32"
_MAPS = f"q:map k:map v:map out* lse* {SHAPE} scale_log2:f32 works:i32"

_SMALLEST_SCALE = 2.0**-126
_BARRIER_BYTES = 1024  # behind the tiles; the structure is padded to a whole unit of the swizzle
_LINE = 64  # elements of 128 bytes, the widest box of a swizzled TMA load


def online(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _online(call_of(q, k, v, causal, scale, window, ahead)).run(q, k, v)


def tensor_cores(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    q, scale = _positive(q, scale)
    return _tensor_cores(call_of(q, k, v, causal, scale, window, ahead)).run(q, k, v)


def wgmma(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    q, scale = _positive(q, scale)
    rows = _joined(q, k, causal, window, ahead)
    out, lse = _wgmma(call_of(rows, k, v, causal, scale, window, ahead)).run(rows, k, v)
    return (out, lse) if rows is q else (out.view(q.shape), lse.view(q.shape[:3]))


def split_keys(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    q, scale = _positive(q, scale)
    call = call_of(q, k, v, causal, scale, window, ahead)
    return _split_keys.run(call, _vector(call.q, call.k, call.v), q, k, v)


def split_wgmma(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    q, scale = _positive(q, scale)
    return _split_wgmma(call_of(q, k, v, causal, scale, window, ahead)).run(q, k, v) if k.numel() else nothing_seen(q)


def bf16x6(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    if not k.numel():
        return nothing_seen(q)
    q, scale = _positive(_bf16x6.whole(q), scale)
    return _bf16x6_plan(call_of(q, k, v, causal, scale, window, ahead)).run(q, k, v)


def _positive(q: T, scale: float) -> tuple[T, float]:
    """The same call with a positive scale: only then is the largest raw score the largest scaled one.

    Zero becomes the smallest normal number: the weights stay equal, and no 0 * -inf arises at the masked keys. Of rows
    that overlap torch makes a tensor in any order of axes; the kernels want the last one contiguous.
    """
    return ((-q).contiguous() if scale < 0 else q), max(abs(scale), _SMALLEST_SCALE)


def _joined(q: T, k: T, causal: bool, window: Limit, ahead: Limit) -> T:
    """The heads that share keys as one with all their queries: fewer tiles of queries are part empty.

    Where no mask tells queries apart, and the queries of the next head follow those of the one before. H200, 2 x 80/10 x
    832, D = 104: 134.6 us, head by head 143.1.
    """
    B, H, M, D = q.shape
    G = k.shape[1]
    if causal or window is not None or ahead is not None or H == G or q.stride(1) != M * q.stride(2):
        return q
    return q.view(B, G, H // G * M, D)


@remembered
def _online(call: AttentionCall) -> AttentionPlan:
    return AttentionPlan(online_launch(call))


def online_launch(call: AttentionCall, guard: int = 0) -> BoundLaunch:
    """guard: words in front of the other arguments, without any of which the launch is spared (guard.cuh); 0: none."""
    lanes, rows, keys = 4, 32, 32 if call.q.shape[3] <= 192 else 16  # 48 KB of keys and values at most
    flags, defines = ("flags* ", {"GUARDED": guard}) if guard else ("", {})
    kernel = _ONLINE.kernel(
        "attention_online", f"{flags}{_POINTERS}", BLOCK_M=rows, BLOCK_N=keys, **call.defines, **defines
    )
    numbers = (*call.sizes(section_for_l2(call)), *call.strides, call.scale_log2)
    return kernel.bind(call.works(rows), lanes * rows, *numbers)


@remembered
def _tensor_cores(call: AttentionCall) -> AttentionPlan:
    return tensor_cores_plan(call, tensor_cores_config(call))


@remembered
def _wgmma(call: AttentionCall) -> AttentionPlan:
    return wgmma_plan(call, wgmma_config(call))


@remembered
def _bf16x6_plan(call: AttentionCall) -> PlanesOfAttention:
    return bf16x6_plan(call, _bf16x6.config(call))


@remembered
def _split_wgmma(call: AttentionCall) -> SplitPlan:
    chosen = _split_keys.wgmma_config(call)
    return split_wgmma_plan(call, chosen, _split_keys.wgmma_splits(call, chosen))


def tensor_cores_config(call: AttentionCall) -> Config:
    """Tiles of queries and keys, warps that share the queries, stages of the ring, elements per load.

    Four warps read each key tile from shared memory half as often as eight, but their 32 rows fill the 255 registers at
    D = 128: with masks on top only a narrower tile of keys does not spill. Beyond, 16 rows are all there is room for. On
    a T4, whose blocks have 64 KB, tiles of keys are narrower from D = 72 on.
    """
    wide = call.q.shape[3] > 128
    keys = 32 if wide else 48 if call.uneven and call.q.shape[3] > 64 else 64
    tile = {"BLOCK_M": 64 if wide else 128, "WARPS": 4, "STAGES": 2, "VECTOR": _vector(call.q, call.k, call.v)}
    if call.mask.window and keys == 48 and call.card.capability[0] == 10:
        keys = 32  # of 48 ptxas spills 176 bytes to a thread
    configs = [{**tile, "BLOCK_N": n} for n in (keys, 32, 16)]
    return next(c for c in configs if fits(call.card, call.tile_bytes(c), 128))


def tensor_cores_plan(call: AttentionCall, config: Config) -> AttentionPlan:
    kernel = _TENSOR_CORES.kernel("attention_tensor_cores", _POINTERS, **config, **call.defines)
    numbers = (*call.sizes(section_for_l2(call)), *call.strides, call.scale_log2)
    works, shared = call.works(config["BLOCK_M"]), call.tile_bytes(config)
    return AttentionPlan(kernel.bind(works, 32 * config["WARPS"], *numbers, shared=shared))


def wgmma_plan(call: AttentionCall, config: Config) -> AttentionPlan:
    """One block per multiprocessor: its tiles leave no shared memory for a second one."""
    kernel = _WGMMA.kernel("attention_wgmma", _MAPS, **config, **call.defines)
    works, shared = call.works(config["BLOCK_M"]), call.tile_bytes(config) + _BARRIER_BYTES
    sizes = call.sizes(section_for_balance(call, config["BLOCK_M"], config["BLOCK_N"]))
    grid, threads = min(works, call.card.processors), 128 * (config["CONSUMERS"] + 1)
    launch = kernel.bind(grid, threads, *sizes, call.scale_log2, works, shared=shared)
    rows = (config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_N"])
    return AttentionPlan(launch, tuple(_tiles(x, r) for x, r in zip((call.q, call.k, call.v), rows, strict=True)))


def bf16x6_plan(call: AttentionCall, config: Config) -> PlanesOfAttention:
    return _bf16x6.plan(call, config, online_launch(call, 3 * planes.words(call.card)))


def split_wgmma_plan(call: AttentionCall, config: Config, pieces: int) -> SplitPlan:
    tiles = tuple(_tiles(x, config["BLOCK_N"]) for x in (call.k, call.v))
    return _split_keys.wgmma_plan(call, config, tiles, pieces)


def _vector(*inputs: Layout) -> int:
    """Elements per load: 8 where every row starts at a multiple of 16 bytes, else 1."""
    return 8 if all(x.offset == 0 and not any(s % 8 for s in _real_strides(x)) for x in inputs) else 1


def _real_strides(x: Layout) -> tuple[int, ...]:
    """Strides of batch, head and row; an axis of length 1 has none, whatever torch says, and gets a row's length."""
    return tuple(s if n > 1 else x.shape[3] for s, n in zip(x.strides[:3], x.shape, strict=False))


def _tiles(x: Layout, rows: int) -> Tiles:
    """Descriptors that load [rows, _LINE] pieces of one (batch, head)."""
    return Tiles(x.shape, (*_real_strides(x), 1), (1, 1, rows, _LINE), swizzle=128)


_LAST = {"q": "last", "k": "last", "v": "last"}
_ROWS = (AtMost("M", 2**31 - 512), AtMost("N", 2**31 - 512))  # int, rounded up to whole tiles
_ANY: tuple[Condition, ...] = (Dtypes("q", torch.float32, torch.float16, torch.bfloat16), AtMost("D", 256), *_ROWS)
_HALVES: tuple[Condition, ...] = (
    Dtypes("q", torch.float16, torch.bfloat16), Multiple("D", 8), AtMost("D", 256), *_ROWS,
)  # fmt: skip
_ON_HOPPER: tuple[Condition, ...] = (Aligned("q"), Aligned("k"), Aligned("v"), Capability((9, 0), below=(10, 0)))

VARIANTS = {
    "online": Implementation(
        online, "four lanes share a row, a running maximum and sum replace the matrix of scores", _ANY, _LAST
    ),
    "bf16x6": Implementation(
        bf16x6,
        "six warpgroup products of bf16 for each product of fp32",
        (Dtypes("q", torch.float32), AtMost("D", 256), *_ROWS, Capability((9, 0), below=(10, 0))),
        _LAST,
        "fp32_sequential",
        pays=(_bf16x6.RepaysPlanesOfAttention(),),
    ),
    "tensor_cores": Implementation(
        tensor_cores, "mma.sync on registers behind cp.async", (*_HALVES, Multiplies("q")), _LAST, "mma"
    ),
    "wgmma": Implementation(
        wgmma, "warpgroup products fed by TMA, overlapped with the softmax", (*_HALVES, *_ON_HOPPER), _LAST, "mma"
    ),
    "split_keys": Implementation(
        split_keys,
        "few queries: the rows of heads that share keys in one tile, the keys split over blocks",
        (*_HALVES, _split_keys.FewRows(), Multiplies("q")),
        _LAST,
        "mma",
    ),
    "split_wgmma": Implementation(
        split_wgmma,
        "few queries of many heads: the tile of rows on warpgroup products fed by TMA, the keys split over blocks",
        (*_HALVES, _split_keys.FewRows(), _split_keys.ManyRows(), *_ON_HOPPER),
        _LAST,
        "mma",
    ),
}
