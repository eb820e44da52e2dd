"""What of a Triton kernel only NVIDIA GPUs have, read from its IR."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.language.extra.cuda import libdevice as of_nvidia
from triton.language.extra.hip import libdevice as of_amd

from kernelmux.emulator.amdgcn import WAVE

_HOPPER = re.compile(r"\bttng\.(\w+)")  # the dialect of what Hopper brought and Blackwell added
_OVERLAP = re.compile(r"\btt\.(grid_dependency_\w+)")  # a kernel that begins before the one it waits for has ended
_LANES = re.compile(r"threadsPerWarp = \[([\d, ]+)\]")
_ASSEMBLY = re.compile(r'tt\.elementwise_inline_asm "((?:[^"\\]|\\[^"])*)"')
_OPCODE = re.compile(r"\b[a-z][a-z0-9]*(?:\.[a-z0-9_]+)+\b")
_FUNCTION = re.compile(r'symbol = "(__nv_\w+)"')
_PRECISION = re.compile(r"inputPrecision = (\w+) : tensor<[\dx]+xf32>")  # of other operands it says nothing


def reasons(ir: str, arch: str) -> list[str]:
    """Why a kernel does not compile for an AMD GPU ("gfx942"), as far as the IR shows it that was made for NVIDIA's."""
    return [
        text
        for text in (_hopper(ir), _overlap(ir), _layouts(ir), _ptx(ir), _functions(ir), _precisions(ir, arch))
        if text
    ]


def left_over(ir: str) -> list[str]:
    """What of NVIDIA's is in IR made for an AMD GPU, where Triton compiles it all the same.

    Inline assembly that LLVM cannot read is left out of the code, which only a line on stderr says; a function that it
    does not know is one that the driver misses.
    """
    unknown = sorted(set(_FUNCTION.findall(ir)))
    return [text for text in (_ptx(ir), ", ".join(unknown)) if text]


def _hopper(ir: str) -> str:
    used = sorted(set(_HOPPER.findall(ir)))
    return f"Gluon with instructions of NVIDIA GPUs: {', '.join(used)}" if used else ""


def _overlap(ir: str) -> str:
    used = sorted(set(_OVERLAP.findall(ir)))
    return f"launches that overlap, which AMD GPUs have not: {', '.join(used)}" if used else ""


def _layouts(ir: str) -> str:
    """A layout of Gluon names its lanes, and their number is that of the GPU it was written for."""
    lanes = {_product(found) for found in _LANES.findall(ir)}
    return f"Gluon layouts of {min(lanes)} lanes, a wave has {WAVE}" if lanes and lanes != {WAVE} else ""


def _product(lengths: str) -> int:
    product = 1
    for length in lengths.split(","):
        product *= int(length)
    return product


def _ptx(ir: str) -> str:
    texts = [text.replace("\\0A", "\n") for text in _ASSEMBLY.findall(ir)]  # as MLIR writes the end of a line
    used = sorted({opcode for text in texts for opcode in _OPCODE.findall(text)})
    return f"inline PTX: {', '.join(used)}" if used else ""


def _functions(ir: str) -> str:
    names = {_names().get(symbol, symbol) for symbol in _FUNCTION.findall(ir)}
    missing = sorted(name for name in names if not hasattr(of_amd, name))
    return f"libdevice.{', libdevice.'.join(missing)}, which Triton has for NVIDIA GPUs alone" if missing else ""


@cache
def _names() -> dict[str, str]:
    """The function of Triton's libdevice that calls each of NVIDIA's."""
    functions = re.split(r"^def ", inspect.getsource(of_nvidia), flags=re.MULTILINE)[1:]
    return {symbol: text.partition("(")[0] for text in functions for symbol in re.findall(r'"(__nv_\w+)"', text)}


def _precisions(ir: str, arch: str) -> str:
    allowed = _allowed(arch)
    missing = sorted({p for p in _PRECISION.findall(ir) if p not in allowed})
    return f"products in {', '.join(missing)}, which Triton has not for {arch}" if missing else ""


@cache
def _allowed(arch: str) -> tuple[str, ...]:
    options: Any = make_backend(GPUTarget("hip", arch, WAVE)).parse_options({"enable_fp_fusion": True})
    return tuple(options.allowed_dot_input_precisions)
