"""What a call launches, and the instructions of its kernel, without running it."""

from __future__ import annotations

from typing import Any

from kernelmux.emulator import launch_log, recorder
from kernelmux.emulator.launch_log import Launch
from kernelmux.registry.call import dispatch


def launched(op: str, name: str, *arguments: Any) -> Launch:
    """The only launch of a call."""
    with recorder(run=False) as log:
        dispatch.function(op)(*arguments, backend=name)
    launch: Launch
    (launch,) = log
    return launch


def ptx(launch: Launch) -> str:
    """The instructions of its kernel."""
    text = next(text for text, known in launch_log._recipes.items() if launch.recipe and known.key == launch.recipe.key)
    return text.partition(f".entry {launch.kernel}(")[2].partition(".entry")[0]
