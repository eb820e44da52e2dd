"""What of this machine kernelmux can use, and what is wrong: the report of `kernelmux doctor`.

A report is made of sections, each with lines; a line that begins with "!" is a problem.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from kernelmux import __version__
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings, tuned_configs
from kernelmux.registry.backend.package_versions import PACKAGES, TESTED, untested, version
from kernelmux.registry.choice import config_file, precedence, requests
from kernelmux.registry.elsewhere import Package
from kernelmux.registry.errors import KernelmuxError, VariableWarning, described, hint
from kernelmux.registry.util import cuda_driver, text_tables, user_folder

PROBLEM = "! "
EMULATED = "yes, emulated"


class Fact(str):
    """A line that says what something is.

    name: of what, None where the value is a sentence of its own; device: on which, where that matters.
    """

    def __new__(cls, line: str, name: str | None, value: str, device: str | None = None) -> Fact:
        made = super().__new__(cls, line)
        made.name, made.value, made.device = name, value, device
        return made

    name: str | None
    value: str
    device: str | None


def _fact(name: str, value: str, width: int = 20) -> Fact:
    """A line of two columns."""
    return Fact(f"{name:<{width}} {value}", name, value)


@dataclass(frozen=True)
class Section:
    """A heading and its lines."""

    title: str
    lines: tuple[str, ...]

    @property
    def problems(self) -> int:
        return sum(line.startswith(PROBLEM) for line in self.lines)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Every line that is no problem."""
        lines = (line for line in self.lines if not line.startswith(PROBLEM))
        return tuple(line if isinstance(line, Fact) else Fact(line, None, line.strip()) for line in lines)


def report() -> tuple[Section, ...]:
    """Everything, in the order in which it is read; nothing that a backend does wrong raises."""
    found = [Section(title, tuple(lines())) for title, lines in SECTIONS.items()]
    return tuple(section for section in found if section.lines)


def text(sections: tuple[Section, ...], width: int) -> str:
    """The report for a width; lines that are too long go on below themselves."""
    lines = []
    for section in sections:
        inner = (text_tables.wrapped(line, width, "  ", " " * _indent(line)) for line in section.lines)
        lines += [section.title, *(part for parts in inner for part in parts), ""]
    problems = sum(section.problems for section in sections)
    end = "no problems" if not problems else f"{text_tables.counted(problems, 'problem')}, marked with !"
    return "\n".join([*lines, end])


def _indent(line: str) -> int:
    """Where a line goes on: below the second column, if it has two."""
    columns = re.match(r" *[^ ].*?  +(?=[^ ])", line)
    return 2 + len(columns.group()) if columns else 6


# --- packages and devices -----------------------------------------------------------------------------------


def _packages() -> Iterator[str]:
    yield _fact("kernelmux", __version__)
    yield _fact("python", f"{platform.python_version()} on {platform.platform()}")
    for module, names in PACKAGES.items():
        name, found = next(((n, v) for n in names if (v := version(n))), (names[0], ""))
        wrong = _wrong(module, found)
        yield (
            f"{PROBLEM}{name} {found}: cannot be imported: {wrong}" if wrong else _fact(name, _installed(module, found))
        )
    tested, found = " to ".join(TESTED["transformers"]), version("transformers") or "not installed"
    yield _fact("transformers", f"{found}; kernelmux.patch was tested with {tested}")


def _wrong(module: str, version: str) -> str:
    """Why a package that is installed cannot be imported, or "". version: "" where none is on record."""
    try:
        if version or importlib.util.find_spec(module) is not None:
            import_module(module)
    except Exception as error:  # whatever its modules do
        return described(error)
    return ""


def _installed(module: str, version: str) -> str:
    """A version; a package that was built by hand has none."""
    if module not in sys.modules:
        return "not installed"
    built = f", built for CUDA {torch.version.cuda}" if module == "torch" and torch.version.cuda else ""
    above = f"; {told}" if (told := untested(module)) else ""
    return f"{version or 'of unknown version'}{built}{above}"


def _devices() -> list[torch.device]:
    """The CPU and each GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cpu"), *(torch.device("cuda", i) for i in range(count))]


def _gpus() -> Iterator[str]:
    for device in _devices()[1:]:
        found = torch.cuda.get_device_properties(device)
        yield _fact(str(device), f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB")
    if told := cuda_driver.too_old(torch.version.cuda):
        yield f"{PROBLEM}{told}"
    if len(_devices()) == 1:
        emulated = [name for name in registered.backend_names() if _health(name, torch.device("cpu")) == EMULATED]
        then = f"; {', '.join(emulated)}: on the emulator, when asked for by name" if emulated else ""
        yield f"none that torch can use{then}"


# --- backends -----------------------------------------------------------------------------------------------


def _backends() -> Iterator[str]:
    for name in registered.backend_names():
        try:
            found = registered.backend(name)
        except Exception as error:
            yield f"{PROBLEM}{name}: {described(error)}"
            continue
        yield _fact(name, f"{found.summary}; priority {found.priority}{_home(name)}")
        for device in _devices():
            told = (_health(name, device), *_compilers(name, device))
            lines = (f"  {'' if i else str(device):<18} {line}" for i, line in enumerate(told))
            yield from (Fact(line, name, value, str(device)) for line, value in zip(lines, told, strict=True))
    if not any("yes" in _health(name, device) for name in registered.backend_names() for device in _devices()):
        yield f"{PROBLEM}no backend works on any device of this machine"


def _home(name: str) -> str:
    """Where a backend comes from that is not one of ours."""
    package = registered.package(name)
    return "" if package.startswith("kernelmux.") else f"; from the package {package}"


def _health(name: str, device: torch.device) -> str:
    try:
        if reason := registered.unavailable(name, device):
            return f"no: {reason}"
        return EMULATED if registered.emulates(name, device) else "yes"
    except Exception as error:
        return f"no: {described(error)}"


def _compilers(name: str, device: torch.device) -> Iterator[str]:
    """What compiles a backend's kernels on a device where it works."""
    if registered.unavailable(name, device):
        return
    try:
        yield from registered.backend(name).compilers(device)
    except Exception as error:  # whatever its packages do
        yield f"its compilers cannot be found: {described(error)}"


def _modules() -> Iterator[str]:
    """Modules of operators that cannot be used, a line each; those that fail alike together."""
    failed: dict[tuple[str, str], dict[str, str]] = {}
    for name in registered.backend_names():
        if all(_health(name, device).startswith("no: ") for device in _devices()):
            continue  # said already
        for op in catalog.usable():
            try:
                registered.variants(name, op)
            except Exception as error:
                told = described(error).removeprefix(f"{name}: ")
                alike = told.replace(f"module for {op} ", "module for each ")
                failed.setdefault((name, alike), {})[op] = told
    for (name, alike), ops in failed.items():
        yield f"{PROBLEM}{name}: {', '.join(ops)}: {alike if len(ops) > 1 else next(iter(ops.values()))}"


def _elsewhere() -> Iterator[str]:
    """The packages with operators, and what of them cannot be used."""
    for name, package in elsewhere.listed().packages.items():
        own = [op for op in package.operators if elsewhere.owner(op) is package]
        parts = [", ".join(own)] if own else []
        joined = sorted(
            {op for backend in package.backends for op in package.implements(backend)} - {*package.operators}
        )
        parts += [f"variants for {', '.join(joined)}"] if joined else []
        yield f"{name:<20} {'; '.join(parts) or 'nothing'}; from the package {package.package}"
    yield from (f"{PROBLEM}{text}" for text in unusable())


def unusable() -> Iterator[str]:
    """What of packages with operators cannot be used, a line each, with the reason."""
    found = elsewhere.listed()
    yield from (f"{name}: {why}" for name, why in found.wrong.items())
    yield from (f"{op}: {why}" for op in found.owners if (why := catalog.problem(op)))
    for package in found.packages.values():
        yield from _misplaced(package)
    for name, op, package_name in _refused():
        yield f"{package_name}: {name}, {op}: {registered.refused[name, op, package_name]}"


def _misplaced(package: Package) -> Iterator[str]:
    """Folders of backends that there are not, and modules for operators that there are not."""
    for name in package.backends:
        if name not in registered.backends():
            near = hint(name, registered.backends())
            yield f"{package.name}: {package.home(name)}: there is no backend {name}; {near}nothing reads this folder"
            continue
        for op in package.implements(name):
            if op not in catalog.names() and op not in elsewhere.listed().refused:
                told = f"there is no operator {op}; {hint(op, catalog.names())}nothing reads this module"
                yield f"{package.name}: {package.home(name)}.{op}: {told}"


def _refused() -> list[tuple[str, str, str]]:
    """The modules that packages join to backends and that cannot be used."""
    for package in elsewhere.listed().packages.values():
        for name in filter(registered.loads, package.backends):
            for op in (op for op in package.implements(name) if op in catalog.usable()):
                try:
                    registered.variants(name, op)
                except KernelmuxError:  # said with the backend
                    continue
    return sorted(registered.refused)


# --- settings -----------------------------------------------------------------------------------------------

# Of others: what decides where kernels run, how they are compiled and where they are kept.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "CUPY_CACHE_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME")


def _environment() -> Iterator[str]:
    for name in sorted(os.environ):
        if name in VARIABLES or name.startswith((requests.PREFIX, "TRITON_")):
            yield Fact(f"{name}={os.environ[name]}", name, os.environ[name])
    yield from (f"{PROBLEM}{text}" for text in requests.strangers())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VariableWarning)  # said above
            precedence.check_environment()
    except KernelmuxError as error:
        yield f"{PROBLEM}{error}"
        return
    if (file := config_file.read()).path:
        yield _fact("configuration file", f"{file.path}, {text_tables.counted(len(file.rules), 'rule')}")


def _choices() -> Iterator[str]:
    """Which operators do not run on what "auto" chooses, and who said so."""
    for op in catalog.names():
        try:
            request = precedence.requested(op, None)
        except KernelmuxError:
            return  # said with the environment
        if not request.auto:
            yield _fact(op, f"{', '.join(request.names)} (from {request.source})")


def _times() -> Iterator[str]:
    yield from timings.summary()
    told = (said(device) for device in _devices()[1:] for said in (timings.lack, timings.borrowed))
    yield from dict.fromkeys(filter(None, told))
    yield _fact("folder of yours", f"{user_folder.folder() or f'none: set {user_folder.VARIABLE}'}")


def _tuned() -> Iterator[str]:
    yield from tuned_configs.summary()


# --- caches -------------------------------------------------------------------------------------------------


def _caches() -> Iterator[str]:
    for label, find in CACHES.items():
        try:
            folder = find()
        except Exception as error:
            yield f"{PROBLEM}{label}: cannot be found: {type(error).__name__}: {error}"
            continue
        if folder is None:
            yield f"{PROBLEM}{label}: there is no folder for them, so every process compiles anew"
        elif problem := _refuses(folder):
            yield f"{PROBLEM}{label}: {folder} cannot be written: {problem}"
        else:
            yield _fact(label, f"{folder}, can be written", 34)


def _ours() -> Path | None:
    """The folder of the emulator, which no other part of the registry knows."""
    found: Path | None = import_module("kernelmux.emulator").cache_folder()
    return found


CACHES: dict[str, Callable[[], Path | None]] = {
    "CUDA kernels": _ours,
    "Triton's kernels": lambda: Path(os.environ.get("TRITON_CACHE_DIR") or _triton_home() / "cache"),
    "CuPy's kernels": lambda: Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache"),
}


def _triton_home() -> Path:
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton"


def _refuses(folder: Path) -> str | None:
    """Why no file can be made in a folder, or in the first above it that exists; None if one can."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return error.strerror or str(error)


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "packages": _packages,
    "GPUs": _gpus,
    "backends": _backends,
    "operators of other packages": _elsewhere,
    "operators that a backend cannot run": _modules,
    "environment": _environment,
    "who runs what": _choices,
    "times by which auto chooses": _times,
    "tuned configurations": _tuned,
    "caches": _caches,
}
