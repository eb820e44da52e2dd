"""The line that names the likely bug."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelmux.conformance.failures import error_patterns, failure_discriminants
from kernelmux.conformance.failures.failure_discriminants import TrialFacts

REF = torch.randn(64, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def described(got: torch.Tensor, ref: torch.Tensor = REF) -> str:
    wrong = ~torch.isclose(got, ref, rtol=1e-6, equal_nan=True)
    return error_patterns.describe(wrong, got, ref)


def changed(index: Any, by: float = 1.0) -> torch.Tensor:
    got = REF.clone()
    got[index] += (
        by
        * (1 + torch.rand(got[index].shape, generator=torch.Generator().manual_seed(2)).double())
        * torch.where(torch.arange(max(got[index].numel(), 1)).reshape(got[index].shape) % 2 == 0, 1.0, -1.0)
    )
    return got


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.zeros_like(REF), "all outputs are 0"),
        (-REF, "all have the wrong sign"),
        (REF * 0.5, "all are 0.5 times the reference"),
        (REF.roll(1, 0), "the reference rolled by 1 along axis 0"),
        (changed((slice(None), 99)), "all at index 99 of axis 1"),
        (changed((slice(None), slice(97, None))), "tail mask"),
        (changed((slice(None, None, 4),)), "every 4th index of axis 0, from 0"),
        (
            changed((slice(16, 32), slice(32, 48))),
            "all in 32..47 of axis 1 (length 100), all in 16..31 of axis 0 (length 64)",
        ),
        (torch.where(REF == REF[3, 5], torch.nan, REF), "NaN in 1 places where the reference has none"),
        (
            REF + REF.abs() * 1e-3 + 1e-3 * torch.rand(64, 100, generator=torch.Generator().manual_seed(3)),
            "all too large",
        ),
    ],
)
def test_a_pattern_is_named(got: torch.Tensor, expected: str) -> None:
    assert expected in described(got)


def test_swallowed_nan_is_named() -> None:
    ref = REF.clone()
    ref[2] = torch.nan
    assert "NaN swallowed in 100 places" in described(REF, ref)


def test_scalars_have_no_places() -> None:
    assert described(torch.tensor(2.0).double(), torch.tensor(5.0).double()).startswith("1 of 1 wrong")


def trials(failing: list[dict[str, Any]], passing: list[dict[str, Any]]) -> list[TrialFacts]:
    """Trials by what differs from the usual one."""

    def fact(failed: bool, dtype: str = "fp32", note: str = "", **axes: Any) -> TrialFacts:
        return TrialFacts(failed, {"M": 8, "K": 64, "scale": 1.0} | axes, dtype, note)

    return [fact(True, **one) for one in failing] + [fact(False, **one) for one in passing]


@pytest.mark.parametrize(
    ("failing", "passing", "expected"),
    [
        (
            [{"K": 1}, {"K": 17}, {"K": 65}],
            [{"K": 32}, {"K": 128}],
            "fails for K = 1, 17, 65; passes for 32, 128 (fails whenever K % 32 != 0)",
        ),
        ([{"K": 32}, {"K": 96}], [{"K": 7}, {"K": 9}], "passes for 7, 9 (fails whenever K % 32 == 0)"),
        ([{"K": 65}, {"K": 100}], [{"K": 7}, {"K": 64}], "(fails whenever K > 64)"),
        ([{"K": 65}], [{"K": 7}, {"K": 63}], "fails for K = 65; passes for 7, 63"),
        ([{"dtype": "fp16"}], [{}, {"dtype": "bf16"}], "fails only for fp16"),
        ([{}, {"dtype": "bf16"}], [{"dtype": "fp16"}], "fails for every dtype but fp16"),
        ([{"scale": 0.5}, {"scale": -2.0}], [{}, {"K": 32}], "fails only for scale != 1.0"),
        ([{"scale": 0.0}], [{}, {"scale": 2.0}], "fails only for scale = 0.0"),
        ([{"M": 64}, {"M": 32, "K": 32}], [{}, {"K": 32}, {"M": 32, "K": 64}], "fails only for M = K"),
        ([{"note": "x: strided"}], [{}, {"note": "x: misaligned"}], "fails only for x: strided"),
        ([{"K": 7}, {"K": 64}], [{"K": 7}, {"K": 64}], ""),
        ([{"K": 7}, {"K": 9}, {"K": 11}], [], ""),
        ([{"K": 7}], [{"K": 9}], ""),
    ],
)
def test_what_sets_failing_trials_apart(failing: Any, passing: Any, expected: str) -> None:
    found = failure_discriminants.describe(trials(failing, passing))
    assert expected in found and bool(expected) == bool(found)
