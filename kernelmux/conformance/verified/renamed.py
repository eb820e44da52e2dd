"""`kernelmux ledger --rekey OLD=NEW`: records keep their standing where a field is only called otherwise.

Names of fields, keyword arguments and attributes count in the keys of what operators mean and of the judge. So these are
computed once more with NEW read as OLD. Where that is the key on record, today's code says, name for name, what the code of
then said, and the entry gets today's key. OLD must be gone: two names that are read as one could hide a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from keyword import iskeyword
from typing import Any

import torch

from kernelmux.conformance.report import output_files
from kernelmux.conformance.verified import launches, ledger, meaning, names
from kernelmux.conformance.verified.names import Names
from kernelmux.conformance.verified.rekey import Say
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import Implementation, launch_keys
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.launch_keys import DECLARED, DIGITS, SourceKeys
from kernelmux.registry.errors import ArgumentError, KernelmuxError, hint
from kernelmux.registry.util.text_tables import counted

JUDGE, CARRIED = "judge", "carried"
SHOWN = 3  # places in an error
# Of what is not ours: code reads these attributes too, so that a name which they have is not a field of ours alone.
FOREIGN = (
    torch.Tensor,
    torch.finfo(torch.float32),
    torch.iinfo(torch.int32),
    torch.dtype,
    str,
    bytes,
    list,
    tuple,
    dict,
    set,
    int,
    float,
    complex,
)


@dataclass(frozen=True)
class Meaning:
    """What an operator means, or how is judged: its key, and the key with names as they were.

    met: the names that count in it. spelt: those of the old names that are texts in it. Such a text may be a name by which
    code looks for a field, so that nothing is known of what it was.
    """

    now: str
    then: str
    met: frozenset[str]
    spelt: tuple[str, ...]

    def explains(self, key: str) -> bool:
        """Whether a key on record is this one, or was before the change of names."""
        return key == self.now or (key == self.then and not self.spelt)


def parse(given: Sequence[str]) -> dict[str, str]:
    """`["OLD=NEW", ...]` as the old names by the new ones; ArgumentError."""
    pairs = [(old, new) for old, _, new in (text.partition("=") for text in given)]
    for text, pair in zip(given, pairs, strict=True):
        if wrong := [name for name in pair if not name.isidentifier() or iskeyword(name)]:
            raise ArgumentError(
                f"--rekey: expected OLD=NEW, two names of a field, got {text!r}: {wrong[0]!r} is no name"
            )
    counts = Counter(name for pair in pairs for name in pair)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ArgumentError(
            f"--rekey: expected each name once, got {', '.join(twice)} more often in {' '.join(given)}: two fields would be"
            " read as one, or one as the other"
        )
    return {new: old for old, new in pairs}


def command(given: Sequence[str], ops: Sequence[str], say: Say) -> None:
    """Give records of these operators, or of all, today's keys where nothing but names has changed; say where more has."""
    read = parse(given)
    told = " and ".join(f"{new} read as {old}" for new, old in read.items())
    of_ours = [op for op in catalog.names() if elsewhere.owner(op) is None]
    found = {JUDGE: meaning_of(meaning.judged, read)}
    found |= {op: meaning_of(partial(meaning.oracle, catalog.spec(op)), read) for op in of_ours}
    for new, old in read.items():
        _check(old, new, found)
    books = ledger.own()
    entries = [(key.split("/")[0], e) for book in books for key, e in book["entries"].items() if "oracle" in e]
    entries = [(op, entry) for op, entry in entries if op in found]
    moved = {key for one in found.values() if one.now != one.then for key in (one.now, one.then)}
    if not any({entry["oracle"], entry[JUDGE]} & moved for _, entry in entries):
        raise ArgumentError(
            f"--rekey {' '.join(given)}: no record means what it did with {told}: was each field called what is said here?"
        )
    counts = Counter[str]()
    for op, entry in entries:
        if not ops or op in ops:
            counts.update(_carry(entry, op, found))
    for book in books:
        ledger.write(book)
    _restate(read, ops)
    for what in found:
        if counts[what]:
            how = "results are judged in another way" if what == JUDGE else "it means something else"
            spelt = "".join(f"; {old!r} is a text in it, which may be the field" for old in found[what].spelt)
            say(f"{what}: {counted(counts[what], 'record')} not carried: with {told}, {how}{spelt}")
    say(f"{counted(counts[CARRIED], 'record')} carried, with {told}")


def meaning_of(written: Callable[[Names], str], read: Mapping[str, str]) -> Meaning:
    """What `written` writes, with today's names and with those that `read` has for them."""
    today, before = Names(), Names(read)
    now, then = written(today), written(before)
    return Meaning(now, then, frozenset(today.met), tuple(sorted(today.texts & set(read.values()))))


def _check(old: str, new: str, found: Mapping[str, Meaning]) -> None:
    """Raise ArgumentError unless `new` is a field of ours, which was `old` alone, and nothing is called `old` any more."""
    asked = f"--rekey {old}={new}"
    met = {name for one in found.values() for name in one.met}
    ours = names.declared()
    for name in (old, new):
        if any(hasattr(one, name) for one in FOREIGN):
            raise ArgumentError(
                f"{asked}: tensors or Python's own values have an attribute {name}: it is no field of ours alone"
            )
    if new not in met or (new not in ours and new not in names.parameters()):
        near = hint(new, sorted(met & ours.keys()))
        raise ArgumentError(
            f"{asked}: no field {new} counts in what operators mean or how they are judged; {near}".rstrip("; ")
        )
    users = [what for what, one in found.items() if old in one.met]
    if places := [*ours.get(old, ()), *users]:
        raise ArgumentError(
            f"{asked}: expected that nothing is called {old} any more, got {', '.join(places[:SHOWN])}: two fields would"
            " be read as one"
        )
    before = launch_keys.known().meanings
    changed = [what for what, one in found.items() if what in before and not one.explains(before[what])]
    if changed and len(owners := ours.get(new, ())) > 1:
        raise ArgumentError(
            f"{asked}: {new} is a name in {', '.join(owners[:SHOWN])}, of which one may have had it before, as"
            f" {', '.join(changed[:SHOWN])} would mean something else: two fields would be read as one"
        )


def _carry(entry: dict[str, Any], op: str, found: Mapping[str, Meaning]) -> list[str]:
    """Give an entry today's keys where it may have them; [CARRIED], or what of it means something else, or nothing."""
    parts = {"oracle": op, JUDGE: JUDGE}
    accepted = {part: found[what].explains(entry[part]) for part, what in parts.items()}
    accepted[JUDGE] = accepted[JUDGE] or meaning.alike(entry[JUDGE])
    fresh = {
        part: found[what].now for part, what in parts.items() if entry[part] == found[what].then and accepted[part]
    }
    changed = any(entry[part] != key for part, key in fresh.items())
    entry.update(fresh)
    if not all(accepted.values()):
        return [parts[part] for part, good in accepted.items() if not good]
    return [CARRIED] if changed else []


def _restate(read: Mapping[str, str], ops: Sequence[str]) -> None:
    """The keys of what variants declare of their results, in the rows of earlier sources."""
    known = launch_keys.known()
    rows = {place: _restated(row, read) if row.op in ops or not ops else row for place, row in known.rows.items()}
    if rows != known.rows:
        output_files.write(launch_keys.FILE, launch_keys.text(replace(known, rows=rows)))
        launch_keys.known.cache_clear()


def _restated(row: SourceKeys, read: Mapping[str, str]) -> SourceKeys:
    keys = dict(row.keys)
    for variant, one in _variants(row.backend, row.op).items() if row.asked.startswith(DECLARED) else ():
        declared = meaning_of(partial(launches.declared, catalog.spec(row.op), one), read)
        if variant in keys and declared.explains(keys[variant][:DIGITS]):
            keys[variant] = declared.now + keys[variant][DIGITS:]
    return replace(row, keys=keys)


def _variants(backend: str, op: str) -> dict[str, Implementation]:
    """The variants of today; none of a backend that cannot be loaded here, or that has no longer any."""
    try:
        return registered.variants(backend, op) if registered.implements(backend, op) else {}
    except KernelmuxError:
        return {}
