"""The walls around the process of a candidate: bubblewrap where it is there, and what the system alone can do.

It sees the interpreter, the packages of the environment and of PYTHONPATH, its own folder, and of this project what a
kernel needs; no network, no other process, no home, no place to write but a scratch folder in memory that goes with it.
"""

from __future__ import annotations

import os
import shutil
import site
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import kernelmux
from kernelmux.candidate.limits import Limits

HOME = Path(kernelmux.__file__).parent
# Of this package: what a kernel may be made with. Neither operators nor what judges or times them.
SHOWN = (
    "__init__.py",
    "candidate",
    "emulator",
    "registry",
    "backends/__init__.py",
    "backends/cuda/__init__.py",
    "backends/cuda/_runtime.py",
    "backends/cuda/_launch",
    "backends/cuda/include",
)
HIDDEN = ("registry/ops",)
HELPERS = "backends"  # what packages with operators build on lies beside our kernels
SCRATCH = "/scratch"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/sys/devices/system", "/sys/module")
KEPT = (
    "LANG",
    "LC_ALL",
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
WITHOUT = "bubblewrap (bwrap) is of no use here: {why}, so that network, files and other processes are not closed to it"


@cache
def bubblewrap() -> tuple[str, str]:
    """The program, or "" and why it is of no use here."""
    found = shutil.which("bwrap")
    if not found:
        return "", "it is not installed"
    trial = [
        sys.executable,
        "-P",
        "-c",
        "import kernelmux.candidate.channel",
    ]  # are the files there, and not links out?
    tried = subprocess.run([found, *_walls(None, Limits()), *trial], capture_output=True, text=True, timeout=60)
    said = tried.stderr.strip().splitlines()
    return (found, "") if tried.returncode == 0 else ("", said[-1] if said else "it does not run")


def not_held() -> list[str]:
    """Which limits nothing holds on this machine, in words; empty where all are held."""
    found, why = bubblewrap()
    return [] if found else [WITHOUT.format(why=why)]


def command(path: Path | None, limits: Limits, descriptor: int, helpers: bool = False) -> list[str]:
    """The command of a candidate in a file; None for one whose text is sent. helpers: it sees all of our backends."""
    waits = [] if path else ["wait"]
    program = [sys.executable, "-P", "-m", "kernelmux.candidate.serve", str(descriptor), *waits]
    return walled(program, path, limits, SHOWN if not helpers else (*SHOWN, HELPERS))


def walled(program: Sequence[str], path: Path | None, limits: Limits, shown: Sequence[str] | None = SHOWN) -> list[str]:
    """A program behind the walls, or as it is where there are none. path: a file or a folder that it reads.

    shown: what it sees of this project; None for all of it, as what judges does.
    """
    found, _ = bubblewrap()
    return [found, *_walls(path, limits, shown), *program] if found else list(program)


def folder_of(package: str, folder: Path) -> Path:
    """What the process of a package sees: the folder that it lies in, or where that is too wide the package alone."""
    top = folder.parents[package.count(".") - 1] if "." in package else folder
    return top if top.parent in _too_wide() else top.parent


def environment(scratch: str = SCRATCH) -> dict[str, str]:
    """The variables of the process: none that tell of this one but what a GPU and a compiler need.

    scratch: the folder that it may write to; without walls one of the machine's.
    """
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    place = {name: scratch for name in ("HOME", "TMPDIR", "TRITON_HOME", "XDG_CACHE_HOME", "CUPY_CACHE_DIR")}
    place |= {"TRITON_CACHE_DIR": f"{scratch}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor"}
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "passive"}  # idle threads leave the cores to the suite
    packages = [path for path in sys.path if path and Path(path).is_dir()]
    return {"PYTHONPATH": os.pathsep.join([str(HOME.parent), *packages]), **quiet, **kept, **place}


def _walls(path: Path | None, limits: Limits, shown: Sequence[str] | None = SHOWN) -> Iterator[str]:
    """The options of bubblewrap; later ones lie over earlier ones."""
    yield from ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv")
    for name, value in environment().items():
        yield from ("--setenv", name, value)
    for place in SYSTEM:
        found = Path(place)
        if found.is_symlink():
            yield from ("--symlink", os.readlink(place), place)
        elif found.exists():
            yield from ("--ro-bind", place, place)
    yield from ("--proc", "/proc", "--dev", "/dev")
    for device in sorted(Path("/dev").glob("nvidia*")):
        yield from ("--dev-bind", str(device), str(device))
    for place in (SCRATCH, "/tmp", "/dev/shm"):
        yield from ("--size", str(limits.scratch), "--tmpfs", place)
    yield from ("--chdir", SCRATCH)
    for package in sorted(_packages()):
        yield from ("--ro-bind", package, package)
    if shown is None:
        yield from ("--ro-bind", str(HOME), str(HOME))
    else:
        yield from ("--tmpfs", str(HOME))
        for name in shown:
            yield from ("--ro-bind", str(HOME / name), str(HOME / name))
        for name in HIDDEN:
            yield from ("--tmpfs", str(HOME / name))
    if path:
        own = str(path if path.is_dir() or path.parent in _too_wide() else path.parent)
        yield from ("--ro-bind", own, own)
    yield "--"


def _too_wide() -> set[Path]:
    """Folders of which a candidate sees its file alone: homes, and what this project lies in."""
    narrow = (Path.home(), HOME)
    return {*narrow, *(parent for one in narrow for parent in one.parents)}


def _packages() -> set[str]:
    """The folders of the interpreter and of its packages."""
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), *_added()}
    if site.ENABLE_USER_SITE:
        roots.add(site.getusersitepackages())
    found = {str(Path(root)) for root in roots if Path(root).exists() and not root.startswith(("/usr", "/opt"))}
    return {one for one in found if not any(one != other and Path(one).is_relative_to(other) for other in found)}


def _added() -> Iterator[str]:
    """The folders of PYTHONPATH that an installer has filled, as `pip install --target` does.

    Others may hold what is no package, such as notes, keys, or the answers that a candidate is asked for: it sees
    none of them, and no folder that others may write to, that this process works in, or that has a copy of this project.
    """
    for given in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        folder = Path(given)
        if folder.is_absolute() and folder.is_dir() and next(folder.glob("*.dist-info"), None):
            place = folder.resolve()
            wide = place in {one.resolve() for one in _too_wide() - {HOME.parent}} or Path.cwd().is_relative_to(place)
            copy = place != HOME.parent and (place / HOME.name).exists()
            if not (wide or copy or place.is_relative_to(HOME) or place.stat().st_mode & stat.S_IWOTH):
                yield given
