"""The public functions under 10,000 calls that were made up: a result that the spec allows, or an error with a type."""

import math
import warnings
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from kernelmux.conformance.fuzz.calls import Draft, surrounded
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.tests import fuzzing

OPS = catalog.names()
CPU = torch.device("cpu")
EMULATED = tuple(n for n in registered.backends() if registered.emulates(n, CPU) and not registered.unavailable(n, CPU))
# One call in so many is right at least, where lengths of two tensors must go together; of these operators there are more.
SELDOM = {"conv2d": 30, "conv2d_backward_weight": 30}
CALLS, EMULATED_CALLS = 4_000, 60  # over all operators; per backend


def check(draft: Draft, able: tuple[str, ...], seen: Counter[str]) -> None:
    """Run one call and judge what became of it."""
    spec, given_ = draft.spec, draft.given
    before = {k: fuzzing.bits(v) for k, v in draft.arguments.items() if isinstance(v, torch.Tensor)}
    with surrounded(draft, able):
        try:
            result = dispatch.function(spec.name)(**given_, backend=draft.backend)
        except KernelmuxError as error:
            seen[type(error).__name__] += 1
            text = str(error)
            assert text.startswith((f"{spec.name}: ", "backend: ", "unknown ", "no requested backend")), text
            return
        except RuntimeError as error:  # such as padding by a million rows
            seen["too large"] += 1
            assert "can't allocate memory" in str(error)
            return
        except TypeError as error:
            seen["TypeError"] += 1
            assert draft.missing and "argument" in str(error)
            return
        chosen = dispatch.which(spec.name, **given_, backend=draft.backend)
        decision = dispatch.explain(spec.name, **given_, backend=draft.backend)
        assert decision.chosen.name == chosen and str(decision)
        outputs = tuple(y.detach().clone() for y in (result if isinstance(result, tuple) else (result,)))
        strides = [y.stride() for y in (result if isinstance(result, tuple) else (result,))]
    assert [y.stride() for y in outputs] == strides or all(math.prod(y.shape) <= 1 for y in outputs)
    seen["ran"] += 1
    for name, was in before.items():
        now = fuzzing.bits(draft.arguments[name])
        assert was is None or torch.equal(was, now), f"{name} was changed"
    draft.arguments = {i.name: given_.get(i.name, getattr(i, "default", None)) for i in spec.inputs}
    problem = fuzzing.wrong(draft, chosen, outputs)
    assert problem is None, problem


def fuzz(ops: tuple[str, ...], able: tuple[str, ...], calls: int) -> Counter[str]:
    """What became of so many calls of these operators, made for these backends."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=calls,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(fuzzing.drafts(ops, able))
    def session(draft: Draft) -> None:
        check(draft, able, seen)

    with warnings.catch_warnings(action="ignore"):
        session()
    return seen


@pytest.mark.parametrize("op", OPS)
def test_calls_of_the_baseline(op):
    share = CALLS // len(OPS) * (3 if op in SELDOM else 1)
    seen = fuzz((op,), ("torch_ref",), share)
    assert seen["ran"] > share / SELDOM.get(op, 10) and seen["ArgumentError"] > share / 40, seen


@pytest.mark.parametrize("name", EMULATED)
def test_calls_on_the_emulator(name):
    seen = fuzz(OPS, (name,), EMULATED_CALLS)
    assert seen["ran"] > EMULATED_CALLS / 10 and seen["ArgumentError"], seen
