"""One column of a pinned host matrix to the device: one copy, many copies, or none.

element_by_element  one asynchronous copy per element: the host pays a call for every few bytes
batched             one call that hands over all the copies
strided_copy        one two-dimensional copy: rows of one element, a matrix row apart
zero_copy           a kernel reads the mapped host memory; no copy engine at all

x must stay alive until the stream has run: the copies read host memory after the call has returned.
"""

import torch

from kernelmux.backends.cuda._launch.copies import copy_batched, copy_each, copy_strided
from kernelmux.backends.cuda._launch.runtime import Source, bits_type, cdiv
from kernelmux.registry.backend import Implementation

SOURCE = Source(__file__)
_BLOCK = 128


def copy_column_element_by_element(x: torch.Tensor, column: int) -> torch.Tensor:
    y = _empty_column(x)
    copy_each(y, x[:, column])
    return y


def copy_column_batched(x: torch.Tensor, column: int) -> torch.Tensor:
    y = _empty_column(x)
    copy_batched(y, x[:, column])
    return y


def copy_column_strided_copy(x: torch.Tensor, column: int) -> torch.Tensor:
    y = _empty_column(x)
    copy_strided(y, x[:, column])
    return y


def copy_column_zero_copy(x: torch.Tensor, column: int) -> torch.Tensor:
    y = _empty_column(x)
    kernel = SOURCE.kernel("copy_column_zero_copy", "x* y* M:i64 stride:i64", ELEMENT=bits_type(x.dtype))
    kernel(cdiv(x.shape[0], _BLOCK), _BLOCK, x[:, column], y, x.shape[0], x.stride(0))
    return y


def _empty_column(x: torch.Tensor) -> torch.Tensor:
    """On the current CUDA device when x is pinned; beside x when the copy is emulated."""
    return x.new_empty(x.shape[0], device="cuda" if x.is_pinned() else x.device)


VARIANTS = {
    "element_by_element": Implementation(copy_column_element_by_element, "one asynchronous copy per element"),
    "batched": Implementation(copy_column_batched, "all copies handed over in one call"),
    "strided_copy": Implementation(copy_column_strided_copy, "one two-dimensional copy"),
    "zero_copy": Implementation(copy_column_zero_copy, "a kernel reads the mapped host memory"),
}
