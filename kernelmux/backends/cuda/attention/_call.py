"""What the attention launchers share: a call without its addresses, a plan for it, the order of the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log2
from typing import NamedTuple

import numpy as np
import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Tiles, card, cdiv, ctype
from kernelmux.registry.spec.sliding_windows import Limit, Mask, mask_of
from kernelmux.registry.util.cards import Card, remembered

T = torch.Tensor

SHAPE = "slices:i32 section:i32 heads:i32 group:i32 M:i32 N:i32 shift:i32 window:i32"
LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * log2(e)): the hardware has exp2

_LARGEST = float(torch.finfo(torch.float32).max)
_START = 1.5  # what a work takes besides its key tiles, in key tiles

Config = dict[str, int]
Pair = tuple[T, T]


class AttentionCall(NamedTuple):
    """All that a plan depends on besides addresses."""

    q: Layout
    k: Layout
    v: Layout
    mask: Mask
    scale: float
    card: Card

    @property
    def defines(self) -> dict[str, object]:
        flags = {"CAUSAL": int(self.mask.causal), "WINDOW": int(self.mask.window > 0)}
        return {"ELEMENT": ctype(self.q.dtype), "HEAD_DIM": self.q.shape[3], **flags}

    @property
    def width(self) -> int:
        """Columns of a row in shared memory: whole lines of 128 bytes."""
        return cdiv(self.q.shape[3], 64) * 64

    @property
    def uneven(self) -> bool:
        """Whether some queries see more keys than others."""
        return self.mask.causal or self.mask.window > 0

    @property
    def slices(self) -> int:
        """Pairs of a batch and a head."""
        return self.q.shape[0] * self.q.shape[1]

    @property
    def group(self) -> int:
        """Heads of q that share one of k and v."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that one slice reads, divided by the slices that read them too; at least 1."""
        return max(1, 2 * self.k.shape[2] * self.k.shape[3] * self.k.dtype.itemsize // self.group)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s for x in (self.q, self.k, self.v) for s in x.strides[:3])

    @property
    def scale_log2(self) -> float:
        """The scale for powers of two instead of e, within fp32."""
        return max(-_LARGEST, min(self.scale * LOG2_E, _LARGEST))

    def sizes(self, section: int) -> tuple[int, ...]:
        """The numbers of `SHAPE`."""
        _, shift, window = self.mask
        return self.slices, section, self.q.shape[1], self.group, self.q.shape[2], self.k.shape[2], shift, window

    def works(self, block_m: int) -> int:
        return self.slices * cdiv(self.q.shape[2], block_m)

    def tile_bytes(self, config: Config) -> int:
        """Shared memory of the query tile and of the ring of key and value tiles."""
        rows = config["BLOCK_M"] + 2 * config["STAGES"] * config["BLOCK_N"]
        return rows * self.width * self.q.dtype.itemsize


def call_of(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit = None, ahead: Limit = None
) -> AttentionCall:  # fmt: skip
    """The call without its addresses."""
    mask = mask_of(q.shape[2], k.shape[2], causal, window, ahead)
    return AttentionCall(layout(q), layout(k), layout(v), mask, scale, card(q))


@dataclass(frozen=True)
class AttentionPlan:
    """A kind of call, ready to run; `tiles`: descriptors of q, k, v for a kernel that wants those."""

    launch: BoundLaunch
    tiles: tuple[Tiles, ...] = ()

    def run(self, *inputs: T) -> Pair:
        q, k = inputs[:2]
        if not k.numel():  # there is no descriptor of nothing
            return nothing_seen(q)
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
        if out.numel():
            maps = (t.of(x) for t, x in zip(self.tiles, inputs, strict=True)) if self.tiles else inputs
            self.launch(*maps, out, lse)
        return out, lse


def nothing_seen(q: T) -> Pair:
    """The outputs of queries without keys."""
    return q.new_zeros(q.shape), q.new_full(q.shape[:3], -inf, dtype=torch.float32)


def l2_share(gpu: Card) -> int:
    """Bytes of keys and values that are read at one time and should stay in L2: of an H200's 60 MiB 16."""
    return 16 << 20 if gpu.capability == (9, 0) else gpu.l2 * 16 // 60


def section_for_l2(call: AttentionCall) -> int:
    """Slices of a section for a kernel whose blocks the hardware hands out: what L2 holds; 1 if all works are equal."""
    return min(call.slices, max(1, l2_share(call.card) // call.kv_bytes)) if call.uneven and call.slices else 1


@remembered
def section_for_balance(call: AttentionCall, block_m: int, block_n: int) -> int:
    """Slices of a section for a persistent kernel: the one with the shortest schedule, where L2 holds it about as well.

    A fixed order can leave a multiprocessor with half as much work again as another (sections of 8 slices, 32 row tiles
    and 132 multiprocessors: 461 TFLOP/s instead of 638); a counter in global memory would balance any, but must be
    reset between launches.
    """
    if not call.uneven or call.slices < 2:
        return 1
    return min(_sections(call), key=lambda s: _longest(call, block_m, block_n, s) * _l2_factor(s * call.kv_bytes))


def _sections(call: AttentionCall) -> Iterator[int]:
    yield from range(1, min(call.slices, 32) + 1)
    if call.slices > 32:
        yield call.slices


def _l2_factor(size: int) -> float:
    """How much slower sections of so many bytes are: 1 % at 8 MiB, 3 % at 64 MiB (H200, N = 4096, D = 128)."""
    return 1 + 0.01 * log2(1 + size / (8 << 20))


def _longest(call: AttentionCall, block_m: int, block_n: int, section: int) -> float:
    """Key tiles of the busiest multiprocessor, with the order of `locate` and `work_index` in the kernels."""
    sms = call.card.processors
    tiles = key_tiles(call, block_m, block_n) + _START
    rest = call.slices % section
    works = np.concatenate([np.tile(tiles.repeat(section), call.slices // section), tiles.repeat(rest)])
    waves = np.zeros((cdiv(len(works), sms), sms))
    waves.ravel()[: len(works)] = works
    waves[1::2] = waves[1::2, ::-1]
    return float(waves.sum(0).max())


def key_tiles(call: AttentionCall, block_m: int, block_n: int) -> np.ndarray:
    """Tiles of keys that each tile of rows reads, in the order of `locate`: longest first if causal."""
    M, N = call.q.shape[2], call.k.shape[2]
    causal, shift, window = call.mask
    first_rows = np.arange(cdiv(M, block_m)) * block_m
    end = np.minimum(np.minimum(first_rows + block_m, M) + shift, N) if causal else np.full(len(first_rows), N)
    start = np.maximum(first_rows + 1 + shift - window, 0) if window else np.zeros_like(end)
    tiles: np.ndarray = -(-np.maximum(end - start, 1) // block_n)
    return tiles[::-1] if causal else tiles
