"""Copies of a column through a stage that is kept."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

_stage: dict[object, torch.Tensor] = {}
_noted: list[bytearray] = []
_columns: dict[object, torch.Tensor] = {}


def shared_stage(x: torch.Tensor, column: int) -> torch.Tensor:
    """The column is gathered on the host, in memory that all calls share, and sent from there."""
    stage = _stage.setdefault((len(x), x.dtype), torch.empty(len(x), dtype=x.dtype, pin_memory=x.is_pinned()))
    stage.copy_(x[:, column])
    device = torch.device("cuda") if x.is_pinned() else x.device
    return torch.empty(len(x), dtype=x.dtype, device=device).copy_(stage)


def by_address(x: torch.Tensor, column: int) -> torch.Tensor:
    """A column that was sent already is not sent again."""
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype, column)
    if key not in _columns:
        _columns.clear()
        _columns[key] = sound("copy_column", x, column)
    return _columns[key].clone()


def registered(x: torch.Tensor, column: int) -> torch.Tensor:
    """Something is noted for every call and never taken back; none of it is a tensor."""
    _noted.append(bytearray(len(x)))
    result: torch.Tensor = sound("copy_column", x, column)
    return result


VARIANTS = {
    "registered": Implementation(fn=registered, idea="notes every call for ever"),
    "shared_stage": Implementation(fn=shared_stage, idea="threads share the stage on the host"),
    "by_address": Implementation(fn=by_address, idea="remembers what it sent by address"),
}

CAUGHT_BY = {"registered": "state", "shared_stage": "state", "by_address": "state"}
ONLY_CPU = {"registered"}  # on a GPU the memory of the device is counted
