"""The PTX that Triton's compiler left in Triton's cache, if it is still what the compiler wrote.

Triton's own cache has no digest. Ours keeps one for each PTX from its first use on; a file that no longer fits it is not
run: Triton compiles the kernel again, over what it had.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager

from kernelmux.emulator.compilers import compile_cache, triton_cache, triton_recompile


def checked(source: Any, metadata: Any) -> str:
    """The PTX of a compiled kernel, from what Triton's launcher knows; FileNotFoundError if none was stored."""
    path = _path(source, metadata)
    content = path.read_bytes()
    if knobs.cache.manager_class is triton_cache.PlainCache:
        return content.decode()
    key = compile_cache.digest(["Triton's PTX", str(path)])  # it names files: another cache may have another checkout's
    known, wrong = _recorded(key), False
    if known not in (None, _digest(content)):
        again = _compiled_again(source, metadata).encode()
        wrong = again != content  # else Triton's cache was emptied since, and the source lies elsewhere now
        content = again
    if known != _digest(content):
        compile_cache.write(key, (_digest(content), b""))
    if wrong:
        compile_cache.warn_damaged(compile_cache.Damaged(f"{path}: its content does not fit its digest"))
    return content.decode()


def _recorded(key: str) -> bytes | None:
    """The digest of the PTX as it was; a damaged record is none."""
    try:
        artefact = compile_cache.read(key)
    except compile_cache.Damaged:
        return b""
    return artefact[0] if artefact else None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _path(source: Any, metadata: Any) -> Path:
    group = get_cache_manager(metadata.hash).get_group(f"{source.name[:150]}.json") or {}
    stored = next((path for file, path in group.items() if file.endswith(".ptx")), None)
    if stored is None:
        raise FileNotFoundError(
            f"{metadata.name}: no PTX in Triton's cache; it must not be told to store the binary only"
        )
    return Path(stored)


def _compiled_again(source: Any, metadata: Any) -> str:
    """The PTX of a fresh compilation with the options of the first one; it replaces what lies in Triton's cache."""
    target: GPUTarget = metadata.target
    options = triton_recompile.options_of(source.name, metadata)
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        compiled = triton.compile(source, target=target, options=options)
    if compiled.hash != metadata.hash:
        raise RuntimeError(f"{metadata.name}: its PTX in Triton's cache is damaged; delete {knobs.cache.dir}")
    return str(compiled.asm["ptx"])
