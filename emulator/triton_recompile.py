"""Compiles a Triton kernel that was launched here once more, for another GPU."""

from __future__ import annotations

import re
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import get_cache_manager
from triton.runtime.cache import get_cache_manager

from kernelmux.emulator.recording import Compiled, Recipe
from kernelmux.emulator.resources import resources

# What of a compilation belongs to the kernel and not to the GPU it was compiled for.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")


def recipe(source: Any, metadata: Any) -> Recipe:
    """The recipe of a compiled kernel, from what Triton's launcher knows."""
    return Recipe(metadata.hash, lambda arch: _compile(source, metadata, arch))


def _compile(source: Any, metadata: Any, arch: str) -> Compiled:
    number = int(arch.removeprefix("sm_").rstrip("af"))
    options = {name: getattr(metadata, name) for name in OPTIONS if hasattr(metadata, name)}
    options["num_warps"] = _warps(source.name, metadata)
    options["num_warps"] = _warps(source.name, metadata)
    compiled = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
    image: bytes = compiled.asm["cubin"]
    framed = any(kernel.stack for kernel in resources(image).values())  # without a stack nothing can have spilled
    return Compiled(image, _assembler_log(compiled.asm["ptx"], arch) if framed else "", compiled.metadata.shared)


def _warps(name: str, metadata: Any) -> int:
    """num_warps as it was asked for: of a warp-specialised kernel the metadata has the sum over all its parts."""
    group = get_cache_manager(metadata.hash).get_group(f"{name[:150]}.json") or {}
    path = next((path for file, path in group.items() if file.endswith(".ttgir")), None)
    asked = re.search(r'"ttg\.num-warps" = (\d+)', Path(path).read_text()) if path else None
    return int(asked[1]) if asked else int(metadata.num_warps)


def _warps(name: str, metadata: Any) -> int:
    """The warps that the kernel was asked to have; specialised warps come on top in the metadata, but not in the IR."""
    group = get_cache_manager(metadata.hash).get_group(f"{name[:150]}.json") or {}
    path = next((path for file, path in group.items() if file.endswith(".ttgir")), None)
    found = re.search(r'"ttg.num-warps" = (\d+)', Path(path).read_text()) if path else None
    return int(found[1]) if found else int(metadata.num_warps)


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
