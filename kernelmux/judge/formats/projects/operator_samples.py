"""Calls of single operators of aten as torch's own tests of operators make them: arguments where no trace names them.

A sample of theirs that is one call of an operator comes first. For an operator that none calls alone, arguments are those
of the test of its name (matmul, which torch makes of others), then calls within other samples, and within their gradients.
Those tests need the package expecttest.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmux.judge.formats.candidate_side import in_parts

MOST = 8  # calls of an operator
GRADIENTS = 3  # samples of a test whose gradient is taken
FOREACH, FOREACH_LENGTH = re.compile(r"foreach_\w+_op_db"), 3
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)  # of samples, the first that a test allows

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@functools.cache
def samples() -> dict[str, list[Arguments]]:
    """The arguments of calls by the operator's name, such as aten.add.Tensor, `MOST` at most; {} without torch's tests."""
    try:
        from torch.testing._internal import common_methods_invocations as tests
    except ImportError:
        return {}
    lists = [infos for name, infos in sorted(vars(tests).items()) if FOREACH.fullmatch(name)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gathered(tests.op_db, [info for infos in lists for info in infos])


def gathered(infos: Sequence[Any], foreach: Sequence[Any] = ()) -> dict[str, list[Arguments]]:
    """`samples` of some tests, OpInfo objects of torch. foreach: of those whose input is a list of tensors."""
    alone, named, within = dict[str, list[Arguments]](), dict[str, list[Arguments]](), dict[str, list[Arguments]]()
    for info in infos:
        for sample in _drawn(info):
            calls = _called(info, sample, alone)
            _keep(calls, alone if len(calls) == 1 else within)
            _keep(_of_its_name(info, sample, named), named)
    for info in foreach:
        for sample in _drawn(info, num_input_tensors=[FOREACH_LENGTH]):
            _keep(_of_its_name(info, sample, named), named)
    for info in infos:
        for calls in _gradients(info, alone, named, within):
            _keep(calls, within)
    return {name: calls for one in (within, named, alone) for name, calls in one.items() if calls}


def _keep(calls: Sequence[Call | None], found: dict[str, list[Arguments]]) -> None:
    """Add those that tell something, as they have a tensor of several numbers."""
    for name, args, kwargs in filter(None, calls):
        known = found.setdefault(name, [])
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if len(known) < MOST and any(x.numel() > 1 for x in tensors):
            known.append((args, kwargs))


def _called(info: Any, sample: Any, known: Mapping[str, list[Arguments]]) -> list[Call | None]:
    """The operators that a sample of a test calls."""
    with Dispatched(lambda name: len(known.get(name, ())) < MOST) as mode, torch.no_grad():
        try:
            info.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            return []
    found: list[Call | None] = mode.calls
    return found


def _of_its_name(info: Any, sample: Any, known: Mapping[str, list[Arguments]]) -> list[Call | None]:
    """The operators that have the name of a test, or another name for it, and take the arguments of a sample."""
    args, calls = (sample.input, *sample.args), list[Call | None]()
    for name in (info.name, *(alias.name for alias in info.aliases)):
        base = str(name).removeprefix("nn.functional.").replace(".", "_")
        try:
            overload = torch._C._jit_resolve_packet(f"aten::{base}", *args, **sample.kwargs) or "default"
        except RuntimeError:
            continue
        operator = f"aten.{base}.{overload}"
        if len(known.get(operator, ())) < MOST:
            calls.append((operator, *pytree.tree_map(_copied, (args, dict(sample.kwargs)))))
    return calls


def _gradients(info: Any, *known: Mapping[str, list[Arguments]]) -> Iterator[list[Call | None]]:
    """The operators that the gradients of a few samples of a test call."""
    if not info.supports_autograd:
        return
    for _, sample in zip(range(GRADIENTS), _drawn(info, requires_grad=True), strict=False):
        with Dispatched(lambda name: not any(one.get(name) for one in known)) as mode:
            try:
                result = info.op(sample.input, *sample.args, **sample.kwargs)
                roots = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
                torch.autograd.backward(roots, [torch.rand_like(x) for x in roots])
            except Exception:
                continue
        yield mode.calls


def _drawn(info: Any, **more: Any) -> Iterator[Any]:
    dtype = next((d for d in DTYPES if d in info.supported_dtypes("cpu")), None)
    if dtype is None:
        return
    try:
        torch.manual_seed(0)
        yield from info.sample_inputs("cpu", dtype, **more)
    except Exception:
        return


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called, with a copy of their arguments; None for those that are not wanted."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted = wanted
        self.calls: list[Call | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self.calls.append((str(func), *pytree.tree_map(_copied, (args, kwargs))) if self.wanted(str(func)) else None)
        return func(*args, **kwargs)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def anew(arguments: Arguments, seed: int, same: bool = False) -> Arguments:
    """Arguments with other numbers, so that no two seeds ask the same; scalars stay as they are.

    Each number lies between two of the same tensor, which keeps to the domain of the operator. A symmetric matrix stays
    one: it has its rows and columns in another order, and a factor. Where a number comes twice on average, which some
    operators count, numbers are drawn from those that are there. Integers may be indices: they are drawn so where no
    tensor has floating numbers. same: each of them as often as before, as where an argument tells their sum. Sparse
    tensors come in parts, and their places stay.
    """
    rng = torch.Generator().manual_seed(seed)
    arguments = pytree.tree_map(in_parts, arguments)
    tensors = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)]
    floating = any(_inexact(x) and x.numel() > 1 for x in tensors)

    def drawn(flat: torch.Tensor) -> torch.Tensor:
        count = flat.numel()
        return flat[torch.randperm(count, generator=rng) if same else torch.randint(count, (count,), generator=rng)]

    def other(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        x = x.detach()
        if (floating and not _inexact(x)) or x.layout != torch.strided or x.numel() < 2:
            return x
        flat = x.flatten()
        if not _inexact(x):
            return drawn(flat).reshape(x.shape)
        if x.dim() > 1 and x.shape[-1] == x.shape[-2] > 1 and torch.allclose(x, x.mT.conj()):
            order = torch.randperm(x.shape[-1], generator=rng)
            return x[..., order, :][..., order] * (0.5 + 0.5 * torch.rand(1, generator=rng)).to(x.dtype)
        if x.is_floating_point() and 2 * flat.unique().numel() <= x.numel():
            return drawn(flat).reshape(x.shape)
        one, two = (flat[torch.randperm(x.numel(), generator=rng)] for _ in range(2))
        between = one + (two - one) * (0.5 * torch.rand(x.numel(), generator=rng)).to(x.dtype)
        return torch.where(between.isfinite(), between, one).reshape(x.shape)

    args, kwargs = pytree.tree_map(other, arguments)
    return args, kwargs


def _inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
