"""The two modes of torch in which a program is watched: one on each side of its dispatcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kernelmux.registry import catalog
from kernelmux.registry.interop import torch_ops
from kernelmux.registry.observe.recorded_calls import GPU, RecordedCall
from kernelmux.warm.stand_ins import KNOWN, here

T: Any = torch.Tensor
ATEN: Any = torch.ops.aten
READ = (ATEN._local_scalar_dense.default, ATEN.item.default)
TRUE = (ATEN.equal.default, ATEN.allclose.default)
# What fills a tensor with a value that the program names: the place of the value among the arguments, or the value. That a
# token is among those that end a text is taken as false.
FILLED = {"full": 1, "full_like": 1, "new_full": 2, **dict.fromkeys(("ones", "ones_like", "new_ones"), 1.0)}
FILLED |= dict.fromkeys(("zeros", "zeros_like", "new_zeros", "isin"), 0.0)
# What autocast of a GPU computes in fp32: https://docs.pytorch.org/docs/stable/amp.html
WIDE = frozenset(
    """__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss cdist
    cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss
    layer_norm log log10 log_softmax log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss multi_margin_loss
    nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softmax
    softmin softplus sum renorm tan triplet_margin_loss""".split()
)


class EnoughSeen(BaseException):
    """Raised at the last step that is wanted, and when time is over; a program that catches errors does not catch it."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the calls of our operators, and answers where a program reads a value."""

    def __init__(self, fakes: FakeTensorMode, until: float) -> None:
        """fakes: the mode around it. until: by time.monotonic, when the program is ended."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[RecordedCall, int] = {}
        self.fakes, self.until = fakes, until

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self.until:
            raise EnoughSeen
        named = dict(kwargs or {})
        space, name = func._schema.name.split("::")
        if space == torch_ops.NAMESPACE:
            self._keep(name, args, named)
        if func in TRUE:
            return True
        if func is ATEN.is_nonzero.default or func in READ:
            return _value(args[0], func is ATEN.is_nonzero.default)
        found = func(*args, **named)
        if space == "aten" and name == "all":
            found.every = True
        return self._known(found, FILLED[name], args) if space == "aten" and name in FILLED else found

    def _keep(self, op: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        for x in args:
            if isinstance(x, T):
                x.constant = None  # or torch would compute with it
        call = RecordedCall.of(op, torch_ops.complete(catalog.spec(op), tuple(args)), named.get("backend") or "auto")
        if call is not None:
            self.calls[call] = self.calls.get(call, 0) + 1

    def _known(self, found: Any, value: Any, args: Sequence[Any]) -> Any:
        """A small tensor of integers or truths with its value, which torch then carries on from operator to operator."""
        if found.numel() > KNOWN or found.dtype.is_floating_point or found.dtype.is_complex:
            return found
        with _disable_current_modes():
            real = torch.full(found.shape, args[value] if type(value) is int else value, dtype=found.dtype)
            return self.fakes.fake_tensor_converter.from_real_tensor(self.fakes, real, make_constant=True)


def _value(x: Any, truth: bool = False) -> bool | float | int:
    """What a program reads of a tensor, or of whether it is true: its value where that is known."""
    if (known := getattr(x, "constant", None)) is not None:
        with _disable_current_modes():
            return bool(known) if truth else known.item()
    if truth or x.dtype is torch.bool:
        return hasattr(x, "every")
    return 1.0 if x.dtype.is_floating_point else 1


def _array(x: Any, *given: Any, **named: Any) -> Any:
    """The values of a tensor for numpy, all of them 1; TypeError for a dtype that numpy has not."""
    with _disable_current_modes():
        return torch.ones(tuple(x.shape), dtype=x.dtype).numpy()


def _format(x: Any, form: str) -> str:
    return repr(x) if x.dim() else format(x.item(), form)


# What is answered in place of a function of torch.
ANSWERS: Mapping[Any, Callable[..., Any]] = {
    T.is_cuda.__get__: lambda x: True,
    T.is_cpu.__get__: lambda x: False,
    T.get_device: lambda x: 0,
    T.cuda: lambda x, *given, **named: x,
    T.pin_memory: lambda x, *given, **named: x,
    T.record_stream: lambda x, stream: None,
    T.numpy: _array,
    T.__format__: _format,
}


class OnTheCpu(TorchFunctionMode):
    """Puts on the CPU what a program wants on a GPU, with the dtypes that autocast has there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in ANSWERS:
            return ANSWERS[func](*args, **named)
        if func is torch.device:
            return func(*((GPU.type, *args) if args and type(args[0]) is int else args), **named)
        if "device" in named:
            named["device"] = here(named["device"])
        if func is T.to:
            args = (args[0], *map(here, args[1:]))
        if getattr(func, "__name__", "") in WIDE and torch.is_autocast_enabled("cpu"):
            args = tuple(map(_wide, args))
        return func(*args, **named)


def _wide(value: Any) -> Any:
    narrow = isinstance(value, T) and value.is_floating_point() and value.dtype.itemsize == 2
    return value.float() if narrow else value
