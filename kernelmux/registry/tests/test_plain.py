"""What `plain` runs: the operators of torch that a user would write, and no copy in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec import cases, value_domains
from kernelmux.registry.spec.conditions import Multiplies
from kernelmux.registry.spec.signature import Call

HALVES = (torch.bfloat16, torch.float16)
VIEWS = {
    "view",
    "_unsafe_view",
    "unsqueeze",
    "slice",
    "select",
    "transpose",
    "t",
    "permute",
    "expand",
    "detach",
    "alias",
}
FP32 = {
    "cross_entropy": "the loss is a number of fp32: its logits are converted first, as under autocast",
    "cross_entropy_with_gradient": "as cross_entropy",
    "cross_entropy_backward": "the logarithms that were saved are fp32, and so is their distance to the logits",
    "quantize_rowwise": "the scale is fp32, and so is a quotient with it",
    "rms_norm": "on a CPU torch composes it of operators in fp32; on a GPU it is one kernel",
    "rms_norm_backward": "as rms_norm",
    "add_rms_norm": "as rms_norm",
    "add_rms_norm_backward": "as rms_norm",
}

GPU = (
    "attention",
    "attention_backward",
    "layer_norm_backward",
    *(f"conv2d{e}" for e in ("", "_backward_input", "_backward_weight")),
)  # in 16 bits only there


class Heard(TorchDispatchMode):
    """The operators of torch that run, but for views: name, bytes read and written, tensors that they make."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bytes = 0
        self.made: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            read = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
            self.names.append(name)
            self.bytes += sum(x.nbytes for x in (*read, *made))
            self.made += made
        return result


def heard(call: Call, variant: str) -> Heard:
    mode = Heard()
    with torch.no_grad(), mode:
        registered.variants("torch_ref", call.spec.name)[variant].fn(*call.arguments.values())
    return mode


def calls(op: str) -> list[Call]:
    """Of each case in 16 bits, one call that `plain` takes."""
    spec, found = catalog.spec(op), []
    plain = registered.variants("torch_ref", op)["plain"]
    for case in spec.cases:
        filled = all(0 not in shape for shape in case.shapes.values())
        for dtype in [d for d in HALVES if d in (case.dtypes or spec.dtypes)] if filled and case.tier != "full" else ():
            tensors = value_domains.lawful(
                spec, spec.drawn(case, dtype, cases.generator(op, dtype)), dict(case.scalars)
            )
            call = spec.bind(**tensors, **case.scalars)
            found += [call] if not plain.unmet(call) else []
    return found


def upcasts(op: str) -> list[str]:
    """Cases in which it makes a tensor of fp32 as large as its largest input in 16 bits."""
    wide = []
    for call in calls(op)[:6]:
        size = max(x.numel() for x in call.tensors.values() if x.dtype in HALVES)
        large = [x for x in heard(call, "plain").made if x.dtype == torch.float32 and x.numel() >= size > 16]
        wide += [f"{dict(call.axes)} {call.dtype}"] if large else []
    return wide


@pytest.mark.parametrize("op", [op for op in catalog.names() if {*HALVES} & {*catalog.spec(op).dtypes}])
def test_plain_makes_no_copy_in_fp32_but_where_a_reason_says_why(op: str) -> None:
    if op in GPU:
        assert not calls(op)
        return
    assert calls(op), "no case in 16 bits that plain takes"
    assert bool(upcasts(op)) == (op in FP32)


def test_swiglu_moves_ten_bytes_an_element_in_two_operators_and_exact_38_in_five() -> None:
    a, b = torch.randn(2, 2**16).bfloat16()
    call = catalog.spec("swiglu").bind(a, b)
    plain, exact = heard(call, "plain"), heard(call, "exact")
    assert plain.names == ["silu", "mul"] and plain.bytes == 10 * a.numel()
    assert len(exact.names) == 5 and exact.bytes == 38 * a.numel()


@pytest.mark.parametrize("op", catalog.names())
def test_every_ladder_has_plain_and_ends_in_what_rounds_no_more_than_the_spec_allows(op: str) -> None:
    ladder = registered.variants("torch_ref", op)
    last = [*ladder][-1]
    assert "plain" in ladder and last == ("exact" if "exact" in ladder else "plain")
    asks = [c for c in ladder[last].requires if not isinstance(c, Multiplies)]  # formats that a card lacks, it lacks
    assert not ladder[last].rounds and not asks
