"""cuDNN's frontend as a contestant: what its graphs get and give, which of their plans runs, and how many are built."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.perf import peers
from kernelmux.perf.peers import _cudnn_frontend
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.ops import attention, attention_backward
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
MASKS = [(True, None, None), (False, None, None), (True, 3, None), (False, 3, 2), (False, None, 2)]


class Names:
    """Every member of an enumeration is its name."""

    def __getattr__(self, name: str) -> str:
        return name


class Node:
    """A tensor of a graph, that takes whatever is set."""

    def __init__(self, uid: int) -> None:
        self.uid = uid

    def get_uid(self) -> int:
        return self.uid

    def __getattr__(self, name: str) -> Any:
        assert name.startswith("set_")
        return lambda value: self


class Graph:
    """Stands for a graph of cuDNN: any operation of it is kept with what it got, and computed by `Frontend.operations`."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend, self.nodes = frontend, 0
        self.steps: list[tuple[Any, ...]] = []
        self.notes: list[str] = []
        self.built: list[int] = []

    def tensor(self, dim: list[int], stride: list[int], data_type: str) -> Node:
        assert len(dim) == len(stride)
        return self.node()

    def node(self) -> Node:
        self.nodes += 1
        return Node(self.nodes)

    def __getattr__(self, name: str) -> Any:
        count, compute = self.frontend.operations[name]

        def operation(*args: Any, **more: Any) -> list[Node] | Node:
            outputs = [self.node() for _ in range(count)]
            self.steps.append((compute, args, more, outputs))
            return outputs if count > 1 else outputs[0]

        return operation

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.notes += notes

    def validate(self) -> None:
        self.frontend.graphs.append(self)

    def build_operation_graph(self) -> None:
        assert self in self.frontend.graphs

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "B", "FALLBACK"]

    def get_execution_plan_count(self) -> int:
        return len(self.frontend.plans)

    def build_plan_at_index(self, index: int) -> None:
        if self.frontend.plans[index] is None:
            raise RuntimeError("no such engine")
        self.built.append(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return self.frontend.sizes.get(index, 0)

    def execute_plan_at_index(
        self, tensors: Sequence[T], workspace: T, index: int, handle: str, tensor_uids: Sequence[int]
    ) -> None:
        assert (handle, self.frontend.stream) == ("handle", 7)
        self.frontend.ran.append(index)
        values = dict(zip(tensor_uids, tensors, strict=True))

        def value(x: Any) -> Any:
            return values[x.uid] if isinstance(x, Node) else x

        for compute, args, more, outputs in self.steps:
            found = compute(*map(value, args), **{key: value(x) for key, x in more.items()})
            for node, x in zip(outputs, found if len(outputs) > 1 else (found,), strict=True):
                if node.uid in values:
                    values[node.uid].copy_(x)
                values[node.uid] = x


class Frontend:
    """The module, whose plans take so many milliseconds; None: one that cannot be built."""

    data_type = numerical_note = heur_mode = diagonal_alignment = attention_implementation = Names()

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.ran: list[int] = []
        self.plans: list[float | None] = [2.0, None, 1.0]
        self.sizes: dict[int, int] = {}
        self.operations: dict[str, Any] = {}
        self.stream = 0

    def pygraph(self, **options: str) -> Graph:
        assert options["compute_data_type"] == options["intermediate_data_type"] == "FLOAT"
        return Graph(self)

    def set_stream(self, handle: str, stream: int) -> None:
        self.stream = stream


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch, joined: None) -> Frontend:
    made = Frontend()
    monkeypatch.setattr(_cudnn_frontend, "module", lambda: made)
    monkeypatch.setattr(_cudnn_frontend, "_handle", lambda device: "handle")
    monkeypatch.setattr(_cudnn_frontend, "_plans", {})
    monkeypatch.setattr(_cudnn_frontend, "_milliseconds", lambda plan, tensors: made.plans[plan.index])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    return made


def variant(op: str) -> Any:
    return registered.variants(peers.NAME, op)["cudnn_frontend"]


def mask(band: dict[str, Any]) -> tuple[Limit, Limit]:
    """The bounds of a graph as window and ahead."""
    window, ahead = band.get("diagonal_band_left_bound"), band.get("diagonal_band_right_bound")
    assert (band.get("diagonal_alignment") == "BOTTOM_RIGHT") == (window is not None or ahead is not None)
    return window, ahead


@pytest.mark.parametrize(("causal", "window", "ahead"), MASKS)
def test_what_a_graph_of_attention_gets_and_gives(
    frontend: Frontend, causal: bool, window: Limit, ahead: Limit
) -> None:
    def sdpa(q: T, k: T, v: T, *, attn_scale: float, generate_stats: bool, implementation: str, **band: Any) -> Any:
        assert generate_stats and implementation in ("AUTO", "COMPOSITE")
        left, right = mask(band)
        y, lse = attention.reference(q, k, v, False, attn_scale, left, "ieee", right)
        return y, lse[..., None]

    frontend.operations["sdpa"] = 2, sdpa
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    arguments = (q, k, v, causal, 0.3, window, "ieee", ahead)
    for got, wanted in zip(variant("attention").fn(*arguments), attention.reference(*arguments), strict=True):
        assert torch.equal(got, wanted)
    assert len(frontend.graphs) == 2  # one for each way to say it


@pytest.mark.parametrize(("causal", "window", "ahead"), MASKS)
def test_what_a_graph_of_the_gradients_of_attention_gets_and_gives(
    frontend: Frontend, causal: bool, window: Limit, ahead: Limit
) -> None:
    def sdpa_backward(q: T, k: T, v: T, o: T, do: T, stats: T, *, attn_scale: float, **band: Any) -> Any:
        left, right = mask(band)
        return attention_backward.reference(do, q, k, v, o, stats[..., 0], False, attn_scale, left, "ieee", right)

    frontend.operations["sdpa_backward"] = 3, sdpa_backward
    g, q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8)
    y, lse = attention.reference(q, k, k, causal, 0.3, window, "ieee", ahead)
    arguments = (g, q, k, k, y, lse, causal, 0.3, window, "ieee", ahead)
    wanted = attention_backward.reference(*arguments)
    assert all(torch.equal(g, w) for g, w in zip(variant("attention_backward").fn(*arguments), wanted, strict=True))


AROUND = ((2, 1), (1, 0), (1, 2))  # stride, padding, dilation


def pairs(around: dict[str, list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(around[name]) for name in ("stride", "padding", "dilation"))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("biased", [False, True])
def test_what_graphs_of_convolutions_get_and_give(frontend: Frontend, form: torch.memory_format, biased: bool) -> None:
    shape = {"forward": (2, 3, 9, 8), "weight": (5, 3, 3, 3)}
    x, w = (torch.randn(s).contiguous(memory_format=form) for s in shape.values())
    spec = {
        name: catalog.spec(name).reference for name in ("conv2d", "conv2d_backward_input", "conv2d_backward_weight")
    }

    def dgrad(loss: T, filter: T, **around: Any) -> Any:
        return spec["conv2d_backward_input"](loss, filter, *pairs(around), (0, 0))

    def wgrad(image: T, loss: T, **around: Any) -> Any:
        return spec["conv2d_backward_weight"](loss, image, (3, 3), *pairs(around))

    frontend.operations |= {
        "conv_fprop": (1, lambda image, weight, **around: spec["conv2d"](image, weight, None, *pairs(around))),
        "bias": (1, lambda input, bias: input + bias),
        "conv_dgrad": (1, dgrad),
        "conv_wgrad": (1, wgrad),
    }
    bias = torch.randn(5) if biased else None
    y = variant("conv2d").fn(x, w, bias, *AROUND)
    assert torch.allclose(y, spec["conv2d"](x, w, bias, *AROUND), atol=1e-5) and y.is_contiguous(memory_format=form)
    got = variant("conv2d_backward_input").fn(y, w, *AROUND, (0, 0))
    assert torch.allclose(got, spec["conv2d_backward_input"](y, w, *AROUND, (0, 0)), atol=1e-4)
    got = variant("conv2d_backward_weight").fn(y, x, (3, 3), *AROUND)
    assert torch.allclose(got, spec["conv2d_backward_weight"](y, x, (3, 3), *AROUND), atol=1e-4)
    assert got.is_contiguous(memory_format=form)


def convolve(frontend: Frontend, x: T) -> T:
    frontend.operations["conv_fprop"] = 1, lambda image, weight, **around: image * weight
    found: T = variant("conv2d").fn(x, torch.full((1, 1, 1, 1), 2.0, dtype=x.dtype), None, (1, 1), (0, 0), (1, 1))
    return found


def test_the_first_call_of_a_kind_tries_every_plan_and_later_ones_run_the_fastest(frontend: Frontend) -> None:
    for _ in range(3):
        assert convolve(frontend, torch.ones(2, 1, 3, 3)).eq(2.0).all()
    (graph,) = frontend.graphs
    assert graph.built == [0, 2] and frontend.ran == [0, 2, 2, 2, 2]
    assert graph.notes == ["TENSOR_CORE", "DOWN_CONVERT_INPUTS"]  # which would round fp32
    convolve(frontend, torch.ones(2, 1, 3, 3, dtype=torch.float16))
    assert len(frontend.graphs) == 2 and not frontend.graphs[1].notes


def test_graphs_are_let_go_of(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cudnn_frontend, "KEPT", 2)
    for n in (1, 2, 3, 3, 1):
        convolve(frontend, torch.ones(n, 1, 3, 3))
    assert len(frontend.graphs) == 4 and len(_cudnn_frontend._plans) == 2


def test_a_plan_with_a_vast_workspace_is_none(frontend: Frontend) -> None:
    frontend.sizes = {0: 8, 2: _cudnn_frontend.WORKSPACE + 1}
    convolve(frontend, torch.ones(2, 1, 3, 3))
    assert frontend.ran == [0, 0]


def test_a_call_without_a_plan_says_why(frontend: Frontend) -> None:
    frontend.plans = [None, None]
    with pytest.raises(NotImplementedError, match=r"no plan for this call: RuntimeError: no such engine$"):
        convolve(frontend, torch.ones(2, 1, 3, 3))


def bound(m: int, n: int, **scalars: Any) -> Call:
    q, k = torch.empty(1, 4, m, 64, dtype=torch.bfloat16), torch.empty(1, 2, n, 64, dtype=torch.bfloat16)
    return catalog.spec("attention").bind(q, k, k, **scalars)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        (bound(4, 6, causal=True), []),
        (bound(4, 6, window=3, ahead=2), []),
        (bound(6, 4), []),
        (bound(6, 4, causal=True), ["causal with M = 6 and N = 4, needs M <= N"]),
    ],
)
def test_which_calls_of_attention_it_takes(call: Call, reasons: list[str]) -> None:
    assert [r for r in variant("attention").reasons(call) if peers.ABSENT not in r] == reasons
