"""Winners of measured searches: tuned/<gpu>.json, written by the perf suite, read here.

    {"winners": {"<op>": {"<key>": {"<parameter>": value, ...}}}, ...}

The rule and the search space stay beside their kernel; where the table has no entry, the caller's rule decides.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "tuned"


def file_name(gpu: str) -> str:
    """The table of a GPU by the name that torch gives it: "NVIDIA H200" is nvidia_h200.json."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") + ".json"


@cache
def _winners(device: int) -> dict[str, dict[str, Any]]:
    path = FOLDER / file_name(torch.cuda.get_device_name(device))
    if not path.is_file():
        return {}
    table: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["winners"]
    return table


def winner(op: str, key: str, device: int) -> dict[str, Any] | None:
    """The measured configuration for this op and key on a GPU; None if there is none, and always on the CPU (-1)."""
    return _winners(device).get(op, {}).get(key) if device >= 0 else None
