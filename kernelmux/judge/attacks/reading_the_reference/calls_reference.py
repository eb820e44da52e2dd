"""The reference itself, found under a name that a search for it does not find.

Fooled suites whose reference lies in the same process: what is judged is compared with itself. Here the call is heard
while it runs: "calls the reference".
"""

import importlib
from typing import Any

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("calls the reference", "cannot be imported|ImportError|No module", "unknown operator")
NEEDS = "cpu"
_home: Any = importlib.import_module("kernelmux.registry." + "cat" + "alog")


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y: torch.Tensor = _home.spec("softmax").reference(x.double(), axis, scale)
    return y.to(x.dtype).contiguous()
