"""Turning arguments into a checked call: axes, dtypes, devices, scalars, constraints, each with its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError

if TYPE_CHECKING:
    from kernelmux.registry.spec import Axis, Call, OpSpec, Scalar, Tensor


def bind(
    spec: OpSpec, arguments: dict[str, Any], capability: tuple[int, int] | None, device: torch.device | None
) -> Call:
    """The checked call; see `OpSpec.bind`. `device` and `capability` describe the machine of data-less tensors."""
    from kernelmux.registry.spec import Call, Tensor

    axes: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for item in spec.inputs:
        value = arguments[item.name]
        if isinstance(item, Tensor):
            _check_tensor(spec, item, value, arguments)
            _bind_axes(spec, item, value, axes, origin)
        else:
            arguments[item.name] = _scalar(spec, item, value, arguments)
    if spec.derive:
        axes.update(spec.derive(arguments, axes))
    if spec.normalise:
        spec.normalise(arguments, axes)
    for constraint in spec.constraints:
        if not constraint.holds({**arguments, **axes}):
            names = ", ".join(f"{k} = {v}" for k, v in axes.items() if k in constraint.text)
            raise ArgumentError(f"{spec.name}: expected {constraint.text}, got {names}")
    where = device or _device(spec, arguments)
    return Call(spec, arguments, axes, where, capability or _capability(where), device is not None)


def _check_tensor(spec: OpSpec, item: Tensor, value: Any, arguments: dict[str, Any]) -> None:
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected a torch.Tensor [{item.dims}], got {type(value).__name__}"
        )
    if item.like:
        want = arguments[item.like].dtype
        if value.dtype != want:
            got = SHORT.get(value.dtype, value.dtype)
            raise ArgumentError(f"{spec.name}: {item.name}: expected dtype {SHORT[want]} like {item.like}, got {got}")
    elif value.dtype not in item.dtypes:
        allowed = ", ".join(SHORT[d] for d in item.dtypes)
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected dtype one of {allowed}, got {SHORT.get(value.dtype, value.dtype)}"
        )
    if value.layout != torch.strided:
        raise ArgumentError(f"{spec.name}: {item.name}: expected a strided tensor, got {value.layout}")


def _bind_axes(spec: OpSpec, item: Tensor, value: torch.Tensor, axes: dict[str, Any], origin: dict[str, str]) -> None:
    letters, shape = item.dims.split(), tuple(value.shape)
    names = [d for d in letters if d != "..."]
    lead = len(shape) - len(names)
    if lead < 0 or (lead and "..." not in letters):
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected shape [{item.dims}], got {list(shape)} ({len(shape)} axes)"
        )
    at = letters.index("...") if "..." in letters else 0
    if "..." in letters:
        _agree(spec, "...", shape[at : at + lead], f"{item.name}.shape[{at}:{at + lead}]", axes, origin)
    for i, letter in enumerate(names):
        position = i if i < at else i + lead
        _agree(spec, letter, shape[position], f"{item.name}.shape[{position}]", axes, origin)


def _agree(spec: OpSpec, letter: str, value: Any, place: str, axes: dict[str, Any], origin: dict[str, str]) -> None:
    if letter not in axes:
        axes[letter], origin[letter] = value, place
    elif axes[letter] != value:
        shown = [list(v) if isinstance(v, tuple) else v for v in (axes[letter], value)]
        raise ArgumentError(
            f"{spec.name}: axis {letter} is {shown[0]} from {origin[letter]} but {shown[1]} from {place}"
        )


def _scalar(spec: OpSpec, item: Scalar | Axis, value: Any, arguments: dict[str, Any]) -> Any:
    from kernelmux.registry.spec import Axis

    if value is None and item.optional:
        return None
    if isinstance(item, Axis):
        return _axis(spec, item, value, arguments[item.of].dim())
    numeric = item.type is float and isinstance(value, int) and not isinstance(value, bool)
    if not (numeric or isinstance(value, item.type)) or (isinstance(value, bool) and item.type is not bool):
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected {item.type.__name__}, got {value!r} ({type(value).__name__})"
        )
    if item.choices and value not in item.choices:
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected one of {', '.join(map(repr, item.choices))}, got {value!r}"
        )
    if item.range and not item.range[0] <= value <= item.range[1]:
        raise ArgumentError(
            f"{spec.name}: {item.name}: expected {item.range[0]} <= {item.name} <= {item.range[1]}, got {value!r}"
        )
    return item.type(value)


def _axis(spec: OpSpec, item: Axis, value: Any, rank: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"{spec.name}: {item.name}: expected an int, got {value!r} ({type(value).__name__})")
    if not -rank <= value < rank:
        legal = f"{-rank} <= {item.name} < {rank}" if rank else "a tensor with at least one axis"
        raise ArgumentError(f"{spec.name}: {item.name}: expected {legal} for {item.of} with {rank} axes, got {value}")
    return value % rank


def _device(spec: OpSpec, arguments: dict[str, Any]) -> torch.device:
    """Where the call runs: the device of its tensors; for host tensors the current GPU if they are pinned."""
    places = {t.name: arguments[t.name].device for t in spec.tensors if not t.host}
    host = {t.name: arguments[t.name] for t in spec.tensors if t.host}
    for name, value in host.items():
        if value.device.type != "cpu":
            raise ArgumentError(f"{spec.name}: {name}: expected a tensor in host memory, got one on {value.device}")
    if not places:
        pinned = all(v.is_pinned() for v in host.values()) if torch.cuda.is_available() else False
        return torch.device("cuda", torch.cuda.current_device()) if pinned else torch.device("cpu")
    if len(set(places.values())) > 1:
        shown = ", ".join(f"{n} on {d}" for n, d in places.items())
        raise ArgumentError(f"{spec.name}: expected all tensors on one device, got {shown}")
    where: torch.device = next(iter(places.values()))
    if where.type not in ("cpu", "cuda"):
        raise ArgumentError(f"{spec.name}: expected tensors on cpu or cuda, got {where}")
    return where


def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None
