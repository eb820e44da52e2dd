"""In place of a module of PTX and its kernels, for programs that only ask what would be launched."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from kernelmux.emulator.running.launch import load


class StandIn:
    """What `load` gives while `load_by` has it so; it would take long to parse every text.

    Launchers keep what they have loaded. So a launch where `load` gives something else again is one of the kernel that
    this stood for.
    """

    def __init__(self, ptx: str, name: str = "") -> None:
        self.ptx, self.module, self.name = ptx, self, name

    def kernel(self, name: str) -> StandIn:
        """In place of the kernel of this name."""
        return type(self)(self.ptx, name)

    @property
    def parameters(self) -> Sized:
        """As many as the kernel has."""
        now = self._now()
        found: Sized = self.own_parameters() if now is self else now.parameters
        return found

    def launch(self, *given: Any, **more: Any) -> None:
        """As the kernel takes it."""
        now = self._now()
        (self.noted if now is self else now.launch)(*given, **more)

    def _now(self) -> Any:
        loaded: Any = load(self.ptx)
        return self if type(loaded) is type(self) else loaded.kernel(self.name)

    def own_parameters(self) -> Sized:
        """For who counts them; none are looked up by themselves."""
        return ()

    def noted(self, grid: Any, block: Any, args: Any, names: Any = (), shared: int = 0, cluster: Any = None) -> None:
        """In place of the launch; nothing by itself."""
