"""Copies of matrices whose lines begin at other multiples of bytes."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan

LINE, BLOCK = 64, 2048  # elements: of 128 bytes, and that a program copies


@triton.jit
def copy_lines_kernel(y_ptr, x_ptr, y_line, x_line, written, readable, BLOCK: tl.constexpr):
    """Lines of x to those of y, `written` elements of each; what is beyond the `readable` ones is 0."""
    cuda.gdc_launch_dependents()
    pieces = tl.cdiv(written, BLOCK)
    line = (tl.program_id(0) // pieces).to(tl.int64)
    at = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + (line * x_line + at), mask=at < readable, other=0.0)
    tl.store(y_ptr + (line * y_line + at), x, mask=at < written)


@plan
def copying(device: int, lines: int, y_line: int, x_line: int, written: int, readable: int) -> Launch:
    """The launch that copies so many lines, so many elements apart, as `copy_lines_kernel` does; called with y and x."""
    pieces = cdiv(written, BLOCK)
    return Launch(copy_lines_kernel, (lines * pieces,), y_line, x_line, written, readable, BLOCK=BLOCK, num_warps=4)


def line_of(length: int) -> int:
    """Elements from one line to the next, where lines of so many begin at multiples of 128 bytes."""
    return cdiv(length, LINE) * LINE
