"""Smaller constant axes for a definition of flashinfer-bench whose weights are too large whatever the lengths are.

The reference of a mixture of experts has its sizes in its text as well (`H = 7168`, `assert E_local == 32`): these numbers
change with the axes there and in a solution (`candidate_side.resized`). Counts of experts are halved together, and so are
all other sizes with their counts of blocks, which keeps the sizes of blocks and of groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

KEPT = re.compile(r"top_?k|group|page|dim|head|vocab")  # in the name of an axis that stays
LEAST, EXPERTS = 64, 8  # of a size, of a count of experts
TOP_K = 8  # experts of a token, where no axis tells them: twice as many stay

Axes = Mapping[str, Any]


def smaller(axes: Axes, fits: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """The axes with constants halved until they fit, or none can be; and the sizes that may stand in a text, each before
    and after. A number that would stand for two sizes after that stands for none: the reference says if that is wrong."""
    made = dict(axes)
    while not fits(made) and (step := next(_steps(made), None)) is not None:
        made |= {name: {**made[name], "value": value} for name, value in step.items()}
    changed = {n: (int(axes[n]["value"]), v["value"]) for n, v in made.items() if v != axes[n] and "block" not in n}
    twice = {old for old, new in changed.values() if any(o == old and n != new for o, n in changed.values())}
    return made, {name: pair for name, pair in changed.items() if pair[0] not in twice}


def _steps(axes: Axes) -> Iterator[dict[str, int]]:
    """What may be halved next: sizes first, then experts."""
    constant = {n: int(a["value"]) for n, a in axes.items() if a.get("type") == "const"}
    experts = {n: v for n, v in constant.items() if "expert" in n}
    sizes = {n: v for n, v in constant.items() if n not in experts and not KEPT.search(n)}
    whole = [v for n, v in sizes.items() if "block" not in n]
    if whole and min(whole) >= 2 * LEAST and not any(v % 2 for v in sizes.values()):
        yield {n: v // 2 for n, v in sizes.items()}
    least = max(EXPERTS, 2 * constant.get("top_k", TOP_K))
    if experts and max(experts.values()) >= 2 * least and not any(v % 2 for v in experts.values()):
        yield {n: v // 2 for n, v in experts.items()}
