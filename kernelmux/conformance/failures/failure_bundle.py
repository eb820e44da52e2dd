"""What is kept of a failing item: a folder with its tensors, from which the call can be repeated and the result drawn.

inputs.pt, outputs.pt, call.json, finding.txt as shadow mode has them (`registry.call.repro_bundle`); expected.pt (float64)
and bound.pt: of the output that was wrong, by its name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kernelmux.conformance.failures import failure_text
from kernelmux.conformance.failures.failure_text import Place
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend.judge import Result
from kernelmux.registry.call import repro_bundle

FOLDER = "failures"
LARGEST = 2**26  # bytes of inputs and outputs; a reference and a bound are up to eight times as long


def keep(
    out: str,
    place: Place,
    trial: Trial,
    how: Implementation,
    outputs: Sequence[torch.Tensor],
    name: str,
    limit: torch.Tensor,
    text: str,
) -> str:
    """Write the folder of an item below `out` and return where it is; "" if it is too large, or cannot be written.

    name, limit: of the output that is wrong, which the text is about.
    """
    if sum(x.nbytes for x in (*trial.tensors.values(), *outputs)) > LARGEST:
        return ""
    folder = Path(out) / FOLDER / re.sub(r"[^\w.-]+", "-", f"{place.op}-{place.label}-{place.check}")
    ref = trial.references[[output.name for output in trial.spec.outputs].index(name)]
    result = Result(place.label, how, tuple(outputs))
    told = failure_text.text(place, trial, text)
    try:
        repro_bundle.write(
            folder.absolute(), trial.call, result, f"{told}\n", expected={name: ref}, bound={name: limit}
        )
    except OSError:
        return ""
    return str(folder)


def load(folder: str) -> tuple[str, torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The wrong output: its name, what came out, what was expected, the bound; None where no folder holds all of it."""
    try:
        stems = ("outputs", "expected", "bound")
        outputs, expected, bound = (torch.load(Path(folder) / f"{stem}.pt", weights_only=True) for stem in stems)
        (name,) = expected
        (ours,) = outputs.values()
        return name, ours[name], expected[name], bound[name]
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a file that is cut short makes of torch.load
        told = f"conformance: {folder} is damaged: the page does not show it ({type(error).__name__})"
        print(told, file=sys.stderr)
        return None
