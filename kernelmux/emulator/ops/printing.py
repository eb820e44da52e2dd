"""printf in kernels: the template and the argument bytes of each lane, printed in lane order."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from kernelmux.emulator.running.group import Group

_FIELD = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?(hh|h|ll|l|z|t|j)?([diouxXeEfFgGcsp%])")


def print_lanes(group: Group, template: Any, arguments: Any) -> None:
    """Prints one formatted text per lane. template and arguments are parameter bytes (n, 8) that hold addresses."""
    text = group.run.access.text(group, template)
    addresses = (
        np.ascontiguousarray(arguments).view(np.int64)[:, 0] if np.ndim(arguments) == 2 else np.zeros(group.n, np.int64)
    )
    size = _size(text)
    for lane in range(group.n):
        data = group.run.access.raw(group, int(addresses[lane]), size, lane) if size else b""
        print(_formatted(group, text, data), end="")


def _size(text: str) -> int:
    end = 0
    for width in _widths(text):
        end = -(-end // width) * width + width
    return end


def _widths(text: str) -> list[int]:
    """Bytes of each argument as varargs: floats as double, small integers as int."""
    return [
        8 if m[2] in "eEfFgGsp" or m[1] in ("ll", "l", "z", "t", "j") else 4
        for m in _FIELD.finditer(text)
        if m[2] != "%"
    ]


def _formatted(group: Group, text: str, data: bytes) -> str:
    at, parts, end = 0, [], 0
    for match in _FIELD.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        if match[2] == "%":
            parts.append("%")
            continue
        width = _widths(match[0])[0]
        at = -(-at // width) * width
        parts.append(_one(group, match, data[at : at + width]))
        at += width
    return "".join(parts) + text[end:]


def _one(group: Group, match: re.Match[str], data: bytes) -> str:
    kind = match[2]
    spec = match[0][:-1].removesuffix(match[1] or "") + ("x" if kind == "p" else "d" if kind == "u" else kind)
    if kind in "eEfFgG":
        return str(spec % struct.unpack("<d", data))
    value = int.from_bytes(data, "little", signed=kind in "di")
    if kind == "s":
        return str(spec % group.run.access.text(group, np.frombuffer(data, np.uint8)[None]))
    return str(spec % (chr(value & 255) if kind == "c" else value))
