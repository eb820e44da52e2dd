"""attention: softmax(scale * q k^T) v without the matrix of scores; grouped-query, causal aligned bottom-right.

Every rung walks the keys in tiles with an online softmax (Milakov, Gimelshein 2018; Dao, FlashAttention-2, 2023).
"""

from __future__ import annotations

import math

import torch

from kernelmux.backends.cuda._runtime import Kernel, Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability, Dtypes, OneOf

_ONLINE = Source(__file__, "attention_online.cu")
_TENSOR_CORES = Source(__file__, "attention_tensor_cores.cu")

_STRIDES = " ".join(f"{x}_{axis}:i64" for x in "qkv" for axis in ("batch", "head", "row"))
_SIGNATURE = f"q* k* v* out* heads:i32 group:i32 M:i32 N:i32 {_STRIDES} scale_log2:f32"
_LOG2_E = math.log2(math.e)  # exp(x) = exp2(x * log2(e)): the hardware has exp2
_SMALLEST_SCALE = 2.0**-126


def _defines(q: torch.Tensor, causal: bool) -> dict[str, object]:
    return {"ELEMENT": ctype(q.dtype), "HEAD_DIM": q.shape[3], "CAUSAL": int(causal)}


def _launch(
    kernel: Kernel, block_m: int, threads: int, shared: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:  # fmt: skip
    batch, heads, rows, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sizes = (heads, heads // max(k.shape[1], 1), rows, k.shape[2])
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    grid = batch * heads * cdiv(rows, block_m)
    kernel(grid, threads, q, k, v, out, *sizes, *strides, scale * _LOG2_E, shared=shared)
    return out


def _online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    block_m, lanes = 32, 4
    kernel = _ONLINE.kernel("attention_online", _SIGNATURE, BLOCK_M=block_m, BLOCK_N=32, **_defines(q, causal))
    return _launch(kernel, block_m, lanes * block_m, 0, q, k, v, scale)


def positive_scale(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """(q, scale) with the sign moved to q: the maximum of raw scores is the scaled one's for scale > 0 only.

    Zero becomes the smallest normal number, which keeps the weights equal and 0 * -inf away from the masked keys.
    """
    return (-q if scale < 0 else q), max(abs(scale), _SMALLEST_SCALE)


def _vector(*tensors: torch.Tensor) -> int:
    """Elements per load: 8 where every row starts at a multiple of 16 bytes, else 1."""
    aligned = all(x.data_ptr() % 16 == 0 and all(s % 8 == 0 or n == 1 for s, n in zip(x.stride()[:3], x.shape)) for x in tensors)
    return 8 if aligned else 1


def _tensor_cores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    q, scale = positive_scale(q, scale)
    config = {"BLOCK_M": 128, "BLOCK_N": 64, "WARPS": 4, "STAGES": 2, "VECTOR": _vector(q, k, v)}
    kernel = _TENSOR_CORES.kernel("attention_tensor_cores", _SIGNATURE, **config, **_defines(q, causal))
    shared = (config["BLOCK_M"] + 2 * config["STAGES"] * config["BLOCK_N"]) * q.shape[3] * q.element_size()
    return _launch(kernel, config["BLOCK_M"], 32 * config["WARPS"], shared, q, k, v, scale)


_LAST = {"q": "last", "k": "last", "v": "last"}
_HALF = Dtypes("q", torch.float16, torch.bfloat16)
_HEAD_DIM = OneOf("D", 64, 128)

VARIANTS = {
    "online": Implementation(
        fn=lambda q, k, v, causal, scale: _online(q, k, v, causal, scale),
        idea="FP32 arithmetic; four lanes share a row, the block a tile of keys and values; running maximum and sum",
        requires=(Dtypes("q", torch.float32, torch.float16, torch.bfloat16), _HEAD_DIM),
        layout=_LAST,
        arithmetic="fp32",
    ),
    "tensor_cores": Implementation(
        fn=_tensor_cores,
        idea="mma.sync; scores and output stay in registers, cp.async brings the next tile meanwhile",
        requires=(_HALF, _HEAD_DIM, Capability((8, 0))),
        layout=_LAST,
        arithmetic="mma",
    ),
}
