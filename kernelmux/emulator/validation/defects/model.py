"""What a defect is: one kernel text with a switch, a launch of it, and how full mode notices that the switch is on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernelmux.emulator import compile_ptx, load

MARK = "reported: "  # a comment with this and the names of switches stands on the line that an error must name


class DefectLaunch(Protocol):
    """A kernel with its arguments, ready to run once."""

    @property
    def arrays(self) -> Mapping[str, Any]:
        """The arguments that are arrays, by name."""

    @property
    def expected(self) -> Mapping[str, Any]:
        """What the outputs hold afterwards; all other arrays are inputs and must not change."""

    @property
    def tolerance(self) -> float:
        """Largest right difference, absolute."""

    @property
    def source(self) -> Path:
        """The file of the kernel."""

    def run(self, switch: str | None) -> None:
        """Runs the kernel with the named switch on, None: the right kernel."""


@dataclass(frozen=True)
class CudaLaunch:
    """A kernel of a `.cu` file; switch `no_tail_mask` is the macro NO_TAIL_MASK."""

    source: Path
    kernel: str
    grid: Any
    block: Any
    arguments: Mapping[str, Any]
    expected: Mapping[str, Any]
    shared: int = 0
    tolerance: float = 0.0

    @property
    def arrays(self) -> Mapping[str, Any]:
        arrays = {name: getattr(value, "tensor", value) for name, value in self.arguments.items()}
        return {n: value for n, value in arrays.items() if isinstance(value, np.ndarray) or hasattr(value, "data_ptr")}

    def run(self, switch: str | None) -> None:
        options = [f"-D{switch.upper()}"] if switch else []
        ptx = compile_ptx(self.source.read_text(), options, filename=self.source.name)
        kernel = load(ptx).kernel(self.kernel)
        kernel.launch(self.grid, self.block, tuple(self.arguments.values()), tuple(self.arguments), self.shared)


@dataclass(frozen=True)
class TritonLaunch:
    """A Triton kernel, which gets the name of the switch as its constexpr DEFECT."""

    source: Path
    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    expected: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def arrays(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.arguments.items() if hasattr(value, "data_ptr")}

    def run(self, switch: str | None) -> None:
        from kernelmux.emulator.compilers import triton_driver

        triton_driver.activate()
        self.kernel[self.grid](**self.arguments, DEFECT=switch or "none", **self.options)


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong.

    name    of the switch. wrong: what is wrong, in one sentence. gpu: what comes of it on a GPU.
    launch  makes the launch, with fresh arrays.
    kinds   of the error that full mode raises (see `errors.KINDS`); empty: no error, the result is wrong.
    blind   why full mode does not notice it and gives the right result, for the known blind spots.
    limit   seconds for the launch of the broken kernel; endless ones use them up.
    """

    name: str
    wrong: str
    gpu: str
    launch: Callable[[], DefectLaunch]
    kinds: tuple[str, ...] = ()
    blind: str | None = None
    limit: float = 20.0
    family: str = ""

    @property
    def lines(self) -> tuple[int, ...]:
        """Where the kernel's text says that the error is reported; empty: it does not say."""
        return _marked_lines(self.launch().source).get(self.name, ())


@lru_cache
def _marked_lines(path: Path) -> dict[str, tuple[int, ...]]:
    lines: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        _, mark, names = line.partition(MARK)
        for name in names.lower().split(", ") if mark else ():
            lines[name] = (*lines.get(name, ()), number)
    return lines
