"""Operators of torch: their schemas, compiled and exported graphs, vmap and transforms of gradients, shapes."""

import io
import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.choice import precedence
from kernelmux.registry.errors import ArgumentError, UnsupportedError
from kernelmux.registry.interop import torch_ops
from kernelmux.registry.spec import signature

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*on the emulator"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
X = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_schema_is_the_signature_of_the_spec():
    assert [signature.schema(catalog.spec(op)) for op in ("softmax", "layer_norm", "attention", "reduce_sum")] == [
        "softmax(Tensor x, int axis=-1, float scale=1.0, *, str? backend=None) -> Tensor",
        "layer_norm(Tensor x, Tensor weight, Tensor? bias=None, float eps=1e-05, *, str? backend=None) -> Tensor",
        "attention(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, SymInt? window=None,"
        ' str precision="ieee", SymInt? ahead=None, *, str? backend=None) -> (Tensor y, Tensor lse)',
        "reduce_sum(Tensor x, int? axis=None, bool keepdim=False, *, str? backend=None) -> Tensor",
    ]


def test_numbers_that_follow_from_lengths_vary_within_a_graph_and_a_public_call_gives_one_for_all():
    assert "SymInt[2] size, int[2] kernel, int[2]? stride" in signature.schema(catalog.spec("max_pool2d_backward"))
    grad, index = torch.ones(2, 3, 4, 4), torch.zeros(2, 3, 4, 4, dtype=torch.int32)

    def call(grad, index):
        return kx.max_pool2d_backward(grad, index, 8, 2, backend="torch_ref")

    want = call(grad, index)
    assert call(grad.to("meta"), index.to("meta")).shape == want.shape
    for compiled in (torch.compile(call, fullgraph=True, backend="aot_eager"), make_fx(call)(grad, index)):
        assert torch.equal(compiled(grad, index), want)
    assert torch.equal(torch.vmap(call)(grad, index), want)


def test_every_operator_can_be_registered():
    kx.install_torch_ops()
    for op in catalog.names():
        assert len(getattr(torch.ops.kernelmux, op).default._schema.arguments) == len(catalog.spec(op).inputs) + 1


def test_importing_after_torch_makes_the_operators_known():
    code = "import torch, kernelmux; print(torch.ops.kernelmux.silu(torch.zeros(2)).tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0.0, 0.0]"


def test_threads_may_register_an_operator_at_once():
    code = """
import kernelmux as kx
import threading, torch
errors, gate = [], threading.Barrier(16)
def run():
    gate.wait()
    try:
        assert kx.softmax(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=run) for _ in range(16)]
[t.start() for t in threads], [t.join() for t in threads]
assert not errors, errors
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_a_compiled_model_has_the_results_and_gradients_of_an_eager_one(backend):
    def model(x, w):
        return kx.cross_entropy(kx.matmul(kx.rms_norm(x, w), w2), target)

    w2, target = torch.randn(12, 7), torch.tensor([1, 2, 3, 0])
    with kx.use(backend):
        for how in ("eager", "aot_eager"):
            x, w = X.clone().requires_grad_(), torch.ones(12).requires_grad_()
            want = model(x, w)
            got = torch.compile(model, fullgraph=True, backend=how)(x, w)
            assert torch.equal(got, want)
            for a, b in zip(torch.autograd.grad(got, (x, w)), torch.autograd.grad(want, (x, w)), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_another_batch_size_compiles_at_most_once_more():
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda x: kx.softmax(kx.silu(x)), fullgraph=True, backend=counter)
    for rows in (4, 5, 6, 9, 31, 128):
        x = torch.randn(rows, 12)
        torch.testing.assert_close(run(x), torch.softmax(torch.nn.functional.silu(x), -1))
    assert counter.frame_count == 2
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(lambda x: kx.softmax(x), fullgraph=True, backend=counter, dynamic=True)
    for rows in (4, 5, 6):
        run(torch.randn(rows, 12))
    assert counter.frame_count == 1


def test_a_compiled_graph_keeps_the_choice_that_was_in_force():
    graphs = []

    def look(graph, inputs):
        graphs.append([n.kwargs["backend"] for n in graph.graph.nodes if n.op == "call_function"])
        return graph

    run = torch.compile(lambda x: kx.silu(kx.softmax(x), backend="torch_ref"), fullgraph=True, backend=look)
    with kx.use(["torch_ref", "cuda"]):
        run(X)
    with kx.use("torch_ref"):
        run(X)
    assert graphs == [["torch_ref,cuda", "torch_ref"]]


def backends_of(function):
    """What the operators of a compiled graph ask for, in order."""
    found: list[str] = []

    def look(graph, inputs):
        found.extend(
            n.kwargs["backend"] for n in graph.graph.nodes if n.op == "call_function" and "backend" in n.kwargs
        )
        return graph

    torch.compile(function, fullgraph=True, backend=look)(X)
    return found


def test_scopes_inside_of_a_compiled_function_hold_for_its_graph():
    def inside(x):
        with kx.use("torch_ref,cuda"):
            x = kx.softmax(x)
            with kx.use(["triton", "torch_ref"], ops="silu", strict=True):
                x = kx.gelu(kx.silu(x + 0))
        return kx.silu(x)

    with kx.use("torch_ref", ops="silu"):
        assert backends_of(inside) == ["torch_ref,cuda", "strict triton,torch_ref", "torch_ref,cuda", "torch_ref"]
    assert kx.explain("silu", X).request.auto  # nothing is left behind


def test_a_trace_that_fails_leaves_no_scope_behind():
    def failing(x):
        with kx.use("torch_ref"):
            kx.softmax(x)
            return kx.softmax(x, axis=7)

    with pytest.raises(Exception, match="axis"):
        torch.compile(failing, fullgraph=True, backend="eager")(X)
    assert backends_of(lambda x: kx.softmax(x)) == ["auto"]


def test_rules_of_a_file_look_at_the_call_when_the_graph_runs(tmp_path, monkeypatch):
    file = tmp_path / "rules.toml"
    file.write_text('[[rules]]\nop = "softmax"\nwhere = "N >= 100"\nbackend = "cuda"\n')
    monkeypatch.setenv("KERNELMUX_CONFIG", str(file))
    precedence.reread()
    try:
        run = torch.compile(lambda x: kx.softmax(x), fullgraph=True, backend="eager", dynamic=True)
        with kx.use("torch_ref"):
            assert backends_of(lambda x: kx.softmax(x)) == ["torch_ref"]
        assert backends_of(lambda x: kx.softmax(x)) == [precedence.RULES]
        run(X)
        assert kx.which("softmax", X, backend=None) == "torch_ref/exact"
    finally:
        monkeypatch.delenv("KERNELMUX_CONFIG")
        precedence.reread()


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_an_exported_program_is_saved_and_runs_again(backend):
    class Model(torch.nn.Module):
        def forward(self, x):
            return kx.softmax(x, scale=2.0, backend=backend)

    program = torch.export.export(Model(), (X,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    y = torch.randn(7, 12)
    torch.testing.assert_close(again(y), torch.softmax(2 * y, -1))


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_vmap_maps_over_free_leading_axes(backend):
    w = torch.randn(12)
    found = torch.vmap(lambda x: kx.rms_norm(x, w, backend=backend), in_dims=1, out_dims=1)(X[:, None].expand(4, 3, 12))
    torch.testing.assert_close(found, kx.rms_norm(X, w, backend="torch_ref")[:, None].expand(4, 3, 12))
    first = torch.vmap(lambda x: kx.softmax(x, axis=0, backend=backend))(X.reshape(2, 2, 12))
    torch.testing.assert_close(first, torch.softmax(X.reshape(2, 2, 12), 1))
    mixed = torch.vmap(lambda x, y: kx.add(x, y, backend=backend), in_dims=(0, None))(X, X[0])
    assert torch.equal(mixed, X + X[0])


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 1), (1, None)])
@pytest.mark.parametrize(("a", "b"), [((2, 4), (4, 5)), ((3, 2, 4), (4, 5)), ((3, 2, 4), (3, 4, 5))])
def test_vmap_of_products(backend, in_dims, a, b):
    """Of single matrices, of a batch that shares its right one, and of pairs."""
    stacks = (torch.randn(3, *shape) for shape in (a, b))
    given = [x[0] if at is None else x.movedim(0, at) for x, at in zip(stacks, in_dims, strict=True)]
    found = torch.vmap(lambda x, y: kx.matmul(x, y, backend=backend), in_dims=in_dims)(*given)
    torch.testing.assert_close(found, torch.vmap(torch.matmul, in_dims=in_dims)(*given))


@pytest.mark.parametrize("backend", KERNELS)
def test_transforms_of_gradients(backend):
    def loss(x, how):
        return kx.softmax(x, backend=how).square().sum()

    for transform in (
        lambda how: torch.func.grad(loss)(X, how),
        lambda how: torch.vmap(lambda x: torch.func.grad(loss)(x, how))(X),
    ):
        torch.testing.assert_close(transform(backend), transform("torch_ref"))
    jacobian = torch.func.jacrev(lambda x: kx.softmax(x, backend=backend))(X[0])
    torch.testing.assert_close(jacobian, torch.func.jacrev(lambda x: torch.softmax(x, -1))(X[0]))
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x, backend).sum())(X)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize("bound", [False, True])
def test_inside_of_a_transform_a_call_on_tensors_from_outside_is_differentiated(backend, bound):
    """Of a weight, say, that the function which is transformed finds in its surroundings."""
    w, x = X.clone().requires_grad_(), torch.rand(3, 4, 12)
    softmax = kx.bind("softmax", like=(w,), backend=backend) if bound else lambda w: kx.softmax(w, backend=backend)
    softmax(w)  # a call of this kind is known
    for transform in (torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        transform(lambda x: softmax(w) * x)(x).square().sum().backward()
        found, w.grad = w.grad, None
        transform(lambda x: torch.softmax(w, -1) * x)(x).square().sum().backward()
        torch.testing.assert_close(found, w.grad)
        w.grad = None


def test_an_operator_of_torch_without_a_gradient_refuses_an_input_that_wants_one():
    g = X.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match=r"torch\.ops\.kernelmux\.silu_backward: silu_backward has no gradient"):
        torch_ops.operator("silu_backward")(g, X, backend=KERNELS[0])


def test_inference_mode_and_tensors_on_several_devices():
    with torch.inference_mode():
        assert torch.equal(kx.silu(X), torch.ops.kernelmux.silu(X))
    with pytest.raises(ArgumentError, match="expected all tensors on one device, got x on meta, y on cpu"):
        kx.add(X.to("meta"), X)


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")
def test_where_no_operator_gives_a_gradient_torch_differentiates_the_baseline():
    """Compiled as eager: torch_ref is in the chain."""
    g, y = X.clone().requires_grad_(), torch.softmax(X, -1)

    def model(g):
        return kx.softmax_backward(g, y).square().sum()

    for chain in ("torch_ref", [*KERNELS, "torch_ref"]):
        with kx.use(chain):
            run = torch.compile(model, fullgraph=True, backend="aot_eager")
            (got,), (want,) = torch.autograd.grad(run(g), g), torch.autograd.grad(model(g), g)
            torch.testing.assert_close(got, want)
        torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_attention_trains_compiled_and_eager(backend):
    """Queries that share heads, a window, and what is saved for the gradient."""
    rng = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, 9, 16, generator=rng).requires_grad_() for heads in (2, 1, 1))

    def model(q, k, v):
        return kx.attention(q, k, v, causal=True, window=5, backend=backend).square().sum()

    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    got, eager = (torch.autograd.grad(fn(q, k, v), (q, k, v)) for fn in (run, model))
    place = torch.arange(9)
    seen = (place[:, None] >= place) & (place[:, None] < place + 5)
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=seen, enable_gqa=True
    )
    wanted = torch.autograd.grad(exact.square().sum(), (q, k, v))
    for compiled, plain, want in zip(got, eager, wanted, strict=True):
        torch.testing.assert_close(compiled, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(plain, want, rtol=1e-4, atol=1e-5)
