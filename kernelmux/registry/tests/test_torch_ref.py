"""The baseline where torch has ways of its own: scales, strides, global flags, gradients, inference mode, autocast."""

import threading

import pytest
import torch

from kernelmux.registry import catalog, dtypes
from kernelmux.registry.call import dispatch
from kernelmux.registry.interop import autocast
from kernelmux.registry.ops import attention, softmax
from kernelmux.registry.spec import cases, numerics, value_domains
from kernelmux.registry.spec.binding import expected
from kernelmux.registry.spec.signature import exact_arguments

OPS = catalog.names()
SCALES = (0.0, -0.0, -0.3, -1.0, 1e-46, -1e-40, 0.7, 30.0, -50.0, 3e5, 1e30, -3e38)


def inputs(op, dtype, case=0, seed=0):
    """Tensors and scalars of a case of the operator."""
    spec = catalog.spec(op)
    chosen = [c for c in spec.cases if c.tier != "full" and all(0 not in s for s in c.shapes.values())][case]
    rng = cases.generator(op, str(seed), dtype)
    return spec.drawn(chosen, dtype, rng), dict(chosen.scalars)


def compute(op, tensors, scalars):
    """The outputs of a call."""
    return dispatch.outputs(op, **tensors, **scalars, backend="torch_ref")


def run(op, tensors, scalars, outputs=None):
    """Judge the outputs of a call, or given ones, by the spec."""
    spec = catalog.spec(op)
    outputs = outputs or compute(op, tensors, scalars)
    bound = spec.bind(**tensors, **scalars)
    how = numerics.arithmetic("mma" if "mma" in spec.arithmetics else "fp32", bound.dtype, bound.scalars)
    for output, got, ref, model in zip(spec.outputs, outputs, spec.evaluate(bound), spec.errors, strict=True):
        assert got.dtype == output.dtype_of(bound) and got.is_contiguous()
        if not got.is_floating_point():
            assert torch.equal(got, ref), f"{op} {scalars}: {output.name} differs from the reference"
            continue
        limit = numerics.bound(model, how, ref, got.dtype, bound.dtype, exact_arguments(bound), bound.axes).total
        found = numerics.compare(got, ref, limit)
        assert found.passed, f"{op} {scalars}: {found.budget} of the bound at {found.index}"


@pytest.mark.parametrize("scale", [scale for scale in SCALES if not expected(attention.SCALE, scale)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("m", "n"), [(5, 5), (16, 16), (7, 19), (19, 7), (1, 1), (3, 0)])
def test_attention_is_right_for_every_scale(scale, causal, m, n):
    rng = cases.generator("attention", str(m), torch.bfloat16)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        shapes = {"q": (1, 4, m, 64), "k": (1, 2, n, 64), "v": (1, 2, n, 64)}
        tensors = {name: cases.draw(shape, dtype, rng) for name, shape in shapes.items()}
        for window in (None, 4):
            run("attention", tensors, {"causal": causal, "scale": scale, "window": window})


@pytest.mark.parametrize("scale", [scale for scale in SCALES if not expected(softmax.SCALE, scale)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_softmax_is_right_for_every_scale(scale, dtype):
    rng = cases.generator("softmax", "scales", dtype)
    for axis in (0, 1):
        run("softmax", {"x": cases.draw((13, 65), dtype, rng)}, {"axis": axis, "scale": scale})


def views(x):
    """Tensors of the shape of x as callers have them: with steps, in another order, expanded, negative."""
    if x.dim():
        wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
        wide[..., ::2] = x
        yield wide[..., ::2]
    if x.dim() > 1:
        yield x.transpose(0, -1).contiguous().transpose(0, -1)
        yield x[:1].expand(x.shape)
    if dtypes.computes(x.dtype):
        yield torch._neg_view(-x)


@pytest.mark.parametrize("op", OPS)
def test_every_output_is_contiguous_and_right_for_every_view(op):
    for dtype in catalog.spec(op).dtypes:
        if not dtype.is_floating_point:
            continue
        tensors, scalars = inputs(op, dtype)
        for name in tensors:
            for view in views(tensors[name]):
                run(op, followed(op, {**tensors, name: view}, scalars), scalars)


def followed(op, tensors, scalars):
    """The tensors of a call, with those that are computed from others computed anew."""
    spec = catalog.spec(op)
    lawful = value_domains.lawful(spec, tensors, scalars)
    return {**tensors, **{t.name: lawful[t.name] for t in spec.tensors if isinstance(t.domain, value_domains.Computed)}}


def test_matmul_changes_no_global_flag(monkeypatch):
    seen = []
    kind = type(torch.backends.cuda.matmul)
    monkeypatch.setattr(kind, "__setattr__", lambda self, name, value: seen.append(name))
    a = torch.randn(4, 4)
    for precision in ("ieee", "tf32"):
        dispatch.function("matmul")(a, a, precision, backend="torch_ref")
    assert not seen


def test_threads_leave_the_flags_of_matmul_as_they_were():
    before, a = torch.backends.cuda.matmul.fp32_precision, torch.randn(3, 3)
    multiply = dispatch.function("matmul")

    def work(precision):
        for _ in range(300):
            multiply(a, a, precision, backend="torch_ref")

    threads = [threading.Thread(target=work, args=(p,)) for p in ("tf32", "ieee", "tf32", "ieee")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.fixture
def fp32_precision():
    """Sets torch's flag for products of matrices on the CPU, until the test ends."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield lambda value: torch._C._set_fp32_precision_setter("mkldnn", "matmul", value)
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", before)


@pytest.mark.parametrize(
    ("flag", "precision", "exact"),
    [
        ("bf16", "ieee", True),
        ("bf16", "tf32", True),
        ("tf32", "ieee", True),
        ("tf32", "tf32", False),
        ("ieee", "ieee", False),
    ],
)
def test_a_flag_that_allows_less_than_the_call_asks_for_is_gone_around(
    fp32_precision, monkeypatch, flag, precision, exact
):
    fp32_precision(flag)
    seen, real = [], torch.matmul

    def matmul(a, b):
        seen.append(a.dtype)
        return real(a, b)

    monkeypatch.setattr(torch, "matmul", matmul)
    rng = cases.generator("matmul", flag, torch.float32)
    tensors = {name: cases.draw((64, 64), torch.float32, rng) for name in "ab"}
    run("matmul", tensors, {"precision": precision})
    assert seen == [torch.float64 if exact else torch.float32]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_every_operator_works_without_gradients(op, context):
    dtype = catalog.spec(op).dtypes[0]
    plain, scalars = inputs(op, dtype)
    with context():
        outputs = compute(op, {name: x.clone() for name, x in plain.items()}, scalars)
    run(op, plain, scalars, tuple(y.clone() for y in outputs))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_changes_the_dtypes_that_it_says_and_no_others(op, low):
    for dtype in catalog.spec(op).dtypes:
        if dtype.is_floating_point:
            tensors, scalars = inputs(op, dtype)
            with torch.autocast("cpu", dtype=low):
                outputs = compute(op, tensors, scalars)
                assert torch.is_autocast_enabled("cpu")
                cast = autocast.cast(catalog.spec(op), tuple(tensors.values()), "cpu")
            run(op, dict(zip(tensors, cast, strict=True)), scalars, outputs)


def floating(op):
    """Every output is of the dtype of an input or of one that is fixed, and none holds integers."""
    kinds = [output.dtype for output in catalog.spec(op).outputs]
    return all(kind is None or (isinstance(kind, torch.dtype) and kind.is_floating_point) for kind in kinds)


@pytest.mark.parametrize("op", [op for op in OPS if floating(op)])
def test_the_baseline_has_gradients_in_every_input(op):
    tensors, scalars = inputs(op, torch.float32)
    leaves = {name: x.requires_grad_() for name, x in tensors.items() if x.is_floating_point()}
    result = dispatch.function(op)(**{**tensors, **leaves}, **scalars, backend="torch_ref")
    outputs = result if isinstance(result, tuple) else (result,)
    total = sum((y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum() for y in outputs)
    for name, got in zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True):
        assert got.isfinite().all() and got.abs().sum() > 0, name


def test_gelu_takes_a_gradient_whose_rows_overlap():
    x, line = torch.randn(5, 5).bfloat16(), torch.randn(9).bfloat16()
    grad_out = line.as_strided((5, 5), (1, 1))
    run = dispatch.function("gelu_backward")
    assert torch.equal(run(grad_out, x, backend="torch_ref"), run(grad_out.clone(), x, backend="torch_ref"))
