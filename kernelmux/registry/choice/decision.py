"""A decision, and its text: who was asked, who runs, and for every variant each condition that the call does not meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelmux.registry.backend.lookup import Candidate
from kernelmux.registry.choice.requests import Request
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec.conditions import Unmet, sm
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import text_tables

NAME = 28  # columns of the name of a variant


@dataclass(frozen=True)
class Verdict:
    """What became of one variant: able, or not and why.

    unmet: every condition that the call does not meet. copies: inputs that would be copied to fit its layout, or because
    of their negative or conjugate bit; copied: the bytes of each copy. down: the whole backend, or its module for the
    operator, cannot be used here; missing: it has no implementation of the operator. asked: it is among what was asked for.
    declared: what it rounds beside what the spec allows, in words. varies: equal calls of it may give other bits.
    joined: it comes from a package that joined it to the backend, whose bare name does not stand for it. refused: it was
    tried for such a call, and the card or its compiler refused it. candidate: the variant itself, if there is one.
    """

    backend: str
    variant: str
    unmet: tuple[Unmet, ...] = ()
    copies: tuple[str, ...] = ()
    copied: tuple[int, ...] = ()
    emulated: bool = False
    down: bool = False
    missing: bool = False
    asked: bool = True
    declared: str = ""
    varies: bool = False
    joined: bool = False
    refused: bool = False
    candidate: Candidate | None = field(default=None, repr=False, compare=False)

    @classmethod
    def on(
        cls, given: Candidate, unmet: Sequence[Unmet], copies: tuple[str, ...], copied: tuple[int, ...], refused: bool
    ) -> Verdict:
        """The verdict on a candidate that was asked for."""
        return cls(
            backend=given.home.name,
            variant=given.variant,
            unmet=tuple(unmet),
            copies=copies,
            copied=copied,
            emulated=given.emulated,
            declared=given.declared,
            varies=given.varies,
            joined=given.joined,
            refused=refused,
            candidate=given,
        )

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: all but the candidate, whose functions cannot be."""
        return {name: value for name, value in vars(self).items() if name != "candidate"}

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.variant}" if self.variant else self.backend

    @property
    def able(self) -> bool:
        return not self.unmet

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it cannot run the call, one text per condition."""
        return tuple(map(str, self.unmet))


@dataclass(frozen=True)
class Fallback:
    """A backend, or one variant of it, that was preferred to what was chosen, and what the call lacked for it.

    verdict: of its variants the one for which the fewest conditions are not met.
    """

    label: str
    verdict: Verdict

    @property
    def reason(self) -> str:
        """The conditions without the sizes of the call: "cuda: N a multiple of 8"."""
        return f"{self.label}: {'; '.join(u.kind or str(u) for u in self.verdict.unmet)}"


@dataclass(frozen=True, repr=False)
class Decision:
    """The answer of `explain`: the chosen variant or None, where the request came from, a verdict on every variant.

    fallbacks: what was preferred and cannot run this call, best first: the better backends of "auto" whose conditions are
    not met, and every name of a chain before the one that runs. Empty where nothing was chosen.
    """

    call: Call
    request: Request
    chosen: Verdict | None
    verdicts: tuple[Verdict, ...]
    fallbacks: tuple[Fallback, ...] = ()

    def __str__(self) -> str:
        return decision_text(self)

    def __repr__(self) -> str:
        chosen = self.chosen.name if self.chosen else "none"
        return f"<decision for {self.call.spec.name}: {chosen}, from {self.request.source}; print() gives every reason>"

    @property
    def forbidden(self) -> bool:
        """Whether strictness stands between a call and a backend that could run it."""
        return self.request.strict and not self.request.single and self.chosen is None


def decision_text(decision: Decision, width: int | None = text_tables.WIDTH) -> str:
    """The whole text, wrapped to a width; None for one line per condition, each as its condition gives it."""
    request = decision.request
    strict = "; strict by use(strict=True)" if request.strict else "; strict" if request.single else ""
    what = text_tables.wrapped(f"{decision.call.spec.name}: {describe(decision.call)}", width, "", " " * 6)
    asked = (
        f"  requested: {', '.join(request.names)} (from {request.source}{strict})"  # a path may be in it: not wrapped
    )
    head = [*what, asked, *text_tables.wrapped(f"  chosen: {_chosen(decision)}", width, "", " " * 6)]
    return "\n".join([*head, *(line for v in decision.verdicts for line in _verdict(v, v == decision.chosen, width))])


def describe(call: Call) -> str:
    """The call in one line: shapes, dtypes, unusual strides, device, scalars."""
    parts = []
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            strides = "" if _contiguous(value) else f" strides {tuple(value.stride())}"
            parts.append(f"{name} {SHORT[value.dtype]}{list(value.shape)}{strides}")
        else:
            parts.append(f"{name}={value!r}")
    kind = sm(call.capability) if call.capability else ""
    card = kind if call.hypothetical else f"{call.card}, {kind}"
    return f"{', '.join(parts)} on {call.device}{f' ({card})' if kind else ''}"


def _contiguous(x: torch.Tensor) -> bool:
    """As `x.is_contiguous()`, which the class of a tensor may answer by operators that a mode around it refuses."""
    expected = 1
    for n, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if n != 1 and stride != expected:
            return 0 in x.shape
        expected *= n
    return True


def amount(size: int) -> str:
    """A number of bytes in the unit that suits it: "12.0 KiB"."""
    if size < 1024:
        return f"{size} bytes"
    unit = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**unit:.1f} {' KMGT'[unit]}iB"


def _chosen(decision: Decision) -> str:
    if decision.chosen is None:
        return "none, as no fallback is allowed" if decision.forbidden else "none, no variant supports this call"
    better = ", ".join(f.label for f in decision.fallbacks)
    return decision.chosen.name + (f", as {better} cannot run this call" if better else "")


def _verdict(verdict: Verdict, chosen: bool, width: int | None) -> Iterator[str]:
    """The lines of one variant: its name before the first."""
    start = f"  {'->' if chosen else '  '} {verdict.name:<{NAME}} "
    blank = " " * len(start)
    unmet = [_unmet(u, remedy, width, len(start)) for u, remedy in remedies(verdict)]
    reasons = unmet or [f"yes{_notes(verdict)}"]
    lines = (part for reason in reasons for part in reason.split("\v"))
    for i, line in enumerate(lines):
        yield from text_tables.wrapped(line, width, blank if i else start, blank + " " * 4)


def remedies(verdict: Verdict) -> list[tuple[Unmet, str]]:
    """Each condition that is not met, with what would satisfy it; "" for all where one stands that nothing satisfies."""
    helps = all(u.remedy for u in verdict.unmet)
    return [(u, u.remedy if helps else "") for u in verdict.unmet]


def _unmet(unmet: Unmet, remedy: str, width: int | None, start: int) -> str:
    """A condition and what would satisfy it, divided by a vertical tab where one line cannot hold both."""
    reason = f"no: {unmet}"
    if not remedy:
        return reason
    whole = f"{reason}  -> {remedy}"
    return whole if width is None or start + len(whole) <= width else f"{reason}\v    -> {remedy}"


def _notes(verdict: Verdict) -> str:
    notes = ["emulated on the CPU"] if verdict.emulated else []
    if not verdict.asked:
        notes.append("not asked for")
    if verdict.copies:
        copies = zip(verdict.copies, verdict.copied, strict=True)
        notes.append(f"copies {', '.join(f'{name} first, {amount(size)}' for name, size in copies)}")
    if verdict.declared:
        notes.append(f"also rounds {verdict.declared}")
    if verdict.joined:
        notes.append("of another package: runs when it is named or was measured")
    if verdict.varies:
        notes.append("bits may differ from call to call")
    return f" ({'; '.join(notes)})" if notes else ""
