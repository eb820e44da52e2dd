"""Arguments of a call that are one object, or start at one address: a call that is watched must tell their roles apart."""

from __future__ import annotations

from typing import Any

import torch

COPIED = 2**24  # bytes that are copied once to tell two arguments apart: with larger ones the host's time is hidden


def told_apart(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments, with a copy in place of each tensor that starts where another one does.

    None for a copy of more than `COPIED` bytes, and where it would be of another kind: with gaps, or aligned otherwise.
    """
    starts, found = set[int](), list[Any]()
    for x in values:
        if isinstance(x, torch.Tensor):
            if x.data_ptr() in starts:
                if not 0 < x.nbytes <= COPIED:
                    return None
                copy = x.detach().clone()
                if copy.stride() != x.stride() or (copy.data_ptr() - x.data_ptr()) & 15:
                    return None
                x = copy
            starts.add(x.data_ptr())
        found.append(x)
    return tuple(found)
