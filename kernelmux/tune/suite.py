"""A search as a suite of the runner: which item follows from which row.

Candidates of each job; from each of these one item that compiles it, beside the others on all cores, and one that times
it, on a GPU of its own; after the last of them the job's finals, and the suite's checks of a winner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kernelmux.registry.backend.device_tables import Table
from kernelmux.runner.item import WorkItem
from kernelmux.tune.job import Candidates, Job
from kernelmux.tune.progress import Progress
from kernelmux.tune.search import Search, TrialResult
from kernelmux.tune.timing import TuningOutcome
from kernelmux.tune.worker import CANDIDATES, CHECK, COMPILE, FINALS, TIME, Row

PATIENCE = 60.0  # seconds for a configuration that is compiled
LATE = "there was no time (--limit)"
ALWAYS = 0  # the rank of items that begin even after the limit of time
NEEDS: Mapping[str, Mapping[str, Any]] = {
    CANDIDATES: {"limit": 300.0},
    COMPILE: {"rank": 1, "cpu": True, "limit": PATIENCE},
    TIME: {"rank": 1, "gpus": 1, "alone": True, "limit": 3 * PATIENCE},  # it may have to make inputs, and to compile
    FINALS: {"rank": ALWAYS, "gpus": 1, "alone": True, "limit": 900.0},
    CHECK: {"rank": ALWAYS, "gpus": 1, "limit": 1800.0},
}


class TuneSuite:
    """The suite (`runner.item.Suite`) of one command."""

    name = "tune"
    serve = "kernelmux.tune.worker:serve"
    setup: Any = None

    def __init__(
        self,
        jobs: Sequence[Job],
        most: int,
        tier: str,
        known: Mapping[str, TrialResult],
        progress: Progress,
        times: bool = True,
    ) -> None:
        """jobs: each once. most: configurations of a job. tier: of the checks. known: by `Search.key`, what is not tried
        again. times: configurations are not compiled alone."""
        self.searches = [Search(job) for job in jobs]
        self.most, self.tier, self.known, self.progress, self.times = most, tier, known, progress, times
        self.card, self.ended = "", 0
        self._follow = {
            CANDIDATES: self._after_candidates,
            COMPILE: self._after_compile,
            TIME: self._after_time,
            FINALS: self._after_finals,
            CHECK: self._after_check,
        }

    def items(self, card: str) -> list[WorkItem]:
        """What a search begins with. card: the kind of card that it is for, "" for none."""
        self.card = card
        own = {"gpus": 1} if card else {"cpu": True}
        return [self._item(CANDIDATES, search, own, most=self.most) for search in self.searches]

    def _item(self, step: str, search: Search, more: Mapping[str, Any] | None = None, **work: Any) -> WorkItem:
        """An item. more: what it needs beyond the others of its step; work: beside what all have."""
        needs = {**NEEDS[step], **(more or {})}
        place = f" #{work['place']}" if "place" in work else ""
        told = {"step": step, "search": self.searches.index(search), "job": asdict(search.job)}
        told |= {
            "device": "cuda" if needs.get("gpus") else "cpu",
            "kind": search.found.key.kind if search.found else "",
        }
        card = self.card if needs.get("gpus") else ""
        return WorkItem(f"{step} {search.job.name}{place}", {**told, **work}, card=card, **needs)

    def begins(self, item: WorkItem) -> None:
        """Nothing is shown of what begins."""

    def takes(self, item: WorkItem, row: Row) -> Iterable[WorkItem]:
        """What follows from a row."""
        search, step = self.searches[item.work["search"]], item.work["step"]
        more = self._follow[step](search, item.work, row)
        self.ended += 1
        self.progress.step(step, self.ended, sum(search.expected for search in self.searches))
        return more

    def _after_candidates(self, search: Search, work: Row, row: Row) -> Iterable[WorkItem]:
        if problem := row.get("problem"):
            search.problem = problem
            return []
        search.found, search.identity = Candidates.of(row["found"]), tuple(row["identity"])
        search.gpu = Table(**{**row["gpu"], "rows": ()})
        new = []
        for place, config in enumerate(search.found.chosen):
            key = search.key(config)
            if key in self.known:
                search.seen[place] = self.known[key]
            else:
                new.append(self._item(COMPILE, search, place=place, config=config, key=key))
        search.left = len(new)
        search.expected += len(new) * (1 + self.times) + 2 * self.times
        return new or self._finals(search)

    def _after_compile(self, search: Search, work: Row, row: Row) -> Iterable[WorkItem]:
        if problem := row.get("problem"):
            search.dropped[work["place"]] = problem
        elif self.times:
            told = {name: work[name] for name in ("place", "config", "key")}
            return [self._item(TIME, search, {"group": search.job.name}, **told, best=search.best)]
        search.expected -= self.times
        return self._one_less(search)

    def _after_time(self, search: Search, work: Row, row: Row) -> Iterable[WorkItem]:
        problem = row.get("problem", "")
        if problem == LATE:
            search.dropped[work["place"]] = problem
        else:
            search.seen[work["place"]] = TrialResult(row.get("us"), problem)
        return self._one_less(search)

    def _one_less(self, search: Search) -> Iterable[WorkItem]:
        """One configuration has ended."""
        search.left -= 1
        return [] if search.left else self._finals(search)

    def _finals(self, search: Search) -> Iterable[WorkItem]:
        if self.times and search.timed and search.found:
            return [self._item(FINALS, search, rule=search.found.rule, timed=search.timed)]
        search.expected -= 2 * self.times
        return []

    def _after_finals(self, search: Search, work: Row, row: Row) -> Iterable[WorkItem]:
        search.problem = row.get("problem", "")
        search.measured = TuningOutcome.of(row["outcome"]) if row.get("outcome") else None
        if search.measured and search.measured.gains:
            return [self._item(CHECK, search, config=search.measured.config, tier=self.tier)]
        search.expected -= 1
        return []

    def _after_check(self, search: Search, work: Row, row: Row) -> Iterable[WorkItem]:
        search.refusal = row.get("refusal") or row.get("problem", "")
        return []

    def lost(self, item: WorkItem, reason: str) -> Row:
        """The row of an item whose worker did not survive it; of a configuration it is remembered."""
        return {**({"key": item.work["key"]} if "key" in item.work else {}), "problem": reason}

    def late(self, item: WorkItem) -> Row:
        """The row of a configuration for which there is no time; the next search tries it."""
        return {"problem": LATE}

    def failed(self, row: Row) -> bool:
        """Whether something was wrong."""
        return bool(row.get("problem") or row.get("refusal"))
