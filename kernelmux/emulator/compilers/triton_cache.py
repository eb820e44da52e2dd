"""Triton's cache as it must be: in a folder that takes files, and without the files that are not what was written.

Triton compiles nothing without a folder. It keeps the files of a kernel as a group, and reads what it finds there: of a
damaged file it makes an exception, or machine code. To find anything it hashes all of itself, 500 MB, in each process: for
0.4 s, in which it could have launched a kernel that is there. The hash is kept beside our kernels.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.runtime import cache as triton_runtime
from triton.runtime.cache import FileCacheManager

from kernelmux.emulator.compilers import compile_cache

ROOM = 1 << 18  # bytes that a folder must take; a kernel has about half of it
DIGESTS = "__sha256__"  # before the name of a group: the digests of its files


@cache
def ensure() -> None:
    """Give Triton another folder for this process, with one warning, if its own takes no files (read-only, full).

    From then on Triton compiles again what is damaged, and looks up the hash of itself. OSError, which says what to do, if
    there is no folder.
    """
    if knobs.cache.manager_class in (None, FileCacheManager):  # and none that the user chose
        knobs.cache.manager_class = CheckedCache
    if hashed := getattr(triton_runtime, "triton_key", None):
        triton_runtime.triton_key = cache(lambda: known_key(hashed))
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


def known_key(hashed: Callable[[], str]) -> str:
    """What Triton's `triton_key` returns: of another process if Triton's files are as they were then, else `hashed()`."""
    name = compile_cache.digest(["triton_key", *_files()])
    try:
        if known := compile_cache.read(name):
            return known[0].decode()
    except compile_cache.Damaged as problem:
        compile_cache.warn_damaged(problem)
    key = quick_key(hashed)
    compile_cache.write(name, (key.encode(), b""))
    return key


def quick_key(hashed: Callable[[], str]) -> str:
    """`hashed()`, without reading Triton's library, 400 MB, where the installer noted its digest and it was not written
    to since: 7 ms in place of 0.7 s on an AMD EPYC."""
    library = next((Path(triton.__file__).parent / "_C").glob("libtriton.so"), None)
    noted = library and _noted_digest(library)
    if not noted:
        return hashed()
    stand_in = os.urandom(32)

    def opened(path: Any, *given: Any, **more: Any) -> Any:
        return io.BytesIO(stand_in) if Path(path) == library else open(path, *given, **more)

    vars(triton_runtime)["open"] = opened  # hides the builtin from Triton's module
    try:
        key = hashed()
    finally:
        vars(triton_runtime).pop("open", None)
    return key.replace(hashlib.sha256(stand_in).hexdigest(), noted)


def _noted_digest(library: Path) -> str:
    """The sha256 that an installer noted of a file of a package, in hexadecimal; "" if it is not known to be that of the
    file: there is no note, the size is another, or the file is newer than the note."""
    site, file = library.parents[2], library.stat()
    name = library.relative_to(site).as_posix()
    for record in site.glob("*.dist-info/RECORD"):
        if "triton" in record.parent.name and file.st_mtime <= record.stat().st_mtime:
            for line in record.read_text(encoding="utf-8").splitlines():
                if line.startswith(f"{name},sha256=") and line.endswith(f",{file.st_size}"):
                    digest = line.split(",")[1].removeprefix("sha256=")
                    return base64.urlsafe_b64decode(digest + "=").hex()
    return ""


def _files() -> Iterator[str]:
    """What Triton hashes of itself, and more, with sizes and times, by which Python knows its compiled files too."""
    root = Path(triton.__file__).parent
    for path in sorted([*root.rglob("*.py"), *root.glob("_C/*")]):
        info = path.stat()
        yield f"{path} {info.st_size} {info.st_mtime_ns}"


def keep_plainly() -> None:
    """Give Triton a cache without digests: for a process whose folder is new, and its own."""
    knobs.cache.manager_class = PlainCache


class PlainCache(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's files as Triton keeps them; each is written beside its place, not in a folder that is made for it.

    Of such a folder Triton deletes all that is empty above it, too: of a compilation, with nine files, up to a quarter.
    """

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file at once, as seen by others; its path."""
        path, temporary = Path(self.cache_dir, filename), Path(self.cache_dir, f"tmp.{os.getpid()}.{uuid.uuid4().hex}")
        temporary.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        os.replace(temporary, path)
        return str(path)


class CheckedCache(PlainCache):
    """Triton's files with a digest of each; a group with a damaged one counts as absent, so that it is compiled again.

    Groups that were written without digests are taken as they are.
    """

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a group by name, None if there is none, or with one warning if one of them is damaged."""
        group: dict[str, str] | None = super().get_group(filename)
        digests = self.get_file(DIGESTS + filename)
        if group is None or digests is None:
            return group
        if (damaged := _damaged(group, Path(digests))) is None:
            return group
        compile_cache.warn_damaged(compile_cache.Damaged(f"{damaged}: its content does not fit its digest"))
        return None

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Note the digests before the group, so that they are there as soon as the group can be found."""
        self.put(json.dumps({name: _digest(Path(path)) for name, path in group.items()}), DIGESTS + filename)
        path: str = super().put_group(filename, group)
        return path


def _damaged(group: dict[str, str], digests: Path) -> Path | None:
    """The first file of a group that is not what was written, the record of their digests among them; None if all are."""
    try:
        known = dict(json.loads(digests.read_bytes()))
    except (OSError, ValueError, TypeError):
        return digests
    return next((Path(path) for name, path in group.items() if known.get(name) != _digest(Path(path))), None)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return str(error)
