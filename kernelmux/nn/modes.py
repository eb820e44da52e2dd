"""How a model runs beside another one: in float64 throughout, and with the other's discrete choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)
CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


class Float64(TorchFunctionMode):
    """Inside, what a model casts to fp32 or less becomes float64, as in a norm or a router; so does what it makes anew."""

    def __enter__(self) -> Float64:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._default)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CASTS:
            return args[0].double()
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


class Choices(TorchFunctionMode):
    """Inside, `topk` and `argmax` of numbers, with which a model routes its tokens, are noted.

    current: the name of the module that runs. held: the choices of another run of the model, which are taken in place of
    its own. made: for every call the module, and what it would choose itself: int64 [rows, k], each row in order.
    """

    def __init__(self, current: Callable[[], str], held: Choices | None = None) -> None:
        super().__init__()
        self.made: list[tuple[str, torch.Tensor]] = []
        self._taken: list[torch.Tensor] = []
        self._current, self._held = current, held

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found, given = func(*args, **(kwargs or {})), kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in ("topk", "argmax") or not args or not args[0].is_floating_point():
            return found
        if name == "argmax":
            return self._note(found, found[..., None])
        dim = given.get("dim", args[2] if len(args) > 2 else -1)
        taken = self._note(found.indices, found.indices.movedim(dim, -1))
        return found if taken is found.indices else type(found)((args[0].gather(dim, taken), taken))

    def _note(self, own: torch.Tensor, sets: torch.Tensor) -> torch.Tensor:
        """The indices to go on with: those of the run that is held, if it came by here."""
        number, held = len(self.made), self._held._taken if self._held else []
        self.made.append((self._current(), sets.flatten(0, -2).sort(-1).values))
        taken = held[number] if number < len(held) and held[number].shape == own.shape else own
        self._taken.append(taken)
        return taken


def differing(some: Choices, others: Choices) -> dict[str, int]:
    """How many rows chose something else, by module; all of them where the two do not come by the same calls."""
    counts: dict[str, int] = {}
    pairs = zip(some.made, others.made, strict=False)
    for (path, a), (_, b) in pairs:
        rows = int((a != b).any(-1).sum()) if a.shape == b.shape else len(a)
        counts[path] = counts.get(path, 0) + rows
    return counts
