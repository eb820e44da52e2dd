"""Launches the CUDA C++ of a mutant: through CuPy on CUDA tensors, on the emulator on CPU tensors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelmux import emulator
from kernelmux.registry.util import cards

SHARED = 48 << 10  # bytes that a block may have without asking
ELEMENTS = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def launch(
    source: Path,
    entry: str,
    grid: Any,
    block: Any,
    args: tuple[Any, ...],
    dtype: torch.dtype,
    shared: int = 0,
    **defines: object,
) -> None:
    """Run `entry` of a file, compiled with -DELEMENT for `dtype` and -D for each of `defines`.

    args: tensors and numpy scalars. shared: bytes of dynamic shared memory.
    """
    options = (f"-DELEMENT={ELEMENTS[dtype]}", *(f"-D{name}={value}" for name, value in defines.items()))
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if tensors[0].is_cuda:
        with torch.cuda.device(tensors[0].device):
            _on_gpu(source, entry, grid, block, args, options, shared)
        return
    flushing, arch = (*options, "-ftz=true"), cards.emulated().arch  # as CuPy compiles
    ptx = emulator.compile_ptx(source.read_text(), options=flushing, arch=arch, filename=source.name)
    emulator.load(ptx).kernel(entry).launch(grid, block, args, shared=shared)


def _on_gpu(
    source: Path, entry: str, grid: Any, block: Any, args: tuple[Any, ...], options: tuple[str, ...], shared: int
) -> None:
    import cupy

    stream = torch.cuda.current_stream()
    function = _function(source, entry, options, torch.cuda.current_device())
    values = tuple(np.uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args)
    if shared > SHARED:
        function.max_dynamic_shared_size_bytes = shared
    with cupy.cuda.ExternalStream(stream.cuda_stream):
        function(_three(grid), _three(block), values, shared_mem=shared)


@cache
def _function(source: Path, entry: str, options: tuple[str, ...], device: int) -> Any:
    import cupy

    return cupy.RawModule(code=source.read_text(), options=("-std=c++17", *options)).get_function(entry)


def _three(size: Any) -> tuple[int, ...]:
    return (size, 1, 1) if isinstance(size, int) else (*size, 1, 1)[:3]
