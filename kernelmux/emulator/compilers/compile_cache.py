"""A folder of compiled artefacts, shared by processes: checked by a digest, written atomically; its faults fail no call.

One file per key: a magic line, the SHA-256 of the key and the content, the lengths of code and log, code, log. What does
not fit its digest is compiled again, with one warning per process. What lies here is executed, so the folder belongs
to the user, and no other user can write to it or put another one in its place.
"""

import hashlib
import os
import stat
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

VARIABLE = "KERNELMUX_CACHE_DIR"  # another place for the folder
MAGIC = b"kernelmux artefact 1\n"
_HEAD = struct.Struct(f"<{len(MAGIC)}s32sQQ")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
Artefact = tuple[bytes, bytes]


class CacheWarning(UserWarning):
    """A cached file is damaged, or the folder that was asked for cannot be used; the results are right all the same."""


class Damaged(Exception):
    """A file of the cache does not hold what was written; its text names the file and says why."""


def digest(parts: Iterable[str]) -> str:
    """Key of an artefact: SHA-256 of its inputs, each with its length so that neighbours cannot run together."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")  # names of folders need not be UTF-8
        state.update(f"{len(encoded)}:".encode())
        state.update(encoded)
    return state.hexdigest()


# --- files --------------------------------------------------------------------------------------------------


def read(name: str, folder: Path | None = None) -> Artefact | None:
    """Code and log of the artefact called `name`, None if there is none; Damaged for anything but what was written."""
    folder = folder or cache_folder()
    if folder is None:
        return None
    try:
        content, own = _content(folder / name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{folder / name}: {error.strerror or error}") from error
    if not own:
        raise Damaged(f"{folder / name}: not a file of this user")
    return _unpacked(name, content, folder / name)


def _content(path: Path) -> tuple[bytes, bool]:
    """The bytes of a file, and whether it belongs to this user; links are not followed."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
        info = os.fstat(file.fileno())
        return file.read(), stat.S_ISREG(info.st_mode) and _is_ours(info)


def _unpacked(name: str, content: bytes, path: Path) -> Artefact:
    if len(content) < _HEAD.size or not content.startswith(MAGIC):
        raise Damaged(f"{path}: not a cached kernel")
    _, expected, code, log = _HEAD.unpack_from(content)
    body = content[_HEAD.size :]
    if len(body) != code + log or _checksum(name, body, code) != expected:
        raise Damaged(f"{path}: its content does not fit its digest")
    return body[:code], body[code:]


def _checksum(name: str, body: bytes, code: int) -> bytes:
    return hashlib.sha256(f"{name}:{code}:".encode() + body).digest()


def write(name: str, artefact: Artefact, folder: Path | None = None) -> None:
    """Store an artefact; readers see all of it or nothing. A full disk only costs the next process a compilation."""
    folder = folder or cache_folder()
    if folder is None:
        return
    code, log = artefact
    head = _HEAD.pack(MAGIC, _checksum(name, code + log, len(code)), len(code), len(log))
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:  # mode 0600 under any umask
            temporary = Path(file.name)
            file.write(head + code + log)
        os.replace(temporary, folder / name)
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


_told: set[str] = set()


def warn(kind: str, text: str) -> None:
    """Warn once per process and kind. It counts as said even where warnings are errors: the next call must work."""
    if kind not in _told:
        _told.add(kind)
        warnings.warn(text, CacheWarning, stacklevel=2)


def warn_damaged(problem: Damaged) -> None:
    """The one warning about damaged files; to be called when the right content is in place again."""
    warn("damaged", f"a cached kernel was damaged and has been compiled again: {problem}")


# --- the folder ---------------------------------------------------------------------------------------------


def platform_folder() -> Path:
    """Where this platform keeps caches of a user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@cache
def cache_folder() -> Path | None:
    """The folder of our artefacts: the first of `folders`."""
    return next(folders("ptx"), None)


def folders(name: str) -> Iterator[Path]:
    """Folders called `name` that are this user's alone, made as they are asked for.

    In that of KERNELMUX_CACHE_DIR, in the user's cache folder, in the temporary folder, and a fresh one there.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted:
        place = Path(wanted).expanduser() / name
        if _usable(place):
            yield place
        else:
            warn(VARIABLE, f"{VARIABLE}={wanted} cannot be used: expected a folder that this user alone can write")
    yield from (place for place in _usual(name) if _usable(place))
    with suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix=f"kernelmux-{name}-"))


def _usual(name: str) -> Iterator[Path]:
    with suppress(RuntimeError, OSError):  # no home can be found
        place = platform_folder()
        if place.parent.is_dir():  # a home that does not exist is not made
            yield place / "kernelmux" / name
    user = os.getuid() if hasattr(os, "getuid") else "user"
    with suppress(OSError):  # no temporary folder
        yield Path(tempfile.gettempdir()) / f"kernelmux-{user}" / name


def _usable(folder: Path) -> bool:
    """Whether `folder` and the one above it are this user's alone (they are made if need be) and take files."""
    try:
        folder = folder.absolute()
        _make(folder)
        own = all(_made_private(place) for place in (folder.parent, folder))
        return own and _safe_above(folder.parent) and os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):
        return False


def _make(folder: Path) -> None:
    """Make a folder and those above it for this user alone: `mkdir(parents=True)` leaves the upper ones to the umask."""
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            with suppress(FileExistsError):
                place.mkdir(mode=0o700)


def _made_private(folder: Path) -> bool:
    """Whether a folder is a real one of this user; the right of others to write to it is taken away."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or not _is_ours(info):
        return False
    if hasattr(os, "getuid") and info.st_mode & _OTHERS_WRITE:
        folder.chmod(stat.S_IMODE(info.st_mode) & ~_OTHERS_WRITE)
    return True


def _is_ours(info: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or info.st_uid == os.getuid()


def _safe_above(folder: Path) -> bool:
    """Whether no other user can rename a folder on the way: each is root's or ours, and closed to others or sticky."""
    if not hasattr(os, "getuid"):
        return True
    infos = [place.stat() for place in {*folder.parents, *folder.resolve().parents}]
    return all(
        i.st_uid in (0, os.getuid()) and (not i.st_mode & _OTHERS_WRITE or i.st_mode & stat.S_ISVTX) for i in infos
    )
