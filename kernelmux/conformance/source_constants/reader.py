"""The constants of a kernel, with its launcher and all helpers of its package, by reading their source.

    constants(fn, home)        of a function, or another callable, that is loaded
    constants_of_file(path, "softmax")   of a function in a file that is not

Followed are the functions, classes and values that the function uses inside of its package, Triton kernels among them, and
the CUDA C++ that these name: files ending in .cu, and strings with `__global__`. Sources are parsed, and never imported.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from kernelmux.conformance.source_constants import cuda_source, python_files, python_source
from kernelmux.conformance.source_constants.constant import PARAMETER, Constant, SourcePlace, usable
from kernelmux.conformance.source_constants.cuda_source import CudaText
from kernelmux.conformance.source_constants.python_files import PythonFile, Reached

NOWHERE = Path(".")  # of a backend whose files cannot be found
DEEPEST = 4  # objects that hold one another
Start = tuple[PythonFile, ast.AST]


def constants(fn: Callable[..., Any], home: Path | None, declared: Iterable[Constant] = ()) -> list[Constant]:
    """The constants of a loaded function, the one that is asked first at the front, each value once.

    home: the folder of its package, or None for the folder of its file. declared: constants that are known otherwise.
    """
    starts: list[Start] = []
    texts: list[CudaText] = []
    _collect(fn, starts, texts, DEEPEST)
    if not starts and not texts:
        return usable(declared)
    inside = home or starts[0][0].path.parent
    return usable([*declared, *_read(starts, texts, inside)])


def constants_of_file(path: Path, function: str, home: Path | None = None) -> list[Constant]:
    """The constants of a function of a file that need not be importable; [] where the file has none of that name."""
    file = python_files.read(path)
    starts: list[Start] = [(file, node) for node in file.definitions.get(function, ())] if file else []
    return usable(_read(starts, [], home or path.parent))


def sources(fn: Callable[..., Any], home: Path) -> tuple[list[Reached], list[tuple[CudaText, int]]]:
    """What a loaded function consists of inside of `home`, the nearest first, each with the steps that lead to it:
    definitions of Python, and texts of CUDA C++ with their headers.
    """
    starts: list[Start] = []
    texts: list[CudaText] = []
    _collect(fn, starts, texts, DEEPEST)
    reached = python_files.reach(starts, home)
    return reached, list(_cuda_texts(reached, texts, home))


def _read(starts: list[Start], texts: list[CudaText], home: Path) -> Iterator[Constant]:
    reached = python_files.reach(starts, home)
    yield from python_source.constants(reached, home)
    known = python_source.Parameters(reached, home)
    for part, distance in _cuda_texts(reached, texts, home):
        yield from cuda_source.constants(part, distance, known)


def _cuda_texts(reached: list[Reached], texts: list[CudaText], home: Path) -> Iterator[tuple[CudaText, int]]:
    """The texts of CUDA C++ that definitions name, and their headers; one twice where a later way to it is shorter."""
    named = [(text, 1) for text in texts] + [(text, one.distance) for one in reached for text in _cuda_of(one)]
    seen: dict[tuple[Path, int], int] = {}
    for text, distance in named:
        for part, steps in cuda_source.with_headers(text, home):
            key = part.path, part.first
            if key not in seen or distance + steps < seen[key]:
                seen[key] = distance + steps
                yield part, distance + steps


def _cuda_of(one: Reached) -> Iterator[CudaText]:
    """The CUDA C++ that a definition names: by file, or as a string."""
    folder = one.file.path.parent
    for part in ast.walk(one.node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            if "__global__" in part.value:
                yield CudaText(one.file.path, part.value, part.lineno)
            elif part.value.endswith(cuda_source.ENDINGS) and (text := cuda_source.read(folder / part.value)):
                yield text
        elif isinstance(part, ast.Name) and part.id == "__file__":
            stem = folder.name if one.file.path.stem == "__init__" else one.file.path.stem
            if text := cuda_source.read(folder / f"{stem}.cu"):
                yield text


def _collect(value: Any, starts: list[Start], texts: list[CudaText], depth: int) -> None:
    """The definitions and texts that a callable consists of: its code, what it is bound to, what it encloses."""
    if depth == 0 or value is None:
        return
    if isinstance(value, functools.partial):
        for one in (value.func, *value.args, *value.keywords.values()):
            _collect(one, starts, texts, depth - 1)
    elif isinstance(value, MethodType):
        for one in (value.__func__, value.__self__):
            _collect(one, starts, texts, depth - 1)
    elif isinstance(value, FunctionType):
        _of_function(value, starts, texts, depth)
    elif isinstance(value, Path):
        if value.suffix in cuda_source.ENDINGS and (text := cuda_source.read(value)):
            texts.append(text)
    elif isinstance(value, tuple | list):
        for one in value:
            _collect(one, starts, texts, depth - 1)
    elif isinstance(value, Mapping):
        for one in value.values():
            _collect(one, starts, texts, depth - 1)
    elif hasattr(value, "__wrapped__"):
        _collect(value.__wrapped__, starts, texts, depth - 1)
    elif isinstance(value, type):
        _at(inspect.unwrap(getattr(value, "__init__", value)), starts)
    elif not isinstance(value, str | bytes | int | float | complex):
        _of_object(value, starts, texts, depth)


def _of_function(fn: FunctionType, starts: list[Start], texts: list[CudaText], depth: int) -> None:
    inner = inspect.unwrap(fn)
    for one in {id(fn): fn, id(inner): inner}.values():
        _at(one, starts)
        for cell in getattr(one, "__closure__", None) or ():
            try:
                _collect(cell.cell_contents, starts, texts, depth - 1)
            except ValueError:  # not filled yet
                continue


def _of_object(value: Any, starts: list[Start], texts: list[CudaText], depth: int) -> None:
    if isinstance(call := vars(type(value)).get("__call__"), FunctionType):
        _of_function(call, starts, texts, depth)
    if isinstance(inner := getattr(value, "fn", None), FunctionType):  # of a Triton kernel
        _of_function(inner, starts, texts, depth)
    named = [f.name for f in fields(value)] if is_dataclass(value) else [*getattr(value, "__dict__", {})]
    held = [getattr(value, name, None) for name in named]
    for one in held:
        if not isinstance(one, Mapping) or len(one) < 32:
            _collect(one, starts, texts, depth - 1)


def _at(fn: Any, starts: list[Start]) -> None:
    """The definition at the top of its module that a function is, or stands in."""
    code = getattr(fn, "__code__", None)
    if code and (file := python_files.read(Path(code.co_filename))):
        node = file.function_at(code.co_firstlineno)
        if node is not None and all(node is not other for _, other in starts):
            starts.append((file, node))


def declared(values: Mapping[str, Iterable[Any]], path: Path, kind: str = PARAMETER) -> list[Constant]:
    """Constants that a description holds as data: the values of each parameter, {"BLOCK_M": (64, 128)}."""
    found = ((name, v) for name, several in values.items() for v in several if isinstance(v, int))
    return [
        Constant(v, SourcePlace(path, 0, f"{name} = {v}"), kind, 1, frozenset({name.lower()}))
        for name, v in found
        if not isinstance(v, bool) and name not in python_source.NO_SIZES
    ]
