"""Every operator under torch.compile(dynamic=True), in one graph for all sizes, and under torch.export for every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.fx.experimental import _config as shapes

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.interop import autograd, torch_ops
from kernelmux.registry.spec import cases
from kernelmux.registry.spec.cases import Case
from kernelmux.registry.spec.op_spec import OpSpec

SIZES = range(4)  # the case itself, and three more in which the axes differ in their order too
# Axes that stay: the size of a kernel, and that of a head, as the default scale is the number 1/sqrt(D).
FIXED = {
    "conv2d": "RS",
    "conv2d_backward_input": "RS",
    "attention": "D",
    "attention_backward": "D",
    "paged_attention": "D",
}
MULTIPLES = {"H": "G", "D": "E"}  # an axis that is as many times the other one as in the case
BATCH = {"matvec": "B"}  # elsewhere it is the first axis of all
MOST = {"matvec": 16}
ELEMENTS = 1 << 14  # of a tensor

Axes = dict[str, int]
Tensors = dict[str, torch.Tensor]


def chosen() -> Iterator[Any]:
    """One small case of each form of a call: of one axis, of two, or of more, with such scalars."""
    for op in catalog.names():
        spec, seen = catalog.spec(op), set[Any]()
        for case in spec.cases:
            given, scalars, _ = case.parsed
            ranks = tuple((name, min(len(shape), 3)) for name, shape in given.items())
            form = (
                ranks,
                *(n for n, v in scalars.items() if not isinstance(v, float)),
                case.channels_last,
                case.turned,
            )
            small = all(0 < torch.Size(shape).numel() <= ELEMENTS for shape in given.values()) and any(given.values())
            allowed = case.dtypes is None or spec.dtypes[0] in case.dtypes
            if small and allowed and form not in seen and not special(spec, case):
                seen.add(form)
                yield pytest.param(spec, case, id=f"{op}-{case.name}")


def special(spec: OpSpec, case: Case) -> bool:
    """Whether axes follow from others as of no other call, or are 1 in an output, for which torch makes a graph."""
    axes = spec.hypothetical(case).axes
    return (spec.name == "fp8_matmul" and "G" in axes) or (spec.name == "conv2d" and 1 in (axes["P"], axes["Q"]))


CASES = list(chosen())
FIRST = list({p.values[0].name: p for p in reversed(CASES)}.values())


def named(spec: OpSpec, case: Case) -> tuple[dict[str, tuple[str, ...]], Axes]:
    """The names of the axes of each tensor, and their lengths."""
    names = {t.name: t.named(case.shapes[t.name]) for t in spec.tensors if t.name in case.shapes}
    every = (pair for n in names for pair in zip(names[n], case.shapes[n], strict=True))
    return names, {axis: length for axis, length in every if not axis.isdigit()}


def moved(spec: OpSpec, case: Case, axes: Axes, size: int) -> Axes:
    """The axes in another size, of 2 or more: each grows on its own, but for those that stay or that others decide."""
    bound = {a for a in axes if MULTIPLES.get(a) in axes}
    free = [a for a in axes if a not in bound and a not in FIXED.get(spec.name, "")]
    found = axes | {a: max(axes[a], 2) + size * (i + 2) % 11 for i, a in enumerate(free)}
    found |= {a: axes[a] // axes[MULTIPLES[a]] * found[MULTIPLES[a]] for a in bound}
    if spec.name == "conv2d_backward_weight":  # images with so many places
        found |= images(spec, case, "HW", [axes[a] for a in "HW"], [found[a] - axes[a] for a in "PQ"])
    return found


def images(spec: OpSpec, case: Case, names: Any, before: Any, places: Any) -> dict[Any, int]:
    """Rows and columns of images, from those of others and how many places more a window has on them."""
    steps = spec.hypothetical(case).arguments["stride"]
    return {a: n + step * more for a, n, step, more in zip(names, before, steps, places, strict=True)}


def sized(spec: OpSpec, case: Case, size: int, only: str = "") -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the scalars of a case in another size; only: of the axis of that name, which has that length."""
    names, axes = named(spec, case)
    found = {**axes, only: size} if only else moved(spec, case, axes, size)
    lengths = {n: [found.get(a, m) for a, m in zip(names[n], case.shapes[n], strict=True)] for n in names}
    scalars = dict(case.scalars)
    if "size" in scalars:
        before = spec.hypothetical(case).arguments["size"]
        scalars["size"] = tuple(images(spec, case, "HW", before, [found[a] - axes[a] for a in ("OH", "OW")]).values())
    texts = [f"{n}={'x'.join(map(str, s)) or 'scalar'}{cases.TURNED * (n in case.turned)}" for n, s in lengths.items()]
    texts += [f"{n}={cases.written(v)}" for n, v in scalars.items()] + [cases.CHANNELS_LAST] * case.channels_last
    return spec.drawn(spec.case(" ".join(texts)), spec.dtypes[0], cases.generator(spec.name, size)), scalars


class Counted:
    """A backend of torch.compile: `ran` has the graph of each call."""

    def __init__(self) -> None:
        self.ran: list[object] = []

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        made = torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

        def run(*args: Any) -> Any:
            self.ran.append(graph)
            return made(*args)

        return run


def compiled(op: str) -> tuple[Callable[..., Any], Counted]:
    counted, function = Counted(), getattr(kx, op)

    def call(tensors: Tensors, scalars: dict[str, Any]) -> Any:
        return function(**tensors, **scalars, backend="torch_ref")

    return torch.compile(call, dynamic=True, fullgraph=True, backend=counted), counted


def visible(spec: OpSpec, tensors: Tensors, scalars: dict[str, Any]) -> Any:
    """What the operator of torch gives, without what is saved; its gradients are those of the operator's backward."""
    found = torch_ops.call(spec, *spec.given(**tensors, **scalars), backend="torch_ref")
    if spec.visible == len(spec.outputs):
        return found
    return found[0] if spec.visible == 1 else found[: spec.visible]


def gradients(y: Any, wrt: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    outputs = [z for z in (y if isinstance(y, tuple) else (y,)) if z.requires_grad]
    return torch.autograd.grad([z.square().sum() for z in outputs], wrt)


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(autouse=True)
def _one_graph() -> Iterator[None]:
    """A second graph is an error that says why; lengths that are equal in the first call need not be so in others."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True), shapes.patch(use_duck_shape=False):
        yield
    torch._dynamo.reset()


def test_every_operator_is_asked():
    assert [p.values[0].name for p in FIRST[::-1]] == list(catalog.names())


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_one_graph_for_all_sizes_forward_and_backward(spec, case):
    call, counted = compiled(spec.name)
    for size in SIZES:
        tensors, scalars = sized(spec, case, size)
        if autograd.differentiable(spec):
            wrt = [x.requires_grad_() for name, x in tensors.items() if name in spec.gradient.tensors]
        got, want = call(tensors, scalars), visible(spec, tensors, scalars)
        same(got, want)
        if autograd.differentiable(spec):
            same(gradients(got, wrt), gradients(want, wrt))
    assert len(counted.ran) == len(SIZES) and len(set(map(id, counted.ran))) == 1


class Module(torch.nn.Module):
    def __init__(self, op: str, scalars: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.scalars = getattr(kx, op), scalars

    def forward(self, tensors: Tensors) -> Any:
        return self.function(**tensors, **self.scalars, backend="torch_ref")


def batch_of(spec: OpSpec, case: Case) -> tuple[str, dict[str, dict[int, Any]]]:
    """The axis of the batch, and where it is in each tensor, as torch.export takes it."""
    names, _ = named(spec, case)
    axis = BATCH.get(spec.name) or next(filter(None, names.values()))[0]
    dim = Dim("batch", max=MOST.get(spec.name))
    return axis, {name: {i: dim for i, a in enumerate(axes) if a == axis} for name, axes in names.items()}


@pytest.mark.parametrize(("spec", "case"), FIRST)
def test_an_exported_program_takes_every_batch(spec, case):
    axis, places = batch_of(spec, case)
    tensors, scalars = sized(spec, case, 5, axis)
    program = torch.export.export(Module(spec.name, scalars), (tensors,), dynamic_shapes=(places,)).module()
    for size in (3, 8):
        other, _ = sized(spec, case, size, axis)
        same(program(other), visible(spec, other, scalars))


@pytest.mark.parametrize(("spec", "case"), FIRST)
def test_a_first_batch_of_one_costs_one_graph_and_no_more(spec, case):
    axis, _ = batch_of(spec, case)
    call, counted = compiled(spec.name)
    with torch._dynamo.config.patch(error_on_recompile=False):
        for size in (1, 4, 3, 6):
            tensors, scalars = sized(spec, case, size, axis)
            same(call(tensors, scalars), visible(spec, tensors, scalars))
    assert len(counted.ran) == 4 and len(set(map(id, counted.ran))) <= 2


@pytest.mark.parametrize(
    ("op", "text", "name"),
    [
        ("copy_column", "x=5x9", "column"),
        ("attention", "q=2x2x5x8 k=2x2x7x8 v=2x2x7x8 causal=True", "window"),
        ("cross_entropy", "logits=7x9 target=7 ignore_index=2", "ignore_index"),
    ],
)
def test_a_number_that_varies_needs_no_other_graph(op, text, name):
    spec = catalog.spec(op)
    call, counted = compiled(op)
    tensors, scalars = sized(spec, spec.case(text), 0)
    for value in (2, 3, 5):
        given = {**scalars, name: value}
        same(call(tensors, given), visible(spec, tensors, given))
    assert len(set(map(id, counted.ran))) == 1
