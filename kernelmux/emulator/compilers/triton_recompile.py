"""Compiles a Triton kernel that was launched here once more, for another GPU."""

from __future__ import annotations

import copy
import faulthandler
import os
import re
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.cache import get_cache_manager

from kernelmux.emulator.amdgcn import WAVE
from kernelmux.emulator.compilers import triton_foreign, triton_stages
from kernelmux.emulator.launch_log import CompiledModule, Recipe
from kernelmux.emulator.resources import resources

# What of a compilation belongs to the kernel and not to the GPU it was compiled for.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")


def recipe(source: Any, metadata: Any) -> Recipe:
    """The recipe of a compiled kernel, from what Triton's launcher knows."""

    def compile(arch: str) -> CompiledModule:
        return _compile(source, metadata, arch)

    def obstacles(arch: str) -> list[str]:
        return _obstacles(source, metadata, arch)

    descriptors = any(str(kind).startswith("tensordesc") for kind in source.signature.values())
    return Recipe(metadata.hash, compile, obstacles=obstacles, descriptors=descriptors)


def _compile(source: Any, metadata: Any, arch: str) -> CompiledModule:
    if triton_stages.KEYED and arch.startswith(f"sm_{metadata.target.arch}"):
        return _assembled(source.name, metadata, arch)
    compile = _job(source, metadata, arch)
    if died := _trial(compile).died:
        raise RuntimeError(f"Triton's compiler dies of {died} on {source.name} for {arch}")
    compiled = compile()  # from Triton's cache now
    if _is_amd(arch):
        return CompiledModule(compiled.asm["hsaco"], compiled.asm["amdgcn"], compiled.metadata.shared)
    return _measured(compiled.asm["cubin"], compiled.asm["ptx"], compiled.metadata, arch)


def _assembled(name: str, metadata: Any, arch: str) -> CompiledModule:
    """The machine code that Triton's compiler made, or that of the PTX at which it stopped, as it would have been."""
    ptx, backend = _kept(name, metadata, ".ptx"), make_backend(metadata.target)
    if image := _read(name, metadata, ".cubin"):
        return _measured(image, ptx, metadata, arch)
    options = backend.parse_options(options_of(name, metadata))
    return _measured(backend.make_cubin(ptx, {}, options, metadata.target.arch), ptx, metadata, arch)


def options_of(name: str, metadata: Any) -> dict[str, Any]:
    """The options with which a kernel was compiled, all that its backend has."""
    listed = vars(make_backend(metadata.target).parse_options({}))
    known = {option: _frozen(getattr(metadata, option)) for option in listed if hasattr(metadata, option)}
    return {**known, "num_warps": _warps(name, metadata)}


def _frozen(value: Any) -> Any:
    """Lists as tuples: JSON, in which Triton keeps the options, has no tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _measured(image: bytes, ptx: str, metadata: Any, arch: str) -> CompiledModule:
    framed = any(kernel.stack for kernel in resources(image).values())  # without a stack nothing can have spilled
    return CompiledModule(image, _assembler_log(ptx, arch) if framed else "", metadata.shared)


def _obstacles(source: Any, metadata: Any, arch: str) -> list[str]:
    """Looked for in the IR of its own where a kernel compiles: a newer Triton may have what an older one has not."""
    compile = _job(source, metadata, arch)
    if _trial(compile).compiled:
        return triton_foreign.left_over(compile().asm["ttgir"])
    ir = next((text for kind in (".source", ".ttir") if (text := _kept(source.name, metadata, kind))), "")
    return triton_foreign.reasons(ir, arch)


def _is_amd(arch: str) -> bool:
    return arch.startswith("gfx")


def _job(source: Any, metadata: Any, arch: str) -> Callable[[], Any]:
    """The compilation for another GPU."""
    options = {name: getattr(metadata, name) for name in OPTIONS if hasattr(metadata, name)}
    options["num_warps"] = _warps(source.name, metadata)
    if _is_amd(arch):
        source, target = _within_2gb(source), GPUTarget("hip", arch, WAVE)
    else:
        target = GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("af")), 32)

    def compile() -> Any:
        with triton_stages.machine_code():
            return triton.compile(source, target=target, options=options)

    return compile


def _within_2gb(source: Any) -> Any:
    """The source as Triton specialises it on AMD GPUs for tensors of less than 2 GB: accessed through buffers."""
    made = copy.copy(source)
    made.attrs = {
        path: [*found, ["tt.pointer_range", 32]] if _kind(source, path).startswith("*") else found
        for path, found in source.attrs.items()
        if path[0] < len(source.signature)  # Triton keeps the name of a hook for stages behind the arguments
    }
    return made


def _kind(source: Any, path: tuple[int, ...]) -> str:
    """The type of the argument at a path: its place in the signature, then those in tuples."""
    kind = tuple(source.signature.values())
    for place in path:
        kind = kind[place]
    return str(kind)


class CompilerEffects(NamedTuple):
    """What a compilation did to its process."""

    compiled: bool
    died: str = ""  # the signal


def _trial(compile: Callable[[], object]) -> CompilerEffects:
    """Compile in a child process first: where a target lacks an instruction, the compiler aborts its process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; this child only compiles
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        compiled = False
        try:
            compile()
            compiled = True
        finally:
            os._exit(not compiled)  # an exception is raised again, and seen, in the parent
    status = os.waitpid(child, 0)[1]
    return CompilerEffects(status == 0, signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "")


def _warps(name: str, metadata: Any) -> int:
    """num_warps as it was asked for: of a warp-specialised kernel the metadata has the sum over all its parts."""
    asked = re.search(r'"ttg\.num-warps" = (\d+)', _kept(name, metadata, ".ttgir"))
    return int(asked[1]) if asked else int(metadata.num_warps)


def _kept(name: str, metadata: Any, ending: str) -> str:
    """What Triton's cache has of a compilation, "" where it has nothing: ".source" is the IR of its frontend."""
    return _read(name, metadata, ending).decode()


def _read(name: str, metadata: Any, ending: str) -> bytes:
    group = get_cache_manager(metadata.hash).get_group(f"{name[:150]}.json") or {}
    path = next((path for file, path in group.items() if file.endswith(ending)), None)
    return Path(path).read_bytes() if path else b""


def _assembler_log(ptx: str, arch: str) -> str:
    """What `ptxas -v` says about a PTX text: the only place that names spills."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    tool = getattr(knobs.nvidia, "ptxas_blackwell", knobs.nvidia.ptxas) if number >= 90 else knobs.nvidia.ptxas
    target = next((line.split()[1].rstrip(",") for line in ptx.splitlines() if line.startswith(".target")), arch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        command = [tool.path, "-v", f"--gpu-name={target}", str(path), "-o", str(path.with_suffix(".cubin"))]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr
