"""Calls of swapped modules that the operators do not take: they run as torch does, are counted, and told of once."""

from __future__ import annotations

import itertools
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn as theirs
from torch._dynamo.testing import CompileCounter
from torch._subclasses import FakeTensorMode

import kernelmux as kx
from kernelmux import nn
from kernelmux.nn import candidates, llama
from kernelmux.nn.module import Ours
from kernelmux.registry import catalog
from kernelmux.registry.choice import warn_once
from kernelmux.registry.dtypes import FLOATS, SHORT
from kernelmux.registry.observe import counters

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64)
SHAPES = {
    "vector": (8,),
    "rows": (3, 8),
    "images": (2, 8, 4, 8),
    "number": (),
    "no rows": (0, 8),
    "no columns": (3, 0),
    "one column": (3, 1),
    "other columns": (3, 5),
}
MODULES: dict[str, Any] = {
    "Linear": lambda: theirs.Linear(8, 5),
    "Linear without bias": lambda: theirs.Linear(8, 5, bias=False),
    "LayerNorm": lambda: theirs.LayerNorm(8),
    "LayerNorm of two axes": lambda: theirs.LayerNorm((4, 8), bias=False),
    "RMSNorm": lambda: theirs.RMSNorm(8),
    "GELU": theirs.GELU,
    "GELU by tanh": lambda: theirs.GELU("tanh"),
    "Softmax": lambda: theirs.Softmax(-1),
    "LogSoftmax": lambda: theirs.LogSoftmax(0),
    "MaxPool2d": lambda: theirs.MaxPool2d((3, 2), stride=2, padding=1),
}
LOSSES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sum": {"reduction": "sum"},
    "rows": {"reduction": "none", "ignore_index": 2},
    "smoothed": {"label_smoothing": 0.2},
}


@pytest.fixture(autouse=True)
def nothing_counted_or_told(monkeypatch):
    monkeypatch.setattr(warn_once, "_told", set())
    monkeypatch.setattr(counters, "_counters", {})


def drawn(shape, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return x.to(dtype) if dtype.is_floating_point or dtype.is_complex else (3 * x.abs()).to(dtype)


def odd():
    """Inputs by what is odd about them, and some that are not."""
    for (name, shape), dtype in itertools.product(SHAPES.items(), DTYPES):
        yield f"{name} of {dtype}", drawn(shape, dtype)
    x = drawn((3, 8))
    yield "channels-last", drawn((2, 8, 4, 8)).to(memory_format=torch.channels_last)
    yield "transposed", drawn((8, 8)).t()
    yield "expanded", drawn((1, 8)).expand(4, 8)
    yield "conjugate", drawn((3, 8), torch.complex64).conj()
    yield "negative", drawn((3, 8), torch.complex64).conj().imag
    yield "on meta", x.to("meta")
    yield "coordinates", x.to_sparse()
    yield "compressed rows", x.to_sparse_csr()
    yield "nested", torch.nested.nested_tensor([x, x[:2]])
    yield "jagged", torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)


def by_torch():
    return sum(entry.calls for entry in kx.stats().entries if entry.source == "patch()")


def patched(module, since=torch.float32, ops=None):
    """Two modules with the same parameters, one of which was patched in fp32; both are cast to a dtype since then."""
    plain = module()
    ours = module()
    ours.load_state_dict(plain.state_dict())
    assert kx.patch(ours, ops).swapped
    return plain.to(since), ours.to(since)


def compare(plain, ours, *inputs):
    """Whether plain runs; where it does, ours runs it once, with the same bits if that is torch, else nearly the same."""
    before = by_torch()
    try:
        want = plain(*inputs)
    except Exception:
        return False
    got = ours(*inputs)
    fell_back = by_torch() - before
    assert fell_back in (0, 1)
    if want.is_nested:
        return got.is_nested
    assert (got.shape, got.layout, got.device) == (want.shape, want.layout, want.device)
    if want.is_meta or want.layout != torch.strided:
        return True
    if fell_back:
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    else:  # in 16 bits torch rounds in between; in fp32 sums of some ten products in another order
        rtol = 2**-6 if inputs[0].dtype in HALVES else 1e-5
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol, equal_nan=True, check_dtype=False)
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_a_swapped_module_runs_whatever_torch_runs(name):
    for dtype in (*FLOATS, torch.float64) if [*MODULES[name]().parameters()] else (torch.float32,):
        plain, ours = patched(MODULES[name], dtype)
        assert [what for what, x in odd() if compare(plain, ours, x)]
    assert by_torch()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOSSES)
def test_a_swapped_loss_takes_whatever_torch_takes(name):
    plain, ours = patched(lambda: theirs.CrossEntropyLoss(**LOSSES[name]))
    rng, ran = torch.Generator().manual_seed(1), 0
    shapes = {(5,): (), (7, 5): (7,), (2, 5, 3): (2, 3), (0, 5): (0,), (3, 0): (3,), (0, 0): (0,), (): ()}
    for (shape, rows), dtype in itertools.product(shapes.items(), DTYPES):
        x, classes = drawn(shape, dtype), torch.randint(0, 5, rows, generator=rng)
        for target in (classes, classes.byte(), classes.int(), torch.rand(shape, generator=rng), x, x.double()):
            ran += compare(plain, ours, x, target)
    assert ran > 30 and by_torch() > 10


def test_one_warning_at_the_line_of_the_user_and_every_call_is_counted():
    ours = theirs.Sequential(theirs.LayerNorm(8), theirs.Softmax(-1))
    kx.patch(ours)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            ours(drawn((2, 8), torch.bfloat16))
    (warning,) = told
    assert warning.category is kx.FallbackWarning and warning.filename == __file__
    reason = "its tensors are bf16 and fp32"
    assert str(warning.message).startswith(
        f"layer_norm: a call of a module that patch() swapped runs as before, because {reason}\n"
    )
    (entry,) = [entry for entry in kx.stats().entries if entry.source == "patch()"]
    assert entry == counters.Counted("layer_norm", "torch", "patch()", reason, 3)


def test_a_module_that_the_user_made_stays_strict():
    for module, x in (
        (nn.Linear(8, 5), drawn((3, 8), torch.float64)),
        (nn.LayerNorm(8), drawn((3, 8), torch.bfloat16)),
        (nn.Softmax(-1), drawn(())),
        (nn.GELU(), drawn(3, torch.float64)),
    ):
        with pytest.raises(kx.ArgumentError):
            module(x)
        kx.patch(module)  # leaves it
        with pytest.raises(kx.ArgumentError):
            module(x)
    assert not by_torch()


def test_attributes_that_change_after_the_patch_count():
    x, pool, loss = drawn((1, 4, 4)), theirs.MaxPool2d(2), theirs.CrossEntropyLoss()
    norm, softmax = theirs.LayerNorm(4), theirs.Softmax(-1)
    for module in (pool, loss, norm, softmax):
        kx.patch(module)
    loss.weight, norm.eps, pool.return_indices, softmax.dim = torch.tensor([1.0, 3.0, 1.0, 1.0]), 0.0, True, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(pool(x)) == 2
        assert torch.equal(softmax(x), x.softmax(0))
        target = torch.tensor([0, 1, 1, 2])
        assert torch.equal(loss(x[0], target), theirs.functional.cross_entropy(x[0], target, loss.weight))
        assert torch.equal(norm(x), theirs.functional.layer_norm(x, (4,), norm.weight, norm.bias, 0.0))
    assert by_torch() == 4


def test_images_that_the_operator_has_no_room_for_are_left_to_torch():
    module = theirs.MaxPool2d(2)
    kx.patch(module)
    with pytest.warns(kx.FallbackWarning, match="too many elements"):
        assert module(torch.empty(1, 2**15, 2**15, device="meta")).shape == (1, 2**14, 2**14)


def test_a_pool_whose_lengths_are_sequences_of_one_is_left_alone():
    patch = kx.patch(theirs.MaxPool2d(3, stride=(2,)))
    assert [entry.reason for entry in patch.left] == ["stride: expected an int, or 2 of them, got (2,)"]


COMPILED: dict[str, tuple[Any, ...]] = {
    "LayerNorm": (drawn((2, 8), torch.bfloat16),),
    "Softmax": (drawn(()),),
    "GELU": (drawn((2, 8), torch.float64),),
    "CrossEntropyLoss": (drawn((2, 8)), drawn((2, 8)).softmax(-1)),
}


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("kind", ["taken", "odd"])
def test_a_graph_has_no_break_and_a_compiled_call_is_counted_when_it_is_compiled(name, kind):
    inputs = COMPILED[name] if kind == "odd" else (drawn((2, 8)), torch.tensor([1, 2]))[: len(COMPILED[name])]
    plain, ours = patched(MODULES.get(name, theirs.CrossEntropyLoss))
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", kx.FallbackWarning)
        got = [compiled(*inputs) for _ in range(2)]
    for y in got:
        torch.testing.assert_close(y, plain(*inputs), rtol=1e-5, atol=1e-5)
    assert by_torch() == (kind == "odd")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours(*map(mode.from_tensor, inputs)).shape == y.shape


def test_a_compiler_that_meets_many_kinds_of_modules_one_by_one_keeps_a_graph_of_each():
    named = [type(f"Named{i}", (theirs.Linear,), {}) for i in range(10)]
    layers = theirs.ModuleList(cls(8, 8) for cls in named)
    kx.patch(layers)

    @torch._dynamo.disable(recursive=False)
    def apart(x):
        for layer in layers:
            x = layer(x)
        return x

    torch._dynamo.reset()
    counter = CompileCounter()
    with torch.no_grad():
        torch.compile(lambda x: apart(x + 1), backend=counter)(drawn((2, 8)))
    assert counter.frame_count == 1 + len(named)


def test_symbolic_trace_sees_torchs_modules():
    class Named(theirs.Linear):
        """None of torch's own: its forward is traced."""

    model = theirs.Sequential(Named(8, 8), theirs.GELU(), theirs.LayerNorm(8))
    want = model(drawn((2, 8)))
    kx.patch(model)
    with pytest.warns(kx.FallbackWarning, match="symbolic_trace"):
        traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(drawn((2, 8))), want)


@pytest.mark.parametrize("dtype", HALVES)
def test_under_autocast_the_operators_run_what_it_casts(dtype):
    plain, ours = patched(lambda: theirs.Sequential(theirs.Linear(8, 8), theirs.GELU(), theirs.LayerNorm(8)))
    with torch.autocast("cpu", dtype=dtype):
        for given in FLOATS:
            want, got = (m(drawn((3, 8), given)) for m in (plain, ours))
            torch.testing.assert_close(got, want, rtol=2**-6, atol=2**-6)
    assert not by_torch()


def heads(dtype, columns=8):
    return drawn((2, 4, 3, columns), dtype), drawn((2, 2, 3, columns), dtype)


@pytest.mark.parametrize("angles", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(1, 3, 8), (2, 3, 8), (1, 1, 8), (1, 8)])
def test_heads_and_angles_of_any_dtypes_are_turned(shape, dtype, angles):
    from kernelmux.nn.templates import _rotary

    half = drawn((*shape[:-1], 4), angles)
    cos, sin = (torch.cat((f(half), f(half)), -1) for f in (torch.cos, torch.sin))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q, k = heads(dtype)
        got, want = llama.rotated(_rotary, q, k, cos, sin), _rotary(q, k, cos, sin)
    odd = dtype != angles or dtype not in FLOATS or shape in ((1, 1, 8), (1, 8))
    assert by_torch() == odd
    for mine, other in zip(got, want, strict=True):
        near = dict(rtol=0, atol=0) if odd else dict(rtol=2**-6, atol=2**-6)
        torch.testing.assert_close(mine, other, **near)


def test_attention_goes_on_for_what_the_operator_does_not_take():
    def otherwise(module, query, key, value, mask, scaling=None, is_causal=None, dropout=0.0):
        return query + scaling, None

    module = theirs.Module()
    q, k = heads(torch.bfloat16)
    narrow = torch.ones(2, 2, 3, 4, dtype=torch.bfloat16)
    odd = {
        "its input is fp64": (q.double(), k.double(), k.double()),
        "its tensors are bf16 and fp32": (q, k, k.float()),
        "its queries, keys or values are broadcast": (q, k[:1], k[:1]),
        "its values have other columns than its queries": (q, k, narrow),
        "its heads of queries are no multiple of those of keys": (q[:, :3], k, k),
        "its tensors have not the axes [B, H, M, D]": (q[0], k[0], k[0]),
    }
    for reason, (query, key, value) in odd.items():
        with pytest.warns(kx.FallbackWarning, match=re.escape(f"because {reason}\n")):
            found, _ = llama.attend(otherwise, module, query, key, value, None, scaling=0.5)
        assert torch.equal(found, query + 0.5)
    assert by_torch() == len(odd)


@pytest.mark.filterwarnings("ignore")
def test_layers_of_transformers_run_whatever_they_ran():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama", reason="bazel/requirements.lock has it")
    configuration = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=8, intermediate_size=6, num_attention_heads=1
    )
    others = pytest.importorskip("transformers.pytorch_utils"), pytest.importorskip("transformers.activations")
    gemma = pytest.importorskip("transformers.models.gemma.modeling_gemma")
    by_gelu = modeling.LlamaConfig(hidden_size=8, intermediate_size=6, num_attention_heads=1, hidden_act="gelu")
    modules = [
        ("rms_norm", lambda: modeling.LlamaRMSNorm(8)),
        ("rms_norm", lambda: gemma.GemmaRMSNorm(8)),
        ("swiglu", lambda: modeling.LlamaMLP(configuration)),
        ("geglu", lambda: modeling.LlamaMLP(by_gelu)),
        ("linear", lambda: others[0].Conv1D(5, 8)),
        ("gelu", others[1].NewGELUActivation),
        ("gelu", others[1].GELUActivation),
    ]
    for op, module in modules:
        for dtype in (*FLOATS, torch.float64):
            plain, ours = patched(module, dtype, op)
            assert any([compare(plain, ours, x) for _, x in odd()])
    assert {entry.operator for entry in kx.stats().entries if entry.source == "patch()"} == {op for op, _ in modules}


def test_operators_take_what_the_modules_believe():
    for op in candidates.OPS:
        spec = catalog.spec(op)
        assert spec.dtypes == FLOATS
        assert all(tensor.like or tensor.dtypes in (FLOATS, (torch.int64,)) for tensor in spec.tensors), op
    assert all(issubclass(cls, Ours) for cls in candidates.OF_TORCH.values())
    assert SHORT[torch.float64] == "fp64"
