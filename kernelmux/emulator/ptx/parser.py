"""Reads PTX text into functions of parsed instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ptx.dtypes import size_of
from kernelmux.emulator.ptx.operands import (
    SINK,
    Address,
    Immediate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)
from kernelmux.emulator.ptx.syntax import Function, Instruction, Location, Parameter, ParsedModule, Variable

__all__ = [
    "SINK",
    "Address",
    "Function",
    "Immediate",
    "Instruction",
    "Location",
    "Operand",
    "Pair",
    "Parameter",
    "ParsedModule",
    "Register",
    "Sink",
    "Special",
    "Symbol",
    "TensorAddress",
    "Variable",
    "Vector",
    "parse",
]

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_LABEL = re.compile(r"([$A-Za-z_][$\w]*)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)\s*(%?[$\w]+)\s+(.*)$", re.S)
_STATEMENT = re.compile(r"([a-z][\w.:]*)\s*(.*)$", re.S)
_REGISTERS = re.compile(r"\.reg\s*\.(\w+)\s+(.*)$", re.S)
_RANGE = re.compile(r"(.*)<(\d+)>$")
_VARIABLE = re.compile(
    r"(?:\.(?P<link>extern|visible|weak|common)\s+)*\.(?P<space>global|shared|local|const|param)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s*)?(?:\.v(?P<vector>[248])\s*)?\.(?P<type>\w+)\s+(?P<name>[$\w%]+)"
    r"(?P<dims>(?:\[\d*\])*)\s*(?:=\s*(?P<initial>.*))?$",
    re.S,
)
_PARAMETER = re.compile(
    r"\.(?:param|reg)\s+(?:\.align\s+(?P<align>\d+)\s*)?\.(?P<type>\w+)\s*(?P<pointer>\.ptr(?:\s*\.(?:global|shared|local|const))?"
    r"(?:\s*\.align\s+\d+)?)?\s*(?P<name>[$\w%]+)(?:\[(?P<size>\d*)\])?"
)
_HEADER = re.compile(r"\.(entry|func)\s*(?:\(([^)]*)\))?\s*([$\w]+)\s*(?:\(([^)]*)\))?([^{;]*)([{;])")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+[$\w+ ]+?,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?[^\n]*"
)
_MODULE_DIRECTIVE = re.compile(r"\.(?:version|target|address_size|file|pragma|alias)\b[^\n]*")
_SPECIAL = re.compile(r"%(?:[a-z]\w*)(?:\.[xyzw])?$")
_NUMBER = re.compile(
    r"-?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE]-?\d+)?|\d+U?)$"
)


def parse(text: str) -> ParsedModule:
    """Parses one PTX module; raises `Unsupported` for text that cannot be read."""
    text = _COMMENT.sub("", text)
    module = ParsedModule(files={int(m[1]): m[2] for m in _FILE.finditer(text)})
    outside, position = [], 0
    for header in _HEADER.finditer(text):
        if header.start() < position:
            continue
        outside.append(text[position : header.start()])
        position = header.end()
        if header[6] == "{":
            position = _closing(text, header.end())
            function = _function(header, text[header.end() : position - 1])
            module.functions[function.name] = function
    outside.append(text[position:])
    _module_variables(module, "".join(outside))
    return module


def _closing(text: str, start: int) -> int:
    """The position behind the brace that closes the one before `start`."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise Unsupported("the PTX text ends inside a function body")


def _module_variables(module: ParsedModule, text: str) -> None:
    text = re.sub(r"\.section\s+\S+\s*\{[^{}]*\}", "", text)
    text = re.sub(r"\.(?:visible|weak)\s+(?=[^;]*\s*$)", "", text)
    for statement in _MODULE_DIRECTIVE.sub("", text).split(";"):
        declaration = re.search(
            r"\.(?:extern\s+|visible\s+|weak\s+|common\s+)?\.?(?:global|shared|const)\b.*", statement, re.S
        )
        if declaration is None:
            continue
        match = _VARIABLE.match(declaration[0].strip())
        if match is None:
            raise Unsupported(f"cannot read the PTX declaration: {declaration[0].strip()}")
        variable = _variable(match)
        if match["space"] == "shared" and "[]" in match["dims"]:
            module.dynamic_shared[variable.name] = variable.align
        else:
            module.variables[variable.name] = variable


def _variable(match: re.Match[str]) -> Variable:
    element = size_of(match["type"]) * int(match["vector"] or 1)
    count = 1
    for extent in re.findall(r"\[(\d*)\]", match["dims"]):
        count *= int(extent or 0)
    initial = tuple(word for word in re.split(r"[\s,{}]+", match["initial"] or "") if word)
    if not count and initial:
        count = len(initial)
    return Variable(
        match["name"], match["space"], match["type"], int(match["align"] or element), element * count, initial
    )


def _parameters(text: str | None) -> tuple[Parameter, ...]:
    return tuple(_parameter(m) for m in _PARAMETER.finditer(text or ""))


def _parameter(match: re.Match[str]) -> Parameter:
    size = size_of(match["type"])
    return Parameter(
        match["name"],
        match["type"],
        size * int(match["size"] or 1),
        int(match["align"] or size),
        match["pointer"] is not None,
    )


def _function(header: re.Match[str], body: str) -> Function:
    function = Function(header[3], header[1] == "entry", _parameters(header[4]), _parameters(header[2]))
    limits = {
        kind: tuple(int(v) for v in sizes.split(","))
        for kind, sizes in re.findall(r"\.(reqntid|maxntid|reqnctapercluster)\s+([\d,\s]+)", header[5])
    }
    function.registers["%cc"] = "pred"  # the carry of add.cc and its kin
    if not function.entry:  # their values travel as bytes, in registers of type param<size>
        function.registers.update((p.name, f"param{p.size}") for p in (*function.parameters, *function.results))
    function.required_threads, function.maximum_threads = limits.get("reqntid"), limits.get("maxntid")
    function.cluster = limits.get("reqnctapercluster", ())
    _BodyParser(function).read(body)
    return function


class _Scope:
    """The names that one pair of braces declares, mapped to names unique in the function."""

    def __init__(self, number: int) -> None:
        self.number, self.names = number, {}  # type: int, dict[str, str]
        self.operands: dict[str, Operand] = {}


class _BodyParser:
    """Reads a function body: statements, labels, nested scopes of inline PTX."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.scopes = [_Scope(0)]
        self.count = 0
        self.location: Location | None = None
        self.chains: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {}  # file, line, column -> its call sites

    def read(self, text: str) -> None:
        position = 0
        while True:
            position = _skip_space(text, position)
            if position >= len(text):
                return
            position = self._item(text, position)

    def _item(self, text: str, position: int) -> int:
        if text[position] == "{":
            return self._open(text, position + 1)
        if text[position] == "}":
            self.scopes.pop()
            return position + 1
        if text.startswith(".loc", position) and (loc := _LOC.match(text, position)):
            self._locate(loc)
            return loc.end()
        if label := _LABEL.match(text, position):
            self.function.labels[self._rename(label[1])] = len(self.function.instructions)
            return label.end()
        end = text.find(";", position)
        if end < 0:
            raise Unsupported(f"cannot read the PTX statement: {text[position : position + 80].strip()}")
        self._statement(text[position:end].strip())
        return end + 1

    def _open(self, text: str, position: int) -> int:
        """Enters a scope; its labels are declared at once, because branches may come before them."""
        self.count += 1
        scope = _Scope(self.count)
        for label in re.finditer(
            r"(?:^|[;\n{}])\s*([$A-Za-z_][$\w]*):(?!:)", text[position : _closing(text, position)]
        ):
            scope.names[label[1]] = f"{label[1]}@{scope.number}"
        self.scopes.append(scope)
        return position

    def _locate(self, match: re.Match[str]) -> None:
        """A directive names one call site or none; where that was inlined itself is what was said of it last."""
        file, line, column, *site = (int(number) for number in match.groups() if number)
        if line == 0:  # "no line": the compiler merged code of several places
            return
        known = self.chains.get((file, line, column), ())
        inlined = ((site[0], site[1]), *self.chains.get(tuple(site), ())) if site else known
        self.chains[file, line, column] = inlined
        self.location = Location(file, line, inlined)

    def _statement(self, text: str) -> None:
        if text.startswith("."):
            self._declaration(text)
            return
        guard, body = None, text
        if match := _GUARD.match(text):
            guard = self._register(match[2], bool(match[1]))
            body = match[3]
        parts = _STATEMENT.match(body)
        if parts is None:
            raise Unsupported(f"cannot read the PTX statement: {text}")
        operands = tuple(self._operand(word) for word in _split(parts[2]))
        text = " ".join(text.split())
        self.function.instructions.append(Instruction(parts[1], operands, guard, text, self.location))

    def _declaration(self, text: str) -> None:
        scope = self.scopes[-1]
        if match := _REGISTERS.match(text):
            for name in _register_names(match[2]):
                self.function.registers[self._declare(name)] = match[1]
        elif text.startswith(".param"):
            if (parameter_match := _PARAMETER.match(text)) is None:
                raise Unsupported(f"cannot read the PTX declaration: {text}")
            parameter = _parameter(parameter_match)
            self.function.registers[self._declare(parameter.name)] = f"param{parameter.size}"
        elif text.startswith(".branchtargets"):
            label = next(reversed(self.function.labels))
            self.function.tables[label] = tuple(
                self._rename(name) for name in _split(text.removeprefix(".branchtargets"))
            )
        elif match := _VARIABLE.match(text):
            variable = _variable(match)
            self.function.variables[self._declare(variable.name)] = variable
        elif not text.startswith((".pragma", ".maxn", ".callprototype", ".calltargets", ".file", ".section")):
            raise Unsupported(f"cannot read the PTX statement: {text}")
        scope.operands.clear()

    def _declare(self, name: str) -> str:
        scope = self.scopes[-1]
        unique = f"{name}@{scope.number}" if scope.number else name
        scope.names[name] = unique
        return unique

    def _rename(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
        return name

    def _register(self, name: str, negated: bool = False) -> Register:
        unique = self._rename(name)
        return Register(unique, self.function.registers[unique], negated)

    def _operand(self, text: str) -> Operand:
        known = self.scopes[-1].operands
        if text not in known:
            known[text] = self._read_operand(text)
        return known[text]

    def _read_operand(self, text: str) -> Operand:
        if text[0] == "[":
            return self._address(text[1:-1].strip())
        if text[0] in "{(":
            return Vector(tuple(self._operand(word) for word in _split(text[1:-1])))
        if text == "_":
            return SINK
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first.strip()), self._operand(second.strip()))
        if text[0] == "!":
            return self._register(text[1:].strip(), True)
        if _NUMBER.match(text):
            return Immediate(text)
        unique = self._rename(text)
        if unique in self.function.registers:
            return Register(unique, self.function.registers[unique])
        if text == "WARP_SZ":
            return Immediate("32")
        return Special(text) if _SPECIAL.match(text) else Symbol(unique)

    def _address(self, text: str) -> Operand:
        parts = _split(text)
        if len(parts) > 1:
            coordinates = self._operand(parts[1])
            return TensorAddress(
                self._operand(parts[0]), coordinates.items if isinstance(coordinates, Vector) else (coordinates,)
            )
        base, sign, offset = re.match(r"([^+\s-]+)\s*(?:([+-])\s*(.*))?$", text).groups()  # type: ignore[union-attr]
        number = Immediate(offset.strip()).integer if offset else 0
        return Address(self._operand(base), -number if sign == "-" else number)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _register_names(text: str) -> Iterator[str]:
    for name in text.split(","):
        name = name.strip()
        if match := _RANGE.match(name):
            yield from (f"{match[1]}{i}" for i in range(int(match[2])))
        else:
            yield name


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    if not any(c in text for c in "{[("):
        return [word.strip() for word in text.split(",") if word.strip()]
    words, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and depth == 0:
            words.append(text[start:i].strip())
            start = i + 1
    words.append(text[start:].strip())
    return [word for word in words if word]
