"""attention: softmax(scale * q k^T) v without the matrix of scores; grouped queries, causal aligned to the last key.

Every rung walks the keys in tiles with an online softmax (Milakov and Gimelshein 2018; Dao, FlashAttention-2, 2023);
the last one overlaps the softmax with the products (Shah et al., FlashAttention-3, 2024).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernelmux.backends.cuda._runtime import Kernel, Source, cdiv, ctype, tensor_map
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, Capability, Dtypes, OneOf

_ONLINE = Source(__file__, "attention_online.cu")
_TENSOR_CORES = Source(__file__, "attention_tensor_cores.cu")
_WGMMA = Source(__file__, "attention_wgmma.cu")

_SIZES = "heads:i32 group:i32 M:i32 N:i32"
_STRIDES = " ".join(f"{x}_{axis}:i64" for x in "qkv" for axis in ("batch", "head", "row"))
_POINTERS = f"q* k* v* out* {_SIZES} {_STRIDES} scale_log2:f32"
_MAPS = f"q:map k:map v:map out* {_SIZES} scale_log2:f32"

_LOG2_E = math.log2(math.e)  # exp(x) = exp2(x * log2(e)): the hardware has exp2
_SMALLEST_SCALE = 2.0**-126
_PANEL = 64  # elements of a 128-byte line, the widest box of a swizzled TMA load
_BARRIER_BYTES = 1024  # behind the tiles; the structure is padded to a whole unit of the swizzle

Config = dict[str, int]


def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    lanes, config = 4, {"BLOCK_M": 32, "BLOCK_N": 32}
    kernel = _ONLINE.kernel("attention_online", _POINTERS, **config, **_defines(q, causal))
    more = (*_strides(q, k, v), scale * _LOG2_E)
    return _launch(kernel, config["BLOCK_M"], lanes * config["BLOCK_M"], q, k, (q, k, v), more)


def tensor_cores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return tensor_cores_with(tensor_cores_config(q, k, v, causal), q, k, v, causal, scale)


def wgmma(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return wgmma_with(wgmma_config(q, causal), q, k, v, causal, scale)


def tensor_cores_config(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Config:
    """Tiles of queries and keys, warps that share the queries, stages of the ring, elements per load.

    Four warps read each key tile from shared memory half as often as eight, but their 32 rows fill the 255 registers at
    D = 128: with masks or narrow loads on top they spill.
    """
    vector = _vector(q, k, v)
    warps = 8 if q.shape[3] == 128 and (causal or vector == 1) else 4
    return {"BLOCK_M": 128, "BLOCK_N": 64, "WARPS": warps, "STAGES": 2, "VECTOR": vector}


def wgmma_config(q: torch.Tensor, causal: bool) -> Config:
    """Warpgroups of 64 queries each, keys of a tile, stages of the ring; TURNS: the softmax phases alternate."""
    consumers = 3 if q.shape[3] == 64 else 2
    return {"BLOCK_M": 64 * consumers, "BLOCK_N": 128, "STAGES": 2, "CONSUMERS": consumers, "TURNS": 1}


def tensor_cores_with(
    config: Config, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    q, scale = _positive(q, scale)
    kernel = _TENSOR_CORES.kernel("attention_tensor_cores", _POINTERS, **config, **_defines(q, causal))
    more = (*_strides(q, k, v), scale * _LOG2_E)
    return _launch(kernel, config["BLOCK_M"], 32 * config["WARPS"], q, k, (q, k, v), more, _tile_bytes(config, q))


def wgmma_with(
    config: Config, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    if q.numel() == 0:  # there is no descriptor of nothing
        return torch.empty(q.shape, dtype=q.dtype, device=q.device)
    q, scale = _positive(q, scale)
    kernel = _WGMMA.kernel("attention_wgmma", _MAPS, **config, **_defines(q, causal))
    maps = (_map(q, config["BLOCK_M"]), _map(k, config["BLOCK_N"]), _map(v, config["BLOCK_N"]))
    shared = _tile_bytes(config, q) + _BARRIER_BYTES
    return _launch(kernel, config["BLOCK_M"], 128 * (config["CONSUMERS"] + 1), q, k, maps, (scale * _LOG2_E,), shared)


def _launch(
    kernel: Kernel, block_m: int, threads: int, q: torch.Tensor, k: torch.Tensor, operands: tuple[Any, ...],
    more: tuple[Any, ...], shared: int = 0,
) -> torch.Tensor:  # fmt: skip
    """One block per BLOCK_M rows of each (batch, head)."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    batch, heads, rows, _ = q.shape
    grid = batch * heads * cdiv(rows, block_m)
    kernel(grid, threads, *operands, out, heads, heads // k.shape[1], rows, k.shape[2], *more, shared=shared)
    return out


def _defines(q: torch.Tensor, causal: bool) -> dict[str, object]:
    return {"ELEMENT": ctype(q.dtype), "HEAD_DIM": q.shape[3], "CAUSAL": int(causal)}


def _strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for x in tensors for s in x.stride()[:3])


def _tile_bytes(config: Config, q: torch.Tensor) -> int:
    """Shared memory of the query tile and of the ring of key and value tiles."""
    return (config["BLOCK_M"] + 2 * config["STAGES"] * config["BLOCK_N"]) * q.shape[3] * q.element_size()


def _positive(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """The same call with a positive scale: only then is the largest raw score the largest scaled one.

    Zero becomes the smallest normal number: the weights stay equal, and no 0 * -inf arises at the masked keys.
    """
    return (-q if scale < 0 else q), max(abs(scale), _SMALLEST_SCALE)


def _vector(*tensors: torch.Tensor) -> int:
    """Elements per load: 8 where every row starts at a multiple of 16 bytes, else 1."""
    return 8 if all(x.data_ptr() % 16 == 0 and not any(s % 8 for s in _real_strides(x)) for x in tensors) else 1


def _real_strides(x: torch.Tensor) -> tuple[int, ...]:
    """Strides of batch, head and row; an axis of length 1 has none, whatever torch says, and gets a row's length."""
    return tuple(s if n > 1 else x.shape[3] for s, n in zip(x.stride()[:3], x.shape, strict=False))


def _map(x: torch.Tensor, rows: int) -> Any:
    """The descriptor that loads [rows, _PANEL] pieces of one (batch, head)."""
    strides = _real_strides(x)
    if strides != x.stride()[:3]:
        x = x.as_strided(x.shape, (*strides, 1))
    return tensor_map(x, (1, 1, rows, _PANEL), swizzle=128)


_LAST = {"q": "last", "k": "last", "v": "last"}
_TYPES = (Dtypes("q", torch.float16, torch.bfloat16), OneOf("D", 64, 128))

VARIANTS = {
    "online": Implementation(
        online, "four lanes share a row, a running maximum and sum replace the matrix of scores", _TYPES, _LAST
    ),
    "tensor_cores": Implementation(
        tensor_cores, "mma.sync on registers behind cp.async", (*_TYPES, Capability((8, 0))), _LAST, "mma"
    ),
    "wgmma": Implementation(
        wgmma,
        "warpgroup products fed by TMA, overlapped with the softmax",
        (*_TYPES, Aligned("q"), Aligned("k"), Aligned("v"), Capability((9, 0))),
        _LAST,
        "mma",
    ),
}
