"""How what was fitted on an H200 follows the card at hand: one place for all families.

Cards of compute capability 9.0 take the fitted numbers, but for their multiprocessors: an H100 launches what an H200 does.
Products per microsecond of a multiprocessor, cycles and stages of rings are those of wgmma, whose variants run there alone
(matmul's specialised and from_registers, `_fp8_specialised`, conv2d's folded and specialised): they follow no other card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from kernelmux.backends.triton._launch.launch import Config, processors, shared_bytes
from kernelmux.registry import dtypes
from kernelmux.registry.conditions import sm
from kernelmux.registry.spec import Call
from kernelmux.registry.util import cards

FITTED = cards.table()["h200"]
SPARE = 1024  # bytes of shared memory for barriers, and for what a step exchanges between warps


def of_l2(size: int, device: int) -> int:
    """Bytes that were fitted to the L2 of an H200, in proportion to that of a card."""
    card = cards.of(device)
    return size if card.capability == FITTED.capability else size * card.l2 // FITTED.l2


def per_processor(count: int, device: int) -> int:
    """What was fitted to the multiprocessors of an H200, all together, in proportion to those of a card."""
    return count * processors(device) // FITTED.processors


def enough(device: int) -> int:
    """Tiles that keep most multiprocessors busy; where large ones are fewer, smaller ones are quicker."""
    return per_processor(100, device)


def held(stages: int, device: int) -> int:
    """Stages of a pipeline that are in shared memory at a time.

    Products read the last one from there on Hopper and datacenter Blackwell; elsewhere it has gone to registers.
    """
    asynchronous = (9, 0) <= cards.of(device).capability < (12, 0)
    return stages if asynchronous else max(stages - 1, 1)


def narrow(device: int) -> bool:
    """Programs have 99 KiB of shared memory or less: GeForce cards, and those that are made of their chips."""
    return shared_bytes(device) < 128 * 1024


def fitting(tiles: Iterable[Config], device: int, shared: Callable[[Config], int]) -> Config:
    """The first tile whose bytes of shared memory a program may have, or the last one."""
    tiles = list(tiles)
    room = shared_bytes(device) - SPARE
    return next((tile for tile in tiles if shared(tile) <= room), tiles[-1])


@dataclass(frozen=True)
class TensorCores:
    """Products of the dtype of tensor `name` are made by tensor cores, or by fp32 instructions where that is the dtype.

    For sm_75 Triton makes all products of fp32 instructions, whose operands in registers do not fit there.
    """

    name: str

    @property
    def text(self) -> str:
        """The condition in a few words."""
        return f"{self.name} in fp32, or sm_80 or newer"

    def check(self, call: Call) -> str | None:
        """None, or which dtype is not multiplied."""
        dtype = call.arguments[self.name].dtype
        if call.capability is None or call.capability >= (8, 0) or dtype == torch.float32:
            return None
        short = dtypes.SHORT[dtype]
        return f"the GPU is {sm(call.capability)}, where Triton has no tensor cores, needs sm_80 or newer for {short}"
