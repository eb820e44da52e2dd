"""One process at a time: for calls that take gigabytes of a GPU's memory, which many processes share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

OTHERS = 2 * 2**30  # bytes that each other process may need meanwhile: its context, its trials, the tensors of a call


@contextmanager
def memory_turn(device: torch.device) -> Iterator[None]:
    """A turn in which this process takes no more memory than `room`: beyond that torch has no memory for it."""
    with turn(device):
        if device.type != "cuda":
            yield
            return
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, (torch.cuda.memory_reserved(device) + room(device)) / total), device
        )
        try:
            yield
        finally:
            with suppress(torch.AcceleratorError):
                torch.cuda.set_per_process_memory_fraction(1.0, device)


@contextmanager
def turn(device: torch.device) -> Iterator[None]:
    """Waits until no other process of this user is inside on that GPU; unused memory goes back to it before and after.

    Inside of another turn it waits for nothing.
    """
    if device.type != "cuda":
        yield
        return
    from filelock import FileLock

    name = f"kernelmux-{os.getuid()}-{torch.cuda.get_device_properties(device).uuid}.lock"
    with FileLock(Path(tempfile.gettempdir()) / name, is_singleton=True):
        torch.cuda.empty_cache()
        try:
            yield
        finally:
            with suppress(torch.AcceleratorError):  # a call has broken the context, and has failed for that
                torch.cuda.empty_cache()


def room(device: torch.device) -> int:
    """Bytes of a GPU's memory that are free and not left to the other worker processes on it."""
    return int(max(0, torch.cuda.mem_get_info(device)[0] - OTHERS * (_sharers - 1)))


_sharers = 1  # processes on the GPU of this one, itself included


def shared_by(processes: int) -> None:
    """Say how many processes work on the GPU of this one, itself included."""
    global _sharers
    _sharers = processes
