"""`graphed`: a function captured in a CUDA graph, replayed with new inputs of the same shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.util.torch_modes import has_memory

cuda: Any = torch.cuda  # whether its classes are typed depends on the build of torch
DEVICE = "cuda"
AGAIN = ": capture it anew for these"
WARMUP = 3  # runs before the capture: kernels are compiled, libraries take their workspaces


def graphed(fn: Callable[..., Any], *args: Any, clone: bool = False) -> Graphed:
    """Capture `fn(*args)` in a CUDA graph: `fast = kx.graphed(model, x); y = fast(x2)`.

    args: tensors of one GPU, alone or in lists, tuples and dicts; what is no tensor is fixed. clone: return copies; without
    it a call returns the graph's own outputs, which the next call overwrites.

    fn runs three times on a stream of its own, and once more while it is captured, with copies of the arguments: what it
    writes into them stays in the graph. It must not wait for the GPU (`.item()`, a copy to the host). Tensors that it reads
    beside its arguments, such as weights, are read where they lie now: change them in place. Backends are those in force
    now. Random numbers of the GPU's default generator go on from call to call. The graph keeps its memory until it is
    dropped. A training step is captured as a whole, with its backward and the step of the optimizer inside of fn.

    ArgumentError for arguments that are not on a GPU, or that require a gradient.
    """
    return Graphed(fn, args, clone)


class Graphed:
    """A captured function. Called with arguments like those that it was captured with; see `graphed`.

    Calls from several threads follow one another; a call on another stream waits for the one before. inputs: the tensors
    that the graph reads, in the order of the arguments; an argument that is one of them is not copied. outputs: what it
    writes, in the form that fn returns. graph: torch's CUDAGraph.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], clone: bool) -> None:
        leaves, self._form = pytree.tree_flatten(args)
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._fn = fn  # keeps the tensors that the graph reads beside its arguments
        self._clone = clone
        self._lock = threading.Lock()
        self._constants = [None if isinstance(v, torch.Tensor) else v for v in leaves]
        self._at = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)]
        self._paths = [f"args{pytree.keystr(path)}" for path, _ in pytree.tree_flatten_with_path(args)[0]]
        self._device = self._checked(leaves)
        with cuda.device(self._device):
            with torch.inference_mode(False):  # or they could not be written outside of it
                self.inputs = tuple(leaves[i].detach().clone() for i in self._at)
            self.graph, self.outputs = self._captured(leaves)
            self._stream = cuda.current_stream()

    def __call__(self, *args: Any) -> Any:
        leaves, form = pytree.tree_flatten(args)
        if form != self._form:
            raise ArgumentError(f"graphed {self._name}: expected arguments of the form {self._form}, got {form}{AGAIN}")
        for i, value in enumerate(leaves):
            if i not in self._at and not _equal(value, self._constants[i]):
                self._refuse(i, f"{shown(self._constants[i])}, a constant of the graph", shown(value))
        tensors = [leaves[i] for i in self._at]
        for i, x, static in zip(self._at, tensors, self.inputs, strict=True):
            self._compare(i, x, static)
        with self._lock, cuda.device(self._device), torch.no_grad():
            return self._replayed(tensors)

    def __repr__(self) -> str:
        return f"<{self._name} in a CUDA graph: {', '.join(map(_outline, self.inputs))}>"

    def _checked(self, leaves: list[Any]) -> torch.device:
        """The GPU of the arguments; ArgumentError if the function cannot be captured with them."""
        if not callable(self._fn):
            raise ArgumentError(
                f"graphed: fn: expected a function and then its arguments, got {type(self._fn).__name__}"
            )
        if cuda.is_available() and cuda.is_current_stream_capturing():
            raise ArgumentError(f"graphed {self._name}: expected a call outside of the capture of another graph")
        for i in self._at:
            if (x := leaves[i]).device.type != DEVICE or not has_memory(x):
                lack = "" if cuda.is_available() else "; this machine has none"
                self._refuse(i, f"a tensor on a GPU{lack}", f"{type(x).__name__} {_outline(x)}", again="")
            _without_gradient(self._name, self._paths[i], x)
        places = sorted({str(leaves[i].device) for i in self._at})
        if len(places) != 1:
            raise ArgumentError(
                f"graphed {self._name}: expected tensors of one GPU, got {', '.join(places) or 'no tensor'}"
            )
        if torch.is_autocast_enabled(DEVICE) and torch.is_autocast_cache_enabled():
            raise ArgumentError(
                f"graphed {self._name}: expected autocast inside of the function, or cache_enabled=False: casts of weights"
                f" that autocast remembers are freed while the graph still reads them"
            )
        device: torch.device = leaves[self._at[0]].device
        return device

    def _captured(self, leaves: list[Any]) -> tuple[Any, Any]:
        """The graph and its outputs. A stream of its own: what others have queued is neither captured nor waited for."""
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(WARMUP):
                self._run()
        stream.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # other threads may use the GPU
            outputs = self._run()
        cuda.current_stream().wait_stream(stream)
        for y in pytree.tree_leaves(outputs):
            if isinstance(y, torch.Tensor) and y.requires_grad:
                raise ArgumentError(
                    f"graphed {self._name}: expected outputs without a gradient, got one that requires it: capture it under"
                    f" torch.no_grad(), or with the backward inside of the function"
                )
        return graph, outputs

    def _run(self) -> Any:
        leaves = list(self._constants)
        for i, static in zip(self._at, self.inputs, strict=True):
            leaves[i] = static
        return self._fn(*pytree.tree_unflatten(leaves, self._form))

    def _replayed(self, tensors: list[torch.Tensor]) -> Any:
        stream = cuda.current_stream()
        if stream != self._stream:  # the last call may still read its inputs there
            stream.wait_stream(self._stream)
            self._stream = stream
        for x, static in zip(tensors, self.inputs, strict=True):
            if x is not static:
                static.copy_(x)
        self.graph.replay()
        if not self._clone:
            return self.outputs
        return pytree.tree_map(lambda y: y.clone() if isinstance(y, torch.Tensor) else y, self.outputs)

    def _compare(self, i: int, x: Any, static: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor):
            self._refuse(i, _outline(static), shown(x))
        if x.shape != static.shape or x.dtype != static.dtype or x.device != static.device or not has_memory(x):
            self._refuse(i, _outline(static), _outline(x))
        _without_gradient(self._name, self._paths[i], x)

    def _refuse(self, i: int, expected: str, got: str, again: str = AGAIN) -> None:
        raise ArgumentError(f"graphed {self._name}: {self._paths[i]}: expected {expected}, got {got}{again}")


def _without_gradient(name: str, path: str, x: torch.Tensor) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"graphed {name}: {path}: expected a tensor without a gradient, got one that requires it: pass its detach(),"
            f" call under torch.no_grad(), or capture the whole training step"
        )


def _outline(x: torch.Tensor) -> str:
    return f"{SHORT.get(x.dtype, x.dtype)}{list(x.shape)} on {x.device}"


def _equal(value: Any, constant: Any) -> bool:
    """Whether a constant is the one that was captured; what cannot be compared must be the same object."""
    if value is constant:
        return True
    try:
        return type(value) is type(constant) and bool(value == constant)
    except Exception:
        return False
