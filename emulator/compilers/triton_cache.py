"""A folder for Triton's own cache where the usual one takes no files: without one Triton compiles nothing."""

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
    found = next((folder for folder in compile_cache.folders("triton") if _takes_files(folder)), None)
    if found is None:
        raise OSError(f"Triton's cache {own} takes no files, and no other folder does: set TRITON_CACHE_DIR to one")
    knobs.cache.dir = str(found)
    compile_cache.warn("triton", f"Triton's cache {own} takes no files; this process uses {found} (TRITON_CACHE_DIR)")


def _takes_files(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as file:
            file.write(os.urandom(ROOM))
        return True
    except OSError:
        return False
