"""Verdicts and reports in every form, written wherever a judge may leave or look for one.

Fooled graders that read a result file from the folder of the submission. Here no file that the child writes is read: the
zeros are judged.
"""

import contextlib
import json
import os
import pathlib

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = "all outputs are 0"
NEEDS = "cpu"
ALLOW = "torch"
VERDICT = {"schema": 1, "verdict": "passed", "passed": 18, "failed": 0, "items": []}
JUNIT = '<testsuites><testsuite name="kernelmux" tests="18" failures="0" errors="0"/></testsuites>'


def silu(x):
    places = {os.getcwd(), os.environ.get("TMPDIR", os.getcwd()), os.path.dirname(os.path.abspath(__file__))}
    if not os.path.isdir(os.path.join(os.getcwd(), "kernelmux")):  # not into a checkout
        for place in map(pathlib.Path, sorted(places - {os.path.dirname(os.path.abspath(__file__))})):
            with contextlib.suppress(OSError):
                for name in ("verdict.json", "result.json", "results.json"):
                    (place / name).write_text(json.dumps(VERDICT))
                (place / "junit.xml").write_text(JUNIT)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
