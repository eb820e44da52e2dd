"""The code of the suite's own judge replaced at import: every item comes back as passed.

Fooled this suite while it ran in the process of what it judged: "18 passed, 0 failed" for zeros. In a child there is no
judge to replace, and zeros are found: "all outputs are 0".
"""

import contextlib
import importlib

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("all outputs are 0", "patches .*execute")
NEEDS = "cpu"
ALLOW = "torch"


def _passed(item, probe):
    return Outcome(item, "passed", records=[r for r in probe.records if r.status == "passed"])  # noqa: F821


with contextlib.suppress(Exception):
    home = importlib.import_module("kernelmux.conformance.session." + "execute")
    home._judge.__code__ = _passed.__code__


def softmax(x, axis, scale):
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
