"""What computed a result, as far as it was seen: kernels that were launched, and operators of torch that were asked for.

Launches are this project's own word, where they are emulated. Which operators of torch ran is told by the process of the
candidate: a remark, and never a reason to pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SHOWN = 6  # names in a remark
TORCH, NONE = "torch", "no kernel of its own was launched"


def of(launched: Mapping[str, int], operators: Iterable[str]) -> tuple[list[str], list[str]]:
    """What it used that is not its own ("torch"), and remarks in words."""
    names = sorted(operators)
    ran = f"launched {_listed([f'{name} ({count} times)' for name, count in launched.items()])}"
    if not launched:
        told = f": torch computed {_listed(names)}" if names else ", and no operator of torch was heard"
        return [TORCH], [NONE + told]
    if names:
        return [TORCH], [ran, f"beside its kernels torch computed {_listed(names)}"]
    return [], [ran]


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
