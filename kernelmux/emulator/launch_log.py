"""What was launched, and how each kernel could be compiled for another GPU.

    with recorder() as launches: kernel(...)     recorder(run=False): only notes, for sizes too large to emulate
    launches[0].recipe.compile("sm_80")          machine code with what the assembler said about it
    launches[0].recipe.obstacles("gfx942")       why a GPU of another maker cannot have it

Compilers leave a recipe for every PTX text that they make; a launch of that text finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class CompiledModule:
    """Machine code for one architecture; shared: dynamic shared memory in bytes, None if the launch decides.

    log: what `ptxas -v` said; for an AMD GPU the assembly, whose metadata say what the kernel needs.
    """

    image: bytes
    log: str
    shared: int | None = None


@dataclass(frozen=True)
class Recipe:
    """How a PTX text was made. key: equal for equal results. compile: machine code for an architecture ("sm_80").

    source: the text that was compiled; None where that is the file which the PTX names. obstacles: what of the kernel
    keeps it from an AMD GPU ("gfx942"), nothing where it compiles or fails for no such reason; None where the language
    knows NVIDIA GPUs alone. descriptors: whether it takes tensor descriptors.
    """

    key: object
    compile: Callable[[str], CompiledModule]
    source: str | None = None
    obstacles: Callable[[str], list[str]] | None = None
    descriptors: bool = False


@dataclass(frozen=True)
class Launch:
    """One launch: entry name, sizes, bytes of dynamic shared memory, and the recipe if the PTX has one."""

    kernel: str
    grid: Triple
    block: Triple
    shared: int
    recipe: Recipe | None

    @property
    def compiled_by(self) -> Recipe:
        """The recipe; LookupError if it is not known how the kernel was compiled."""
        if self.recipe is None:
            raise LookupError(f"{self.kernel}: launched, but it is not known how it was compiled")
        return self.recipe


_recipes: dict[str, Recipe] = {}
_log: ContextVar[tuple[list[Launch], bool] | None] = ContextVar("kernelmux_emulator_launches", default=None)


@contextmanager
def recorder(run: bool = True) -> Iterator[list[Launch]]:
    """Collects the launches inside the `with`, in order; without `run` the kernels are compiled but do not run."""
    launches: list[Launch] = []
    token = _log.set((launches, run))
    try:
        yield launches
    finally:
        _log.reset(token)


def remember(ptx: str, recipe: Recipe) -> None:
    """Keeps the recipe of a PTX text."""
    _recipes[ptx] = recipe


def recipe(ptx: str) -> Recipe | None:
    """The recipe of a PTX text."""
    return _recipes.get(ptx)


def running() -> bool:
    """Whether what is launched runs: False inside of `recorder(run=False)`."""
    log = _log.get()
    return log is None or log[1]


def note(ptx: str, kernel: str, grid: Triple, block: Triple, shared: int) -> bool:
    """Called by every launch; returns whether the kernel is to run."""
    log = _log.get()
    if log is None:
        return True
    launches, run = log
    launches.append(Launch(kernel, grid, block, shared, _recipes.get(ptx)))
    return run
