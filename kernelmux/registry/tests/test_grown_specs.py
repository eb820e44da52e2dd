"""Specs that gain parameters and outputs, and a backend elsewhere that was written before they did."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import plan
from kernelmux.conformance.session.execute import execute
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import ledger
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.backend.validation import adapted, check_implementation
from kernelmux.registry.call import checked_results, dispatch, temporary_backends
from kernelmux.registry.choice import warn_once
from kernelmux.registry.cli import doctor, main, support_matrix
from kernelmux.registry.errors import BackendUnavailable, SpecError, UnsupportedError
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Axis, Scalar, Tensor
from kernelmux.registry.util.fingerprint import digest

HOME = """
from kernelmux.registry.backend import Backend
BACKEND = Backend(name="theirs", summary="a plugin", priority=99, unavailable=lambda device: None)
"""
ATTENTION = '''
import math
import torch
from kernelmux.registry.backend import Implementation

def attention(q, k, v, causal, scale):
    """As attention was before windows, precision and keys ahead."""
    k, v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    s = q.float() @ k.mT * scale
    if causal:
        m, n = s.shape[-2:]
        s = s.masked_fill(torch.ones(m, n, dtype=torch.bool, device=s.device).triu(n - m + 1), -math.inf)
    lse = s.logsumexp(-1) if k.shape[2] else s.new_full(s.shape[:-1], -math.inf)
    return (torch.exp(s - lse.clamp(min=-1e30)[..., None]) @ v).to(q.dtype), lse

VARIANTS = {"old": Implementation(fn=attention, idea="by torch")}
'''
FILES = {
    "__init__": HOME,
    "attention": ATTENTION,
    "softmax": """
from kernelmux.registry.backend import Implementation
VARIANTS = {"old": Implementation(fn=lambda x, scale, axis: x, idea="in another order")}
""",
    "gelu": """
from kernelmux.registry.backend import Implementation
VARIANTS = {"old": Implementation(fn=lambda x: x.sigmoid(), idea="wrong, and without `approximate`")}
""",
    "cross_entropy": """
import torch
from kernelmux.registry.backend import Implementation
VARIANTS = {"old": Implementation(fn=lambda logits, target: logits.logsumexp(-1).mean(), idea="no lse")}
""",
}
Q, K = torch.linspace(-1, 1, 2 * 5 * 16).reshape(1, 2, 5, 16), torch.linspace(1, -2, 2 * 7 * 16).reshape(1, 2, 7, 16)
QKV = (Q, K, K * K)
LEFT = "window = 3, needs the default None: the implementation has no parameter window"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend, in a package of its own."""
    package = tmp_path / "package_of_theirs"
    package.mkdir()
    for stem, text in FILES.items():
        (package / f"{stem}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with temporary_backends.announced({"theirs": package.name}):
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


# --- parameters ---------------------------------------------------------------------------------------------------


def test_calls_that_leave_new_parameters_at_their_defaults_run(theirs: None) -> None:
    want = dispatch.outputs("attention", *QKV, causal=True, backend="torch_ref/exact")
    got = dispatch.outputs("attention", *QKV, causal=True, backend="theirs")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, want, strict=True))
    assert dispatch.which("attention", *QKV) == "theirs/old"
    assert torch.equal(kx.bind("attention", QKV, backend="theirs", causal=True)(*QKV), got[0])


@pytest.mark.parametrize("given", [{"window": None, "precision": "ieee"}, {"scale": 0.25}, {"scale": 3.0}])
def test_a_default_that_is_given_is_the_default(theirs: None, given: dict[str, Any]) -> None:
    assert dispatch.which("attention", *QKV, **given) == "theirs/old"


def test_another_value_is_refused_by_it_and_runs_elsewhere(theirs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_told", set())
    with pytest.warns(kx.FallbackWarning, match=f"theirs: {LEFT}"):
        got = kx.attention(*QKV, window=3)
    assert torch.equal(got, kx.attention(*QKV, window=3, backend="torch_ref"))
    with pytest.raises(UnsupportedError, match=LEFT) as caught:
        kx.attention(*QKV, window=3, backend="theirs")
    assert "leave out window" in str(caught.value) and "no parameter ahead" not in str(caught.value)
    assert LEFT in dispatch.explain("attention", *QKV, window=3, backend="theirs").verdicts[0].reasons
    (entry,) = support_matrix.support_matrix("cpu", "attention").of("attention", "theirs")
    assert entry.able and entry.conditions == tuple(f"{n} at its default" for n in ("window", "precision", "ahead"))


def test_what_a_default_stands_for_is_the_default() -> None:
    spec, call = catalog.spec("attention"), catalog.spec("attention").bind(*QKV)
    found = adapted(spec, Implementation(fn=lambda q, k, v, causal: (q, q), idea=""))
    assert found.reasons(call) == [] and found.reasons(spec.bind(*QKV, scale=0.25)) == []
    (why,) = found.reasons(spec.bind(*QKV, scale=0.5))
    assert why == "scale = 0.5, needs the default 0.25: the implementation has no parameter scale"
    # a window makes `ahead` 0 where it is left out, which is no reason of its own
    assert found.reasons(spec.bind(*QKV, window=3)) == [LEFT]
    pooled = adapted(catalog.spec("max_pool2d"), Implementation(fn=lambda x, kernel, padding: x, idea=""))
    images = torch.zeros(1, 2, 6, 6)
    assert pooled.reasons(catalog.spec("max_pool2d").bind(images, 2, (2, 2))) == []
    assert len(pooled.reasons(catalog.spec("max_pool2d").bind(images, 2, 3))) == 1


def test_axes_and_optional_tensors_have_defaults_too() -> None:
    x = torch.zeros(3, 4)
    rows = adapted(catalog.spec("softmax"), Implementation(fn=lambda x, scale: x, idea=""))
    assert rows.reasons(catalog.spec("softmax").bind(x, 1)) == []
    assert rows.reasons(catalog.spec("softmax").bind(x, 0)) == [
        "axis = 0, needs the default 1: the implementation has no parameter axis"
    ]
    spec = catalog.spec("linear")
    plain = adapted(spec, Implementation(fn=lambda x, weight, activation, precision: x, idea=""))
    assert plain.reasons(spec.bind(x, torch.zeros(5, 4))) == []
    (why,) = plain.unmet(spec.bind(x, torch.zeros(5, 4), torch.zeros(5)))
    assert str(why).startswith("bias is given, needs the default None") and why.remedy == "leave out bias"


def test_what_takes_every_argument_stays_the_same_object() -> None:
    full = Implementation(fn=lambda x, axis, scale: x, idea="")
    assert adapted(catalog.spec("softmax"), full) is full
    fn = inspect.unwrap(adapted(catalog.spec("softmax"), Implementation(fn=kx.transpose, idea="")).fn)
    assert fn is inspect.unwrap(kx.transpose)
    once = adapted(catalog.spec("softmax"), Implementation(fn=lambda x: x, idea=""))
    assert adapted(catalog.spec("softmax"), once) is once


@pytest.mark.parametrize("op", catalog.names())
def test_what_is_normalised_once_stays_as_it_is(op: str) -> None:
    """`AtDefault` normalises a call again, with one argument left out."""
    spec = catalog.spec(op)
    if spec.normalise:
        for case in spec.cases:
            call = spec.hypothetical(case)
            again = dict(call.arguments)
            spec.normalise(again, call.axes)
            assert all(value is call.arguments[name] or value == call.arguments[name] for name, value in again.items())


def test_a_function_from_a_file_may_have_fewer_parameters(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ATTENTION)
    with temporary_backends.joined(f"{tmp_path / 'mine.py'}:attention", "attention"):
        assert dispatch.which("attention", *QKV, backend="impl") == "impl/attention"
        with pytest.raises(UnsupportedError, match=LEFT):
            kx.attention(*QKV, window=3, backend="impl")


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda q, k, v, scale, causal: q, "expected causal before scale"),
        (lambda q, k, v, causal, scale, mask: q, "the spec has no mask"),
        (lambda q, k, v, is_causal: q, "the spec has no is_causal; did you mean causal?"),
        (lambda q, k, causal: q, "v has no default, so that fn must take it"),
    ],
)
def test_what_cannot_be_adapted_is_an_error_of_the_operator(fn: object, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_implementation("theirs/new", catalog.spec("attention"), Implementation(fn=fn, idea=""))  # type: ignore[arg-type]
    assert str(caught.value).endswith(f": {says}") and "theirs/new registered attention(q, k, " in str(caught.value)


def test_the_rest_of_the_backend_goes_on(theirs: None, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.zeros(3, 4)
    assert dispatch.which("softmax", x) == "torch_ref/exact" and dispatch.which("gelu", x) == "theirs/old"
    with pytest.raises(BackendUnavailable, match="expected axis before scale"):
        kx.softmax(x, backend="theirs")
    problems = [line for line in doctor._modules() if "theirs" in line]
    assert len(problems) == 1 and problems[0].startswith(
        "! theirs: softmax: theirs/old registered softmax(x, scale, axis)"
    )
    assert main.main(["list"]) == 0 and "unavailable: theirs/old" in " ".join(capsys.readouterr().out.split())
    assert "theirs" in ledger.table(("softmax", "gelu")) and not any("theirs" in name for name in ledger.verified())


def test_the_suite_runs_the_rest_and_names_what_is_refused(theirs: None) -> None:
    chosen = Options(ops=("gelu", "softmax"), backends=("theirs",), checks=("accuracy", "claims"), tier="smoke")
    found = {item.id: execute(item, chosen) for item in plan.items(chosen)}
    assert list(found) == ["gelu-theirs/old-accuracy", "gelu-theirs/old-claims", "softmax-theirs-import"]
    assert found["gelu-theirs/old-claims"].status == "passed"  # approximate="tanh" was refused
    refused = found["softmax-theirs-import"]
    assert refused.status == "failed" and "expected axis before scale" in refused.text
    assert refused.text.startswith("softmax[theirs] cannot be used: theirs/old registered softmax(x, scale, axis)")


MINE = """
def softmax(x, scale):
    return (x * scale).softmax(-1)

def linear(x, weight, activation, precision):
    return x @ weight.mT, x
"""


@pytest.mark.parametrize(("op", "note"), [("softmax", "axis = 0"), ("linear", "with bias")])
def test_the_suite_tries_other_values_of_what_is_lacking(op: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    with temporary_backends.joined(f"{tmp_path / 'mine.py'}:{op}", op):
        outcome = execute(Item(op, "impl", op, "claims"), Options(ops=(op,), tier="smoke"))
    assert outcome.status == "passed", outcome.text
    assert note in [record.note for record in outcome.records]


def test_the_suite_passes_on_the_part_that_it_can_run(theirs: None) -> None:
    chosen = Options(ops=("attention",), backends=("theirs",), tier="smoke")
    found = {item.check: execute(item, chosen) for item in plan.items(chosen)}
    assert len(found) > 12 and not [o.text for o in found.values() if o.status == "failed"]
    assert found["accuracy"].status == found["claims"].status == found["scalars"].status == "passed"
    skipped = {reason for reason in found["scalars"].reasons if reason.startswith("window = ")}
    assert skipped and all("needs the default None" in reason for reason in skipped)


# --- outputs ------------------------------------------------------------------------------------------------------


def test_an_output_that_is_missing_is_an_error_of_every_call(theirs: None) -> None:
    says = r"cross_entropy: theirs/old returned something else than loss, lse: expected 2 outputs, got 1"
    assert dispatch.which("cross_entropy", torch.zeros(3, 4), torch.tensor([0, 1, 2])) == "theirs/old"
    for _ in range(3):
        with pytest.raises(SpecError, match=says):
            kx.cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(SpecError, match=says):
        kx.bind("cross_entropy", (torch.zeros(3, 4), torch.tensor([0, 1, 2])), backend="theirs")(
            torch.zeros(3, 4), torch.tensor([0, 1, 2])
        )


def test_what_came_later_is_told_where_it_is_missing() -> None:
    spec = catalog.spec("attention")
    says = r"attention: theirs/old returned something else than y, lse \(since version 2 of the spec\): expected 2"
    with pytest.raises(SpecError, match=says):
        checked_results.ResultCheck(spec, "theirs/old", lambda *values: values[0])(*QKV)


def test_results_are_looked_at_until_one_was_right(theirs: None) -> None:
    x = torch.zeros(3, 4)
    fn = registered.variants("theirs", "gelu")["old"].fn
    assert isinstance(checked_results.looking(catalog.spec("gelu"), "theirs/old", fn), checked_results.ResultCheck)
    kx.gelu(x)
    assert checked_results.looking(catalog.spec("gelu"), "theirs/old", fn) is fn and not dispatch._plans
    kx.gelu(x)
    (known,) = dispatch._plans.values()
    assert known.fn is fn
    ours = registered.variants("torch_ref", "gelu")["plain"].fn
    assert checked_results.looking(catalog.spec("gelu"), "torch_ref/plain", ours) is ours


# --- since --------------------------------------------------------------------------------------------------------


def grown(*more: Tensor | Scalar | Axis, version: int = 2, since: int = 1) -> OpSpec:
    spec = catalog.spec("softmax")
    return replace(
        spec, inputs=(*spec.inputs, *more), outputs=(replace(spec.outputs[0], since=since),), version=version
    )


def test_a_spec_says_since_when_it_has_an_argument_or_an_output() -> None:
    assert grown(Scalar("beta", float, 0.0, since=2)).inputs[-1].since == 2
    with pytest.raises(SpecError, match="softmax: beta: expected a default, as it came after version 1"):
        grown(Scalar("beta", float, since=2))
    with pytest.raises(SpecError, match="bias: expected 1 <= since <= 2, the version of the spec, got since=3"):
        grown(Tensor("bias", "...", optional=True, since=3))
    with pytest.raises(SpecError, match="over: expected 1 <= since <= 2, the version of the spec, got since=0"):
        grown(Axis("over", of="x", default=-1, since=0))
    with pytest.raises(SpecError, match="y: expected 1 <= since <= 1, the version of the spec, got since=2"):
        grown(version=1, since=2)


def test_since_when_does_not_make_records_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        'SPEC = OpSpec(\n    inputs=(\n        Scalar(\n            "b",\n            int,{}\n        ),\n    ),\n)\n'
    )
    hashes = []
    for more in ("", "\n            since=2,", "\n            since=3,", "\n            0,"):
        monkeypatch.setattr(inspect, "getsource", lambda module, more=more: text.format(more))
        hashes.append(grown().hash)
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def test_show_says_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["show", "attention"]) == 0
    shown = capsys.readouterr().out
    parts = {
        line.split(":")[0].strip(): line for line in dispatch.documentation(catalog.spec("attention")).splitlines()
    }
    assert parts["window"].endswith("; since version 2") and parts["ahead"].endswith("; since version 3")
    assert parts["lse"].endswith("; since version 2") and "since" not in parts["scale"]
    assert shown.count("since version") == 4


def test_where_an_operator_is_listed_does_not_change_what_its_spec_says():
    plain = catalog.spec("softmax").hash
    source = inspect.getsource(sys.modules[catalog.spec("softmax").reference.__module__])
    assert '\n    family="Rows",\n' in source
    assert digest([source.replace('    family="Rows",\n', "")]) == plain != digest([source])
