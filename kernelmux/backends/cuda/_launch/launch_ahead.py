"""Kernels compiled for a GPU by a process that has none: CuPy writes the files that it will look for on that GPU.

What names a file, and what is in it, is CuPy's own code; that it asks which GPU is at hand is answered here. Nothing runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kernelmux.backends.cuda._launch.launch_cuda import options_for
from kernelmux.registry.util.cards import Card

_card: Card | None = None


def card() -> Card | None:
    """The card that kernels are compiled for ahead of their time, if they are."""
    return _card


@contextmanager
def ahead(card: Card) -> Iterator[None]:
    """Inside, kernels for CPU tensors are compiled for this card, as a process that has it would, and launch nothing.

    AttributeError with a CuPy that asks for its GPU in another way than 13 and 14 do.
    """
    global _card
    from cupy.cuda import compiler

    number = "{}{}".format(*card.capability)
    asked = {
        "_get_arch": compiler._get_arch,
        "_get_arch_for_options_for_nvrtc": compiler._get_arch_for_options_for_nvrtc,
    }
    most = compiler._get_max_compute_capability()
    by_number = compiler._get_arch_for_options_for_nvrtc.__wrapped__  # without its memory, which is by GPU
    vars(compiler).update(_get_arch=lambda: min(number, most, key=int), _get_arch_for_options_for_nvrtc=by_number)
    _card = card
    try:
        yield
    finally:
        _card = None
        vars(compiler).update(asked)


class AheadFunction:
    """One kernel entry on a GPU that another process has; same interface as a CUDA function."""

    def __init__(self, text: str, options: tuple[str, ...], card: Card) -> None:
        from cupy._core import core
        from cupy.cuda import driver, runtime

        with suppress(runtime.CUDARuntimeError, driver.CUDADriverError):  # of loading the file that is written
            core.compile_with_cache(text, options_for(options, card.arch), prepend_cupy_headers=False)  # as RawModule

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], values: Any, shared: int) -> None:
        """Nothing runs."""
