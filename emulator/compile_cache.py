"""A folder of compiled artefacts, shared by processes: atomic writes, and never a reason to fail."""

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def digest(parts: Iterable[str]) -> str:
    """Key of an artefact: SHA-256 of its inputs, each with its length so that neighbours cannot run together."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        state.update(f"{len(encoded)}:".encode())
        state.update(encoded)
    return state.hexdigest()


def platform_folder() -> Path:
    """Where this platform keeps caches of a user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _own_and_writable(folder: Path) -> bool:
    """Whether `folder` exists (it is made if need be), takes files, and belongs to this user alone to write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
    except (OSError, RuntimeError):
        return False
    if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & stat.S_IWOTH):
        return False
    return os.access(folder, os.W_OK | os.X_OK)


@cache
def default_folder() -> Path:
    """The user's cache folder, or one in the temporary folder when the home is read-only.

    A folder in the temporary directory that belongs to somebody else is never used: what lies there is executed.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    candidates = [Path(tempfile.gettempdir()) / f"kernelmux-{user}" / "ptx"]
    try:
        candidates.insert(0, platform_folder() / "kernelmux" / "ptx")
    except RuntimeError:  # no home can be found
        pass
    usable = (folder for folder in candidates if _own_and_writable(folder))
    return next(usable, None) or Path(tempfile.mkdtemp(prefix="kernelmux-ptx-"))


def read(name: str, folder: Path | None = None) -> bytes | None:
    """The artefact called `name`, or None."""
    try:
        return ((folder or default_folder()) / name).read_bytes()
    except OSError:
        return None


def write(name: str, content: bytes, folder: Path | None = None) -> None:
    """Store an artefact; readers see all of it or nothing. A full disk only costs the next process a compilation."""
    target = (folder or default_folder()) / name
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
        os.replace(temporary, target)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
