"""The check of the timed output: wrong results are refused, and large calls are sampled along axes that allow it."""

from typing import Any

import pytest
import torch

from kernelmux.perf.timing import sampling, verify
from kernelmux.perf.timing.verify import Oracle, WrongOutput
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation, variants


def call_of(op, dtype=torch.float32, **arguments):
    generator = torch.Generator().manual_seed(1)
    made: dict[str, Any] = {
        name: torch.randn(value, generator=generator).to(dtype) if isinstance(value, tuple) else value
        for name, value in arguments.items()
    }
    return catalog.spec(op).bind(**made)


CALLS: dict[str, dict[str, Any]] = {
    "softmax": {"x": (60, 50)},
    "matmul": {"a": (40, 30), "b": (30, 50)},
    "transpose": {"x": (40, 50)},
    "reduce_sum": {"x": (40, 50), "axis": 0},
    "rms_norm": {"x": (40, 50), "weight": (50,)},
    "rms_norm_backward": {"grad_out": (40, 50), "x": (40, 50), "weight": (50,)},
}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_right_output_passes_whole_and_sampled(op, share, monkeypatch):
    call = call_of(op, **CALLS[op])
    monkeypatch.setattr(sampling, "room", lambda call: share * sampling.LIVE * sampling.work(call))
    *_, implementation = variants("torch_ref", op).values()
    checked = Oracle(call).check(implementation.fn(*call.arguments.values()), implementation)
    assert checked.budget <= 1.0
    assert bool(checked.sampled) == (share < 1 and op != "rms_norm_backward")


@pytest.mark.parametrize("short", ["reference", "bound"])
def test_where_memory_is_too_small_a_sample_is_checked(short, monkeypatch):
    call = call_of("softmax", **CALLS["softmax"])
    whole = sampling.work(call)
    place = (verify, "exact_arguments") if short == "reference" else (verify.numerics, "compare")
    step = getattr(*place)

    def of_a_small_machine(*args):
        given = args[0].tensors["x"] if short == "reference" else args[0]
        if given.numel() * 2 > call.tensors["x"].numel():
            raise torch.OutOfMemoryError("as it were")
        return step(*args)

    monkeypatch.setattr(*place, of_a_small_machine)
    monkeypatch.setattr(sampling, "room", lambda call: 2 * sampling.LIVE * whole)
    *_, implementation = variants("torch_ref", "softmax").values()
    checked = Oracle(call).check(implementation.fn(*call.arguments.values()), implementation)
    assert checked.sampled and checked.budget <= 1.0


def test_a_call_that_changes_its_inputs_changes_no_reference():
    call = call_of("softmax", **CALLS["softmax"])
    oracle = Oracle(call)
    call.tensors["x"].mul_(2)
    *_, implementation = variants("torch_ref", "softmax").values()
    with pytest.raises(WrongOutput, match="wrong at"):
        oracle.check(implementation.fn(*call.arguments.values()), implementation)


@pytest.mark.parametrize("op", CALLS)
def test_one_wrong_element_is_found(op):
    call = call_of(op, **CALLS[op])
    *_, implementation = variants("torch_ref", op).values()
    result = implementation.fn(*call.arguments.values())
    out = result[-1] if isinstance(result, tuple) else result
    out.view(-1)[out.numel() // 3] += 1
    with pytest.raises(WrongOutput, match="wrong at"):
        Oracle(call).check(result, implementation)


def test_an_output_that_was_not_written_is_found():
    call = call_of("softmax", x=(8, 9))
    with pytest.raises(WrongOutput, match="nan"):
        Oracle(call).check(torch.full((8, 9), torch.nan), Implementation(fn=torch.softmax, idea=""))


def test_shape_and_dtype_are_checked():
    call = call_of("transpose", x=(3, 4))
    implementation = Implementation(fn=torch.t, idea="")
    with pytest.raises(WrongOutput, match=r"\[4, 3\]"):
        Oracle(call).check(torch.zeros(3, 4), implementation)
    with pytest.raises(WrongOutput, match="float16"):
        Oracle(call).check(torch.zeros(4, 3, dtype=torch.float16), implementation)


def test_integers_must_be_equal():
    x = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    call = catalog.spec("transpose").bind(x)
    implementation = Implementation(fn=torch.t, idea="")
    assert Oracle(call).check(x.t().contiguous(), implementation).budget == 0.0
    with pytest.raises(WrongOutput, match="exact"):
        Oracle(call).check(x.t().contiguous() + 1, implementation)


@pytest.mark.parametrize(
    ("op", "arguments", "axes"),
    [
        ("softmax", {"x": (60, 50)}, {"...0": "spread"}),
        ("softmax", {"x": (60, 50), "axis": 0}, {"...1": "spread"}),
        ("matmul", {"a": (40, 30), "b": (30, 50)}, {"M": "spread", "N": "spread"}),
        ("reduce_sum", {"x": (40, 50)}, {}),
        ("rms_norm_backward", CALLS["rms_norm_backward"], {}),
        (
            "attention",
            {"q": (2, 3, 30, 16), "k": (2, 3, 30, 16), "v": (2, 3, 30, 16)},
            {"B": "spread", "M": "spread", "H": "spread"},
        ),
    ],
)
def test_the_axes_along_which_a_call_may_be_sampled(op, arguments, axes):
    assert {c.axis: c.picker for c in sampling.independent(call_of(op, **arguments))} == axes


def test_rows_whose_mean_is_taken_are_not_sampled_though_the_last_ones_are_ignored():
    logits, target = torch.randn(60, 50), torch.randint(0, 50, (60,))
    given: dict[str, Any] = {
        "grad_loss": torch.tensor(1.5),
        "logits": logits,
        "target": target,
        "lse": logits.logsumexp(-1),
    }
    found = {how: catalog.spec("cross_entropy_backward").bind(**given, reduction=how) for how in ("mean", "sum")}
    assert not list(sampling.independent(found["mean"]))
    assert [c.axis for c in sampling.independent(found["sum"])] == ["M"]


def test_causal_attention_is_sampled_by_batch_by_last_queries_and_by_heads():
    q = k = v = (4, 4, 30, 16)
    call = call_of("attention", torch.float16, q=q, k=k, v=v, causal=True)
    found = {c.axis: c.picker for c in sampling.independent(call)}
    assert found == {"B": "spread", "M": "last", "H": "spread"}


@pytest.mark.parametrize("heads", [(32, 8), (12, 12), (40, 20), (7, 1)])
def test_heads_of_queries_are_sampled_with_those_of_keys_that_they_share(heads):
    q, k = (1, heads[0], 5, 16), (1, heads[1], 6, 16)
    call = call_of("attention_backward", grad_out=q, q=q, k=k, v=k, y=q, lse=q[:3])
    found = list(sampling.independent(call))
    if heads[1] == 1:
        assert not found
        return
    [free] = found
    assert set(free.axes) == {"G", "H"}
    cut = free.cut(call, sampling.spread(heads[1], 2))
    share = heads[0] // heads[1]
    assert cut.positions["H"].tolist() == [*range(share), *range(heads[0] - share, heads[0])]


def test_heads_that_suit_those_of_keys_by_chance_are_not_cut_alone():
    """Three of six, spread, have the three heads of keys that they had."""
    q, k = (3, 6, 12, 16), (3, 3, 12, 16)
    found = [c.axes for c in sampling.independent(call_of("attention", q=q, k=k, v=k))]
    assert ("H",) not in found and ("G", "H") in found


def test_a_sample_holds_the_first_and_the_last_position():
    assert sampling.spread(100, 3).tolist() == [0, 50, 99]
    assert sampling.last(100, 2).tolist() == [98, 99]
