"""What groups, barriers and warps know of the chunk of blocks that they belong to; `executor.Run` is one.

The executor imports them, so they ask for no more of it than this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kernelmux.emulator.analysis.flow import Flow
from kernelmux.emulator.running.lanes import Geometry, Lanes


class GeneratedCode(Protocol):
    """steps_of: the number of the step of each line of each generated function, by the id of its code."""

    steps_of: dict[int, list[int]]


class CompiledFunction(Protocol):
    """One function, compiled block by block."""

    flow: Flow
    frame_size: int
    name: str

    @property
    def compiler(self) -> GeneratedCode: ...


class CallInProgress(Protocol):
    """One call of a function: the groups that can run and those that wait."""

    idle_rounds: int

    @property
    def program(self) -> CompiledFunction: ...

    def runnable(self, *groups: Any) -> None:
        """These groups can run."""

    def park(self, group: Any, pc: int, waiting: Any) -> None:
        """The lanes where `waiting` holds wait at `pc`; the others of the group go on there."""

    def wake(self) -> None:
        """Something happened that waiting lanes may have waited for."""


class BlockBarriers(Protocol):
    """The barriers of the blocks."""

    def arrive(self, group: Any, pc: int, action: Any, number: Any, count: Any, predicate: Any = None) -> bool:
        """True if some lanes of the group have to wait."""

    def reduced(self, group: Any) -> Any:
        """The result of the reduction that the group has just passed."""


class WarpsAlive(Protocol):
    """The lanes of each warp that have not exited."""

    def stops(self, group: Any, pc: int, scope: str, mask: Any) -> bool:
        """True if some lanes had to be parked until others come."""

    def require_membership(self, group: Any, mask: Any) -> None:
        """Every lane must be named by its own mask."""


class Chunk(Protocol):
    """Blocks that run together; `executor.Run` says what each of these is."""

    geometry: Geometry
    access: Any
    memory: Any
    shared: Any
    checks: str
    library: Any
    everyone: Lanes
    alive: np.ndarray
    alive_count: int
    state: dict[str, Any]
    frame: int
    ticks: int

    @property
    def activation(self) -> CallInProgress: ...

    @property
    def barriers(self) -> BlockBarriers: ...

    @property
    def warps(self) -> WarpsAlive: ...

    @property
    def on_exit(self) -> list[Callable[[Any], None]]: ...

    @property
    def initial(self) -> list[Any]: ...

    def kept(self, name: str, make: Callable[[], Any], at_end: Callable[[Any], None] | None = None) -> Any:
        """What operations keep for this chunk under a name; made when it is asked for first.

        at_end: called with it when the chunk has finished.
        """

    def call(self, group: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        """Runs a device function for the lanes of a group; returns its results' bytes."""

    def counter(self, name: str) -> Any:
        """Clocks and sizes: special registers that do not follow from the lane numbers."""
