"""The types of the public face, for mypy, pyright and editors: `python -m kernelmux.registry.stubs` writes them.

`registry/public/__init__.pyi` follows from the specs and the table of names in `registry/public`; a test holds it fresh.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from kernelmux.registry import catalog
from kernelmux.registry.spec import REQUIRED, Axis, OpSpec, Scalar, Tensor

WIDTH = 120
HEAD = '''"""The public face, from the specs: python -m kernelmux.registry.stubs"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from kernelmux import nn
from kernelmux.nn import patch
'''
BACKEND = "backend: str | Sequence[str] | None = None"


def text() -> str:
    """The whole stub."""
    face = import_module("kernelmux")
    functions = [_function(catalog.spec(op)) for op in catalog.usable()]
    listed = "".join(f'    "{name}",\n' for name in face.__all__)
    return (
        f"{HEAD}{''.join(_imports(face._API))}\n__version__: str\n__all__ = [\n{listed}]\n\n"
        + "\n".join(functions)
        + "\n"
    )


def _imports(api: dict[str, str]) -> Iterator[str]:
    """One import per module, as the formatter breaks it."""
    for module in sorted(set(api.values())):
        names = sorted(name for name, home in api.items() if home == module)
        line = f"from kernelmux.registry.{module} import {', '.join(names)}\n"
        broken = "".join(f"    {name},\n" for name in names)
        yield line if len(line) <= WIDTH else f"from kernelmux.registry.{module} import (\n{broken})\n"


def _function(spec: OpSpec) -> str:
    """The signature of an operator, on one line if it fits."""
    parameters = [*map(_parameter, spec.inputs), "*", BACKEND]
    result = "Tensor" if spec.visible == 1 else f"tuple[{', '.join(['Tensor'] * spec.visible)}]"
    line = f"def {spec.name}({', '.join(parameters)}) -> {result}: ..."
    if len(line) <= WIDTH:
        return line
    inner = f"    {', '.join(parameters)}"
    body = inner if len(inner) <= WIDTH else "\n".join(f"    {p}," for p in parameters)
    return f"def {spec.name}(\n{body}\n) -> {result}: ..."


def _parameter(item: Tensor | Scalar | Axis) -> str:
    if isinstance(item, Tensor):
        return f"{item.name}: Tensor{' | None = None' if item.optional else ''}"
    default = "" if item.default is REQUIRED else f" = {_literal(item.default)}"
    return f"{item.name}: {_type(item)}{default}"


def _type(item: Scalar | Axis) -> str:
    optional = " | None" if item.optional or item.default is None else ""
    if isinstance(item, Axis):
        return f"int{optional}"
    if item.choices:
        return f"Literal[{', '.join(map(_literal, item.choices))}]{optional}"
    name = item.type.__name__
    several = f" | tuple[{', '.join([name] * item.length)}]" if item.length else ""
    return f"{name}{several}{optional}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def path() -> Path:
    """Where the stub lies: beside the face, which the import root may only link."""
    face = import_module("kernelmux").__file__
    return Path(str(face)).resolve().with_name("__init__.pyi")


if __name__ == "__main__":
    sys.exit(0 if path().write_text(text(), encoding="utf-8") else 1)
