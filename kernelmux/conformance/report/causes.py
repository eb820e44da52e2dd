"""What failed in a run, once for each cause, with the command that shows it again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import shorten

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kernelmux.conformance.failures.failure_text import Place
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import Outcome

SHOWN = 10  # causes on the last screen
NAMED = 6  # operators, variants or checks of a cause that are named
COMMAND = re.compile(r"^\s*reproduce: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class FailureCause:
    """Outcomes that failed for one reason, as far as that is known; the first one speaks for all of them."""

    outcomes: list[Outcome]

    @property
    def where(self) -> str:
        """softmax[triton/online] layout, shapes."""
        variants = _some(o.on_card(f"{o.item.op}[{o.item.label}]") for o in self.outcomes)
        return f"{variants} {_some(o.item.check for o in self.outcomes)}"

    @property
    def what(self) -> str:
        """The reason in one line."""
        first, item = self.outcomes[0], self.outcomes[0].item
        if first.causes:
            return ", ".join(first.causes)
        if item.problem:
            return item.problem.splitlines()[-1]
        line = next(iter(first.text.splitlines()), "")
        return re.sub(rf"^({re.escape(f'{item.op}[{item.label}]')}.*?|{re.escape(item.id)}): ", "", line)

    def command(self, chosen: Options) -> str:
        """What runs the first of them again."""
        first, item = self.outcomes[0], self.outcomes[0].item
        if told := COMMAND.search(first.text):
            return told[1]
        if item.problem:
            return f"{chosen.program} --op {item.op} --backend {item.backend}"
        place = Place(item.op, item.label, item.check, chosen.device, chosen.program, chosen.tier, chosen.coverage)
        return place.reproduce(None)


def _some(names: Iterable[str]) -> str:
    """Names, each once; of many the first ones and how many more there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def of(outcomes: Iterable[Outcome]) -> list[FailureCause]:
    """The failures by cause, in the order in which they come."""
    found: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status == "failed":
            found.setdefault(_key(outcome), []).append(outcome)
    return [FailureCause(one) for one in found.values()]


def _key(outcome: Outcome) -> tuple[str, ...]:
    """The same for failures of one cause: a broken backend, a place in its source; or else what one variant does wrong."""
    item = outcome.item
    if item.problem:
        return item.backend, item.check, item.problem.splitlines()[-1]
    return (item.backend, *outcome.causes) if outcome.causes else (item.op, item.label)


def show(console: Console, chosen: Options, outcomes: Iterable[Outcome], page: str) -> None:
    """Print the first causes, each with its command, and how much more there is in the page."""
    found = of(outcomes)
    if found:
        console.print(f"\n{_counted(found)}:", style="bold red", highlight=False)
    for cause in found[:SHOWN]:
        text = Text().append(cause.where, "red").append(f": {_short(cause, 2 * console.width)}")
        console.print(Padding(text, (0, 0, 0, 2), expand=False), highlight=False)
        command = f"    reproduce: {cause.command(chosen)}"
        console.print(command, markup=False, highlight=False, soft_wrap=True)
    if rest := found[SHOWN:]:
        console.print(f"  and {sum(len(c.outcomes) for c in rest)} more in {page}", markup=False, highlight=False)


def _short(cause: FailureCause, room: int) -> str:
    """The reason, cut to what is left of two lines."""
    return shorten(cause.what, max(room - len(cause.where) - 12, 30), placeholder=" ...")


def _counted(found: list[FailureCause]) -> str:
    """3 items failed, for 2 reasons."""
    items = sum(len(cause.outcomes) for cause in found)
    reasons = f", for {len(found)} reason{'s' * (len(found) > 1)}" if len(found) < items else ""
    return f"{items} item{'s' * (items > 1)} failed{reasons}"
