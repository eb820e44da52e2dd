"""The asynchronous proxy: wgmma and bulk stores see what threads wrote to shared memory only after fence.proxy.async.

Checked in full mode. A fence of any thread of a block counts for all writes up to its barrier epoch: a fence that comes
too early inside an epoch is not reported, and a correct kernel never is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.errors import Fault
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.lanes import WARP

Array = NDArray[Any]


def _last_fence(run: Any) -> Array:
    """Barrier epoch of the last proxy fence of each block; 0 before the first."""
    last: Array = run.kept("proxy", lambda: np.zeros(run.geometry.blocks, np.int64))
    return last


def fenced(group: Any) -> None:
    """What the blocks of the group wrote so far is visible to the asynchronous proxy."""
    shadow = group.run.shared.shadow
    if shadow is not None:
        blocks = np.unique(group.block)
        _last_fence(group.run)[blocks] = np.broadcast_to(shadow.epoch, (group.run.geometry.blocks,))[blocks]


def require_visible(group: Any, block: Any, offsets: Array, what: str, position: Any = 0) -> None:
    """Fails unless bytes of a block's shared memory are initialised and visible to the asynchronous proxy.

    position: the lane that asks, or an array of them, one for each of the first axis of `offsets`. What other warps
    wrote needs a barrier as well.
    """
    shadow, first = group.run.shared.shadow, int(np.ravel(position)[0])
    shadow.require(group, block, offsets, what, position=first)
    epoch, thread = shadow.writers(block, offsets)
    hidden = epoch > _last_fence(group.run)[block]
    if hidden.any():
        writer = thread[_place(hidden)]
        message = f"{what} reads shared memory that thread {writer} wrote, and no fence.proxy.async since"
        group.fail("asynchronous", message, [first])
    now = np.broadcast_to(shadow.epoch, (group.run.geometry.blocks,))[block]
    warp = group.thread[position] // WARP
    unordered = (epoch == now) & (thread // WARP != np.reshape(warp, np.shape(warp) + (1,) * (np.ndim(block) - 1)))
    if unordered.any():
        message = f"{what} reads shared memory, and no barrier since thread {thread[_place(unordered)]} wrote it"
        group.fail("race", message, [first])


def _place(bad: Array) -> tuple[Any, ...]:
    return np.unravel_index(int(bad.argmax()), bad.shape)


def require_all_visible(group: Any, blocks: Array, offsets: Array, what: str, positions: Array) -> None:
    """The same for several places `offsets [places, ..]`, each with its block and the lane that asks."""
    shape = (-1,) + (1,) * (offsets.ndim - 1)
    try:
        require_visible(group, blocks.reshape(shape), offsets, what, position=positions)
    except Fault:  # once more, one by one, to name the lane
        for block, part, position in zip(blocks.tolist(), offsets, positions.tolist(), strict=True):
            require_visible(group, block, part, what, position=position)


@operation("fence.proxy.async")
def fence(ins: Instruction) -> Action:
    """`fence.proxy.async{.shared::cta}`: writes of threads become visible to asynchronous copies and products."""
    return Action(fenced if not ins.has("global") else lambda group: None)
