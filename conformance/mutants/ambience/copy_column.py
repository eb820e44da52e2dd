"""A column of a pinned matrix by code that changes the process."""

import os
import warnings

import torch

from kernelmux.registry.backend import Implementation


def _copy(x: torch.Tensor, column: int) -> torch.Tensor:
    gathered = x[:, column].clone(memory_format=torch.contiguous_format)
    return gathered.to("cuda") if torch.cuda.is_available() and x.is_pinned() else gathered


def warnings_silenced(x: torch.Tensor, column: int) -> torch.Tensor:
    warnings.simplefilter("ignore")
    return _copy(x, column)


def variable_left(x: torch.Tensor, column: int) -> torch.Tensor:
    calls = int(os.environ.get("COPY_COLUMN_CALLS", "0"))
    os.environ["COPY_COLUMN_CALLS"] = str(calls + 1)
    return _copy(x, column)


VARIANTS = {
    "warnings_silenced": Implementation(fn=warnings_silenced, idea="silences the warnings of the process"),
    "variable_left": Implementation(fn=variable_left, idea="counts its calls in an environment variable"),
}

CAUGHT_BY = {"warnings_silenced": "ambience", "variable_left": "ambience"}
