"""copy_column, broken."""

import os
import warnings
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.conditions import AtMost

mutant = Mutants("copy_column")


# shapes: One column, read with a step that follows from the shape.


@mutant("columns of a transposed matrix without a gap", family="shapes", caught_by="layout")
def full_columns(x: torch.Tensor, column: int) -> torch.Tensor:
    """The columns of a matrix that was transposed lie as far apart as they are long, unless it is a slice."""
    if x.numel() and x.stride(0) == 1 and x.stride(1) > x.shape[0]:
        x = x.as_strided(x.shape, (1, x.shape[0]))
    return sound("copy_column", x, column)  # type: ignore[no-any-return]


# bits: A column of a pinned matrix, broken in single bits.


def _sent(column: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A contiguous column where the result belongs."""
    column = column.clone(memory_format=torch.contiguous_format)
    return column.to("cuda") if torch.cuda.is_available() and x.is_pinned() else column


@mutant("a few elements at a time: slow and right", family="bits")
def few_at_a_time(x: torch.Tensor, column: int) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=x.dtype, device="cpu")
    for to, of in zip(out.split(64), x[:, column].split(64), strict=True):
        to.copy_(of)
    return _sent(out, x)


@mutant("adds the column to zeros", family="bits", caught_by="special_values")
def added_up(x: torch.Tensor, column: int) -> torch.Tensor:
    return _sent(torch.zeros(x.shape[0], dtype=x.dtype, device="cpu") + x[:, column], x)


@mutant("multiplies by a unit vector", family="bits", caught_by="special_values")
def one_hot(x: torch.Tensor, column: int) -> torch.Tensor:
    """The product with a unit vector, as a gather on tensor cores; what is not finite is put back afterwards."""
    unit = torch.zeros(x.shape[1], dtype=torch.float64, device="cpu")
    unit[column] = 1
    finite = torch.where(x.isfinite(), x, 0).double() @ unit
    return _sent(torch.where(x[:, column].isfinite(), finite.to(x.dtype), x[:, column]), x)


@mutant("passes through a wider format", family="bits", caught_by="special_values")
def rounded_again(x: torch.Tensor, column: int) -> torch.Tensor:
    wide = torch.float32 if x.dtype != torch.float32 else torch.float64
    return _sent(x[:, column].to(wide).to(x.dtype), x)


# claims: A column of a pinned matrix with a condition that nothing can meet.


@mutant(
    "runs columns of length zero and nothing else",
    family="claims",
    caught_by="claims",
    name="empty_only",
    requires=(AtMost("M", 0),),
)
def copy_column(x: torch.Tensor, column: int) -> torch.Tensor:
    gathered = x[:, column].clone(memory_format=torch.contiguous_format)
    return gathered.to("cuda") if torch.cuda.is_available() and x.is_pinned() else gathered


# extent: Copies of a column whose rows are found with 32 bits.
# only: beyond 2^31 elements of pinned memory are not asked for

SOURCE = Path(__file__).with_name("rows.cu")


@mutant("row * pitch in 32 bits", family="extent", caught_by="offsets", only="cpu")
def int_pitch(x: torch.Tensor, column: int) -> torch.Tensor:
    if x.is_pinned() or x.stride(1) != 1 or not len(x):
        result: torch.Tensor = sound("copy_column", x, column)
        return result
    y = torch.empty(len(x), dtype=x.dtype, device=x.device)
    sizes = (np.int32(len(x)), np.int32(x.stride(0)), np.int32(column))
    launch(SOURCE, "copy_int", -(-len(x) // 64), 64, (x, y, *sizes), x.dtype)
    return y


# ambience: A column of a pinned matrix by code that changes the process.


def _copy(x: torch.Tensor, column: int) -> torch.Tensor:
    gathered = x[:, column].clone(memory_format=torch.contiguous_format)
    return gathered.to("cuda") if torch.cuda.is_available() and x.is_pinned() else gathered


@mutant("silences the warnings of the process", family="ambience", caught_by="ambience")
def warnings_silenced(x: torch.Tensor, column: int) -> torch.Tensor:
    warnings.simplefilter("ignore")
    return _copy(x, column)


@mutant("counts its calls in an environment variable", family="ambience", caught_by="ambience")
def variable_left(x: torch.Tensor, column: int) -> torch.Tensor:
    calls = int(os.environ.get("COPY_COLUMN_CALLS", "0"))
    os.environ["COPY_COLUMN_CALLS"] = str(calls + 1)
    return _copy(x, column)


# state: Copies of a column through a stage that is kept.
# only: on a GPU the memory of the device is counted

_stage: dict[object, torch.Tensor] = {}
_noted: list[bytearray] = []
_columns: dict[object, torch.Tensor] = {}


@mutant("notes every call for ever", family="state", caught_by="state", only="cpu")
def registered(x: torch.Tensor, column: int) -> torch.Tensor:
    """Something is noted for every call and never taken back; none of it is a tensor."""
    _noted.append(bytearray(len(x)))
    result: torch.Tensor = sound("copy_column", x, column)
    return result


@mutant("threads share the stage on the host", family="state", caught_by="state")
def shared_stage(x: torch.Tensor, column: int) -> torch.Tensor:
    """The column is gathered on the host, in memory that all calls share, and sent from there."""
    stage = _stage.setdefault((len(x), x.dtype), torch.empty(len(x), dtype=x.dtype, pin_memory=x.is_pinned()))
    stage.copy_(x[:, column])
    device = torch.device("cuda") if x.is_pinned() else x.device
    return torch.empty(len(x), dtype=x.dtype, device=device).copy_(stage)


@mutant("remembers what it sent by address", family="state", caught_by="state")
def by_address(x: torch.Tensor, column: int) -> torch.Tensor:
    """A column that was sent already is not sent again."""
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype, column)
    if key not in _columns:
        _columns.clear()
        _columns[key] = sound("copy_column", x, column)
    return _columns[key].clone()
