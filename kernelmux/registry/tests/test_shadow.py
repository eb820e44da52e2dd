"""Shadow mode: a broken backend is found, told and kept; a sound one is silent; no result ever changes."""

import itertools
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kernelmux as kx
from kernelmux.registry.backend import judge
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch, repro_bundle, shadow
from kernelmux.registry.choice import requests, shadow_sampling
from kernelmux.registry.cli import rerun
from kernelmux.registry.errors import ArgumentError, ShadowWarning, UnknownName

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def default(op):
    return [*registered.variants("torch_ref", op).values()][-1]


def sound(op):
    """An implementation that computes as torch does and is a kernel to the registry."""
    fn = default(op).fn
    return Implementation(fn=lambda *values: fn(*values), idea="as torch", arithmetic=default(op).arithmetic)


class Broken:
    """softmax with one element off by 1 / 1000 of itself; `runs` counts."""

    def __init__(self):
        self.runs = 0
        self.fn = default("softmax").fn

    def __call__(self, x, axis, scale):
        self.runs += 1
        y = self.fn(x, axis, scale).clone()
        y.view(-1)[5:6] *= 1.001
        return y


class Raising:
    def __call__(self, x, axis, scale):
        raise MemoryError("no room")


@pytest.fixture(autouse=True)
def fakes(monkeypatch, tmp_path):
    """The backends "good", "bad" (one element off) and "raising" beside the baseline; nothing counted, nothing kept."""
    broken = Broken()
    ladders = {
        "good": {op: {"plain": sound(op)} for op in ("softmax", "softmax_backward", "argmax", "matmul", "rms_norm")},
        "bad": {
            "softmax": {"plain": Implementation(fn=lambda x, axis, scale: broken(x, axis, scale), idea="wrong")},
            "softmax_backward": {
                "plain": Implementation(fn=lambda *a: default("softmax_backward").fn(*a) * 1.01, idea="")
            },
            "argmax": {"plain": Implementation(fn=lambda *a: default("argmax").fn(*a) * 0, idea="wrong")},
        },
        "raising": {"softmax": {"plain": Implementation(fn=lambda x, axis, scale: Raising()(x, axis, scale), idea="")}},
    }
    own = {name: Backend(name, "a fake", 1, lambda device: None) for name in ladders}
    packages, backend, unavailable, variants, implements = (
        registered._packages(),
        registered.backend,
        registered.unavailable,
        registered.variants,
        registered.implements,
    )
    monkeypatch.setattr(registered, "_packages", lambda: {**packages, **dict.fromkeys(own, "fake")})
    monkeypatch.setattr(registered, "backend", lambda n: own[n] if n in own else backend(n))
    monkeypatch.setattr(registered, "unavailable", lambda n, d: None if n in own else unavailable(n, d))
    monkeypatch.setattr(registered, "variants", lambda n, op: ladders[n].get(op, {}) if n in own else variants(n, op))
    monkeypatch.setattr(registered, "implements", lambda n, op: op in ladders[n] if n in own else implements(n, op))
    monkeypatch.setenv(repro_bundle.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(repro_bundle, "_kept", {})
    kx.shadow_report(reset=True)
    dispatch._plans.clear()
    yield broken
    dispatch._plans.clear()
    kx.shadow_report(reset=True)


def row(op="softmax"):
    (found,) = (r for r in kx.shadow_report().rows if r.op == op)
    return found


def test_a_wrong_element_is_found_told_kept_and_runs_again(tmp_path, capsys):
    want = kx.softmax(X, backend="bad")
    with pytest.warns(ShadowWarning) as caught, kx.use("bad", shadow="torch_ref"):
        got = kx.softmax(X)
        assert torch.equal(got, want)
        assert torch.equal(kx.softmax(X), want)
    assert len(caught) == 1 and caught[0].filename == __file__
    text = str(caught[0].message)
    assert "bad/plain: 1 of 12 elements off, worst y[1, 1]" in text and "the float64 reference" in text
    assert (row().calls, row().sampled, row().violations, row().agreed) == (2, 2, 2, 0)
    (folder,) = (tmp_path / "kept").iterdir()
    assert f"python -m kernelmux.registry.shadow {folder}" in text and row().bundle == str(folder)
    about = json.loads((folder / "call.json").read_text())
    assert about["call"]["scalars"] == {"axis": 1, "scale": 1.0} and list(about["call"]["sources"]) == [
        "bad/plain",
        "torch_ref/exact",
    ]
    assert about["environment"]["torch"] == metadata.version("torch") and "spec" in about["call"]
    kept = torch.load(folder / "outputs.pt")
    assert torch.equal(kept["bad/plain"]["y"], want) and not torch.equal(kept["torch_ref/exact"]["y"], want)
    assert rerun.main([str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "bad/plain: the bits that were kept" in printed and "worst y[1, 1]" in printed


def test_a_mended_backend_runs_again_with_status_0(tmp_path, monkeypatch, capsys, fakes):
    with pytest.warns(ShadowWarning), kx.use("bad", shadow="torch_ref"):
        kx.softmax(X)
    monkeypatch.setattr(Broken, "__call__", lambda self, *a: self.fn(*a))
    (folder,) = (tmp_path / "kept").iterdir()
    assert rerun.main([str(folder)]) == 0
    assert "other bits than were kept" in capsys.readouterr().out


def test_a_wrong_shadow_is_told_apart_from_a_wrong_result():
    with pytest.warns(ShadowWarning, match="bad/plain: 1 of 12 elements off"), kx.use("good", shadow="bad"):
        assert torch.equal(kx.softmax(X), torch.softmax(X, -1))
    assert "good/plain:" not in row().last and row().variant == "good/plain" and row().violations == 1


def test_a_sound_backend_is_silent_over_many_calls_of_every_dtype():
    rng = torch.Generator().manual_seed(0)
    with kx.use("good", shadow="torch_ref"):
        for i in range(100):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x = (torch.randn(1 + i % 7, 1 + i, generator=rng) * 10 ** (i % 5 - 2)).to(dtype)
                kx.softmax(x)
                kx.argmax(x)
                kx.rms_norm(x, x[0])
    assert {r.agreed for r in kx.shadow_report().rows} == {300} and len(kx.shadow_report().rows) == 3
    assert "300 of 300 calls: 300 agreed, 0 violations" in str(kx.shadow_report())


def test_values_that_the_spec_leaves_open_are_not_judged():
    with kx.use("good", shadow="torch_ref"):
        kx.softmax(torch.tensor([[3e38, -3e38]]))
    assert row().skipped == 1 and "largest" in row().last
    with kx.use("good", shadow="torch_ref"):
        kx.softmax(torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [-float("inf"), 1.0]]))
    assert row().agreed == 1


def test_integers_must_be_equal(tmp_path):
    with pytest.warns(
        ShadowWarning, match=r"bad/plain: . of 3 elements off, first \w+\[0\]: 0 for 3, which must be equal"
    ):
        with kx.use("bad", shadow="torch_ref"):
            kx.argmax(X, axis=1)


def test_a_quarter_of_the_calls_is_sampled_and_a_run_repeats(fakes):
    drawn = []
    for _ in range(2):
        made = requests.Shadow(requests.parse("torch_ref", "here"), 0.25, 7)
        drawn.append([made.drawn() for _ in range(1000)])
    assert drawn[0] == drawn[1] and 200 < sum(drawn[0]) < 300
    state = torch.random.get_rng_state()
    with kx.use("good", shadow="torch_ref", sample=0.25):
        for _ in range(1000):
            kx.softmax(X)
    assert row().calls == 1000 and 200 < row().sampled < 300 and row().agreed == row().sampled
    assert torch.equal(torch.random.get_rng_state(), state)


def test_two_scopes_draw_other_calls_and_one_that_is_entered_again_goes_on():
    def draws(use, n=64):
        return [use._choice[1].shadow.drawn() for _ in range(n)]

    one, other = (kx.use("good", shadow="torch_ref", sample=0.5) for _ in range(2))
    assert draws(one) != draws(other)
    first = draws(one)
    with one:
        pass
    assert draws(one) != first


def test_the_n_th_scope_of_a_run_draws_what_it_drew_in_the_run_before(monkeypatch):
    runs = []
    for _ in range(2):
        monkeypatch.setattr(shadow_sampling, "_scopes", itertools.count())
        scopes = [kx.use("good", shadow="torch_ref", sample=0.5)._choice[1].shadow for _ in range(2)]
        runs.append([[made.drawn() for _ in range(40)] for made in scopes])
    assert runs[0] == runs[1]


def test_the_operators_of_a_backward_draw_from_their_scope():
    one, other = (requests.Shadow(requests.parse("good/plain", "here"), 0.5, 3) for _ in range(2))
    assert one.following.request.names == ("good",) and one.following.sample == 0.5
    assert [d for _ in range(32) for d in (one.drawn(), one.following.drawn())] == [other.drawn() for _ in range(64)]


def test_without_a_shadow_a_plan_is_what_it_was():
    kx.softmax(X, backend="good")
    with kx.use("good"):
        kx.softmax(X)
    assert not any(isinstance(plan.fn, shadow.Shadowed) for plan in dispatch._plans.values())
    assert kx.shadow_report().rows == () and str(kx.shadow_report()) == "no call was shadowed"


def test_a_shadow_that_fails_is_told_once_and_changes_nothing():
    with pytest.warns(ShadowWarning, match="softmax: raising cannot run along: MemoryError: no room") as caught:
        with kx.use("good", shadow="raising"):
            for _ in range(3):
                assert torch.equal(kx.softmax(X), torch.softmax(X, -1))
    assert len(caught) == 1 and row().errors == 3


def test_a_shadow_without_the_operator_is_told_once():
    with pytest.warns(ShadowWarning, match="rms_norm: bad cannot run along: UnsupportedError"):
        with kx.use("good", shadow="bad"):
            kx.rms_norm(X, X[0])


def test_a_second_shadow_of_a_variant_is_told_of_too():
    for name in ("raising", "bad"):
        with kx.use("good", shadow=name), pytest.warns(ShadowWarning, match=rf"{name}(/plain:| cannot run along)"):
            kx.softmax(X)


def test_the_command_in_a_warning_can_be_typed_where_the_folder_has_a_space(tmp_path, monkeypatch):
    monkeypatch.setenv(repro_bundle.VARIABLE, str(tmp_path / "a b"))
    with kx.use("bad", shadow="torch_ref"), pytest.warns(ShadowWarning, match=r"registry\.shadow '[^']*a b[^']*'"):
        kx.softmax(X)


def test_an_exception_of_the_backend_itself_propagates():
    with pytest.raises(MemoryError), kx.use("raising", shadow="torch_ref"):
        kx.softmax(X)
    assert kx.shadow_report().rows == ()


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(repro_bundle.VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.warns(ShadowWarning) as caught, kx.use("bad", shadow="torch_ref"):
        for n in (3, 4):
            kx.softmax(torch.randn(n, 8))
    texts = [str(w.message) for w in caught]
    assert len(texts) == 2 and "no folder to reproduce it in" in texts[1] and repro_bundle.VARIABLE in texts[1]
    assert row().violations == 2 and row().bundle == ""


def test_a_full_disk_leaves_no_half_of_a_folder(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.warns(ShadowWarning), kx.use("bad", shadow="torch_ref"):
        kx.softmax(X)
    assert list((tmp_path / "kept").iterdir()) == []


def test_one_folder_per_kind_of_call_and_not_too_many(tmp_path):
    with warnings.catch_warnings(), kx.use("bad", shadow="torch_ref"):
        warnings.simplefilter("ignore")
        for n in range(2, 2 + repro_bundle.MOST + 3):
            for _ in range(2):
                kx.softmax(torch.randn(2, 3 * n))
    assert len(list((tmp_path / "kept").iterdir())) == repro_bundle.MOST


def test_where_warnings_are_errors_the_first_violation_stops_the_program(tmp_path):
    with warnings.catch_warnings(), kx.use("bad", shadow="torch_ref"):
        warnings.simplefilter("error", ShadowWarning)
        with pytest.raises(ShadowWarning):
            kx.softmax(X)
    assert row().violations == 1 and len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.ShadowWarning")
def test_the_operators_of_a_backward_are_shadowed_on_autograds_own_thread():
    leaf = X.clone().requires_grad_()
    with kx.use("bad/plain", shadow="torch_ref/exact"):
        y = kx.softmax(leaf)
    y.pow(2).sum().backward()
    assert row("softmax_backward").violations == 1 and leaf.grad is not None
    assert row("softmax").violations == 1 and y.requires_grad


def test_a_call_that_names_its_backend_is_not_shadowed():
    with kx.use("bad", shadow="torch_ref"):
        kx.softmax(X, backend="good")
    assert kx.shadow_report().rows == ()


@pytest.mark.filterwarnings("ignore")  # torch's own decompositions
def test_nothing_is_compared_where_torch_traces():
    with kx.use("torch_ref", shadow="bad"):
        torch.compile(lambda x: kx.softmax(x), fullgraph=True, backend="eager")(X)
        assert kx.shadow_report().rows == ()
        make_fx(lambda x: kx.softmax(x))(X)
        torch.func.vmap(kx.softmax)(X)
    assert (row().sampled, row().skipped) == (2, 2) and "where torch traces" in row().last


def test_threads_count_together():
    made = kx.use("good", shadow="torch_ref", sample=0.5)

    @made
    def work(_):
        for _ in range(50):
            kx.softmax(X)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert row().calls == 200 and row().agreed == row().sampled > 50


@pytest.mark.parametrize("sample", [0, -1, 1.5, "0.1", True, float("nan")])
def test_a_share_is_a_number_from_0_to_1(sample):
    with pytest.raises(ArgumentError, match=r"use\(\): sample: expected a share of the calls, 0 < sample <= 1, got"):
        kx.use("good", shadow="torch_ref", sample=sample)


def test_names_of_shadows_are_checked():
    with pytest.raises(UnknownName, match=r'unknown backend "torch_reff" in use\(shadow=\).*did you mean "torch_ref"'):
        kx.use("good", shadow="torch_reff")
    with pytest.raises(ArgumentError, match=r"sample: expected shadow= to name what computes along, got 0\.5 alone"):
        kx.use("good", sample=0.5)


def test_large_calls_are_compared_with_each_other(monkeypatch):
    """Without a reference one cannot tell which of the two is wrong."""
    monkeypatch.setattr(judge, "AFFORDABLE", {"cpu": (8, 8)})
    with kx.use("good", shadow="torch_ref"):
        for dtype in (torch.float32, torch.bfloat16):
            kx.softmax(torch.randn(30, 50).to(dtype))
            kx.matmul(torch.randn(30, 50).to(dtype), torch.randn(50, 20).to(dtype))
            kx.argmax(torch.randn(30, 50).to(dtype))
    assert {(r.agreed, r.violations) for r in kx.shadow_report().rows} == {(2, 0)}
    with pytest.warns(ShadowWarning, match="against each other: bad/plain and torch_ref/exact"):
        with kx.use("bad", shadow="torch_ref"):
            kx.softmax(X)


def test_the_command_says_that_a_variant_fails_or_is_gone(tmp_path, capsys, monkeypatch):
    with pytest.warns(ShadowWarning), kx.use("bad", shadow="torch_ref"):
        kx.softmax(X)
    (folder,) = (tmp_path / "kept").iterdir()
    monkeypatch.setattr(Broken, "__call__", Raising.__call__)
    assert rerun.main([str(folder)]) == 2
    assert "bad/plain fails: MemoryError: no room" in capsys.readouterr().err
    (folder / "call.json").write_text((folder / "call.json").read_text().replace("bad/plain", "bad/other"))
    assert rerun.main([str(folder)]) == 2
    assert 'unknown variant of bad for softmax "other"' in capsys.readouterr().err
