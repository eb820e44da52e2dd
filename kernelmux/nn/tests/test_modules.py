"""Each module beside torch's of the same name: parameters, state, text, outputs, gradients, and what is refused."""

import copy
import pickle
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux import nn
from kernelmux.nn.tests.counting import counted
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import memory_format

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]

EPS = torch.finfo(torch.float32).eps
PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "RMSNorm": ((24,), {}, (5, 24)),
    "RMSNorm of two axes": (((4, 6),), {"eps": 1e-5}, (2, 5, 4, 6)),
    "LayerNorm": ((24,), {}, (3, 5, 24)),
    "LayerNorm of two axes": (([4, 6],), {"bias": False}, (5, 4, 6)),
    "Linear": ((24, 10), {}, (3, 5, 24)),
    "Linear of a vector": ((24, 10), {"bias": False}, (24,)),
    "Conv2d": ((3, 4, 3), {"stride": (2, 1), "padding": 1, "dilation": 2}, (2, 3, 9, 8)),
    "Conv2d of one image": ((3, 4, (3, 5)), {"padding": "same", "bias": False}, (3, 6, 7)),
    "GELU": ((), {"approximate": "tanh"}, (3, 7)),
    "Softmax": ((), {"dim": 1}, (3, 7, 4)),
    "LogSoftmax": ((), {"dim": -1}, (3, 7)),
    "MaxPool2d": ((3,), {"stride": 2, "padding": 1}, (2, 3, 9, 8)),
    "MaxPool2d of windows side by side": (((3, 2),), {}, (3, 9, 8)),
}


def pair(name):
    """Ours and torch's, made from the same arguments, with the same random parameters."""
    arguments, options, shape = PAIRS[name]
    cls = name.split()[0]
    ours, theirs = (getattr(home, cls)(*arguments, **options) for home in (nn, torch.nn))
    rng = torch.Generator().manual_seed(1)
    for p in theirs.parameters():
        torch.nn.init.normal_(p, generator=rng)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, torch.randn(shape, generator=rng)


def near(ours, theirs, terms=32):
    """fp32 on both sides: sums of `terms` products in another order, roundings of 2^-24 each, on numbers of order 10."""
    torch.testing.assert_close(ours, theirs, rtol=terms * EPS, atol=10 * terms * EPS)


@pytest.mark.parametrize("name", PAIRS)
def test_a_module_has_the_state_the_text_and_the_results_of_torchs(name):
    ours, theirs, x = pair(name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs) and isinstance(ours, type(theirs))
    results = []
    for module in (ours, theirs):
        z = x.clone().requires_grad_()
        y = module(z)
        y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape))
        results.append([y, z.grad, *(p.grad for p in module.parameters())])
    for mine, other in zip(*results, strict=True):
        near(mine, other)


@pytest.mark.parametrize("name", PAIRS)
def test_a_module_runs_on_the_operator_and_not_on_torch(name, monkeypatch):
    ours, _, x = pair(name)
    called = counted(monkeypatch, ours.op)
    ours(x)
    assert called == {ours.op: 1}


@pytest.mark.parametrize("name", ["RMSNorm", "Linear", "Softmax"])
def test_a_module_is_copied_and_pickled_like_torchs(name):
    ours, _, x = pair(name)
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(made(x), ours(x))


LOSSES: dict[str, tuple[Any, Any, Any]] = {
    "rows": ((7, 5), (7,), {}),
    "one row": ((5,), (), {"reduction": "sum"}),
    "places": ((2, 5, 3, 4), (2, 3, 4), {"reduction": "none", "label_smoothing": 0.1}),
    "ignored": ((7, 5), (7,), {"ignore_index": 2}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy_loss_takes_every_shape_of_torchs(name):
    shape, targets, options = LOSSES[name]
    rng = torch.Generator().manual_seed(2)
    x, target = torch.randn(shape, generator=rng), torch.randint(0, 5, targets, generator=rng)
    results = []
    for home in (nn, torch.nn):
        z = x.clone().requires_grad_()
        loss = home.CrossEntropyLoss(**options)(z, target)
        loss.sum().backward()
        results.append((loss, z.grad))
    near(*(r[0] for r in results))
    near(*(r[1] for r in results))


def test_swiglu_is_the_layer_of_llama():
    torch.manual_seed(0)
    module = nn.SwiGLU(16, 40, bias=True)
    assert [*module.state_dict()] == [f"{n}_proj.{p}" for n in ("gate", "up", "down") for p in ("weight", "bias")]
    x = torch.randn(2, 3, 16)
    gate, up, down = (torch.nn.Linear(*s) for s in ((16, 40), (16, 40), (40, 16)))
    for mine, theirs in ((module.gate_proj, gate), (module.up_proj, up), (module.down_proj, down)):
        theirs.load_state_dict(mine.state_dict())
    near(module(x), down(torch.nn.functional.silu(gate(x)) * up(x)), terms=64)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("positions", [None, torch.tensor([4, 9, 0]), torch.tensor([[1, 2, 3], [7, 8, 9]])])
def test_rotary_embedding_turns_pairs_by_their_angles(positions, interleaved):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8)
    turned = nn.RotaryEmbedding(8, base=100.0, interleaved=interleaved)(q, k, positions)
    p = torch.arange(3.0) if positions is None else positions
    p = p.double().expand(2, 3)[:, None, :, None]
    angle = p * 100.0 ** (-torch.arange(0, 8, 2).double() / 8)
    for x, y in zip((q, k), turned, strict=True):
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        z = torch.view_as_complex(torch.stack((a, b), -1).double()) * torch.polar(torch.ones_like(angle), angle)
        expected = torch.view_as_real(z).flatten(-2) if interleaved else torch.cat((z.real, z.imag), -1)
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-5)  # angles up to 9 in fp32: 9 * 2^-24 each


def test_a_change_of_dtype_does_not_round_the_angles():
    rotary, x = nn.RotaryEmbedding(8), torch.randn(1, 1, 300, 8)
    assert torch.equal(rotary.bfloat16()(x, x)[0], nn.RotaryEmbedding(8)(x, x)[0])
    assert rotary.state_dict() == {}


# fp16 and bf16: two roundings, of the weights and of the result, on numbers up to 3. fp32: sums of 16 products and more.
CLOSE = {torch.float32: (1e-5, 1e-5), torch.float16: (2**-9, 2**-8), torch.bfloat16: (2**-7, 2**-6)}


def drawn_for_attention(dtype, rows, columns):
    rng = torch.Generator().manual_seed(3)
    shapes = ((2, 4, rows, 16), (2, 2, columns, 16), (2, 2, columns, 16))
    return [torch.randn(shape, generator=rng).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("columns", [0, 1, 3, 5, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_means_what_torchs_does(causal, columns, dtype):
    q, k, v = drawn_for_attention(dtype, 5, columns)
    rtol, atol = CLOSE[dtype]
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True
    )
    ours = nn.attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=rtol, atol=atol)
    wanted = torch.autograd.grad(exact.sin().sum(), (q, k, v))
    for got, want in zip(torch.autograd.grad(ours.double().sin().sum(), (q, k, v)), wanted, strict=True):
        # Of four queries with each key and value, and of numbers up to 10.
        torch.testing.assert_close(got, want, rtol=4 * rtol, atol=10 * atol)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize(("rows", "columns", "causal"), [(5, 5, True), (3, 6, False), (3, 6, True), (6, 4, True)])
@pytest.mark.filterwarnings("ignore:.*on the emulator")
def test_attention_trains_on_every_backend(backend, rows, columns, causal):
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = drawn_for_attention(dtype, rows, columns)
        rtol, atol = CLOSE[dtype]
        exact = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True, scale=0.3
        )
        ours = nn.attention(q, k, v, is_causal=causal, enable_gqa=True, scale=0.3, backend=backend)
        torch.testing.assert_close(ours.double(), exact, rtol=rtol, atol=atol)
        wanted = torch.autograd.grad(exact.sin().sum(), (q, k, v))
        for got, want in zip(torch.autograd.grad(ours.double().sin().sum(), (q, k, v)), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=4 * rtol, atol=10 * atol)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.filterwarnings("ignore:.*on the emulator")
def test_attention_lies_in_memory_as_its_values_do(backend, monkeypatch):
    """So that heads are put side by side without a copy; with and without a gradient."""
    monkeypatch.setattr(memory_format, "WORTH", 0)
    q, k, v = (x.detach() for x in drawn_for_attention(torch.bfloat16, 5, 7))
    apart = torch.empty(2, 7, 2, 16, dtype=torch.bfloat16).transpose(1, 2).copy_(v).requires_grad_()
    plain = nn.attention(q, k, v, enable_gqa=True, backend=backend)
    y = nn.attention(q, k, apart, enable_gqa=True, backend=backend)
    assert torch.equal(y, plain) and y.transpose(1, 2).is_contiguous()
    y.transpose(1, 2).flatten(2).sin().sum().backward()
    expected = v.clone().requires_grad_()
    nn.attention(q, k, expected, enable_gqa=True, backend=backend).sin().sum().backward()
    torch.testing.assert_close(apart.grad, expected.grad, rtol=0, atol=0)
    with torch.no_grad():
        assert nn.attention(q, k, apart, enable_gqa=True, backend=backend).transpose(1, 2).is_contiguous()


def test_gradients_of_attention_are_slopes():
    """Of sin of the output along a random direction: differences of the same sum in float64 torch, 1e-3 apart."""
    q, k, v = tensors = drawn_for_attention(torch.float32, 4, 6)
    directions = [torch.randn_like(x) for x in tensors]

    def loss(step):
        q, k, v = (x.detach().double() + step * d for x, d in zip(tensors, directions, strict=True))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.sin().sum()

    ours = nn.attention(q, k, v, is_causal=True, enable_gqa=True).sin().sum()
    found = torch.autograd.grad(ours, tensors)
    slope = sum(float((g * d).sum()) for g, d in zip(found, directions, strict=True))
    assert slope == pytest.approx(float(loss(1e-3) - loss(-1e-3)) / 2e-3, rel=1e-4, abs=1e-4)


X = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
REFUSED = {
    "RMSNorm: elementwise_affine: expected True": lambda: nn.RMSNorm(8, elementwise_affine=False),
    "LayerNorm: elementwise_affine: expected True": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "RMSNorm: eps: expected 1e-20 <= eps <= 1.0 or eps = 0.0, got 2.0": lambda: nn.RMSNorm(8, eps=2.0),
    "LayerNorm: eps: expected 1e-12 <= eps <= 1.0, got 0.0": lambda: nn.LayerNorm(8, eps=0.0),
    "RMSNorm: weight: expected dtype one of fp32, fp16, bf16, got": lambda: nn.RMSNorm(8, dtype=torch.float64),
    "Linear: weight: expected dtype one of": lambda: nn.Linear(2, 2, dtype=torch.float64),
    "Conv2d: groups: expected 1, got 2": lambda: nn.Conv2d(4, 4, 3, groups=2),
    "Conv2d: padding_mode: expected 'zeros', got 'reflect'": lambda: nn.Conv2d(4, 4, 3, padding_mode="reflect"),
    "Conv2d: padding: expected the same on both sides, got 'same'": lambda: nn.Conv2d(4, 4, 2, padding="same"),
    "GELU: approximate: expected one of 'none', 'tanh', got 'sigmoid'": lambda: nn.GELU("sigmoid"),
    "Softmax: dim: expected the number of an axis, got None": nn.Softmax,
    "LogSoftmax: dim: expected the number of an axis": nn.LogSoftmax,
    "MaxPool2d: dilation: expected 1, got (1, 2)": lambda: nn.MaxPool2d(2, dilation=(1, 2)),
    "MaxPool2d: ceil_mode: expected False, got True": lambda: nn.MaxPool2d(2, ceil_mode=True),
    "MaxPool2d: return_indices: expected False, got True": lambda: nn.MaxPool2d(2, return_indices=True),
    "max_pool2d: expected a padding of at most half the kernel": lambda: nn.MaxPool2d(2, padding=2)(X),
    "CrossEntropyLoss: weight: expected None": lambda: nn.CrossEntropyLoss(torch.ones(3)),
    "CrossEntropyLoss: label_smoothing: expected 0.0 <=": lambda: nn.CrossEntropyLoss(label_smoothing=1.5),
    "CrossEntropyLoss: reduction: expected one of": lambda: nn.CrossEntropyLoss(reduction="batchmean"),
    "cross_entropy: target: expected classes": lambda: nn.CrossEntropyLoss()(torch.ones(2, 3), torch.ones(2, 3)),
    "RotaryEmbedding: dim: expected an even number": lambda: nn.RotaryEmbedding(7),
    "RotaryEmbedding: base: expected a number above 0": lambda: nn.RotaryEmbedding(8, base=0.0),
    "attn_mask: expected None": lambda: nn.attention(X, X, X, attn_mask=torch.ones(4, 4).bool()),
    "dropout_p: expected 0.0, got 0.1": lambda: nn.attention(X, X, X, dropout_p=0.1),
    "expected as many heads unless enable_gqa=True": lambda: nn.attention(X, X[:, :1], X[:, :1]),
    "expected tensors [B H M D]": lambda: nn.attention(X[0], X[0], X[0]),
    "rms_norm: expected an input [..., 8], got [4]": lambda: nn.RMSNorm(8)(torch.ones(4)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_operator_has_not_is_refused_with_its_name(text):
    with pytest.raises(kx.KernelmuxError) as refusal:
        REFUSED[text]()
    assert text in str(refusal.value)


def test_linear_and_attention_allow_what_torchs_flag_allows(monkeypatch):
    asked = []

    def linear(x, weight, bias, precision):
        asked.append(precision)
        return x @ weight.t()

    def attention(q, k, v, causal, scale, precision, backend):
        asked.append(precision)
        return q

    monkeypatch.setattr(kx, "linear", linear)
    monkeypatch.setattr(kx, "attention", attention)
    module, x, q = nn.Linear(3, 2, bias=False), torch.ones(1, 3), torch.ones(1, 1, 2, 3)
    before = torch.get_float32_matmul_precision()
    try:
        for flag in ("high", "highest"):
            torch.set_float32_matmul_precision(flag)
            module(x)
            nn.attention(q, q, q)
    finally:
        torch.set_float32_matmul_precision(before)
    assert asked == ["tf32", "tf32", "ieee", "ieee"]


def test_the_modules_come_with_the_first_use_of_their_name():
    assert kx.nn is nn and kx.patch is nn.patch


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("made", [lambda: kx.nn.GELU(), lambda: kx.nn.RMSNorm(8), lambda: kx.nn.SwiGLU(8, 8)])
def test_torch_script_is_told_what_to_use_instead(made: Any) -> None:
    for module in (made(), torch.nn.Sequential(torch.nn.ReLU(), made())):
        with pytest.raises(kx.UnsupportedError, match=r"kernelmux.nn.\w+: torch.jit.script .* use torch.export or"):
            torch.jit.script(module)
    traced = torch.jit.trace(made(), torch.ones(2, 8))
    assert traced(torch.ones(3, 8)).shape == (3, 8)


@pytest.mark.parametrize("made", [lambda: kx.nn.GELU(), lambda: kx.nn.Softmax(-1), lambda: kx.nn.Linear(8, 8)])
def test_symbolic_trace_is_told_what_to_use_instead(made: Any) -> None:
    for module in (made(), torch.nn.Sequential(made())):
        with pytest.raises(kx.UnsupportedError, match=r"torch.fx.* use torch.export or torch.compile"):
            torch.fx.symbolic_trace(module)
