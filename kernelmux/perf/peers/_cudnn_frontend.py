"""Graphs of cuDNN through its frontend: of all plans for a kind of call the fastest, which its first call finds.

A kind of call is what a graph depends on: what it computes, the scalars, and of each tensor dtype, shape and strides. The
first call of a kind builds every plan that the heuristics name and measures it. The graph is kept with its fastest plan
and the workspace of that. In fp32 no plan rounds factors to tf32.

    compute((_product,), (a, b), (y,))  # def _product(graph, a, b): return (graph.matmul(a, b),)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from kernelmux.registry.spec.sliding_windows import Limit, Pair

T = torch.Tensor
Tensors = Sequence[T]
Way = Callable[..., Sequence[Any]]  # what a graph computes from its tensors, which are followed by the scalars

DTYPES = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT"}
MODES = ("A", "B", "FALLBACK")  # of the heuristics; a plan that several name is built once
ROUNDED = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")  # plans that round fp32, by cuDNN's notes
KEPT = 16  # graphs: the rows that are timed in turns are of one kind
WORKSPACE = 1 << 32  # bytes at most
COLD = 1 << 28  # bytes that push all others out of the cache, and take longer than the host takes to launch a plan
SAMPLES = 3
SHOWN = 160  # characters of a refusal, of which cuDNN writes thousands


@cache
def module() -> Any:
    return importlib.import_module("cudnn")


@cache
def _handle(device: torch.device) -> Any:
    with torch.cuda.device(device):
        return module().create_handle()


@dataclass(frozen=True)
class CudnnPlan:
    """One plan of a graph. uids: what the graph calls its tensors, the given ones first."""

    graph: Any
    index: int
    uids: tuple[int, ...]
    workspace: T

    def run(self, tensors: Tensors) -> None:
        device = self.workspace.device
        handle = _handle(device)
        module().set_stream(handle, torch.cuda.current_stream(device).cuda_stream)
        self.graph.execute_plan_at_index(tuple(tensors), self.workspace, self.index, handle, tensor_uids=self.uids)


_plans: dict[Any, CudnnPlan] = {}


def compute(ways: tuple[Way, ...], given: Tensors, found: Tensors, *scalars: Any) -> None:
    """Fill the tensors `found`. ways: graphs that compute the same, but have other plans.

    NotImplementedError, with cuDNN's reasons, if no plan of any computes this.
    """
    tensors = (*given, *found)
    kind = (ways, scalars, *((x.dtype, x.shape, x.stride(), x.device) for x in tensors))
    plan = _plans.get(kind)
    if plan is None:
        plan = _fastest(ways, given, found, scalars)
        while len(_plans) >= KEPT:
            del _plans[next(iter(_plans))]
        _plans[kind] = plan
    plan.run(tensors)


def band(window: Limit, ahead: Limit) -> dict[str, Any]:
    """What attention sees, for a graph. Its left bound counts a query's own place, as a window does."""
    bounds = {"diagonal_band_left_bound": window, "diagonal_band_right_bound": ahead}
    bounded = window is not None or ahead is not None
    return {**bounds, "diagonal_alignment": module().diagonal_alignment.BOTTOM_RIGHT} if bounded else {}


def around(stride: Pair, padding: Pair, dilation: Pair) -> dict[str, list[int]]:
    """Where the places of a convolution are, for a graph."""
    return {"stride": list(stride), "padding": list(padding), "dilation": list(dilation)}


def _fastest(ways: tuple[Way, ...], given: Tensors, found: Tensors, scalars: tuple[Any, ...]) -> CudnnPlan:
    tensors = (*given, *found)
    refusals: list[str] = []
    best: tuple[float, CudnnPlan] | None = None
    for way in ways:
        for plan in _runnable(way, given, found, scalars, refusals):
            time = _milliseconds(plan, tensors)
            if best is None or time < best[0]:
                best = time, plan
    if best is None:
        raise NotImplementedError(f"cuDNN has no plan for this call: {'; '.join(dict.fromkeys(refusals))}")
    return best[1]


def _runnable(way: Way, given: Tensors, found: Tensors, scalars: Any, refusals: list[str]) -> Iterator[CudnnPlan]:
    """Every plan that can be built and has been run once, which loads its code; why others cannot goes to `refusals`."""
    try:
        graph, uids = _graph_of(way, given, found, scalars)
    except Exception as error:  # cuDNN has its own classes, and RuntimeError where a version lacks an attribute
        refusals.append(_short(error))
        return
    for index in range(graph.get_execution_plan_count()):
        try:
            plan = _plan_at(graph, index, uids, given[0].device)
            plan.run((*given, *found))
        except Exception as error:
            refusals.append(_short(error))
        else:
            yield plan  # a fault of the device shows in whatever waits for it next, and is no refusal


def _graph_of(way: Way, given: Tensors, found: Tensors, scalars: tuple[Any, ...]) -> tuple[Any, tuple[int, ...]]:
    """A graph with a list of plans, none of them built, and what it calls its tensors."""
    cudnn = module()
    single = cudnn.data_type.FLOAT
    kinds = {"io_data_type": _dtype(given[0]), "intermediate_data_type": single, "compute_data_type": single}
    graph = cudnn.pygraph(handle=_handle(given[0].device), **kinds)
    inputs = [graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=_dtype(x)) for x in given]
    outputs = way(graph, *inputs, *scalars)
    for output, x in zip(outputs, found, strict=True):
        output.set_output(True).set_dim(list(x.shape)).set_stride(list(x.stride())).set_data_type(_dtype(x))
    if given[0].dtype == torch.float32:
        graph.deselect_numeric_notes([getattr(cudnn.numerical_note, note) for note in ROUNDED])
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([getattr(cudnn.heur_mode, mode) for mode in MODES])
    return graph, tuple(x.get_uid() for x in (*inputs, *outputs))


def _plan_at(graph: Any, index: int, uids: tuple[int, ...], device: torch.device) -> CudnnPlan:
    graph.build_plan_at_index(index)
    size = graph.get_workspace_size_plan_at_index(index)
    if size > WORKSPACE:
        raise MemoryError(f"a workspace of {size} bytes, of {WORKSPACE} at most")
    return CudnnPlan(graph, index, uids, torch.empty(max(size, 1), dtype=torch.uint8, device=device))


def _milliseconds(plan: CudnnPlan, tensors: Tensors) -> float:
    """The least of a few times, each with nothing in the cache."""
    device = tensors[0].device
    cold = torch.empty(COLD, dtype=torch.uint8, device=device)
    event: Callable[..., Any] = torch.cuda.Event
    events = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(SAMPLES)]
    for start, end in events:
        cold.zero_()
        start.record()
        plan.run(tensors)
        end.record()
    torch.cuda.synchronize(device)
    return min(float(start.elapsed_time(end)) for start, end in events)


def _dtype(x: T) -> Any:
    return getattr(module().data_type, DTYPES[x.dtype])


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:SHOWN]}"
