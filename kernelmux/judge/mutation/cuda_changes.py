"""Changes of CUDA C++, found by a small reader of tokens: comments, strings and directives are left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelmux.judge.mutation.change import TextChange, integers

# Comments, strings, and directives but for the bodies of macros.
BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*define[ \t]+\w+(?:\([^)\n]*\))?|^[ \t]*#(?![ \t]*define)[^\n]*',
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(
    r"(?<![\w.])(\d+)([uU]?[lL]{0,2})(?![\w.])|(?<![\w.])(\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(f?)(?!\w)"
)
PRIMARY = r"[A-Za-z_][\w.]*(?:\[[^\[\];{}]*\]|\([^();{}]*\))*|\d[\w.]*"
SUMMAND = re.compile(rf"(?<=[\w)\]]) (\+|-|\*|/|&&|\|\|) ({PRIMARY})")
PAIR = re.compile(rf"(?<![\w.)\]])({PRIMARY}) (-|/|%) ({PRIMARY})")
COMPARED = re.compile(r"(?<=[\w)\]]) (<=|>=|<|>|==) (?=[\w(-])")
GUARD = re.compile(r"\bif (?:constexpr )?\(")
BARRIER = re.compile(
    r"(?<=[;{}\n)])([ \t]*)((?:\w+::)*\w*(?:sync|barrier|fence|wait|arrive|commit)\w*(?:<[^;<>]*>)?\([^;{}]*\);)"
)
ADDED = re.compile(rf"(?<![\w.])({PRIMARY}) \+= ([^;{{}}\n]+);")
INITIAL = re.compile(r"\b(?:float|int|double|T|unsigned) (\w+)(?:\[[^\]]*\])* = (-?[\w.]+|\{0?\.?0?f?\});")
INFINITE = re.compile(r"-(?:INFINITY|CUDART_INF_F|infinity\(\))")
ISNAN = re.compile(r"\bis(?:nan|inf|finite)\(|(?<![\w.])(\w[\w.]*) != \1(?!\w)")
CHOICE = re.compile(r"(?:= |return |\()([^;{}?\n=]*[^;{}?\n]) \? ([^;{}?:\n]+) : ([^;{}?:\n]+?)(?=[;,)])")
EXTREME = re.compile(
    r"\b(?:fmaxf|fminf|max|min|fmaxf_nan|maximum)\(([^(),;]+(?:\([^()]*\))?), ([^(),;]+(?:\([^()]*\))?)\)"
)
ARGUMENTS = re.compile(r"(?<=[(, ])([A-Za-z_]\w*), ([A-Za-z_]\w*)(?=[,)])")
PLACES = re.compile(r"\b(threadIdx|blockIdx|blockDim|gridDim)\.([xyz])\b")
STATEMENT = re.compile(rf"(?<=[;{{}}\n])[ \t]+((?:{PRIMARY}) [-+*|]?= [^;{{}}\n]+;)")
SIZES = re.compile(
    r"\b(?:const )?(?:int|long long|long|unsigned|int64_t|size_t) (n|m|k|rows|cols|columns|length|count|size)\b"
)
LOW = "__uint_as_float(__float_as_uint({}) & 0xffff0000u)"  # as bf16 holds it, cut
PATHS = (37, 96, 100, 640, 768, 1000, 1024)  # sizes that have a path of their own
ENTRY = re.compile(r"\b([A-Za-z_]\w*)\s*\(")


@dataclass(frozen=True)
class CudaBlock:
    """What stands at the top of a file with its braces: a function, a class, a macro. names: what it is called."""

    start: int
    end: int
    names: frozenset[str]


def blanked(text: str) -> str:
    """The text with blanks in place of all that is no code."""
    return BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def blocks(text: str) -> list[CudaBlock]:
    """The parts of a file: each ends with its closing brace, or semicolon, at the top of the file or of a namespace."""
    code, found, depth, start, at = blanked(text), list[CudaBlock](), 0, 0, 0
    for match in re.finditer(r"[{};]", code):
        at = match.end()
        if match.group() == "{":
            head = code[start : match.start()].strip()
            if depth == 0 and re.search(r"(?:namespace\s*\w*|extern\s*)$", head):
                start = at
                continue
            depth += 1
        elif match.group() == "}":
            depth = max(0, depth - 1)
        if depth == 0 and match.group() != "{":
            found.append(_block(text, start, at))
            start = at
    return [*found, _block(text, start, len(text))]


def _block(text: str, start: int, end: int) -> CudaBlock:
    part = text[start:end]
    head = part.partition("{")[0]
    names = re.findall(r"#[ \t]*define[ \t]+(\w+)", part)
    names += re.findall(r"\b(?:struct|class|using|enum)\s+(\w+)", head) + ENTRY.findall(head)
    names += re.findall(r"\b(\w+)\s*(?:=|\[)", head)
    return CudaBlock(start, end, frozenset(names))


def used(texts: list[tuple[str, str, bool]]) -> Iterator[tuple[str, str, CudaBlock]]:
    """The parts that are used: all of a source, and of headers what is named by one that is used.

    texts: name, text and whether it is a source.
    """
    every = [(name, text, block) for name, text, _ in texts for block in blocks(text)]
    sources = {name for name, _, source in texts if source}
    words: set[str] = set()
    taken: list[tuple[str, str, CudaBlock]] = []
    waiting = every
    while waiting:
        now = [one for one in waiting if one[0] in sources or one[2].names & words]
        if not now:
            break
        waiting = [one for one in waiting if one not in now]
        for _, text, block in now:
            words |= set(re.findall(r"\w+", text[block.start : block.end]))
        taken += now
    yield from taken


def changes(name: str, text: str, block: CudaBlock, weight: float) -> Iterator[TextChange]:
    """The changes of one part of a file. name: of the file, as changes have it."""
    code = blanked(text)
    part = " " * block.start + code[block.start : block.end]
    for kind, start, end, new in _of(part):
        if start >= block.start:
            yield TextChange.of(kind, name, text, [(start, end, new)], weight)


def _of(code: str) -> Iterator[tuple[str, int, int, str]]:
    yield from _numbers(code)
    yield from _operands(code)
    yield from _guards(code)
    yield from _values(code)
    for match in BARRIER.finditer(code):
        yield "barrier", match.start(2), match.end(2), ";"
    for match in ADDED.finditer(code):
        target, value = match.group(1), match.group(2)
        yield "accumulator", *match.span(), f"{target} = {LOW.format(f'{target} + ({value})')};"
        yield "term", *match.span(), f"{target} = {value};"
    if sizes := SIZES.search(code):
        for turn, match in enumerate(STATEMENT.finditer(code)):
            size = PATHS[turn % len(PATHS)]
            yield "fast path", *match.span(1), f"if ({sizes.group(1)} != {size}) {match.group(1)}"


def _numbers(code: str) -> Iterator[tuple[str, int, int, str]]:
    for match in NUMBER.finditer(code):
        if match.group(1):
            for value in integers(int(match.group(1))):
                yield "constant", *match.span(), f"{value}{match.group(2)}"
        else:
            factor = float(match.group(3))
            for other in (factor * 1.01, factor + 1.0):
                if other != factor:
                    yield "constant", *match.span(), f"{other!r}{match.group(4)}"


def _operands(code: str) -> Iterator[tuple[str, int, int, str]]:
    for match in SUMMAND.finditer(code):
        yield "term", *match.span(), ""
    for match in PAIR.finditer(code):
        left, sign, right = match.groups()
        new = f"{right} - {left}" if sign == "-" else f"{left} {'%' if sign == '/' else '/'} {right}"
        yield "order", *match.span(), f"({new})"
    for match in COMPARED.finditer(code):
        sign = match.group(1)
        other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": ">="}[sign]
        yield "comparison", match.start(1), match.end(1), other
    for match in ARGUMENTS.finditer(code):
        if match.group(1) != match.group(2):
            yield "order", *match.span(), f"{match.group(2)}, {match.group(1)}"
    for match in PLACES.finditer(code):
        other = {"x": "y", "y": "x", "z": "y"}[match.group(2)]
        yield "order", *match.span(), f"{match.group(1)}.{other}"


def _guards(code: str) -> Iterator[tuple[str, int, int, str]]:
    for match in GUARD.finditer(code):
        end = closing(code, match.end())
        condition = code[match.end() : end]
        if "constexpr" in match.group() or not condition.strip():
            continue
        yield "mask", match.end(), end, f"true || ({condition})"
        for bound in re.finditer(rf" (<) ({PRIMARY})", condition):
            yield "mask", match.end() + bound.start(2), match.end() + bound.end(2), f"{bound.group(2)} + 1"


def closing(code: str, at: int) -> int:
    """Where the parenthesis closes that was opened before `at`."""
    depth = 1
    while at < len(code):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at
        at += 1
    return at


def _values(code: str) -> Iterator[tuple[str, int, int, str]]:
    for match in INITIAL.finditer(code):
        value = match.group(2)
        yield "initial value", match.start(2), match.end(2), "{1}" if value.startswith("{") else f"{value} + 1"
    for match in INFINITE.finditer(code):
        yield "initial value", *match.span(), "0.0f"
    for match in ISNAN.finditer(code):
        yield "special values", match.start(), match.start(), "false && "
    for match in CHOICE.finditer(code):
        yield "special values", match.start(1), match.end(3), match.group(2)
        yield "special values", match.start(1), match.end(3), match.group(3)
    for match in EXTREME.finditer(code):
        yield from (("special values", *match.span(), f"({match.group(i)})") for i in (1, 2))
