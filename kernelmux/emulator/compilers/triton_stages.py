"""Where Triton's compiler stops for a kernel that is emulated: at the PTX.

ptxas would make machine code of it, which nothing here runs, in up to seconds for each kernel. What a kernel needs of a
GPU is read from machine code that `triton_recompile` makes where it is asked to: of this PTX, or anew for another GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton import knobs

KEY = "kernelmux: PTX alone"  # in the keys of Triton's caches, beside kernels with machine code
KEYED = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)  # before, no key would tell them apart


def _without_machine_code(*arguments: Any) -> tuple[str, str] | None:
    """Triton's hook for stages: asked for its key without arguments, else given (backend, stages, ...) to change."""
    if not arguments:
        return KEY, KEY
    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = arguments[1]
    if "cubin" in stages:
        stages["cubin"] = lambda ptx, metadata: b""
    return None


def stop_at_ptx() -> None:
    """From now on, unless the user's own hook is there, or this version of Triton has no key for it."""
    if KEYED and knobs.runtime.add_stages_inspection_hook is None:
        knobs.runtime.add_stages_inspection_hook = _without_machine_code


def go_on() -> None:
    """As Triton does it, from now on; a user's own hook stays."""
    if knobs.runtime.add_stages_inspection_hook is _without_machine_code:
        knobs.runtime.add_stages_inspection_hook = None


@contextmanager
def machine_code() -> Iterator[None]:
    """Inside the `with`, Triton compiles to the end."""
    stopped = knobs.runtime.add_stages_inspection_hook is _without_machine_code
    go_on()
    try:
        yield
    finally:
        if stopped:
            stop_at_ptx()
