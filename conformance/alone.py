"""One process at a time: for calls that take gigabytes of a GPU's memory, which many processes share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from filelock import FileLock


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """Waits until no other process of this user is inside on that GPU; on leaving, unused memory goes back to it."""
    if device.type != "cuda":
        yield
        return
    name = f"kernelmux-{os.getuid()}-{torch.cuda.get_device_properties(device).uuid}.lock"
    with FileLock(Path(tempfile.gettempdir()) / name):
        try:
            yield
        finally:
            with suppress(torch.AcceleratorError):  # a call has broken the context, and has failed for that
                torch.cuda.empty_cache()
