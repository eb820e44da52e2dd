"""Another folder for Triton's cache if the usual one cannot be written to: Triton compiles nothing without one."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from triton import knobs

from kernelmux.emulator.compilers import compile_cache

ROOM = 1 << 18  # bytes that a folder must take; a kernel has about half of it


@cache
def ensure() -> None:
    """Give Triton another folder for this process, with one warning, if its own takes no files (read-only, full).

    OSError, which says what to do, if there is none.
    """
    own = Path(knobs.cache.dir)
    if _takes_files(own):
        return
    writable = next((folder for folder in compile_cache.folders("triton") if _takes_files(folder)), None)
    if writable is None:
        raise OSError(f"Triton's cache {own} takes no files, and no other folder does: set TRITON_CACHE_DIR to one")
    knobs.cache.dir = str(writable)
    compile_cache.warn(
        "triton", f"Triton's cache {own} takes no files; this process uses {writable} (TRITON_CACHE_DIR)"
    )


def _takes_files(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as file:
            file.write(os.urandom(ROOM))
        return True
    except OSError:
        return False
