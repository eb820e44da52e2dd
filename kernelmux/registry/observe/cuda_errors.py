"""Errors of CUDA and of compilers of kernels: which they are, what each is likely to come from, how to find the place."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch

from kernelmux.registry.errors import KernelmuxError

REFUSED = {"OutOfResources", "LaunchRefused"}  # of Triton and the emulator: known before anything was launched
CLASSES = {"AcceleratorError", "CUDADriverError", "CUDARuntimeError", *REFUSED}  # of torch and CuPy
COMPILERS = {
    "CompileException",
    "NVRTCError",
    "CompileError",
    "CompilationError",
    "PTXASError",
}  # CuPy, emulator, Triton
PASSES = "PassManager::run failed"  # what Triton says where a pass of its compiler gives up
TEXTS = ("CUDA error:", "CUDA_ERROR_", "Triton Error [CUDA]")  # how an error begins that has no class of its own
MEMORY = re.compile(r"out of memory|MEMORY_ALLOCATION|OUT_OF_MEMORY")  # torch's own text says what to do


@dataclass(frozen=True)
class CudaCause:
    """An error of CUDA. late: of a kernel that runs, so it shows later, and the process has lost its CUDA context."""

    code: int
    pattern: str
    text: str
    late: bool = True


CAUSES = (
    CudaCause(
        700,
        r"illegal (memory access|address)|ILLEGAL_ADDRESS",
        "a kernel accessed memory that belongs to no allocation: an index beyond a tensor, a tensor that was freed, or one"
        " in host memory",
    ),
    CudaCause(
        716,
        r"misaligned address|MISALIGNED_ADDRESS",
        "an access of 8 or 16 bytes at an address that is no multiple of its size: a view that begins inside of another"
        " tensor, or an odd stride",
    ),
    CudaCause(
        701,
        r"too many resources|OUT_OF_RESOURCES|out of resource",
        "a block wants more registers or shared memory than a multiprocessor has: fewer threads, smaller tiles or fewer"
        " stages; `python -m kernelmux.perf` without a GPU lists what each kernel needs",
        late=False,
    ),
    CudaCause(
        912,
        r"INVALID_CLUSTER_SIZE|cluster misconfiguration|invalid cluster",
        "a cluster of more blocks than the GPU can hold together with their shared memory",
        late=False,
    ),
    CudaCause(
        9,
        r"invalid configuration",
        "a grid or block that no GPU takes: a size of 0, more than 1024 threads in a block, or beyond 65535 in y or z of"
        " the grid",
        late=False,
    ),
    CudaCause(
        1,
        r"invalid argument|INVALID_VALUE",
        "the driver refused the launch itself: more than 1024 threads in a block, more dynamic shared memory than was"
        " allowed, or a tensor map that does not fit its tensor",
        late=False,
    ),
    CudaCause(
        719,
        r"unspecified launch failure|LAUNCH_FAILED",
        "a kernel was stopped while it ran: mostly an access beyond shared or local memory, or a barrier that was misused",
    ),
    CudaCause(
        710,
        r"device-side assert|ERROR_ASSERT",
        "an assert in a kernel failed: mostly an index out of range in an operator of torch; its message is on stderr",
    ),
    CudaCause(
        715, r"illegal instruction|ILLEGAL_INSTRUCTION", "a kernel ran an instruction that this GPU has not, or a trap"
    ),
    CudaCause(
        717, r"shared or local address|INVALID_ADDRESS_SPACE", "a pointer to one kind of memory was used for another"
    ),
    CudaCause(702, r"launch timed out|LAUNCH_TIMEOUT", "a kernel ran too long on a GPU that also drives a display"),
    CudaCause(
        209,
        r"no kernel image|NO_BINARY_FOR_GPU",
        "the kernel was compiled for another GPU: clear the caches of CuPy and Triton",
        late=False,
    ),
)
WAYS = (
    "CUDA_LAUNCH_BLOCKING=1 python ...               each launch is waited for: the call that raises is the one",
    "compute-sanitizer --tool memcheck python ...    kernel, thread and address; racecheck and initcheck for the rest",
)
UNKNOWN = CudaCause(0, r"", "not one of the usual errors: CUDA's text above is all that is known")


def annotate(error: Exception, last: tuple[str, ...]) -> None:
    """Note at an error of CUDA that has reached no call which operators ran last, the likely cause, and what to do next."""
    if last and of_cuda(error):
        lines = (
            f"kernelmux: operators that ran last, the latest at the end: {'; '.join(last)}",
            f"  likely cause, if it is a kernel of one of them: {cause(error).text}",
            "  the exact place:",
            *(f"    {way}" for way in WAYS),
        )
        error.add_note("\n".join(lines))


def named(error: BaseException, names: Collection[str]) -> bool:
    """Whether a class of an error, or one that it derives from, has one of these names."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def of_compiler(error: Exception) -> bool:
    """Whether a compiler of kernels raised it."""
    return named(error, COMPILERS) or (isinstance(error, RuntimeError) and str(error).startswith(PASSES))


def of_cuda(error: Exception) -> bool:
    """Whether CUDA raised it, and it is not for want of memory."""
    if isinstance(error, KernelmuxError | torch.OutOfMemoryError):
        return False
    text = str(error)
    return (
        named(error, CLASSES) or (isinstance(error, RuntimeError) and text.startswith(TEXTS))
    ) and not MEMORY.search(text)


def cause(error: Exception) -> CudaCause:
    """What the text of an error says; `UNKNOWN` if it is none of `CAUSES`."""
    text = "too many resources" if named(error, REFUSED) else str(error)
    return next((found for found in CAUSES if re.search(found.pattern, text, re.IGNORECASE)), UNKNOWN)
