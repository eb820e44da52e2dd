"""The gradient of attention on CUDA: the weights are computed again from lse, no M x N matrix reaches memory.

All rungs but the last take two passes over the weights, one for grad_k and grad_v, one for grad_q, so that each sum has
one owner and a fixed order. `fused` has one pass, as Dao, FlashAttention-2, 2023: blocks of keys add to grad_q one after
another; in `fused_atomic`, which runs only when it is named, as they come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, card, cdiv, ctype
from kernelmux.backends.cuda.attention._call import l2_share
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Capability, Condition, Dtypes, Multiple, Multiplies, OneOf
from kernelmux.registry.spec.sliding_windows import Limit, Mask, mask_of
from kernelmux.registry.util.cards import Card, remembered

T = torch.Tensor

_OFFSETS = Source(__file__, "attention_backward_offsets.cu")
_SIMPLE = Source(__file__, "attention_backward_simple.cu")
_TENSOR_CORES = Source(__file__, "attention_backward_tensor_cores.cu")
_FUSED = Source(__file__, "attention_backward_fused.cu")
_WGMMA_KEYS = Source(__file__, "attention_backward_wgmma_keys.cu")
_WGMMA_QUERIES = Source(__file__, "attention_backward_wgmma_queries.cu")

_STRIDES = "grad_step:struct q_step:struct k_step:struct v_step:struct"
_SHAPE = "heads:i32 group:i32 M:i32 N:i32 pitch:i32 shift:i32 window:i32 scale:f32 scale_log2:f32"
_LARGEST = float(torch.finfo(torch.float32).max)
_LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * log2(e)): the hardware has exp2
_PITCH = 128  # rows of offsets of a block, and of the longest tile; tiles begin at multiples of 8
_LINE = 64  # elements of 128 bytes, the widest box of a swizzled TMA load
_PARTS, _FINISHED = 2, 8  # of the one walk: parts of grad_q in shared memory; tiles of it that a block converts

Config = dict[str, int]


class AttentionGradientCall(NamedTuple):
    """All that a plan depends on besides addresses."""

    inputs: tuple[Layout, ...]  # grad_out, q, k, v, y
    mask: Mask
    scale: float
    card: Card

    @property
    def dims(self) -> tuple[int, int, int, int, int, int]:
        """B, H, G, M, N, D."""
        q, k = self.inputs[1].shape, self.inputs[2].shape
        return q[0], q[1], k[1], q[2], k[2], q[3]

    @property
    def pitch(self) -> int:
        """Rows of offsets that the last tile may read, in whole blocks."""
        return cdiv((self.dims[3] - 1) // 8 * 8 + _PITCH, _PITCH) * _PITCH

    @property
    def defines(self) -> dict[str, object]:
        masks = {"CAUSAL": int(self.mask.causal), "WINDOWED": int(self.mask.window > 0)}
        return {"ELEMENT": ctype(self.inputs[1].dtype), "HEAD_DIM": self.dims[5], **masks}

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """The numbers of `_SHAPE`."""
        _, heads, kv_heads, M, N, _ = self.dims
        scales = (max(-_LARGEST, min(self.scale * factor, _LARGEST)) for factor in (1.0, _LOG2_E))
        return heads, heads // kv_heads, M, N, self.pitch, self.mask.shift, self.mask.window, *scales

    @property
    def strides(self) -> tuple[bytes, ...]:
        """Those of batch, head and row, by input."""
        return tuple(struct.pack("3q", *x.strides[:3]) for x in self.inputs)

    def vector(self, *inputs: Layout) -> int:
        """Elements per load: 16 bytes where every row starts at a multiple of that, else 1."""
        width = 16 // self.inputs[0].dtype.itemsize
        even = all(not x.offset and not any(s % width for s in _real_strides(x)) for x in inputs)
        return width if even else 1


def _real_strides(x: Layout) -> tuple[int, ...]:
    """Strides of batch, head and row; an axis of length 1 has none, whatever torch says, and gets a row's length."""
    return tuple(s if n > 1 else x.shape[3] for s, n in zip(x.strides[:3], x.shape, strict=False))


@dataclass(frozen=True)
class AttentionBackwardPlan:
    """A kind of call, ready to run: first the offsets of the rows, then what computes the gradients."""

    call: AttentionGradientCall
    offsets: BoundLaunch
    launch: Callable[..., None]

    def run(self, grad_out: T, *saved: T) -> tuple[T, ...]:
        q, k, v, y, lse = saved
        grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
        B, H, _, _, _, _ = self.call.dims
        offsets = lse.new_empty((B * H, 2, self.call.pitch))
        strides = self.call.strides
        self.offsets(grad_out, y, lse, offsets, strides[0], strides[4])
        self.launch((grad_out, q, k, v), offsets, *grads)
        return grads


def _variant(make: Callable[[AttentionGradientCall], Callable[..., None]]) -> Callable[..., Any]:
    """An implementation from what turns a call into a launch of the kernels behind the offsets."""

    @remembered
    def plan(call: AttentionGradientCall) -> AttentionBackwardPlan:
        return AttentionBackwardPlan(call, _offsets(call), make(call))

    def run(
        grad_out: T, q: T, k: T, v: T, y: T, lse: T,
        causal: bool, scale: float, window: Limit, precision: str, ahead: Limit,
    ) -> tuple[T, ...]:  # fmt: skip
        if not q.numel() or not k.numel():
            return tuple(x.new_zeros(x.shape) for x in (q, k, v))
        mask = mask_of(q.shape[2], k.shape[2], causal, window, ahead)
        return plan(AttentionGradientCall(tuple(map(layout, (grad_out, q, k, v, y))), mask, scale, card(q))).run(
            grad_out, q, k, v, y, lse
        )

    return run


def _offsets(call: AttentionGradientCall) -> BoundLaunch:
    grad_out, y = call.inputs[0], call.inputs[4]
    B, H, _, M, _, D = call.dims
    kernel = _OFFSETS.kernel(
        "attention_backward_offsets",
        "grad_out* y* lse* offsets* grad_step:struct y_step:struct heads:i32 M:i32 pitch:i32",
        ELEMENT=ctype(grad_out.dtype), HEAD_DIM=D, VECTOR=call.vector(grad_out, y),
    )  # fmt: skip
    return kernel.bind(B * H * call.pitch // _PITCH, 256, H, M, call.pitch)


def _tensor_cores(call: AttentionGradientCall) -> Callable[..., None]:
    config = tensor_cores_config(call)
    own, shared = config["OWN"], tensor_cores_bytes(call, config)
    return _two_passes(_TENSOR_CORES, call, own, 2 * config["SIDES"] * own, shared, config)


def tensor_cores_config(call: AttentionGradientCall) -> Config:
    """The first that fit: owned rows, rows of a tile, stages, warps for 16 rows, blocks of a multiprocessor.

    An H100 for an A100, bf16, causal, us, with one stage of 64 rows and two warps, and here: 4 x 32 x 4096 x 128 12809,
    7743; x 64 5586, 4195; 4 x 16 x 2048 x 256 (32 rows) 2966, 2622. A T4 has no asynchronous copies: one stage.
    """
    D = call.dims[5]
    kinds = [(64, 64, 2, 1, 3), (64, 64, 1, 1, 3), (64, 64, 1, 1, 1)] * (D <= 64)
    kinds += [(64, 64, 2, 1, 2), (128, 64, 2, 1, 1), (64, 32, 2, 1, 1), (64, 32, 1, 1, 1)] * (D <= 128)
    for kind in (*kinds, (32, 32, 2, 2, 1), (32, 32, 1, 2, 1), (16, 32, 1, 2, 1)):
        config: Config = dict(zip(("OWN", "TILE", "STAGES", "SIDES", "BLOCKS"), kind, strict=True))
        room = fits(call.card, tensor_cores_bytes(call, config), 2 * config["SIDES"] * config["OWN"], config["BLOCKS"])
        if room and (config["STAGES"] == 1 or call.card.capability >= (8, 0)):
            break
    return config | {"VECTOR": call.vector(*call.inputs[:4])}


def tensor_cores_bytes(call: AttentionGradientCall, config: Config) -> int:
    """Shared memory of two tensors' owned rows and of tiles; with two sides, of the weights and their gradients."""
    own, tile, row_bytes = config["OWN"], config["TILE"], cdiv(call.dims[5], 16) * 32 + 16
    return 2 * (own + config["STAGES"] * tile) * row_bytes + (config["SIDES"] - 1) * 2 * own * (2 * tile + 16)


def _two_passes(
    source: Source, call: AttentionGradientCall, rows: int, threads: int, shared: int, config: Config
) -> Callable[..., None]:
    """The two kernels of a file, whose blocks own so many keys or queries."""
    B, H, G, M, N, _ = call.dims
    inputs, defines, steps = "grad_out* q* k* v* offsets*", {**config, **call.defines}, call.strides[:4]
    of_keys = source.kernel("attention_backward_keys", f"{inputs} grad_k* grad_v* {_STRIDES} {_SHAPE}", **defines).bind(
        B * G * cdiv(N, rows), threads, *call.numbers, shared=shared
    )
    of_queries = source.kernel("attention_backward_queries", f"{inputs} grad_q* {_STRIDES} {_SHAPE}", **defines).bind(
        B * H * cdiv(M, rows), threads, *call.numbers, shared=shared
    )

    def launch(inputs: tuple[T, ...], offsets: T, *grads: T) -> None:
        of_keys(*inputs, offsets, *grads[1:], *steps)
        of_queries(*inputs, offsets, grads[0], *steps)

    return launch


def keys_config(call: AttentionGradientCall) -> Config:
    """Queries of a tile, stages of the ring, warpgroups of 64 keys each; TURNS: these issue their scores in turn.

    H200, bf16, 4 x 32 x 4096 x D, TFLOP/s of these four products: at D = 128 tiles of 80 queries 719 (without turns
    692), of 64 queries 570 (624); wider ones, or turns with the bounds of a window, need more registers than there are.
    At D = 64 tiles of 128 queries 615 without turns, 518 to 587 with them. At D = 96, 4 x 16 heads, causal: tiles of 112
    queries 703 us (in turns 714), of 96 711, of 80 736; 112 are too many with the bounds of a window.
    """
    if call.dims[5] <= 64:
        return {"TILE": 128, "STAGES": 4, "CONSUMERS": 2, "TURNS": 0}
    if call.dims[5] <= 96:
        return {
            "TILE": 96 if call.mask.window else 112,
            "STAGES": 3 if call.mask.window else 2,
            "CONSUMERS": 2,
            "TURNS": 0,
        }
    return {"TILE": 80, "STAGES": 3, "CONSUMERS": 2, "TURNS": int(not call.mask.window)}


def queries_config(call: AttentionGradientCall) -> Config:
    """Keys of a tile, stages of the rings of keys and of values, warpgroups of 64 queries each; TURNS as above.

    H200 as above, TFLOP/s of these three products: at D = 128 tiles of 96 keys 796, without turns 717; at D = 64 tiles
    of 128 keys 660, without turns 523. At D = 96 tiles of 128 keys take 470 us, of 112 485, of 96 490.
    """
    tile = 128 if call.dims[5] <= 96 else 96
    return {"TILE": tile, "STAGES": 3, "V_STAGES": 2, "CONSUMERS": 2, "TURNS": 1}


def wgmma_keys(call: AttentionGradientCall, config: Config) -> Callable[..., None]:
    B, H, G, M, N, _ = call.dims
    own, read = 64 * config["CONSUMERS"], H // G * M
    maps = _maps(call, {"grad_out": config["TILE"], "q": config["TILE"], "k": own, "v": own})
    kernel = _WGMMA_KEYS.kernel(
        "attention_backward_wgmma_keys",
        f"grad_out:map q:map k:map v:map offsets* grad_k* grad_v* {_SHAPE} slices:i32 section:i32",
        **config, **call.defines,
    )  # fmt: skip
    launch = kernel.bind(
        B * G * cdiv(N, own), 128 * (config["CONSUMERS"] + 1), *call.numbers, B * G, _section(call, B * G, read),
        shared=_shared(call, config) + 8 * config["TILE"] * config["STAGES"],
    )  # fmt: skip

    def run(inputs: tuple[T, ...], offsets: T, *grads: T) -> None:
        launch(*(tiles.of(x) for tiles, x in zip(maps, inputs, strict=True)), offsets, *grads[1:])

    return run


def wgmma_queries(call: AttentionGradientCall, config: Config) -> Callable[..., None]:
    B, H, G, M, N, _ = call.dims
    own = 64 * config["CONSUMERS"]
    maps = _maps(call, {"grad_out": own, "q": own, "k": config["TILE"], "v": config["TILE"]})
    kernel = _WGMMA_QUERIES.kernel(
        "attention_backward_wgmma_queries",
        f"grad_out:map q:map k:map v:map offsets* grad_q* {_SHAPE} slices:i32 section:i32",
        **config, **call.defines,
    )  # fmt: skip
    launch = kernel.bind(
        B * H * cdiv(M, own), 128 * (config["CONSUMERS"] + 1), *call.numbers, B * H, _section(call, B * H, N * G // H),
        shared=_shared(call, config),
    )  # fmt: skip

    def run(inputs: tuple[T, ...], offsets: T, *grads: T) -> None:
        launch(*(tiles.of(x) for tiles, x in zip(maps, inputs, strict=True)), offsets, grads[0])

    return run


def _wgmma(call: AttentionGradientCall) -> Callable[..., None]:
    of_keys, of_queries = wgmma_keys(call, keys_config(call)), wgmma_queries(call, queries_config(call))

    def launch(inputs: tuple[T, ...], offsets: T, *grads: T) -> None:
        of_keys(inputs, offsets, *grads)
        of_queries(inputs, offsets, *grads)

    return launch


def fused_config(call: AttentionGradientCall) -> Config:
    """Queries of a tile, stages of the ring, warpgroups of 64 keys each; TURNS: these issue their products in turn.

    LONGEST_FIRST: blocks of the first keys, which the most queries see, start first. H200, bf16, 4 x 32 x 4096 x D, us of
    the whole call, causal and not: at D = 128 tiles of 64 queries 2569 and 4446, without turns 2758 and 4747, with three
    stages and one part of grad_q for two 2575 and 4501. With a kernel of its own that converts grad_q and one part 2616
    and 4531, tiles of 80 queries 2692 and 4528. At D = 64 tiles of 128 queries 1685 and 2713, without turns 1751 and
    2840. In a run of all heads with keys of their own the longest first take 1697 (D = 64) and 2540, last 1620 and 2525.
    """
    tile, longest = 128 if call.dims[5] <= 64 else 64, int(call.mask.causal and call.dims[1] > call.dims[2])
    return {"TILE": tile, "STAGES": 2, "CONSUMERS": 2, "TURNS": 1, "LONGEST_FIRST": longest}


def fused_section(call: AttentionGradientCall) -> int:
    """Slices whose blocks run together.

    Blocks of a slice wait for one another, and under a causal mask without groups of heads the last to start are the
    longest. H200, bf16, us: 4 x 32 x 4096 x 128 causal, 5 slices 2606, 8 2621, 16 3107, 33 3969; not causal 4484, 4522,
    4652 and 4782. At D = 64 1759, 1761, 1753 and 1893; 2737, 2792, 2759 and 2841. With the longest first 2 x 32 / 8 x 8192
    x 128 takes 4564 in 4 slices, 4682 in 6, 4677 in 8 (with the longest last 5199), 8 x 32 / 4 x 2048 1533 in 4, 1650 in
    8 (1949), 4 x 32 / 8 x 4096 2584 in 4, 2516 in 8 (2832).
    """
    B, H, G, M, _, _ = call.dims
    if call.mask.causal and H > G:
        return min(B * G, 4)
    return _section(call, B * G, M) if call.mask.causal else min(B * G, 8)


def fused(call: AttentionGradientCall, ordered: bool) -> Callable[..., None]:
    """One kernel for all products and the conversion of grad_q; without an order its sums begin as zeros."""
    config = fused_config(call)
    B, H, G, M, N, D = call.dims
    own, tile = 64 * config["CONSUMERS"], config["TILE"]
    tiles = cdiv(M, tile)
    maps = _maps(call, {"grad_out": tile, "q": tile, "k": own, "v": own})
    kernel = _FUSED.kernel(
        "attention_backward_fused",
        f"grad_out:map q:map k:map v:map offsets* sums* done* grad_q* grad_k* grad_v* {_SHAPE} slices:i32 section:i32",
        **config, **call.defines, ORDERED=int(ordered),
    )  # fmt: skip
    panels = cdiv(D, _LINE)
    shared = _shared(call, config) + tile * (own * 4 + _PARTS * panels * _LINE * 4 + 8 * config["STAGES"])
    blocks = B * G * cdiv(N, own) + B * H * cdiv(tiles, _FINISHED)
    launch = kernel.bind(
        blocks, 128 * (config["CONSUMERS"] + 1), *call.numbers, B * G, fused_section(call), shared=shared
    )

    def run(inputs: tuple[T, ...], offsets: T, *grads: T) -> None:
        size = (B * H, panels, cdiv(M, 8), 8 * _LINE)
        sums = offsets.new_empty(size) if ordered else offsets.new_zeros(size)
        done = offsets.new_zeros(B * H * tiles * config["CONSUMERS"] + 1, dtype=torch.int32)
        launch(*(map_.of(x) for map_, x in zip(maps, inputs, strict=True)), offsets, sums, done, *grads)

    return run


def _fused(call: AttentionGradientCall) -> Callable[..., None]:
    return fused(call, ordered=True)


def _fused_atomic(call: AttentionGradientCall) -> Callable[..., None]:
    return fused(call, ordered=False)


def _shared(call: AttentionGradientCall, config: Config) -> int:
    """Bytes of the owned rows, of the ring and, with what fills a whole unit of the swizzle, of the barriers."""
    stages = config["STAGES"] + config.get("V_STAGES", config["STAGES"])
    rows = 2 * 64 * config["CONSUMERS"] + stages * config["TILE"]
    return rows * cdiv(call.dims[5], _LINE) * 128 + 1024


def _section(call: AttentionGradientCall, slices: int, rows: int) -> int:
    """Slices whose blocks run together, each with its number of rows of two tensors; 1 if all blocks are equal."""
    size = max(1, 2 * rows * call.dims[5] * 2)
    return min(slices, max(1, l2_share(call.card) // size)) if call.mask.causal else 1


def _maps(call: AttentionGradientCall, rows: dict[str, int]) -> tuple[Tiles, ...]:
    """Descriptors that load [rows, _LINE] pieces of one (batch, head), of each of the first inputs."""
    return tuple(
        Tiles(x.shape, (*_real_strides(x), 1), (1, 1, count, _LINE), swizzle=128)
        for x, count in zip(call.inputs, rows.values(), strict=False)
    )


_LAYOUT = dict.fromkeys(("grad_out", "q", "k", "v", "y"), "last") | {"lse": "contiguous"}
_SIZES: tuple[Condition, ...] = (Multiple("D", 8), AtMost("D", 256))
_HALVES: Condition = Dtypes("q", torch.float16, torch.bfloat16)
_ON_HOPPER: tuple[Condition, ...] = (*map(Aligned, ("grad_out", "q", "k", "v")), Capability((9, 0), below=(10, 0)))

VARIANTS = {
    "simple": Implementation(
        _variant(lambda call: _two_passes(_SIMPLE, call, 32, 256, 0, {})),
        "FP32; one pass for grad_k and grad_v, one for grad_q, each sum with one owner",
        _SIZES,
        _LAYOUT,
    ),
    "tensor_cores": Implementation(
        _variant(_tensor_cores),
        "mma.sync; the next tile is copied meanwhile; up to D = 128 the weights stay in registers",
        (_HALVES, *_SIZES, Multiplies("q")),
        _LAYOUT,
        "mma",
    ),
    "fused_atomic": Implementation(
        _variant(_fused_atomic),
        "one walk, five products: blocks of keys add their parts of grad_q to sums in global memory, as they come",
        (_HALVES, OneOf("D", 64, 128), *_ON_HOPPER),
        _LAYOUT,
        "mma",
        deterministic=False,
    ),
    "wgmma": Implementation(
        _variant(_wgmma),
        "warpgroup products fed by TMA, the weights transposed for grad_k and grad_v: none leaves the registers",
        (_HALVES, Multiple("D", 8), AtMost("D", 128), *_ON_HOPPER),
        _LAYOUT,
        "mma",
    ),
    "fused": Implementation(
        _variant(_fused),
        "one walk, five products: blocks of keys add their parts of grad_q to sums in global memory, one after another",
        (_HALVES, OneOf("D", 64, 128), *_ON_HOPPER),
        _LAYOUT,
        "mma",
    ),
}
