"""attention: softmax(scale * q k^T) v without the matrix of scores; grouped queries, causal aligned to the last key.

Every rung walks the keys in tiles with an online softmax (Milakov and Gimelshein 2018; Dao, FlashAttention-2, 2023);
the last one overlaps the softmax with the products (Shah et al., FlashAttention-3, 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._runtime import Bound, Source, Tiles, cdiv, ctype, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Capability, Condition, Dtypes, OneOf

_ONLINE = Source(__file__, "attention_online.cu")
_TENSOR_CORES = Source(__file__, "attention_tensor_cores.cu")
_WGMMA = Source(__file__, "attention_wgmma.cu")

_SHAPE = "slices:i32 section:i32 heads:i32 group:i32 M:i32 N:i32"
_STRIDES = " ".join(f"{x}_{axis}:i64" for x in "qkv" for axis in ("batch", "head", "row"))
_POINTERS = f"q* k* v* out* {_SHAPE} {_STRIDES} scale_log2:f32"
_MAPS = f"q:map k:map v:map out* {_SHAPE} scale_log2:f32 works:i32"

_LOG2_E = math.log2(math.e)  # exp(x) = exp2(x * log2(e)): the hardware has exp2
_SMALLEST_SCALE = 2.0**-126
_LINE = 64  # elements of 128 bytes, the widest box of a swizzled TMA load
_BARRIER_BYTES = 1024  # behind the tiles; the structure is padded to a whole unit of the swizzle
_SECTION_BYTES = 16 << 20  # of keys and values that are read at one time: they should stay in L2

Config = dict[str, int]


@dataclass(frozen=True)
class Call:
    """All that a plan depends on besides addresses."""

    q: Layout
    k: Layout
    v: Layout
    causal: bool
    scale: float
    multiprocessors: int

    @property
    def defines(self) -> dict[str, object]:
        return {"ELEMENT": ctype(self.q.dtype), "HEAD_DIM": self.q.shape[3], "CAUSAL": int(self.causal)}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of `_SHAPE`."""
        (batch, heads, rows, d), (_, kv_heads, keys, _) = self.q.shape, self.k.shape
        group, bytes_per_head = heads // kv_heads, 2 * keys * d * self.k.dtype.itemsize
        section = max(1, _SECTION_BYTES // bytes_per_head) * group if self.causal else 1
        return batch * heads, min(section, batch * heads), heads, group, rows, keys

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s for x in (self.q, self.k, self.v) for s in x.strides[:3])

    def works(self, block_m: int) -> int:
        return self.q.shape[0] * self.q.shape[1] * cdiv(self.q.shape[2], block_m)

    def tile_bytes(self, config: Config) -> int:
        """Shared memory of the query tile and of the ring of key and value tiles."""
        rows = config["BLOCK_M"] + 2 * config["STAGES"] * config["BLOCK_N"]
        return rows * self.q.shape[3] * self.q.dtype.itemsize


@dataclass(frozen=True)
class Plan:
    """A kind of call, ready to run; `tiles`: descriptors of q, k, v for a kernel that wants those."""

    launch: Bound
    tiles: tuple[Tiles, ...] = ()

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        out = inputs[0].new_empty(inputs[0].shape)
        if out.numel():  # there is no descriptor of nothing
            self.launch(*((t.of(x) for t, x in zip(self.tiles, inputs, strict=True)) if self.tiles else inputs), out)
        return out


def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return _online(_call(q, k, v, causal, scale)).run(q, k, v)


def tensor_cores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    q, scale = _positive(q, scale)
    return _tensor_cores(_call(q, k, v, causal, scale)).run(q, k, v)


def wgmma(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    q, scale = _positive(q, scale)
    return _wgmma(_call(q, k, v, causal, scale)).run(q, k, v)


def _call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> Call:
    return Call(layout(q), layout(k), layout(v), causal, scale, multiprocessors(q))


def _positive(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """The same call with a positive scale: only then is the largest raw score the largest scaled one.

    Zero becomes the smallest normal number: the weights stay equal, and no 0 * -inf arises at the masked keys.
    """
    return (-q if scale < 0 else q), max(abs(scale), _SMALLEST_SCALE)


@lru_cache(maxsize=4096)
def _online(call: Call) -> Plan:
    lanes, rows = 4, 32
    kernel = _ONLINE.kernel("attention_online", _POINTERS, BLOCK_M=rows, BLOCK_N=32, **call.defines)
    return Plan(kernel.bind(call.works(rows), lanes * rows, *call.sizes, *call.strides, call.scale * _LOG2_E))


@lru_cache(maxsize=4096)
def _tensor_cores(call: Call) -> Plan:
    return tensor_cores_plan(call, tensor_cores_config(call))


@lru_cache(maxsize=4096)
def _wgmma(call: Call) -> Plan:
    return wgmma_plan(call, wgmma_config(call))


def tensor_cores_config(call: Call) -> Config:
    """Tiles of queries and keys, warps that share the queries, stages of the ring, elements per load.

    Four warps read each key tile from shared memory half as often as eight, but their 32 rows fill the 255 registers at
    D = 128: with masks or narrow loads on top only a narrower tile of keys does not spill.
    """
    vector = _vector(call.q, call.k, call.v)
    narrow = call.q.shape[3] == 128 and (call.causal or vector == 1)
    return {"BLOCK_M": 128, "BLOCK_N": 32 if narrow else 64, "WARPS": 4, "STAGES": 2, "VECTOR": vector}


def wgmma_config(call: Call) -> Config:
    """Warpgroups of 64 queries each, keys of a tile, stages of the ring; TURNS: the softmax phases alternate.

    H200, bf16, B H N = 4 32 4096, TFLOP/s full and causal: at D = 128 tiles of 176 keys 651 and 583, of 128 keys 560
    and 572; at D = 64 three warpgroups 492 and 439, two 414 and 396; without turns 50 less throughout.
    """
    consumers, keys = (3, 128) if call.q.shape[3] == 64 else (2, 176)
    return {"BLOCK_M": 64 * consumers, "BLOCK_N": keys, "STAGES": 2, "CONSUMERS": consumers, "TURNS": 1}


def tensor_cores_plan(call: Call, config: Config) -> Plan:
    kernel = _TENSOR_CORES.kernel("attention_tensor_cores", _POINTERS, **config, **call.defines)
    numbers = (*call.sizes, *call.strides, call.scale * _LOG2_E)
    works, shared = call.works(config["BLOCK_M"]), call.tile_bytes(config)
    return Plan(kernel.bind(works, 32 * config["WARPS"], *numbers, shared=shared))


def wgmma_plan(call: Call, config: Config) -> Plan:
    """One block per multiprocessor: its tiles leave no shared memory for a second one."""
    kernel = _WGMMA.kernel("attention_wgmma", _MAPS, **config, **call.defines)
    works, shared = call.works(config["BLOCK_M"]), call.tile_bytes(config) + _BARRIER_BYTES
    numbers, threads = (*call.sizes, call.scale * _LOG2_E, works), 128 * (config["CONSUMERS"] + 1)
    launch = kernel.bind(min(works, call.multiprocessors), threads, *numbers, shared=shared)
    rows = (config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_N"])
    return Plan(launch, tuple(_tiles(x, r) for x, r in zip((call.q, call.k, call.v), rows, strict=True)))


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
_TYPES: tuple[Condition, ...] = (Dtypes("q", torch.float16, torch.bfloat16), OneOf("D", 64, 128), *_ROWS)
_ON_HOPPER: tuple[Condition, ...] = (Aligned("q"), Aligned("k"), Aligned("v"), Capability((9, 0), below=(10, 0)))

VARIANTS = {
    "online": Implementation(
        online, "four lanes share a row, a running maximum and sum replace the matrix of scores", _TYPES, _LAST
    ),
    "tensor_cores": Implementation(
        tensor_cores, "mma.sync on registers behind cp.async", (*_TYPES, Capability((8, 0))), _LAST, "mma"
    ),
    "wgmma": Implementation(
        wgmma, "warpgroup products fed by TMA, overlapped with the softmax", (*_TYPES, *_ON_HOPPER), _LAST, "mma"
    ),
}
