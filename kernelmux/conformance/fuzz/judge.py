"""What became of a call that was made up: it returned what the spec says, it was refused with a type, or neither."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

import kernelmux
from kernelmux.conformance.fuzz import calls, odd
from kernelmux.conformance.fuzz.calls import BIND, EXPLAIN, FUNCTION, MAPPED, MAPPED_OPERATOR, OPERATOR, WHICH, Draft
from kernelmux.registry.call import bound_call, dispatch
from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.interop import autocast, torch_ops
from kernelmux.registry.spec import REQUIRED, Tensor

RETURNED, SPELLING, OUTSIDE, TOO_LARGE, UNTYPED, WRONG = (
    "returned",
    "TypeError of a wrong keyword",
    "torch refused it before kernelmux",
    "too large for memory",
    "untyped",
    "returned something else",
)
CLASS = "raised by the class of a tensor's own code"
BAD = (UNTYPED, WRONG)
HOME, OWN = Path(kernelmux.__file__).parent, Path(__file__).parent
COMPILED = "<string>"  # where Python has the public functions, which are made from their specs
MEMORY = ("can't allocate memory", "not enough memory", "CUDA out of memory", "Unable to allocate")


@dataclass(frozen=True)
class FuzzVerdict:
    """kind: one of the above, or the name of the error. text: for a bad one what is wrong; place: where it was raised."""

    kind: str
    text: str = ""
    place: str = ""

    @property
    def bad(self) -> bool:
        return self.kind in BAD

    @property
    def cause(self) -> tuple[str, str]:
        """What two verdicts share that come from the same mistake."""
        return self.kind, self.place or self.text


def judge(draft: Draft, able: tuple[str, ...]) -> FuzzVerdict:
    """Make the call and say what became of it; KeyboardInterrupt alone is raised."""
    with warnings.catch_warnings(action="ignore"):
        try:
            with calls.surrounded(draft, able):
                try:
                    result = ROUTES[draft.route](draft)
                except Exception as error:
                    return _refused(draft, error)
                return _returned(draft, result)
        except Exception as error:  # what surrounds the call, or what looks at its result
            return FuzzVerdict(WRONG, f"{type(error).__name__}: {error}", _place(error))


def _refused(draft: Draft, error: Exception) -> FuzzVerdict:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, KernelmuxError):
        return FuzzVerdict(type(error).__name__, text)
    if any(part in str(error) for part in MEMORY):
        return FuzzVerdict(TOO_LARGE, text)
    if isinstance(error, TypeError) and draft.missing and draft.spec.name in str(error):
        return FuzzVerdict(SPELLING, text)
    # torch parses the arguments of its operators, and maps, before anything of kernelmux runs.
    if draft.route in (OPERATOR, MAPPED, MAPPED_OPERATOR) and not _ours(error):
        return FuzzVerdict(OUTSIDE, text)
    if any(_of_a_class(frame.filename) for frame in traceback.extract_tb(error.__traceback__)):
        return FuzzVerdict(CLASS, text)
    return FuzzVerdict(UNTYPED, text, _place(error))


def _of_a_class(file: str) -> bool:
    """Whether a file holds a class of tensors with operators of its own: one of ours, or MaskedTensor."""
    return Path(file).name == Path(str(odd.__file__)).name or "torch/masked/" in file


def _ours(error: BaseException) -> bool:
    """Whether code of kernelmux was running when it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename == COMPILED or _inside(frame.filename) for frame in frames)


def _inside(file: str) -> bool:
    """Whether a file is one of kernelmux, and not one of these."""
    return Path(file).is_relative_to(HOME) and not Path(file).is_relative_to(OWN)


def _place(error: BaseException) -> str:
    """Type of an exception and the innermost line of kernelmux from which it came, or of what raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [*frames[-1:], *(frame for frame in frames if _inside(frame.filename))][-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} in {last.name}"


# --- routes -------------------------------------------------------------------------------------------------------


def _function(draft: Draft) -> Any:
    return dispatch.function(draft.spec.name)(**draft.given, backend=draft.backend)


def _operator(draft: Draft) -> Any:
    return torch_ops.operator(draft.spec.name)(**draft.given, backend=draft.backend)


def _bind(draft: Draft) -> Any:
    tensors = [draft.given.get(item.name) for item in draft.spec.tensors]
    scalars = {name: value for name, value in draft.given.items() if name not in {t.name for t in draft.spec.tensors}}
    made = bound_call.bind(draft.spec.name, tensors, draft.backend, **scalars)
    return made(*[x for x in tensors if x is not None])


def _mapped(way: Callable[[Draft], Any]) -> Callable[[Draft], Any]:
    def run(draft: Draft) -> Any:
        if not (names := _batched(draft)):
            return way(draft)

        def one(*own: Any) -> Any:
            return way(replace(draft, arguments={**draft.arguments, **dict(zip(names, own, strict=True))}))

        return torch.vmap(one)(*(draft.arguments[name] for name in names))

    return run


def _batched(draft: Draft) -> list[str]:
    """The tensors over whose first axis vmap maps: those that have as many examples as the first."""
    given = {n: v for n, v in draft.given.items() if isinstance(v, torch.Tensor) and _counts(v)}
    length = next((v.shape[0] for v in given.values()), 0)
    return [name for name, v in given.items() if v.shape[0] == length]


def _counts(x: torch.Tensor) -> bool:
    lazy = isinstance(x, calls.LAZY)
    return not lazy and not x.is_nested and x.dim() > 0


ROUTES: dict[str, Callable[[Draft], Any]] = {
    FUNCTION: _function,
    OPERATOR: _operator,
    WHICH: lambda d: dispatch.which(d.spec.name, **d.given, backend=d.backend),
    EXPLAIN: lambda d: dispatch.explain(d.spec.name, **d.given, backend=d.backend),
    BIND: _bind,
    MAPPED: _mapped(_function),
    MAPPED_OPERATOR: _mapped(_operator),
}


# --- results ------------------------------------------------------------------------------------------------------


def _returned(draft: Draft, result: Any) -> FuzzVerdict:
    if draft.route in (WHICH, EXPLAIN):
        good = isinstance(result, str) if draft.route == WHICH else bool(str(result))
        return FuzzVerdict(RETURNED) if good else FuzzVerdict(WRONG, f"expected a text, got {type(result).__name__}")
    problem = next(_problems(draft, result if isinstance(result, tuple) else (result,)), "")
    return FuzzVerdict(WRONG, problem) if problem else FuzzVerdict(RETURNED)


def _problems(draft: Draft, outputs: tuple[Any, ...]) -> Iterator[str]:
    """What is wrong with the kind, number, shape and dtype of the outputs."""
    spec = draft.spec
    wanted = spec.outputs if draft.route in (OPERATOR, MAPPED_OPERATOR) else spec.outputs[: spec.visible]
    if len(outputs) != len(wanted) or not all(isinstance(y, torch.Tensor) for y in outputs):
        yield f"expected {len(wanted)} tensors, got {[type(y).__name__ for y in outputs]}"
        return
    mapped = _batched(draft) if draft.route in (MAPPED, MAPPED_OPERATOR) else []
    values = [draft.given.get(item.name, getattr(item, "default", None)) for item in spec.inputs]
    pairs = zip(spec.inputs, values, strict=True)
    try:
        with _disable_current_modes():
            values = [_seen(v, i.name in mapped) for i, v in pairs]
    except (RuntimeError, TypeError):  # a class that takes no such operator outside of vmap
        return
    if any(v is REQUIRED for v in values) or any(n in mapped and not draft.given[n].shape[0] for n in mapped):
        return
    if any(what.startswith("autocast") for what in draft.surroundings) and draft.route != BIND:
        values = list(autocast.cast(spec, tuple(values), "cpu"))
    tensors = (v for i, v in zip(spec.inputs, values, strict=True) if isinstance(i, Tensor) and v is not None)
    try:
        call = spec.bind(*values, device=next(tensors).device)
    except KernelmuxError:
        if draft.route in (
            OPERATOR,
            MAPPED_OPERATOR,
        ):  # torch has made other arguments of them: 1 of True, memory of zeros
            return
        raise
    for output, y in zip(wanted, outputs, strict=True):
        shape = tuple(y.shape[1:] if mapped else y.shape)
        if shape != tuple(output.shape(call)) or y.dtype != output.dtype_of(call):
            expected = f"{list(output.shape(call))} {output.dtype_of(call)}"
            yield f"{output.name}: expected {expected}, got {list(y.shape)} {y.dtype}"


def _seen(value: Any, mapped: bool) -> Any:
    """An argument as the operator met it: with memory, and an example of what vmap maps over."""
    if isinstance(value, torch.Tensor) and value._is_zerotensor():
        value = value.clone()
    return value.select(0, 0) if mapped and value.shape[0] else value


# --- smaller calls --------------------------------------------------------------------------------------------------


def smallest(draft: Draft, able: tuple[str, ...], verdict: FuzzVerdict) -> Draft:
    """The call without all that its bad verdict does not need: surroundings, backend, values of scalars, odd tensors."""
    changed = True
    while changed:
        changed = False
        for other in _simpler(draft):
            if judge(other, able).cause == verdict.cause:
                draft, changed = other, True
                break
    return draft


def _simpler(draft: Draft) -> Iterator[Draft]:
    for i in range(len(draft.surroundings)):
        yield replace(draft, surroundings=draft.surroundings[:i] + draft.surroundings[i + 1 :])
    if draft.backend is not None:
        yield replace(draft, backend=None)
    if draft.route != FUNCTION:
        yield replace(draft, route=FUNCTION)
    for item in draft.spec.inputs:
        value = draft.arguments[item.name]
        if isinstance(item, Tensor):
            if isinstance(value, torch.Tensor) and not _plain(value) and _counts(value):
                plain = calls.values(tuple(min(n, 8) for n in value.shape), value.dtype, 0)
                yield replace(draft, arguments={**draft.arguments, item.name: plain})
        elif item.default is not REQUIRED and value is not item.default:
            yield replace(draft, arguments={**draft.arguments, item.name: item.default})


def _plain(x: torch.Tensor) -> bool:
    """Whether a tensor is one of torch's own in memory, without a history."""
    kind = type(x) is torch.Tensor and x.layout == torch.strided and x.device.type == "cpu" and not x.is_quantized
    return kind and not x.requires_grad and not x.is_neg() and not x.is_inference() and x.is_contiguous()
