"""What an operator means and how it is judged, as a digest over syntax trees: nothing is executed.

`oracle(spec)` follows the reference, error models, exact and special values, constraints and domains of a spec into all
that they call, across modules. Comments, docstrings, annotations, texts of errors, and names of locals, functions,
modules and imports do not count; formulas, constants, fields of dataclasses and names of attributes do. `judge()` does
the same for the comparison with the reference. Functions of other packages count by their names.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import hashlib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from typing import Any

import torch

from kernelmux.conformance.verified.names import Names
from kernelmux.registry.backend import bounds
from kernelmux.registry.spec import (
    Axis,
    Domain,
    OpSpec,
    Output,
    Scalar,
    SpecialValues,
    Tensor,
    exact_arguments,
    numerics,
)

DIGITS = 12
PARTS = tuple(
    "inputs outputs reference error arithmetics exact special constraints derive normalise properties formats".split()
)
# Of these the fields count, and not the code that works with them, which has tests of its own.
VOCABULARY = (Tensor, Scalar, Axis, Output, Domain)
# Texts of failures, and how inputs are drawn: what is right does not depend on them.
OUTSIDE = tuple(
    f"kernelmux.{place}.{name}"
    for place, names in {
        "conformance": ("failures.failure_text", "failures.stale_result"),
        "registry": ("errors", "spec.cases", "util.files"),
    }.items()
    for name in names
)
# Fields that say why, or which values of a scalar may be asked: they are like cases, which do not change what is right.
UNREAD = ("reason", "text", "doc", "trials", "range", "also", "extent", "since", "breakpoints")
SKIPPED = frozenset({"ctx", "kind", "type_comment", "annotation", "returns", "type_params", "type_ignores"})
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
BY_NAME = ("getattr", "hasattr")  # whose second argument is the name of an attribute
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def oracle(spec: OpSpec, names: Names | None = None) -> str:
    """Twelve hex digits over what a spec says is right."""
    return _hash(_ValueWriter(spec.reference.__module__, names).parts(spec))


def digest(spec: OpSpec, values: Sequence[Any], names: Names | None = None) -> str:
    """Twelve hex digits over values that belong to a spec, and all that their functions call."""
    return _ValueWriter(spec.reference.__module__, names).digest(values)


@cache
def judge() -> str:
    """Twelve hex digits over how the suite compares a result with that."""
    return judged(Names())


def judged(names: Names) -> str:
    """The same with names read in another way."""
    from kernelmux.conformance.inputs import trials
    from kernelmux.conformance.judging import probe

    judges = [probe.Judge.accurate, probe.Judge.equal]  # the form of outputs is the host's: a CPU asks that as well
    allowed = [
        bounds.limit,
        bounds.flushed,
        probe.Probe._arithmetic,
        exact_arguments,
        OpSpec.evaluate,
        trials.same_bits,
    ]
    return _ValueWriter("kernelmux", names).digest([*judges, *allowed, numerics.compare])


# Judges that give the same verdicts as today's, each with the reason.
ALIKE = {
    "1aa03854a31e": "it refused the infinity of the other sign where the bound reaches beyond it: all it passed, passes",
    "f19a98d403f3": "it computed the bound elsewhere: of 24,751 calls of tier ci in all variants, a part of them with"
    " subnormal inputs, every bound has the same bits",
    "1787bc16e2de": "its bound has no term for what a variant declares to round, and no variant judged by it declared any",
}


def alike(other: str) -> bool:
    """Whether a judge gives the verdicts of today's."""
    return other == judge() or other in ALIKE


class _ValueWriter:
    """Writes values as text, in which a function, class or spec of ours stands by the digest of what it consists of."""

    def __init__(self, home: str, names: Names | None = None) -> None:
        self.names = names or Names()
        self.own = {"kernelmux", home.partition(".")[0]}
        self.known: dict[int, str] = {}
        self.open: list[int] = []  # what is being written, each part of the one before
        self.reached = 0  # how far up a part has referred to what is being written

    def digest(self, values: Sequence[Any]) -> str:
        return _hash(self.value(values))

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, x: Any) -> str:
        """A value that the code of an operator holds or refers to."""
        if isinstance(x, str):
            return f"{type(x).__name__} {self.names.text(x)!r}"
        if x is None or isinstance(x, bool | int | float | complex | bytes | types.EllipsisType):
            return f"{type(x).__name__} {x!r}"
        if isinstance(x, enum.Enum):
            return f"{self.names(type(x).__name__)}.{self.names(x.name)}"
        if isinstance(x, tuple | list):
            return f"[{' '.join(map(self.value, x))}]"
        if isinstance(x, Mapping):
            return f"{{{' '.join(f'{self.value(k)}:{self.value(v)}' for k, v in x.items())}}}"
        if isinstance(x, set | frozenset):
            return f"{{{' '.join(sorted(map(self.value, x)))}}}"
        if isinstance(x, functools.partial):
            return f"(partial {self.value(x.func)} {self.value(x.args)} {self.value(x.keywords)})"
        if isinstance(x, property | cached_property | staticmethod | classmethod):
            inner = x.fget if isinstance(x, property) else x.func if isinstance(x, cached_property) else x.__func__
            return self.value(inner)
        if isinstance(x, types.MethodType):
            return f"(method {self.value(x.__func__)} {self.value(x.__self__)})"
        if isinstance(x, torch.Tensor):
            return f"tensor {x.dtype} {x.tolist()}"
        if is_dataclass(x) and not isinstance(x, type):
            return self.instance(x)
        if hasattr(x, "__wrapped__"):
            return self.value(x.__wrapped__)
        return self.named(x)

    def instance(self, x: Any) -> str:
        if isinstance(x, OpSpec):
            return self.part(x)
        if isinstance(x, SpecialValues):
            return f"({self.named(type(x))} {self.value([*x.undefined])} {self.value(x.on)})"
        kind = self.names(type(x).__name__) if isinstance(x, VOCABULARY) else self.named(type(x))
        kept = ((f.name, getattr(x, f.name)) for f in fields(x) if f.name not in UNREAD)
        shown = (f"{self.names(name)}={self.value(value)}" for name, value in kept if not _nothing(value))
        return f"({kind} {' '.join(shown)})"

    def named(self, x: Any) -> str:
        """A function, class or module: of our own code its number, of others its name."""
        module = x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None) or ""
        ours = module.partition(".")[0] in self.own and module not in OUTSIDE
        if ours and isinstance(x, types.FunctionType | type):
            return self.part(x)
        if isinstance(x, types.ModuleType):
            return "module" if ours else module
        if module in OUTSIDE:
            return str(getattr(x, "__qualname__", "value"))
        return f"{module}.{getattr(x, '__qualname__', x)}" if callable(x) else f"{type(x).__qualname__} {x!r}"

    def part(self, x: Any) -> str:
        """The digest of a definition; of one that is being written how far up it is."""
        if id(x) in self.known:
            return self.known[id(x)]
        if id(x) in self.open:
            self.reached = min(self.reached, self.open.index(id(x)))
            return f"up {len(self.open) - self.open.index(id(x))}"
        place, outside = len(self.open), self.reached
        self.open.append(id(x))
        self.reached = place
        found = _hash(self.definition(x))
        self.open.pop()
        if self.reached >= place:  # else it says where it stands
            self.known[id(x)] = found
        self.reached = min(outside, self.reached) if self.open else 0
        return found

    def parts(self, spec: OpSpec) -> str:
        """The fields of a spec that say what is right."""
        kept = ((name, value) for name in PARTS if not _nothing(value := getattr(spec, name, None)))
        return f"[{' '.join(f'[str {self.names(name)!r} {self.value(value)}]' for name, value in kept)}]"

    def definition(self, x: Any) -> str:
        """What a function, class or spec consists of."""
        if isinstance(x, OpSpec):
            return self.parts(x)
        if isinstance(x, type):
            kept = (v for k, v in vars(x).items() if not k.startswith("__") or k == "__call__")
            methods = (v for v in kept if isinstance(inspect.unwrap(_inner(v)), types.FunctionType))
            return f"class {[self.named(b) for b in x.__bases__]} {' '.join(map(self.value, methods))}"
        return " | ".join(_Tree(self, x, node).text for node in nodes(x)) or f"unseen {x.__qualname__}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _nothing(x: Any) -> bool:
    """Whether a field says nothing, as a new one does in specs that were written before it."""
    return x is None or (isinstance(x, bool | int | str | tuple | Mapping) and not x)


def _inner(x: Any) -> Any:
    return x.fget if isinstance(x, property) else getattr(x, "__func__", getattr(x, "func", x))


# --- functions ------------------------------------------------------------------------------------------------------


@cache
def _parsed(path: str) -> dict[int, list[Function]]:
    """The functions of a file by the line that Python says they begin on."""
    found: dict[int, list[Function]] = {}
    with open(path, encoding="utf-8") as file:
        for node in ast.walk(ast.parse(file.read())):
            if isinstance(node, Function):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                found.setdefault(first, []).append(node)
    return found


def nodes(function: types.FunctionType) -> list[Function]:
    """The tree of a function; of a lambda, of all lambdas with its arguments on its line."""
    code = function.__code__
    try:
        here = _parsed(code.co_filename).get(code.co_firstlineno, [])
    except (OSError, SyntaxError):
        return []
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return [
        node
        for node in here
        if getattr(node, "name", "<lambda>") == code.co_name
        and [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)] == names
    ]


class _Tree:
    """A function as text."""

    def __init__(self, writer: _ValueWriter, function: types.FunctionType, node: Function) -> None:
        self.writer, self.globals = writer, function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        self.cells = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
        self.scopes: list[dict[str, str]] = []
        self.count = 0
        self.spelt: list[ast.expr] = []  # texts that are names of attributes
        self.text = self.write(node)

    def write(self, node: Any) -> str:
        names = self.writer.names
        if isinstance(node, list):
            return f"[{' '.join(map(self.write, node))}]"
        if not isinstance(node, ast.AST):
            return repr(names.text(node) if isinstance(node, str) else node)
        if isinstance(node, SCOPES):
            return self.scope(node)
        if isinstance(node, ast.Name | ast.Attribute):
            return self.reference(node)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return f"str {(names if node in self.spelt else names.text)(node.value)!r}"
            return f"{type(node.value).__name__} {node.value!r}"
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):  # what it says does not count
            return f"(Raise {self.write(node.exc.func)})"
        if isinstance(node, ast.AnnAssign):
            return f"(Assign [{self.write(node.target)}] {self.write(node.value)})" if node.value else ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            return ""
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in BY_NAME:
            self.spelt += node.args[1:2]
        return self.plain(node)

    def plain(self, node: ast.AST, skipped: frozenset[str] = SKIPPED) -> str:
        """A node by its type and fields; those without a value are left out, since versions of Python differ in them."""
        parts = []
        for name, value in ast.iter_fields(node):
            if name == "arg" and isinstance(node, ast.arg):
                parts.append(self.local(value) or value)
            elif name == "name" and isinstance(node, ast.ExceptHandler) and value:
                parts.append(self.local(value) or value)
            elif name == "arg" and isinstance(node, ast.keyword) and value:
                parts.append(f"arg={self.writer.names(value)!r}")
            elif name not in skipped and value not in (None, []):
                parts.append(f"{name}={self.write(value)}")
        return f"({type(node).__name__} {' '.join(parts)})"

    def scope(self, node: Any) -> str:
        """A function, lambda or comprehension, whose own names are numbered."""
        outside = [self.write(d) for d in getattr(node, "decorator_list", ())]
        named = self.local(node.name) if isinstance(node, ast.FunctionDef) and self.scopes else ""
        self.scopes.append({})
        for name in _bound(node):
            if name not in self.scopes[-1]:
                self.scopes[-1][name] = f"v{self.count}"
                self.count += 1
        for statement in getattr(node, "body", ()) if isinstance(node, ast.FunctionDef) else ():
            self.imported(statement)
        if isinstance(node, ast.FunctionDef):
            body = [s for s in node.body if not _is_text(s)]
            text = f"(def {named} {outside} {self.write(node.args)} {self.write(body)})"
        else:
            text = self.plain(node)
        self.scopes.pop()
        return text

    def imported(self, statement: ast.stmt) -> None:
        """What a function imports by itself is a global of it."""
        for node in ast.walk(statement):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = __import__(node.module, fromlist=[a.name for a in node.names])
                self.cells |= {a.asname or a.name: getattr(module, a.name, None) for a in node.names}

    def local(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), "")

    def reference(self, node: ast.Name | ast.Attribute) -> str:
        """A name, or attributes of one: what it stands for, as far as that is known without running anything."""
        if isinstance(node, ast.Name):
            found, value = self.lookup(node.id)
            return self.writer.value(value) if found else self.local(node.id) or node.id
        base: ast.expr = node
        path: list[str] = []
        while isinstance(base, ast.Attribute):
            path.insert(0, base.attr)
            base = base.value
        found, value = self.lookup(base.id) if isinstance(base, ast.Name) else (False, None)
        if not found:
            return ".".join([self.write(base), *map(self.writer.names, path)])
        other = ""  # the name of what is not ours
        while path and _open(value) and hasattr(value, path[0]):
            module = value.__name__ if isinstance(value, types.ModuleType) else "kernelmux"
            other = "" if module.partition(".")[0] in self.writer.own else f"{module}.{path[0]}"
            value = getattr(value, path.pop(0))
        shown = other if other and callable(value) else self.writer.value(value)
        return ".".join([shown, *map(self.writer.names, path)])

    def lookup(self, name: str) -> tuple[bool, Any]:
        """Whether a name is none of the function's own, and its value."""
        if self.local(name):
            return False, None
        for place in (self.cells, self.globals, vars(builtins)):
            if name in place:
                return True, place[name]
        return False, None


def _open(x: Any) -> bool:
    """Whether attributes are looked up now: of modules and of dataclasses' instances."""
    return isinstance(x, types.ModuleType) or (is_dataclass(x) and not isinstance(x, type))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_text(statement: ast.stmt) -> bool:
    """A docstring, or any other statement that is only a text; an import, which the uses speak of."""
    alone = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return alone or isinstance(statement, ast.Import | ast.ImportFrom)


def _bound(scope: ast.AST) -> Iterator[str]:
    """The names that a scope binds, without those of scopes inside of it, in the order of the text."""
    arguments = getattr(scope, "args", None)
    if isinstance(arguments, ast.arguments):
        every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
        yield from (a.arg for a in every if a)
    waiting = [n for n in ast.iter_child_nodes(scope) if not isinstance(n, ast.arguments)]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        if not isinstance(node, SCOPES):
            waiting = [*ast.iter_child_nodes(node), *waiting]
