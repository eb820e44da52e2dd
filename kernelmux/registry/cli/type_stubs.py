"""The types of the public face, for mypy, pyright and editors: `python -m kernelmux.registry.stubs` writes them.

`kernelmux/__init__.pyi` follows from our specs and the table of names in `kernelmux/__init__.py`; a test holds it fresh.
`--out typings` writes a stub package (PEP 561) in a project of yours, which has the operators of installed packages too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import REQUIRED, Axis, Scalar, Tensor
from kernelmux.registry.util import files

WIDTH = 120
HEAD = '''"""The public face, from the specs: python -m kernelmux.registry.stubs"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from kernelmux import nn
from kernelmux.nn import patch
'''
BACKEND = "backend: str | Sequence[str] | None = None"


def text(ops: Sequence[str] = elsewhere.own()) -> str:
    """The whole stub, with these operators."""
    face = import_module("kernelmux")
    functions = [_function(catalog.spec(op)) for op in ops]
    names = sorted({*face._API, *face._NN, "__version__", *ops})
    listed = "".join(f'    "{name}",\n' for name in names)
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


def write(folder: Path) -> Path:
    """Write a stub package that has every operator of this machine; type checkers find all else where kernelmux is."""
    package = folder / "kernelmux-stubs"
    try:
        package.mkdir(parents=True, exist_ok=True)
        files.write(package / "__init__.pyi", text(catalog.usable()))
        files.write(package / "py.typed", "partial\n")
    except OSError as error:
        raise ArgumentError(f"--out {folder}: expected a folder that can be written to: {error.strerror}") from error
    return package


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = terminal.Parser(prog="python -m kernelmux.registry.stubs", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--out", metavar="FOLDER", help="a stub package here, with the operators of installed packages")
    options = parser.parse_args(arguments)
    return terminal.run("stubs", lambda: _main(options.out))


def _main(out: str | None) -> int:
    if out is None:
        files.write(path(), text())
    else:
        print(f"wrote {write(Path(out))}")
    return terminal.OK


if __name__ == "__main__":
    sys.exit(main())
