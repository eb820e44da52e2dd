"""Small cases for a variant that can run none of a tier's: made to its conditions, once for all checks of it.

Finding them takes seconds of drawing where conditions are narrow, and each check of the variant asks the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelmux.conformance.inputs import dtype_rotation, generate
from kernelmux.conformance.options import Options
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec import OpSpec
from kernelmux.registry.util import cards

ELEMENTS = 2**18  # of a tensor, at most
DRAWN = 40

_made: dict[tuple[str, tuple[Condition, ...], Options], tuple[OpSpec, list[Case]]] = {}
cards.when_changed(_made.clear)


def fitted(spec: OpSpec, requires: tuple[Condition, ...], options: Options) -> list[Case]:
    """Two calls that meet these conditions: drawn ones, or cases of tier ci where few that are drawn do."""
    key = spec.name, requires, options
    if key not in _made or _made[key][0] is not spec:
        drawn = (case for case, _ in generate.cases(spec, requires, DRAWN, ELEMENTS, options.seed))
        found = _smallest(spec, requires, options, drawn)
        found = found or _smallest(spec, requires, options, replace(options, tier="ci").cases_of(spec))
        _made[key] = spec, found
    return _made[key][1]


def _smallest(spec: OpSpec, requires: tuple[Condition, ...], options: Options, cases: Iterable[Case]) -> list[Case]:
    """Two of these, with the dtypes that the conditions allow: those with the least flops, but not without any."""
    able = ((c, generate.fitting(spec, requires, c)) for c in cases)
    asked = ((c, kinds) for c, d in able if (kinds := dtype_rotation.both(d, options.dtypes_of(spec, c))))
    calls = ((generate.permitted(spec, c, kinds[0]), replace(c, dtypes=kinds)) for c, kinds in asked)
    found = ((call.cost.flops, c) for call, c in calls if call and call.cost.flops)
    return [case for _, case in sorted(found, key=lambda pair: pair[0])[:2]]
