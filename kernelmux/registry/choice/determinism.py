"""What `torch.use_deterministic_algorithms` asks for: of kernels only those that give equal bits for equal calls.

A variant that declares `deterministic=False` is passed over while the flag is on, and refused where it is asked for by
name; with `warn_only=True` it runs, after a warning, where no other that was asked for can. Backends made of torch's
operators are left to torch, which takes other algorithms there, warns or raises by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernelmux.registry.spec.conditions import Unmet

OFF, WARN, ERROR = 0, 1, 2  # as torch.get_deterministic_debug_mode() has them
FLAG = "torch.use_deterministic_algorithms"
FORBIDDEN = Unmet(
    f"bits may differ from call to call (deterministic=False), which {FLAG}(True) forbids",
    kind=f"deterministic algorithms, as {FLAG}(True) asks",
)
mode = torch.get_deterministic_debug_mode


@contextmanager
def asked_for(warn_only: bool = False) -> Iterator[None]:
    """torch is asked for deterministic algorithms, which also fill fresh memory with NaN.

    By the mode, which is the same: `use_deterministic_algorithms` imports torch's compiler, two seconds in a fresh process.
    """
    old = mode()
    torch.set_deterministic_debug_mode(WARN if warn_only else ERROR)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(old)
