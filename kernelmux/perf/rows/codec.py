"""Dataclasses as JSON and back: the names of the fields are the keys, and an error says which field is wrong and how.

    decode(Ceilings, {"copy": 4.2e12, ...}, "x.json: ceilings")     a Ceilings, or Malformed
    encode(ceilings)                                                {"copy": 4.2e12, ...}

Keys that no field has are ignored. How a field differs from that is in its metadata:

    PART     another dataclass or None, whose fields stand among those of the whole
    SPARSE   left out of the JSON if it is None or empty
    DERIVED  computed again after reading; never written

A dataclass with subclasses chooses among them in `chosen(value)`, a class method; ValueError if none fits.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from kernelmux.registry.errors import shown

PART, SPARSE, DERIVED = {"form": "part"}, {"form": "sparse"}, {"form": "derived"}

T = TypeVar("T")


class Malformed(ValueError):
    """JSON of another form than the dataclass: where, what was expected, what it is."""


def encode(value: Any) -> dict[str, Any]:
    """The JSON object of a dataclass."""
    made: dict[str, Any] = {}
    for field in fields(value):
        form, content = field.metadata.get("form"), getattr(value, field.name)
        if form == "part" and content is not None:
            made |= encode(content)
        elif form is None or (form == "sparse" and content not in (None, "", (), {})):
            made[field.name] = _plain(content)
    return made


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return encode(value)
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def decode(kind: type[T], value: object, where: str) -> T:
    """The dataclass that a JSON object stands for; Malformed names the field."""
    if not isinstance(value, dict):
        raise Malformed(f"{where or 'the whole'}: expected an object, got {shown(value)}")
    try:
        choose = getattr(kind, "chosen", None)
        made: type[T] = choose(value) if choose else kind
        return made(**dict(_fields(made, value, where)))
    except Malformed:
        raise
    except ValueError as error:  # of the dataclass's own checks
        raise Malformed(f"{where}: {error}") from error


def _fields(kind: type[Any], value: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        form, expected = field.metadata.get("form"), hints[field.name]
        if form == "part":
            (inner,) = (part for part in get_args(expected) if part is not types.NoneType)
            if any(part.name in value for part in fields(inner) if _required(part)):
                yield field.name, decode(inner, value, where)
        elif field.name in value and form != "derived":
            yield field.name, _value(expected, value[field.name], _at(where, field.name))
        elif _required(field):
            raise Malformed(f"{_at(where, field.name)} is missing")


def _at(where: str, name: str) -> str:
    return f"{where}: {name}" if where else name


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _value(expected: Any, value: Any, where: str) -> Any:
    """A value of the type that a field has."""
    origin, inner = get_origin(expected), get_args(expected)
    if origin is types.UnionType:
        first = next(part for part in inner if part is not types.NoneType)
        return None if value is None else _value(first, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise Malformed(f"{where}: expected a list, got {shown(value)}")
        return tuple(_value(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise Malformed(f"{where}: expected an object, got {shown(value)}")
        return {key: _value(inner[1], item, f"{where}: {key}") for key, item in value.items()}
    if isinstance(expected, type) and is_dataclass(expected):
        return decode(expected, value, where)
    return _scalar(expected, value, where)


def _scalar(expected: type[Any], value: Any, where: str) -> Any:
    allowed = (int, float) if expected is float else (expected,)
    if type(value) not in allowed:
        raise Malformed(f"{where}: expected {NAMES[expected]}, got {shown(value)}")
    if isinstance(value, float) and value - value != 0:
        raise Malformed(f"{where}: expected a finite number, got {value}")
    return value
