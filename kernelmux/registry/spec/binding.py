"""Turning arguments into a checked call: axes, dtypes, devices, scalars, constraints, each with its own error."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Proxy
from torch.nn import UninitializedBuffer, UninitializedParameter

from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, not_in_fx, shown
from kernelmux.registry.spec.signature import Axis, Call, Form, Output, Scalar, Spec, Tensor
from kernelmux.registry.util import cards, torch_modes
from kernelmux.registry.util.torch_modes import Surroundings


def bind(
    spec: Spec,
    arguments: dict[str, Any],
    capability: tuple[int, int] | None = None,
    device: torch.device | None = None,
    around: Surroundings | None = None,
) -> Call:
    """The checked call; see `OpSpec.bind`. `device` and `capability` describe the machine of data-less tensors.

    around: what surrounds the call, where that was read already.
    """
    around = around or torch_modes.surroundings(arguments.values())
    axes: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for item in spec.inputs:
        value = arguments[item.name]
        if isinstance(item, Tensor):
            if value is None and item.optional:
                continue
            _check_tensor(spec, item, value, arguments, around)
            _bind_axes(spec, item, value, axes, origin)
        else:
            arguments[item.name] = _scalar(spec, item, value, arguments)
    _check_formats(spec, arguments)
    where = device or _device(spec, arguments)
    if isinstance(where, torch.device):
        capability = capability or _capability(where)
    if spec.normalise:
        spec.normalise(arguments, axes)
    if spec.derive:
        axes.update(spec.derive(arguments, axes))
    for constraint in spec.constraints:
        if not constraint.holds({**arguments, **axes}):
            values = {**axes, **{k: v for k, v in arguments.items() if not isinstance(v, torch.Tensor)}}
            names = ", ".join(f"{k} = {shown(v)}" for k, v in values.items() if k in constraint.text)
            raise ArgumentError(f"{spec.name}: expected {constraint.text}, got {names}")
    if isinstance(where, ArgumentError):  # what is wrong with values and lengths is said before it
        raise where
    call = Call(spec, arguments, axes, where, capability, device is not None)
    if around.memory and not around.modes and not call.hypothetical:  # a dispatch mode may place outputs elsewhere
        for output in spec.outputs:
            if output.size(call) >= torch_modes.LARGE:
                _check_room(call, output)
    return call


def left_out(call: Call, name: str) -> Any:
    """What an argument with a default is in a call that leaves it out, all others being as they are."""
    spec, arguments = call.spec, dict(call.arguments)
    item = next(i for i in spec.inputs if i.name == name)
    arguments[name] = item.default if isinstance(item, Tensor) else _scalar(spec, item, item.default, arguments)
    if spec.normalise:
        spec.normalise(arguments, call.axes)
    return arguments[name]


def _check_room(call: Call, output: Output) -> None:
    """Refuse an output that the device could not hold if it were empty."""
    if lack := torch_modes.shortage(call.device, output.size(call)):
        shape = list(output.shape(call))
        raise ArgumentError(f"{call.spec.name}: {output.name}: expected an output that fits, got {shape}: {lack}")


def _check_tensor(spec: Spec, item: Tensor, value: Any, arguments: dict[str, Any], around: Surroundings) -> None:
    if not isinstance(value, torch.Tensor):
        if isinstance(value, Proxy):
            raise not_in_fx(spec.name, item.name)
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected a torch.Tensor {item.shapes}{' or None' if item.optional else ''},"
            f" got {type(value).__name__}"
        )
    if isinstance(value, UninitializedParameter | UninitializedBuffer):
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected a tensor with values, got a {type(value).__name__}: the first call of its"
            f" lazy module, or materialize(), gives it some"
        )
    inner = value if around.memory else torch_modes.innermost(value)
    if not strided(inner):
        raise ArgumentError(f"{spec.name}: {item.name}: {lacking(inner)}")
    _check_dtype(spec, item, value.dtype, arguments)
    if problem := lacking(inner, around.memory):
        raise ArgumentError(f"{spec.name}: {item.name}: {problem}")


def _check_dtype(spec: Spec, item: Tensor, dtype: torch.dtype, arguments: dict[str, Any]) -> None:
    got = SHORT.get(dtype, dtype)
    if item.like:
        want = arguments[item.like].dtype
        if dtype != want:
            raise ArgumentError(f"{spec.name}: {item.name}: expected dtype {SHORT[want]} like {item.like}, got {got}")
    elif dtype not in item.dtypes:
        allowed = ", ".join(SHORT[d] for d in item.dtypes)
        raise ArgumentError(f"{spec.name}: {item.name}: expected dtype one of {allowed}, got {got}")


def _check_formats(spec: Spec, arguments: dict[str, Any]) -> None:
    """Refuse dtypes that do not go together; a tensor that is left out goes with any."""
    if not spec.formats:
        return
    got = {n: arguments[n].dtype for n in dict.fromkeys(n for f in spec.formats for n in f) if arguments[n] is not None}
    if any(all(got.get(name, dtype) == dtype for name, dtype in together.items()) for together in spec.formats):
        return
    legal = " or ".join(_dtypes(together) for together in spec.formats)
    raise ArgumentError(f"{spec.name}: expected dtypes {legal}, got {_dtypes(got)}")


def _dtypes(found: Mapping[str, torch.dtype]) -> str:
    return ", ".join(f"{name} {SHORT[dtype]}" for name, dtype in found.items())


def strided(x: torch.Tensor) -> bool:
    """Whether x has strides: it is neither nested nor sparse."""
    return not x.is_nested and x.layout == torch.strided


def lacking(x: torch.Tensor, memory: bool = False) -> str | None:
    """What is wrong with a tensor for every operator: it has no strides, or no memory behind it. None if nothing is.

    memory: it is known to have memory of its own (`torch_modes.has_memory`).
    """
    if not strided(x):
        return f"expected a strided tensor, got {'a nested tensor' if x.is_nested else x.layout}"
    problem = unreadable(x, memory)
    return f"expected {x.numel()} elements in memory, got {problem}" if problem else None


def unreadable(x: torch.Tensor, memory: bool = False) -> str | None:
    """What is wrong with the memory behind a tensor that should have some, or None. memory: as for `lacking`."""
    if x.device.type == "meta" or not (memory or torch_modes.has_memory(x)):
        return None
    if x._is_zerotensor():
        return "a tensor of zeros without memory: pass its clone()"
    if x.numel() == 0:
        return None
    reach = x.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    held = x.untyped_storage().nbytes() // x.element_size()
    return None if reach <= held else f"a storage that was freed or shrunk to {held}"


def _bind_axes(spec: Spec, item: Tensor, value: torch.Tensor, axes: dict[str, Any], origin: dict[str, str]) -> None:
    """Take the lengths of the first form that agrees with the axes that are known."""
    shape, problems = tuple(value.shape), []
    fitting = [lengths for form in item.forms if (lengths := _lengths(item.name, form, shape)) is not None]
    for lengths in fitting:
        found, places = dict(axes), dict(origin)
        try:
            for letter, length, place in lengths:
                _agree(spec, letter, length, place, found, places)
        except ArgumentError as problem:
            problems.append(problem)
            continue
        axes.update(found)
        origin.update(places)
        return
    texts = dict.fromkeys(str(problem).removeprefix(f"{spec.name}: ") for problem in problems)
    if len(item.forms) == len(fitting) and len(texts) == 1:
        raise problems[0]
    reasons = "".join(f"; {text}" for text in texts)
    raise ArgumentError(
        f"{spec.name}: {item.name}: expected shape {item.shapes}, got {list(shape)} ({len(shape)} axes){reasons}"
    )


def _lengths(name: str, form: Form, shape: tuple[int, ...]) -> list[tuple[str, Any, str]] | None:
    """Each axis of a form with its length and the place where it stands; "..." first, with all of its own.

    None if the form has another number of axes than the shape, or another length in place of a number (`spread`).
    """
    lead = len(shape) - len(form) + 1  # how many axes "..." stands for
    at = form.index("...") if "..." in form else len(form)
    if lead < 0 or (at == len(form) and lead != 1):
        return None
    found: list[tuple[str, Any, str]] = []
    if at < len(form):
        found.append(("...", shape[at : at + lead], f"{name}.shape[{at}:{at + lead}]"))
    for i, letter in enumerate(form):
        position = i if i < at else i + lead - 1
        if letter.isdigit():
            if int(letter) != shape[position]:
                return None
        elif letter != "...":
            found.append((letter, shape[position], f"{name}.shape[{position}]"))
    return found


def _agree(spec: Spec, letter: str, value: Any, place: str, axes: dict[str, Any], origin: dict[str, str]) -> None:
    if letter not in axes:
        axes[letter], origin[letter] = value, place
    elif axes[letter] != value:
        shown = [list(v) if isinstance(v, tuple) else v for v in (axes[letter], value)]
        raise ArgumentError(
            f"{spec.name}: axis {letter} is {shown[0]} from {origin[letter]} but {shown[1]} from {place}"
        )


def _scalar(spec: Spec, item: Scalar | Axis, value: Any, arguments: dict[str, Any]) -> Any:
    if value is None and item.optional:
        return None
    if isinstance(item, Axis):
        return _axis(spec, item, value, arguments[item.of].dim())
    if item.length is None:
        return _number(spec, item, value)
    if not isinstance(value, SEQUENCES):
        return (_number(spec, item, value),) * item.length
    if len(value) != item.length:
        legal = f"{item.type.__name__}, or {item.length} of them"
        raise ArgumentError(f"{spec.name}: {item.name}: expected {legal}, got {shown(value)}")
    return tuple(_number(spec, item, v) for v in value)


SEQUENCES = (tuple, list)  # of the numbers of one scalar


def identity(value: Any) -> Any:
    """What tells a scalar from others, with a hash: in a sequence 1, 1.0 and True are equal, and not one call."""
    return (value.__class__, *((v.__class__, v) for v in value)) if isinstance(value, SEQUENCES) else value


def _number(spec: Spec, item: Scalar, value: Any) -> Any:
    """One value of a scalar, checked."""
    found = _KINDS[item.type](value)
    if found is None:
        raise ArgumentError(f"{spec.name}: {item.name}: expected {item.type.__name__}, got {_value_with_type(value)}")
    if item.type is float and not abs(found) <= LARGEST:
        legal = f"a finite number that fp32 can hold, at most {LARGEST:.3g} in magnitude"
        raise ArgumentError(f"{spec.name}: {item.name}: expected {legal}, got {shown(value)}")
    if wanted := expected(item, found):
        raise ArgumentError(f"{spec.name}: {item.name}: expected {wanted}, got {shown(value)}")
    return found


def expected(item: Scalar, value: Any) -> str | None:
    """What a value of the right type should be that is none of the choices, or outside of the range; else None."""
    if item.choices and value not in item.choices:
        return f"one of {', '.join(map(repr, item.choices))}"
    if item.range and not item.range[0] <= value <= item.range[1] and value not in item.also:
        beside = "".join(f" or {item.name} = {v}" for v in item.also)
        return f"{item.range[0]} <= {item.name} <= {item.range[1]}{beside}"
    return None


LARGEST = torch.finfo(torch.float32).max  # kernels take scalars in fp32, and no operator gives a meaning to inf or NaN


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _int(value: Any) -> Any:
    if isinstance(value, torch.SymInt):  # it may vary within a graph
        return value
    return int(value) if not isinstance(value, bool) and isinstance(value, numbers.Integral) else None


_KINDS: dict[type, Callable[[Any], Any]] = {
    float: _float,
    int: _int,
    bool: lambda value: value if isinstance(value, bool) else None,
    str: lambda value: str(value) if isinstance(value, str) else None,
}


def _value_with_type(value: Any) -> str:
    """A value with its type, whose module is shown where it is not Python's own."""
    kind = type(value)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{shown(value)} ({home}{kind.__qualname__})"


def _axis(spec: Spec, item: Axis, value: Any, rank: int) -> int:
    found: int | None = _int(value)
    if found is None:
        raise ArgumentError(f"{spec.name}: {item.name}: expected an int, got {_value_with_type(value)}")
    if not -rank <= found < rank:
        legal = f"{-rank} <= {item.name} < {rank}" if rank else "a tensor with at least one axis"
        got = shown(value)
        raise ArgumentError(f"{spec.name}: {item.name}: expected {legal} for {item.of} with {rank} axes, got {got}")
    return found % rank


def _device(spec: Spec, arguments: dict[str, Any]) -> torch.device | ArgumentError:
    """Where the call runs: the device of its tensors; for host tensors the current GPU if they are pinned.

    An error, which is not raised here, where they are not on one device, or on one of no backend.
    """
    given = [t for t in spec.tensors if arguments[t.name] is not None]
    places = {t.name: arguments[t.name].device for t in given if not t.host}
    host = {t.name: arguments[t.name] for t in given if t.host}
    for name, value in host.items():
        if value.device.type != "cpu":
            return ArgumentError(f"{spec.name}: {name}: expected a tensor in host memory, got one on {value.device}")
    if not places:
        pinned = all(v.is_pinned() for v in host.values()) if torch.cuda.is_available() else False
        return torch.device("cuda", torch.cuda.current_device()) if pinned else torch.device("cpu")
    if len(set(places.values())) > 1:
        shown = ", ".join(f"{n} on {d}" for n, d in places.items())
        return ArgumentError(f"{spec.name}: expected all tensors on one device, got {shown}")
    where: torch.device = next(iter(places.values()))
    if where.type not in ("cpu", "cuda"):
        return ArgumentError(f"{spec.name}: expected tensors on cpu or cuda, got {where}")
    return where


def _capability(device: torch.device) -> tuple[int, int] | None:
    """Of a GPU that is there; a fake tensor may be on one that is not."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return cards.capability_of(torch.cuda.current_device() if device.index is None else device.index)
