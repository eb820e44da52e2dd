"""Compiles a Triton kernel that was launched here once more, for another GPU."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager

from kernelmux.emulator.compilers import triton_stages
from kernelmux.emulator.compilers.launch_log import Compiled, Recipe
from kernelmux.emulator.compilers.resources import resources

# What of a compilation belongs to the kernel and not to the GPU it was compiled for.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")


def recipe(source: Any, metadata: Any) -> Recipe:
    """The recipe of a compiled kernel, from what Triton's launcher knows."""
    return Recipe(metadata.hash, lambda arch: _compile(source, metadata, arch))


def _compile(source: Any, metadata: Any, arch: str) -> Compiled:
    number = int(arch.removeprefix("sm_").rstrip("af"))
    options = {name: getattr(metadata, name) for name in OPTIONS if hasattr(metadata, name)}
    options["num_warps"] = _warps(source.name, metadata)
    target = GPUTarget("cuda", number, 32)
    with triton_stages.machine_code():
        _survive(lambda: triton.compile(source, target=target, options=options), f"{source.name} for {arch}")
        compiled = triton.compile(source, target=target, options=options)  # from Triton's cache now
    image: bytes = compiled.asm["cubin"]
    framed = any(kernel.stack for kernel in resources(image).values())  # without a stack nothing can have spilled
    return Compiled(image, _assembler_log(compiled.asm["ptx"], arch) if framed else "", compiled.metadata.shared)


def _survive(compile: Callable[[], object], what: str) -> None:
    """Compile in a child process first: where a target lacks an instruction, the compiler aborts its process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; this child only compiles
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            compile()
        finally:
            os._exit(0)  # an exception is raised again, and seen, in the parent
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise RuntimeError(f"Triton's compiler dies of {signal.Signals(os.WTERMSIG(status)).name} on {what}")


def _warps(name: str, metadata: Any) -> int:
    """num_warps as it was asked for: of a warp-specialised kernel the metadata has the sum over all its parts."""
    group = get_cache_manager(metadata.hash).get_group(f"{name[:150]}.json") or {}
    path = next((path for file, path in group.items() if file.endswith(".ttgir")), None)
    asked = re.search(r'"ttg\.num-warps" = (\d+)', Path(path).read_text()) if path else None
    return int(asked[1]) if asked else int(metadata.num_warps)


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
