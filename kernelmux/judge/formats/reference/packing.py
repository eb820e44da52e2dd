"""Tensors that cross between the judge and the process of the reference: all of a message in one piece of shared memory.

Each lies there with its own strides, which some references ask for; nothing is unpickled, and what does not fit its memory
is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kernelmux.candidate import memory
from kernelmux.candidate.allocations import extent

ALIGNED = 64  # bytes


def span(x: torch.Tensor) -> torch.Tensor:
    """The bytes of memory from the first to the last element of a tensor, as a vector on them."""
    begin = x.storage_offset() * x.element_size()
    return memory.whole(x.untyped_storage())[begin : begin + extent(x.shape, x.stride()) * x.element_size()]


def packed(given: Sequence[torch.Tensor]) -> tuple[list[dict[str, Any]], memory.Region]:
    """Where each tensor lies, as JSON, and the memory, which is the caller's to close. TypeError for sparse ones."""
    told, spans, size = list[dict[str, Any]](), list[np.ndarray](), 0
    for x in given:
        if x.layout != torch.strided:
            raise TypeError(f"a tensor of layout {x.layout} cannot be handed to another process")
        x = x.detach().cpu().resolve_conj().resolve_neg()
        spans.append(span(x).numpy())
        told.append({**memory.described(x), "offset": size // x.element_size()})
        size += -(-spans[-1].size // ALIGNED) * ALIGNED
    made = memory.region(size)
    for one, data in zip(told, spans, strict=True):
        begin = one["offset"] * memory.DTYPES[one["dtype"]].itemsize
        made.bytes[begin : begin + data.size] = data
    return told, made


def unpacked(told: Sequence[dict[str, Any]], file: int, most: int) -> list[torch.Tensor]:
    """The tensors in a copy of that memory; MisplacedTensor for what does not lie there, or more than `most` bytes."""
    size = sum(_end(one) for one in told[-1:])
    if not 0 <= size <= most:
        raise memory.MisplacedTensor(f"tensors of {size} bytes, and {most} at most")
    storage = memory.storage_of(memory.read(file, 0, size))
    return [memory.tensor(storage, one) for one in told]


def _end(told: dict[str, Any]) -> int:
    """The byte after the last one of a tensor."""
    try:
        itemsize = memory.DTYPES[told["dtype"]].itemsize
        return (int(told["offset"]) + extent(told["shape"], told["strides"])) * itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise memory.MisplacedTensor(f"a tensor described as {str(told)[:200]}") from error
