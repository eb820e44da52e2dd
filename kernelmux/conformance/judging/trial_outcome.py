"""What came out of one trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """What came out of one trial. status: passed, failed or skipped; budget: the largest share of the bound used.

    axes: lengths and scalars of the call. cause: where an exception came from and what kind it was, else "".
    saved: the folder with the tensors of the first failure of an item.
    """

    case: str
    dtype: str
    note: str
    seed: int
    status: str = "passed"
    assertions: int = 0
    budget: float = 0.0
    seconds: float = 0.0
    text: str = ""
    remarks: list[str] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    cause: str = ""
    saved: str = ""
