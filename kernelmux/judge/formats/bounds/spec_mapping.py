"""Which of our operators a task is: its reference's calls of torch are noted, and a guess is proved by numbers.

A reference that makes one call that some operator of ours covers, and otherwise only views, is guessed to be that operator;
so are a few compositions (rms_norm, silu, gelu by tanh). The guess holds if the spec's own reference gives what the task's
gives, both in float64, on the tensors of the call. Then the spec's bound judges the task; a wrong guess costs time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.judge.formats.candidate_side import Outputs
from kernelmux.judge.formats.trial import TaskTrial
from kernelmux.registry import catalog, numerics
from kernelmux.registry.backend import bounds
from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.spec import Call, OpSpec, exact_arguments

CLOSE = 2.0**-40  # relative to the largest value: what two orders of a sum in float64 may differ by
VIEWS = frozenset(
    "transpose t permute reshape view squeeze unsqueeze flatten unflatten contiguous movedim swapaxes expand expand_as"
    " __getitem__ detach to type __get__ narrow select zeros_like empty_like requires_grad_ float double half bfloat16"
    " clone __setitem__ copy_ cpu cuda matrix_transpose unbind split chunk".split()
)
NORM = frozenset("pow square mul __mul__ __rmul__ div __truediv__ add __add__ __radd__ mean rsqrt sqrt".split())
NotedCall = tuple[str, tuple[Any, ...], dict[str, Any], Any]
Guess = tuple[str, dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]


@dataclass(frozen=True)
class Covered:
    """A task's call as one of an operator of ours. value: its output in float64; bound: how far a result may be off.

    bound is None for an output that must be equal. Both are shaped like the task's output.
    """

    op: str
    call: Call
    value: torch.Tensor
    bound: torch.Tensor | None


def covered(trial: TaskTrial, exact: Outputs) -> Covered | None:
    """The operator of ours that a call of a task is, None where none is; exact: the task's outputs in float64."""
    if len(exact) != 1 or trial.check is not None:
        return None
    for op, arguments, shaped in _guesses(trial):
        if (found := _proved(op, arguments, shaped, exact[0])) is not None:
            return found
    return None


def _proved(
    op: str, arguments: Mapping[str, Any], shaped: Callable[[torch.Tensor], torch.Tensor], exact: torch.Tensor
) -> Covered | None:
    spec = catalog.spec(op)
    try:
        call = spec.bind(**arguments)
        value = spec.evaluate(call)[0]
        mine = shaped(value).reshape(exact.shape)
    except (KernelmuxError, RuntimeError, IndexError, TypeError):
        return None
    if not _same(mine, exact):
        return None
    if not value.is_floating_point() or not spec.outputs[0].dtype_of(call).is_floating_point:
        return Covered(op, call, exact, None)
    return Covered(op, call, mine, shaped(loosest(spec, call, value)).reshape(exact.shape))


def loosest(spec: OpSpec, call: Call, value: torch.Tensor) -> torch.Tensor:
    """The bound of the first output, by element, of the loosest arithmetic that a variant may declare, but for tf32."""
    given, flushed = exact_arguments(call), bounds.flushed(call)
    allowed = [numerics.arithmetic(name, call.dtype, call.scalars) for name in spec.arithmetics]
    return torch.stack([bounds.limit(call, 0, how, value, given, flushed).total for how in allowed]).amax(0)


def _same(mine: torch.Tensor, exact: torch.Tensor) -> bool:
    if not exact.is_floating_point():
        return torch.equal(mine.to(exact.dtype), exact)
    sizes = exact.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    largest = float(sizes.max()) if sizes.numel() else 0.0
    return torch.allclose(mine.double(), exact.double(), rtol=CLOSE, atol=CLOSE * largest, equal_nan=True)


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value


def _guesses(trial: TaskTrial) -> Iterator[Guess]:
    calls = [(trial.single, trial.args, dict(trial.kwargs), None)] if trial.single else trial.noted()[0]
    work = [c for c in calls if c[0] not in VIEWS]
    names = {name for name, *_ in work}
    if len(work) == 1 and (maker := CALLS.get(work[0][0].strip("_"))):
        found = _taken(maker, work[0])
        yield from [found] if found else []
    leaves = [x for x in trial.leaves if x.is_floating_point()]
    if names and names <= NORM and names & {"rsqrt", "sqrt"} and "mean" in names:
        yield from _norms(leaves, work)
    if len(leaves) == 1 and names & {"sigmoid", "tanh", "softmax", "exp"}:
        yield "silu", {"x": leaves[0]}, _plain
        yield "gelu", {"x": leaves[0], "approximate": "tanh"}, _plain
    if names == {"sum"} and leaves:
        yield "reduce_sum", {"x": leaves[0]}, _plain  # of a copy in float64, say
    if names == {"einsum"} and len(leaves) == 2:
        yield "matmul", {"a": leaves[0], "b": leaves[1]}, _plain
    if len(leaves) == 2 and "sigmoid" in names | {n for n in names if "silu" in n}:
        yield "swiglu", {"a": leaves[0], "b": leaves[1]}, _plain
    if names <= {"mul", "pow", "square", "__mul__"} and len(leaves) == 1:
        yield "square", {"x": leaves[0]}, _plain
    if names <= {"add", "__add__"} and len(leaves) in (2, 3):
        yield "add", {"x": leaves[0], "y": leaves[1]}, _plain


def _taken(maker: Callable[..., Guess | None], call: NotedCall) -> Guess | None:
    try:
        return maker(*call[1], **call[2])
    except (TypeError, IndexError, AttributeError, ValueError):
        return None


def _norms(leaves: list[torch.Tensor], work: list[NotedCall]) -> Iterator[Guess]:
    """rms_norm of a tensor over its last or its second axis, with the weight that is given or none."""
    numbers = [v for name, args, named, _ in work if "add" in name for v in (*args, *named.values())]
    eps = next((float(v) for v in numbers if isinstance(v, int | float)), 0.0)
    x, weights = max(leaves, key=torch.Tensor.dim), [w for w in leaves if w.dim() == 1]
    for axis in (-1, 1):
        if -x.dim() <= axis < x.dim():
            moved = x.movedim(axis, -1)
            weight = weights[0] if weights else torch.ones(moved.shape[-1], dtype=x.dtype, device=x.device)
            back = _Moved(axis)
            yield "rms_norm", {"x": moved, "weight": weight, "eps": eps}, back
            if others := [y for y in leaves if y is not x and y.shape == x.shape]:
                total = {"x": moved, "residual": others[0].movedim(axis, -1), "weight": weight, "eps": eps}
                yield "add_rms_norm", total, back


class _Moved:
    """Moves the last axis to where it was."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value.movedim(-1, self.axis)


def _softmax(x: torch.Tensor, dim: int = -1, *args: Any, **named: Any) -> Guess:
    return "softmax", {"x": x, "axis": dim}, _plain


def _log_softmax(x: torch.Tensor, dim: int = -1, *args: Any, **named: Any) -> Guess:
    return "log_softmax", {"x": x, "axis": dim}, _plain


def _product(a: torch.Tensor, b: torch.Tensor, **named: Any) -> Guess:
    return "matmul", {"a": a, "b": b}, _plain


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Guess:
    return "linear", {"x": x, "weight": weight, "bias": bias}, _plain


def _addmm(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, beta: float = 1, alpha: float = 1) -> Guess:
    return "linear", {"x": x, "weight": weight.mT, "bias": bias}, _plain


def _gelu(x: torch.Tensor, approximate: str = "none") -> Guess:
    return "gelu", {"x": x, "approximate": approximate}, _plain


def _silu(x: torch.Tensor, inplace: bool = False) -> Guess:
    return "silu", {"x": x}, _plain


def _layer_norm(
    x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> Guess:
    axes = len(shape)
    flat = x.flatten(-axes)
    ones = torch.ones(flat.shape[-1], dtype=x.dtype, device=x.device) if weight is None else weight.flatten()
    return (
        "layer_norm",
        {"x": flat, "weight": ones, "bias": None if bias is None else bias.flatten(), "eps": eps},
        _plain,
    )


def _rms_norm(x: torch.Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Guess:
    ones = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device) if weight is None else weight
    least = torch.finfo(x.dtype).eps if eps is None else eps
    return "rms_norm", {"x": x, "weight": ones, "eps": least}, _plain


def _pair(value: Any) -> Any:
    pair = tuple(value) if isinstance(value, list | tuple) else value
    return pair[0] if isinstance(pair, tuple) and len(set(pair)) == 1 else pair


def _conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    *rest: Any,
) -> Guess | None:
    """groups follow in F.conv2d; transposed, output_padding and groups in aten.convolution."""
    groups = rest[-1] if rest else 1
    if groups != 1 or (len(rest) == 3 and rest[0]) or isinstance(padding, str) or x.dim() != 4:
        return None
    sizes = {"stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation)}
    return "conv2d", {"x": x, "weight": weight, "bias": bias, **sizes}, _plain


def _convolution(x: torch.Tensor, weight: torch.Tensor, *args: Any, **named: Any) -> Guess | None:
    groups = named.pop("groups", 1)
    return _conv2d(x, weight, *args, **named) if groups == 1 else None


def _max_pool2d(
    x: torch.Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *args: Any, **named: Any
) -> Guess | None:
    if dilation not in (1, (1, 1), [1, 1]) or named.get("ceil_mode"):
        return None
    step = kernel if stride in (None, []) else stride
    return "max_pool2d", {"x": x, "kernel": _pair(kernel), "stride": _pair(step), "padding": _pair(padding)}, _plain


def _axis(dim: Any) -> Any:
    return dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim


def _reduction(op: str) -> Callable[..., Guess]:
    def guess(x: torch.Tensor, dim: Any = None, keepdim: bool = False, **named: Any) -> Guess:
        return op, {"x": x, "axis": _axis(named.get("axis", dim)), "keepdim": keepdim}, _plain

    return guess


def _cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, weight: Any = None, *args: Any, **named: Any
) -> Guess | None:
    kept = {n: named[n] for n in ("reduction", "ignore_index", "label_smoothing") if named.get(n) is not None}
    return (
        None if weight is not None or args else ("cross_entropy", {"logits": logits, "target": target, **kept}, _plain)
    )


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **named: Any,
) -> Guess | None:
    plain = attn_mask is None and not dropout_p and q.dim() == 4
    return ("attention", {"q": q, "k": k, "v": v, "causal": is_causal, "scale": scale}, _plain) if plain else None


def _add(x: torch.Tensor, y: torch.Tensor, alpha: float = 1) -> Guess | None:
    return ("add", {"x": x, "y": y}, _plain) if alpha == 1 else None


CALLS: dict[str, Callable[..., Guess | None]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    **dict.fromkeys(("matmul", "mm", "bmm", "rmatmul"), _product),
    "linear": _linear,
    "addmm": _addmm,
    "gelu": _gelu,
    "silu": _silu,
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "conv2d": _convolution,
    "convolution": _conv2d,
    **dict.fromkeys(("max_pool2d", "boolean_dispatch", "max_pool2d_with_indices"), _max_pool2d),
    "sum": _reduction("reduce_sum"),
    **dict.fromkeys(("max", "amax"), _reduction("reduce_max")),
    **dict.fromkeys(("min", "amin"), _reduction("reduce_min")),
    "argmax": _reduction("argmax"),
    "cross_entropy": _cross_entropy,
    "scaled_dot_product_attention": _attention,
    "add": _add,
}
