"""docs/writing_a_spec.md: what it says of its operators is what the suite says."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import accuracy, exact, gradient, shapes, special_values, vacuity
from kernelmux.conformance.tests.trial_specs import failures, operator
from kernelmux.registry.cases import DISTRIBUTIONS
from kernelmux.registry.spec import SPECIAL, SpecialValues

PAGE = Path(__file__).parents[3] / "docs/writing_a_spec.md"
CHECKS = (accuracy, exact, gradient, shapes, special_values, vacuity)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the snippets of the page define."""
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    path = tmp_path_factory.mktemp("page") / "page.py"
    path.write_text("\n".join(snippets), encoding="utf-8")
    return runpy.run_path(str(path))


def in_fp32(formula: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda a, b: formula(a.float(), b.float()).to(a.dtype)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.rpartition(".")[2])
def test_the_spec_of_the_page_holds_for_a_right_kernel(check: Any, page: dict[str, Any]) -> None:
    assert failures(check.run, page["SPEC"], in_fp32(page["scaled"])) == []


def test_the_kernel_that_overflows_is_refused_where_it_says(page: dict[str, Any]) -> None:
    usual = replace(page["SPEC"], cases=page["SPEC"].cases[:1])
    found = failures(special_values.run, usual, in_fp32(page["plain"]))
    assert found and all("largest" in one.partition("\n")[0] for one in found)
    assert failures(special_values.run, replace(usual, special=page["either"]), in_fp32(page["plain"])) == []
    underflown = failures(accuracy.run, page["SPEC"], in_fp32(page["plain"]))
    assert underflown and all("-faint" in one for one in underflown)


def test_the_breakpoints_of_the_page_are_asked(page: dict[str, Any]) -> None:
    def shrunk(x: torch.Tensor, threshold: float) -> torch.Tensor:
        return torch.where(x.abs() > threshold, x, 0)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        d = (x - target).abs()
        return torch.where(d < 1, d * d / 2, d - 0.5)

    shrink = operator("shrink", page["shrink"], shrunk, "x=300")
    wrong = failures(special_values.run, shrink, lambda x, threshold: shrunk(x.float(), threshold * 1.0001).to(x.dtype))
    assert wrong and "x around its breakpoint" in wrong[0]
    undefined = SpecialValues(undefined={"inf": "inf - inf", "largest": "a square is beyond fp32"})
    huber = operator("huber", page["huber"], loss, "x=300 target=300", special=undefined)
    assert failures(special_values.run, huber, in_fp32(loss)) == []


def test_the_page_names_all_that_a_spec_may_say() -> None:
    words = PAGE.read_text(encoding="utf-8")
    assert not [name for name in (*SPECIAL, *DISTRIBUTIONS) if f"`{name}`" not in words and name != "normal"]
