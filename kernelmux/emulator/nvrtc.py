"""CUDA C++ to PTX or to a cubin with NVRTC, which needs neither a GPU nor a driver.

The library is looked for in the `nvidia-cuda-nvrtc` wheel, then among the system's libraries; headers in the wheels
`nvidia-cuda-runtime`, `nvidia-cuda-crt` (wmma) and `nvidia-cuda-cccl` (CUB, libcu++), then in a CUDA toolkit, in CuPy.
"""

import ctypes
import ctypes.util
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from threading import Lock

from kernelmux.emulator import launch_log
from kernelmux.emulator.compilers import compile_cache

INSTALL_HINT = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_memory: dict[str, tuple[bytes, str]] = {}
_lock = Lock()
_both: ContextVar[bool] = ContextVar("kernelmux_emulator_nvrtc_both", default=False)


class CompileError(RuntimeError):
    """NVRTC rejected a source; `log` is its report, `filename` and `options` say of what."""

    def __init__(self, filename: str, options: Sequence[str], log: str) -> None:
        super().__init__(f"NVRTC cannot compile {filename} with {' '.join(options)}:\n{log.rstrip()}")
        self.filename, self.options, self.log = filename, tuple(options), log


class NvrtcUnavailableError(RuntimeError):
    """No usable NVRTC library, or no CUDA headers, on this machine."""


@dataclass(frozen=True)
class Cubin:
    """Machine code of one source for one architecture: an ELF image, and what ptxas said about it."""

    image: bytes
    log: str
    arch: str


def compile_ptx(
    source: str,
    options: Sequence[str] = (),
    arch: str = "sm_90a",
    filename: str = "kernel.cu",
    include: Sequence[str | Path] = (),
) -> str:
    """PTX of a CUDA C++ source, with the line numbers of `filename`; cached in memory and on disk.

    `options` are NVRTC options; a macro must not be called like a template parameter of the headers (`-DT=float`).
    `include` folders are searched before CUDA's own. Raises CompileError.
    """
    arguments = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", "-lineinfo", *options]
    further = _for_machine_code(arch, options) if _both.get() else []
    code = _cached(source, arguments, filename, include, "PTX", further)[0]
    if further:  # the PTX may have been there before, without it
        compile_cubin(source, options, arch, filename, include)
    ptx = code.rstrip(b"\0").decode(errors="surrogateescape")
    launch_log.remember(ptx, _recipe(source, tuple(options), filename, tuple(include)))
    return ptx


def _recipe(source: str, options: tuple[str, ...], filename: str, include: tuple[str | Path, ...]) -> launch_log.Recipe:
    """How to compile the same source for another architecture."""

    def compile(arch: str) -> launch_log.CompiledModule:
        cubin = compile_cubin(source, options, arch, filename, include)
        return launch_log.CompiledModule(cubin.image, cubin.log)

    return launch_log.Recipe((source, options, filename), compile, source)


def compile_cubin(
    source: str,
    options: Sequence[str] = (),
    arch: str = "sm_90a",
    filename: str = "kernel.cu",
    include: Sequence[str | Path] = (),
) -> Cubin:
    """Machine code of a CUDA C++ source for `arch`, with the log of ptxas (registers, spills); cached as well."""
    return Cubin(*_cached(source, _for_machine_code(arch, options), filename, include, "CUBIN"), arch=arch)


def _for_machine_code(arch: str, options: Sequence[str]) -> list[str]:
    return [f"--gpu-architecture={arch}", "-lineinfo", "--ptxas-options=-v", *options]


@contextmanager
def with_machine_code() -> Iterator[None]:
    """Inside the `with`, what is compiled to PTX becomes machine code as well, which `compile_cubin` then finds.

    One compilation instead of two: NVRTC gives the same PTX on the way to machine code.
    """
    token = _both.set(True)
    try:
        yield
    finally:
        _both.reset(token)


def unavailable() -> str | None:
    """Why nothing can be compiled on this machine, or None."""
    try:
        _library(), _headers()
    except NvrtcUnavailableError as error:
        return str(error)
    return None


def version() -> tuple[int, int]:
    """Version of the NVRTC library in use."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def place() -> str:
    """Where the NVRTC library in use is; its name if the system's loader found it."""
    return str(_library()._name)


# --- the cache ----------------------------------------------------------------------------------------------


def _cached(
    source: str,
    options: list[str],
    filename: str,
    include: Sequence[str | Path],
    kind: str,
    further: Sequence[str] = (),
) -> tuple[bytes, str]:
    """Code and log of one compilation. further: options of one that makes this code and a cubin, or none."""
    folders = [Path(folder).resolve() for folder in include]
    key = _key(source, options, filename, folders, kind)
    if key not in _memory:
        damage = None
        try:
            artefact = compile_cache.read(key)
        except compile_cache.Damaged as error:
            artefact, damage = None, error
        if artefact is None:
            kinds = (kind, "CUBIN") if further else (kind,)
            artefact, *cubin = _compiled(source, list(further) or options, filename, folders, kinds)
            compile_cache.write(key, artefact)
            for made in cubin:
                compile_cache.write(_key(source, list(further), filename, folders, "CUBIN"), made)
        _memory[key] = artefact[0], artefact[1].decode(errors="replace")
        if damage is not None:
            compile_cache.warn_damaged(damage)
    return _memory[key]


def _key(source: str, options: list[str], filename: str, folders: list[Path], kind: str) -> str:
    """Covers all that the result depends on, headers of the folders too."""
    texts = [f"{path}\n{text}" for path, text in sorted(included(source, folders).items())]
    return compile_cache.digest([kind, str(version()), filename, source, *options, *map(str, folders), "", *texts])


def _compiled(
    source: str, options: list[str], filename: str, folders: list[Path], kinds: tuple[str, ...]
) -> list[compile_cache.Artefact]:
    """One compilation in each of the forms that are asked for."""
    codes, log = _compile(source, options, filename, folders, kinds)
    # NVRTC puts the working directory, which is not part of the key, before the name of the source in PTX.
    placed = b'"%s"' % _escaped(os.path.join(_working_folder(), os.fsencode(filename)))
    named = b'"%s"' % _escaped(os.fsencode(filename))
    pairs = zip(kinds, codes, strict=True)
    return [(code.replace(placed, named) if kind == "PTX" else code, log.encode()) for kind, code in pairs]


def _escaped(path: bytes) -> bytes:
    """A path as a string of PTX has it: what is not ASCII in octal."""
    return b"".join(b"%c" % byte if byte < 128 else b"\\%03o" % byte for byte in path)


def _working_folder() -> bytes:
    """The working directory in the bytes of the file system; empty if it has been deleted."""
    try:
        return os.getcwdb()
    except OSError:
        return b""


def included(source: str, folders: list[Path]) -> dict[Path, str]:
    """The headers of `folders` that `source` includes, directly or through one another, with their text.

    Conditional includes count as well: a key may depend on too much, never on too little.
    """
    headers: dict[Path, str] = {}
    queue = [(name, folders) for name in _INCLUDE.findall(source)]
    while queue:
        name, places = queue.pop()
        path = next((p for p in ((folder / name).resolve() for folder in places) if p.is_file()), None)
        if path is not None and path not in headers:
            headers[path] = path.read_text()
            queue += [(inner, [path.parent, *folders]) for inner in _INCLUDE.findall(headers[path])]
    return headers


# --- NVRTC --------------------------------------------------------------------------------------------------


def _compile(
    source: str, options: list[str], filename: str, folders: list[Path], kinds: tuple[str, ...]
) -> tuple[list[bytes], str]:
    """Codes of these kinds, and the log."""
    library = _library()
    standard = [] if any("std=" in option for option in options) else ["-std=c++17"]
    arguments = [*options, *standard, *(f"-I{folder}" for folder in (*folders, *_headers()))]
    program = ctypes.c_void_p()
    with _lock:  # one compilation at a time: the compiler uses gigabytes for some sources
        _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), filename.encode(), 0, None, None))
        try:
            array = (ctypes.c_char_p * len(arguments))(*(os.fsencode(argument) for argument in arguments))
            status = library.nvrtcCompileProgram(program, len(arguments), array)
            log = (
                _fetch(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
                .rstrip(b"\0")
                .decode(errors="replace")
            )
            if status:
                raise CompileError(filename, options, log or _message(status))
            of = [(getattr(library, f"nvrtcGet{kind}Size"), getattr(library, f"nvrtcGet{kind}")) for kind in kinds]
            return [_fetch(size, get, program) for size, get in of], log
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(size_of: Callable[..., int], get: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(get(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        raise NvrtcUnavailableError(f"NVRTC call failed: {_message(status)}")


def _message(status: int) -> str:
    text = _library().nvrtcGetErrorString
    text.restype = ctypes.c_char_p
    return str(text(status).decode())


# --- where things are ---------------------------------------------------------------------------------------


def _wheel_folders() -> Iterator[Path]:
    """`nvidia/cu13` of the CUDA 13 wheels, `nvidia/cuda_nvrtc` and the like of the CUDA 12 wheels."""
    spec = PathFinder.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted((p for p in Path(root).iterdir() if p.is_dir()), reverse=True)


def _toolkits() -> Iterator[Path]:
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    yield from (Path(root) for root in roots if root)


def _library_paths() -> Iterator[str]:
    for folder in (*_wheel_folders(), *_toolkits()):
        for pattern in ("lib/libnvrtc.so*", "lib64/libnvrtc.so*", "bin/nvrtc64*_0.dll"):
            yield from (str(path) for path in sorted(folder.glob(pattern)) if "builtins" not in path.name)
    name = ctypes.util.find_library("nvrtc")
    yield from [name] if name else []


@cache
def _library() -> ctypes.CDLL:
    reasons = []
    for path in _library_paths():
        try:
            _load_builtins(path)
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(f"{path}: {error}")
    raise NvrtcUnavailableError("\n".join(["the NVRTC library was not found; " + INSTALL_HINT, *reasons]))


def _load_builtins(path: str) -> None:
    """NVRTC 13.0 does not look for its builtins beside itself, so they must be there before it asks."""
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so*") if os.sep in path else ():
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)


def _cupy_include() -> Iterator[Path]:
    spec = PathFinder.find_spec("cupy")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(root).glob("_core/include/cupy/_cuda/cuda-*"), reverse=True)


@cache
def _headers() -> tuple[Path, ...]:
    """CUDA's include folders: the first that is complete (has wmma), else the first with half precision."""
    folders = [f / "include" for f in (*_wheel_folders(), *_toolkits())] + list(_cupy_include())
    usable = [folder for folder in folders if (folder / "cuda_fp16.h").is_file()]
    if not usable:
        raise NvrtcUnavailableError("the CUDA headers were not found; " + INSTALL_HINT)
    first = next((folder for folder in usable if (folder / "crt" / "mma.h").is_file()), usable[0])
    cccl = (folder / "cccl" for folder in folders if (folder / "cccl" / "cuda").is_dir())
    return (first, *list(cccl)[:1])
