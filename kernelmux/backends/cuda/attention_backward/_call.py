"""What the launchers of attention's gradient share: a call without its addresses, its maps, the order of the work."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Tiles, cdiv, ctype
from kernelmux.backends.cuda.attention._call import l2_share
from kernelmux.registry.spec.sliding_windows import Mask
from kernelmux.registry.util.cards import Card

T = torch.Tensor

INPUTS = "grad_out* q* k* v* offsets*"
MAPPED = "grad_out:map q:map k:map v:map offsets*"
SHAPE = "heads:i32 group:i32 M:i32 N:i32 pitch:i32 shift:i32 window:i32 scale:f32 scale_log2:f32"
ORDER = "slices:i32 section:i32"
PITCH = 128  # rows of offsets of a block, and of the longest tile; tiles begin at multiples of 8
LINE = 64  # elements of 128 bytes, the widest box of a swizzled TMA load

_LARGEST = float(torch.finfo(torch.float32).max)
_LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * log2(e)): the hardware has exp2

Config = dict[str, int]


class Walks(NamedTuple):
    """The kernels behind the offsets, launched with inputs, offsets, counters and gradients, and how many counters."""

    launch: Callable[..., None]
    counters: int = 0


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
        return cdiv((self.dims[3] - 1) // 8 * 8 + PITCH, PITCH) * PITCH

    @property
    def panels(self) -> int:
        """Pieces of LINE columns in shared memory."""
        return cdiv(self.dims[5], LINE)

    @property
    def defines(self) -> dict[str, object]:
        masks = {"CAUSAL": int(self.mask.causal), "WINDOWED": int(self.mask.window > 0)}
        return {"ELEMENT": ctype(self.inputs[1].dtype), "HEAD_DIM": self.dims[5], **masks}

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """The numbers of `SHAPE`."""
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


def shared_bytes(call: AttentionGradientCall, config: Config) -> int:
    """Bytes of the owned rows, of the ring and, with what fills a whole unit of the swizzle, of the barriers."""
    stages = config["STAGES"] + config.get("V_STAGES", config["STAGES"])
    rows = 2 * 64 * config["CONSUMERS"] + stages * config["TILE"]
    return rows * call.panels * 128 + 1024


def clusters_at_a_time(card: Card) -> dict[int, int]:
    """How many clusters of so many blocks run at a time, one block to a multiprocessor: each is in one GPC."""
    return {n: max(1, card.processors // n - (3 if n >= 4 else 0)) for n in (1, 2, 4, 8)}


def section_of(call: AttentionGradientCall, slices: int, rows: int) -> int:
    """Slices whose blocks run together, each with its number of rows of two tensors; 1 if all blocks are equal."""
    size = max(1, 2 * rows * call.dims[5] * 2)
    return min(slices, max(1, l2_share(call.card) // size)) if call.mask.causal else 1


def maps_of(call: AttentionGradientCall, rows: dict[str, int]) -> tuple[Tiles, ...]:
    """Descriptors that load [rows, LINE] pieces of one (batch, head), of each of the first inputs."""
    return tuple(
        Tiles(x.shape, (*_real_strides(x), 1), (1, 1, count, LINE), swizzle=128)
        for x, count in zip(call.inputs, rows.values(), strict=False)
    )


def _real_strides(x: Layout) -> tuple[int, ...]:
    """Strides of batch, head and row; an axis of length 1 has none, whatever torch says, and gets a row's length."""
    return tuple(s if n > 1 else x.shape[3] for s, n in zip(x.strides[:3], x.shape, strict=False))
