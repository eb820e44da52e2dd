"""Under torch.autocast an operator takes and gives the dtypes of torch's operator of the same meaning."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.errors import SpecError
from kernelmux.registry.interop import autocast, torch_ops

X, W = torch.randn(4, 16), torch.randn(16)
Q = torch.randn(1, 2, 4, 64)
PAIRS = {
    "matmul": (lambda x: kx.matmul(x, x.mT), lambda x: x @ x.mT),
    "linear": (lambda x: kx.linear(x, x), lambda x: torch.nn.functional.linear(x, x)),
    "conv2d": (lambda x: kx.conv2d(x[None, None], x[None, None]), lambda x: F.conv2d(x[None, None], x[None, None])),
    "softmax": (lambda x: kx.softmax(x), lambda x: torch.softmax(x, -1)),
    "log_softmax": (lambda x: kx.log_softmax(x), lambda x: torch.log_softmax(x, -1)),
    "layer_norm": (lambda x: kx.layer_norm(x, W), lambda x: F.layer_norm(x, (16,), W)),
    "rms_norm": (lambda x: kx.rms_norm(x, W), lambda x: F.rms_norm(x, (16,), W)),
    "silu": (lambda x: kx.silu(x), F.silu),
    "gelu": (lambda x: kx.gelu(x), F.gelu),
    "reduce_sum": (lambda x: kx.reduce_sum(x, 1), lambda x: x.sum(1)),
    "reduce_max": (lambda x: kx.reduce_max(x, 1), lambda x: x.amax(1)),
    "add": (lambda x: kx.add(x, X), lambda x: x + X),
    "cross_entropy": (lambda x: kx.cross_entropy(x, torch.arange(4)), lambda x: F.cross_entropy(x, torch.arange(4))),
    "attention": (lambda x: kx.attention(Q, Q, Q), lambda x: F.scaled_dot_product_attention(Q, Q, Q)),
}


@pytest.mark.parametrize("op", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_dtypes_are_those_of_torch(op, dtype):
    ours, theirs = PAIRS[op]
    with torch.autocast("cpu", torch.bfloat16):
        got, want = ours(X.to(dtype)), theirs(X.to(dtype))
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


def test_on_a_gpu_norms_softmax_and_sums_are_in_fp32():
    """The lists of torch for CUDA; a rule needs no GPU."""
    half, full = X.bfloat16(), torch.float32
    for op, values in {
        "softmax": (half,),
        "rms_norm": (half, W),
        "layer_norm": (half, W),
        "reduce_sum": (half,),
    }.items():
        assert autocast.target(catalog.spec(op), values, "cuda") == full
    assert autocast.target(catalog.spec("silu"), (half,), "cuda") is None
    assert autocast.target(catalog.spec("silu_backward"), (half, X), "cuda") is None


@pytest.mark.parametrize(
    ("rule", "cpu", "gpu"),
    [
        ("lower", torch.float16, torch.float16),
        ("fp32", torch.float32, torch.float32),
        ("norm", torch.bfloat16, torch.float32),
        ("widest", torch.float32, torch.float32),
        ("keep", None, None),
    ],
)
def test_a_spec_says_what_autocast_does(rule, cpu, gpu):
    spec, values = replace(catalog.spec("add"), autocast=rule), (X.bfloat16(), X)
    with torch.autocast("cpu", torch.float16):
        assert (autocast.target(spec, values, "cpu"), autocast.target(spec, values, "cuda")) == (cpu, gpu)
        alone = autocast.target(spec, (X.bfloat16(),), "cpu")
    assert alone == (cpu if rule in ("lower", "norm") else None)


def test_a_rule_that_there_is_not_is_refused():
    with pytest.raises(SpecError, match="add: autocast: expected one of lower, fp32, norm, widest, keep, got 'bf16'"):
        replace(catalog.spec("add"), autocast="bf16")


def test_gradients_come_in_the_dtypes_of_the_inputs():
    a, b = X.clone().requires_grad_(), X.mT.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        c = kx.matmul(a, b)
    assert c.dtype == torch.bfloat16
    c.float().sum().backward()
    assert a.grad.dtype == b.grad.dtype == torch.float32


def test_operators_of_torch_and_compiled_graphs_follow_the_same_rules():
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch_ops.operator("matmul")(X, X.mT, "ieee").dtype == torch.bfloat16
        run = torch.compile(lambda x: kx.matmul(x, x.mT), fullgraph=True, backend="aot_eager")
        assert run(X).dtype == torch.bfloat16
        assert kx.explain("matmul", X, X.mT).call.dtype == torch.bfloat16
    assert torch_ops.operator("matmul")(X, X.mT, "ieee").dtype == torch.float32


def test_float64_is_left_alone():
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(kx.ArgumentError, match="got fp64"),
    ):
        kx.matmul(X.double(), X.double().mT)
