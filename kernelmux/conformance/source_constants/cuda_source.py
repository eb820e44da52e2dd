"""The constants of CUDA C++: conditions of `if`, `while`, `for` and `#if`, quotients and remainders, named values.

A condition is translated to an expression of Python, so that both languages are read alike. What cannot be translated
counts by its literals. Headers are read too, one step further away each.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelmux.conformance.source_constants import expressions
from kernelmux.conformance.source_constants.constant import CONDITION, PARAMETER, TILE, Constant, SourcePlace
from kernelmux.conformance.source_constants.expressions import Known
from kernelmux.conformance.source_constants.python_source import shortened

DEEPEST = 3  # headers that include one another
ENDINGS = (".cu", ".cuh", ".cpp", ".h", ".hpp")
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)  # comments and strings
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_OPENS = re.compile(r"\b(if|while|for)\b\s*(?:constexpr\s*)?\(|^[ \t]*#[ \t]*(?:el)?if\b", re.MULTILINE)
_NAMED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$"
    r"|\b(?:constexpr|const)\b[\w \t:<>]*?\b(\w+)\s*=\s*([^;{}\n]+);",
    re.MULTILINE,
)
_QUOTIENT = re.compile(r"[%/]\s*\(?\s*(\w+)")
_CHOICE = re.compile(r"[^;{}?\n]*[<>=]=?[^;{}?\n]*(?=\?)")
_NUMBER = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)(?:[uU]|[lL])*\b")
_CAST = re.compile(r"\((?:unsigned |signed |long |const )*(?:int|long|unsigned|size_t|u?int(?:8|16|32|64)_t|float)\)")


@dataclass(frozen=True)
class CudaText:
    """Source text. first: the line of its file on which it begins."""

    path: Path
    text: str
    first: int = 1

    def place(self, start: int, end: int | None = None) -> SourcePlace:
        """Where a part of the text stands; its code is the part, or the line that it is in."""
        line = self.text.count("\n", 0, start) + 1
        code = self.text[start:end] if end else self.text.splitlines()[line - 1]
        return SourcePlace(self.path, line + self.first - 1, shortened(code))


@lru_cache(maxsize=512)
def read(path: Path) -> CudaText | None:
    try:
        return CudaText(path, path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def with_headers(start: CudaText, home: Path) -> list[tuple[CudaText, int]]:
    """A text and the headers inside of `home` that it includes, each with the number of steps that lead to it."""
    folders = [start.path.parent, *sorted(p for p in home.glob("include") if p.is_dir())]
    queue, seen, found = deque([(start, 0)]), {start.path}, []
    while queue:
        one, distance = queue.popleft()
        found.append((one, distance))
        for name in _INCLUDE.findall(one.text) if distance < DEEPEST else ():
            path = next((p for f in (one.path.parent, *folders) if (p := f / name).is_file()), None)
            if path and path not in seen and (other := read(path)):
                seen.add(path)
                queue.append((other, distance + 1))
    return found


def constants(source: CudaText, distance: int, known: Known) -> Iterator[Constant]:
    """The constants of a text; known: the values of names that are defined on the command line of the compiler."""
    text = _NO_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source.text)
    named = _named(text)

    def value_of(name: str, within: tuple[str, ...] = ()) -> tuple[int, ...]:
        if name not in named:
            return known(name)
        own = _translated(named[name][0]) if name not in within else None
        return expressions.values(own, lambda other: value_of(other, (*within, name))) if own else ()

    for start, end in _conditions(text):
        yield from _of_condition(source, text[start:end], (start, end), distance, value_of)
    for name, (_, start) in named.items():
        for value in value_of(name):
            yield Constant(value, source.place(start), PARAMETER, distance, frozenset({name.lower()}))
    for match in _QUOTIENT.finditer(text):
        node = _translated(match.group(1))
        for value in expressions.values(node, value_of) if node else ():
            yield Constant(value, source.place(match.start()), TILE, distance)


def _named(text: str) -> dict[str, tuple[str, int]]:
    """The expressions of named values, and where each begins; of those with two values none."""
    found: dict[str, list[tuple[str, int]]] = {}
    for match in _NAMED.finditer(text):
        name, value = (match.group(1), match.group(2)) if match.group(1) else (match.group(3), match.group(4))
        found.setdefault(name, []).append((value, match.start() + len(match.group()) - len(match.group().lstrip())))
    return {name: values[0] for name, values in found.items() if len({v for v, _ in values}) == 1}


def _conditions(text: str) -> Iterator[tuple[int, int]]:
    """Where the conditions of a text stand."""
    for match in _OPENS.finditer(text):
        if not match.group().endswith("("):
            end = text.find("\n", match.end())
            yield match.end(), end if end >= 0 else len(text)
            continue
        start, depth, at = match.end(), 1, match.end()
        while at < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        parts = text[start : at - 1].split(";")
        if match.group(1) == "for" and len(parts) == 3:
            begin = start + len(parts[0]) + 1
            yield begin, begin + len(parts[1])
        elif match.group(1) != "for":
            yield start, at - 1
    yield from ((match.start(), match.end()) for match in _CHOICE.finditer(text))


def _of_condition(
    source: CudaText, code: str, where: tuple[int, int], distance: int, known: Known
) -> Iterator[Constant]:
    place = source.place(where[0])
    node = _translated(code)
    if node is None:
        for match in _NUMBER.finditer(code):
            yield Constant(int(match.group(1), 0), place, CONDITION, distance)
        return
    for part in ast.walk(node):
        for value, kind, _, words in expressions.found_in(part, known):
            yield Constant(value, place, kind, distance, words)


@lru_cache(maxsize=4096)
def _translated(code: str) -> ast.expr | None:
    """An expression of C++ as one of Python, or None where it is more than that."""
    code = code.rpartition("=")[2] if re.search(r"(?<![<>=!])=(?!=)", code) else code
    code = code.split("return ")[-1]
    code = _CAST.sub("", code)
    code = re.sub(r"\b(?:static_cast|reinterpret_cast)\s*<[^<>]*>", "", code)
    code = re.sub(r"(\w)\s*<[\w\s,]*>\s*\(", r"\1(", code)  # arguments of templates
    code = _NUMBER.sub(r"\1", code)
    for old, new in (("&&", " and "), ("||", " or "), ("::", "."), ("->", "."), ("defined ", "")):
        code = code.replace(old, new)
    code = re.sub(r"!(?!=)", " not ", code)
    try:
        return ast.parse(" ".join(code.split()).strip().rstrip(";\\ "), mode="eval").body
    except (SyntaxError, ValueError):
        return None
