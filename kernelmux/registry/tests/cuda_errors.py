"""Errors of CUDA and of compilers as torch, CuPy, Triton and the emulator word them."""

from __future__ import annotations


class CompileException(Exception):
    """As CuPy has it."""


class CompilationError(Exception):
    """As Triton has it: the text shows the place, `error_message` says what is wrong."""

    error_message = None


class LaunchRefused(RuntimeError):
    """As the emulator has it."""


class CUDADriverError(RuntimeError):
    """As CuPy has it."""


class OutOfResources(Exception):
    """As Triton has it."""


class AcceleratorError(RuntimeError):
    """As torch has it since 2.8."""


# An error as each library words it, and what the text must say of it.
ERRORS = {
    "torch": (
        AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"),
        700,
    ),
    "cupy": (CUDADriverError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"), 700),
    "triton": (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), 700),
    "misaligned": (CUDADriverError("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address"), 716),
    "resources": (CUDADriverError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch"), 701),
    "shared memory": (OutOfResources("out of resource: shared memory, Required: 300000, Hardware limit: 232448"), 701),
    "configuration": (RuntimeError("CUDA error: invalid configuration argument"), 9),
    "argument": (CUDADriverError("CUDA_ERROR_INVALID_VALUE: invalid argument"), 1),
    "failure": (RuntimeError("Triton Error [CUDA]: unspecified launch failure"), 719),
    "assert": (AcceleratorError("CUDA error: device-side assert triggered"), 710),
    "instruction": (RuntimeError("CUDA error: an illegal instruction was encountered"), 715),
    "image": (RuntimeError("CUDA error: no kernel image is available for execution on the device"), 209),
}
LATE = {700, 716, 719, 710, 715}
