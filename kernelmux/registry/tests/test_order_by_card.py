"""What depends on the card of a call: which backend is first, what no backend runs, what is said of slow products."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Ahead, Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice.requests import AUTO
from kernelmux.registry.spec.conditions import Capability
from kernelmux.registry.tests import made_up
from kernelmux.registry.tests.made_up import told
from kernelmux.registry.util import cards


def decided(op: str, card: str, dtype: torch.dtype, case: str) -> tuple[str, str]:
    """The variant that auto takes on a card without recorded times, and who says so."""
    spec = catalog.spec(op)
    call = spec.hypothetical(spec.case(case), dtype, torch.device("cuda"), cards.named(card).capability)
    found = dispatch.decide(call, AUTO, elsewhere=True)
    return found.chosen.name if found.chosen else "none", found.request.source


FIRST = [
    ("matmul", torch.bfloat16, "a=4096x4096 b=4096x4096"),
    ("linear", torch.float16, "x=4096x4096 weight=4096x4096"),
    ("fp8_matmul", torch.float8_e4m3fn, "a=2048x2048 b=2048x2048.mT scale_a=scalar scale_b=scalar"),
    ("attention", torch.bfloat16, "q=1x8x1024x64 k=1x8x1024x64 v=1x8x1024x64"),
]


@pytest.mark.parametrize(("op", "dtype", "case"), FIRST, ids=[op for op, *_ in FIRST])
def test_on_blackwell_triton_is_first_where_it_has_the_new_tensor_cores(op: str, dtype: torch.dtype, case: str) -> None:
    pytest.importorskip("triton")
    for card in ("b200", "b300"):
        name, source = decided(op, card, dtype, case)
        sm = cards.named(card).sm
        assert name.startswith("triton/") and source == f"auto: on {sm} triton first: tcgen05"
    for card in ("a100", "rtx4090", "h200", "rtx5090"):
        assert (decided(op, card, dtype, case)[1] == "auto" and "triton" not in decided(op, card, dtype, case)[0]) or (
            op == "fp8_matmul" and card == "a100"
        )


def test_elsewhere_and_for_rungs_without_them_the_order_is_as_ever() -> None:
    pytest.importorskip("triton")
    assert decided("matmul", "b200", torch.float32, "a=512x512 b=512x512")[0].startswith("cuda/")
    assert decided("matmul", "b200", torch.bfloat16, "a=4x4096 b=4096x4096")[0].startswith("cuda/")
    assert decided("softmax", "b200", torch.bfloat16, "x=512x512")[0].startswith("cuda/")
    int8 = "a=2048x2048 b=2048x2048"
    assert decided("int8_matmul", "b200", torch.int8, int8)[0].startswith("triton/")
    assert decided("int8_matmul", "b300", torch.int8, int8)[0].startswith("cuda/")


def test_before_hopper_triton_is_first_for_channels_last_images_alone() -> None:
    pytest.importorskip("triton")
    first = "x=8x64x28x28 weight=64x64x3x3 padding=1"
    last = f"{first} channels-last"
    for card, backend in (
        ("a100", "triton"),
        ("rtx4090", "triton"),
        ("h200", "cuda"),
        ("rtx5090", "cuda"),
        ("t4", "cuda"),
    ):
        assert decided("conv2d", card, torch.float16, last)[0].startswith(f"{backend}/"), card
        assert decided("conv2d", card, torch.float16, first)[0].startswith("cuda/"), card
    assert "channels-last" in decided("conv2d", "a100", torch.float16, last)[1]


def test_every_variant_that_comes_first_somewhere_exists() -> None:
    for name in registered.backends():
        for rule in registered.backend(name).ahead if registered.loads(name) else ():
            for op, _, variant in (label.partition("/") for label in rule.variants):
                assert variant in registered.variants(name, op), f"{name}: {op}/{variant}"


def test_a_backend_that_is_first_anyway_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Ahead(frozenset({"softmax/rows"}), frozenset({torch.float32}), Capability((10, 0)), "new units")
    ladder = {"softmax": {"rows": Implementation(made_up.softmax, "")}}

    def install(priority: int) -> None:
        new = Backend("new", "made up", priority, lambda device: None, ahead=(rule,))
        made_up.install(monkeypatch, {"new": (new, ladder), "old": (made_up.home("old", 20), ladder)})

    install(10)
    assert decided("softmax", "b200", torch.float32, "x=4x6") == ("new/rows", "auto: on sm_100 new first: new units")
    assert decided("softmax", "h200", torch.float32, "x=4x6") == ("old/rows", "auto")
    assert decided("softmax", "b200", torch.float16, "x=4x6") == ("old/rows", "auto")
    install(30)
    assert decided("softmax", "b200", torch.float32, "x=4x6") == ("new/rows", "auto")


def test_products_without_tensor_cores_are_told_once_for_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
        return a @ b

    new = Implementation(product, "", (Capability((8, 0)),), arithmetic="mma")
    ladder = {"matmul": {"fma": Implementation(product, ""), "cores": new}}
    own = Backend("own", "made up", 40, lambda device: None, emulates=True)
    made_up.install(monkeypatch, {"own": (own, ladder)})
    a, half = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.float16)

    def texts(card: str, *tensors: torch.Tensor) -> list[str]:
        dispatch._plans.clear()
        with cards.standing_for(card):
            found = told(lambda: [kx.matmul(x, x, backend="own") for x in tensors])
        return [text for text in found if "emulator" not in text]

    with warnings.catch_warnings():
        monkeypatch.setattr("kernelmux.registry.choice.warn_once._emulating", {"own"})
        assert texts("h200", a, half) == texts("a100", a, half) == texts("t4", a.float()) == []
        assert texts("t4", a, half, a) == ["matmul: NVIDIA T4 has no tensor cores for bf16: computed by FMA in fp32"]
        monkeypatch.setattr("kernelmux.registry.choice.warn_once._told", set())
        fma = "computes fp16 by FMA in fp32 on NVIDIA T4, without its tensor cores"
        assert texts("t4", half) == [f"matmul: own/fma {fma}"]
        ladder["matmul"] = {"dot": Implementation(product, "", arithmetic="mma")}
        made_up.install(monkeypatch, {"own": (own, ladder)})
        assert texts("t4", half) == []
        made_up.install(monkeypatch, {"own": (replace(own, cores=(8, 0)), ladder)})
        assert texts("t4", half) == [f"matmul: own/dot {fma}"]


@pytest.mark.parametrize("card", ["t4", "rtx3090", "rtx5090"])
def test_auto_runs_every_call_but_products_of_formats_that_the_card_lacks(card: str) -> None:
    lacking = set()
    for spec in map(catalog.spec, catalog.usable()):
        for dtype in spec.dtypes:
            every = (*spec.cases[:1], *spec.workloads[:1])
            texts = [case.text for case in every if case.dtypes is None or dtype in case.dtypes]
            lacking |= {(spec.name, dtype) for text in texts if decided(spec.name, card, dtype, text)[0] == "none"}
    formats = {} if cards.named(card).multiplies("e4m3") else catalog.spec("fp8_matmul").dtypes
    assert lacking == {("fp8_matmul", dtype) for dtype in formats}


@pytest.mark.parametrize("scales", ["scale_a=scalar scale_b=scalar", "scale_a=64x1 scale_b=1x64"])
def test_no_backend_multiplies_fp8_below_sm_89(scales: str) -> None:
    case = f"a=64x64 b=64x64.mT {scales}"
    for card in ("t4", "a100", "rtx3090"):
        assert decided("fp8_matmul", card, torch.float8_e4m3fn, case)[0] == "none"
    assert decided("fp8_matmul", "rtx4090", torch.float8_e4m3fn, case)[0] != "none"
