"""The words of `--sweep`: an operator, axes of its spec, and lengths.

softmax:N=256..65536        powers of two, and one length in between that is none
matmul:M=N=K=256..8192:x2   three axes of one length, each twice the last
N=1000..50000:9             nine lengths, evenly apart on a logarithmic axis; the operator is that of --op
N=1000,4096,50257           these
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kernelmux.registry.errors import ArgumentError

FORM = "[OP:]AXIS=FROM..TO, AXIS=FROM..TO:xFACTOR, AXIS=FROM..TO:STEPS or AXIS=A,B,C (several axes: M=N=K=256..8192)"
MOST = 200  # lengths
LONGEST = 1 << 40
# Lengths of users that are no power of two: classes of images, widths of layers, vocabularies (GPT-2, Llama 3).
USUAL = (1000, 3000, 5120, 12288, 50257, 128256)
_AXIS = r"(?:[A-Za-z]\w*|\.\.\.\d+)"
_WORDS = re.compile(rf"(?:(\w+):)?({_AXIS}(?:={_AXIS})*)=([^=]+)")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(x?)(\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Sweep:
    """An operator, the axes that have one length together, and the lengths, ascending; words: how they were given."""

    op: str
    axes: tuple[str, ...]
    lengths: tuple[int, ...]
    words: str = field(default="", compare=False)

    @property
    def axis(self) -> str:
        """The axes as the command line has them: "M=N=K"."""
        return "=".join(self.axes)


def parse(text: str, op: str | None = None) -> Sweep:
    """The sweep of a word of the command line; op: for one that names none. ArgumentError shows the expected form."""
    match = _WORDS.fullmatch(text.strip())
    if not match:
        raise ArgumentError(f"--sweep: expected {FORM}, got {text!r}")
    named, axes, lengths = match.groups()
    if not (named or op):
        raise ArgumentError(f"--sweep {text}: expected an operator, as in softmax:{text} or by --op with a single name")
    together = tuple(axes.split("="))
    if len(set(together)) < len(together):
        raise ArgumentError(f"--sweep {text}: expected each axis once, got {axes}")
    return Sweep(named or str(op), together, _lengths(lengths, text), lengths)


def _lengths(words: str, text: str) -> tuple[int, ...]:
    if re.fullmatch(r"\d+(,\d+)*", words):
        found = sorted({int(word) for word in words.split(",")})
    elif match := _RANGE.fullmatch(words):
        found = _between(int(match[1]), int(match[2]), match[3] or "", match[4], text)
    else:
        raise ArgumentError(f"--sweep: expected {FORM}, got {text!r}")
    if not 1 <= found[0] <= found[-1] <= LONGEST:
        raise ArgumentError(f"--sweep {text}: expected lengths from 1 to {LONGEST}, got {found[0]} to {found[-1]}")
    if len(found) > MOST:
        raise ArgumentError(f"--sweep {text}: expected at most {MOST} lengths, got {len(found)}")
    return tuple(found)


def _between(first: int, last: int, times: str, number: str | None, text: str) -> list[int]:
    if not 1 <= first <= last <= LONGEST:
        raise ArgumentError(f"--sweep {text}: expected 1 <= FROM <= TO <= {LONGEST}, got {first}..{last}")
    if number is None:
        return usual(first, last)
    if times:
        return _by_factor(first, last, float(number), text)
    if "." in number or not 2 <= int(number) <= MOST:
        raise ArgumentError(f"--sweep {text}: expected from 2 to {MOST} steps, or a factor such as x2, got {number}")
    steps = int(number)
    return sorted({round(first * (last / first) ** (i / (steps - 1))) for i in range(steps)})


def _by_factor(first: int, last: int, factor: float, text: str) -> list[int]:
    if factor < 1.01:
        raise ArgumentError(f"--sweep {text}: expected a factor from 1.01 on, got x{factor:g}")
    found, at = [], float(first)
    while round(at) <= last:
        found.append(round(at))
        at *= factor
    return sorted(set(found))


def usual(first: int, last: int) -> list[int]:
    """The ends, the powers of two from one to the other, and a length between each two of those."""
    found, power = {first, last}, 1
    while power <= last:
        found |= {n for n in (power, between(power)) if first <= n <= last}
        power *= 2
    return sorted(found)


def between(power: int) -> int:
    """A length that users have between a power of two and the next: of `USUAL`, else a round decimal number."""
    for length in USUAL:
        if power < length < 2 * power:
            return length
    middle = 1.5 * power
    return int(float(f"{middle:.0e}")) if power > 1 else 1
