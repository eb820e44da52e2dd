"""NVRTC for backends: `compilers.nvrtc` under a name that stays when modules of the emulator move."""

from kernelmux.emulator.compilers.nvrtc import (
    CompileError,
    compile_cubin,
    compile_ptx,
    included,
    place,
    unavailable,
    version,
    with_machine_code,
)

__all__ = [
    "CompileError",
    "compile_cubin",
    "compile_ptx",
    "included",
    "place",
    "unavailable",
    "version",
    "with_machine_code",
]
