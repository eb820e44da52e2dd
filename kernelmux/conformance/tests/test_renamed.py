"""A field that is only called otherwise: `--rekey OLD=NEW` lets records stand, and takes nothing else for a new name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernelmux.conformance.cli import ledger_command
from kernelmux.conformance.verified import launches, meaning, names, rekey, renamed
from kernelmux.registry.backend import launch_keys
from kernelmux.registry.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[3]
OLD, NEW = "roundings", "rounded_times"  # of ErrorModel
OPS = ("add", "rope", "softmax")  # whose records are looked at
# Each command, then how records stand.
SCRIPT = """
import json, sys
from kernelmux.conformance.verified import rekey, renamed
from kernelmux.registry.errors import ArgumentError
told = [[[], rekey.standing(sys.argv[2:])]]
for given in json.loads(sys.argv[1]):
    said = []
    try:
        renamed.command([given], (), said.append)
    except ArgumentError as error:
        said.append(f"refused: {error}")
    told.append([said, rekey.standing(sys.argv[2:])])
json.dump(told, sys.stdout)
"""


def of_copy(folder: Path, edits: Callable[[str, str], str], *given: str) -> list[tuple[list[str], dict[str, str]]]:
    """What these commands say in a copy of the tree, and how records stand after each; first, before all of them."""
    ignored = shutil.ignore_patterns("__pycache__", "tests", "mutants", "perf", "docs")
    shutil.copytree(ROOT / "kernelmux", folder / "kernelmux", ignore=ignored)
    for part in ("registry", "conformance"):
        for path in (folder / "kernelmux" / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if (edited := edits(path.relative_to(folder / "kernelmux").as_posix(), text)) != text:
                path.write_text(edited, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(given), *OPS]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(said, stands) for said, stands in json.loads(done.stdout)]


def called(old: str, new: str) -> Callable[[str, str], str]:
    return lambda path, text: re.sub(rf"\b{old}\b", new, text)


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    """How records of `OPS` stand in this tree."""
    return rekey.standing(OPS)


def verified(stands: dict[str, str]) -> set[str]:
    return {name for name, word in stands.items() if word in ("verified", "counts")}


def test_records_stand_where_only_a_field_has_another_name(tmp_path: Path, here: dict[str, str]) -> None:
    wrong = "rounded_thrice=rounded_times"
    copy = partial(of_copy, tmp_path / "tree", called(OLD, NEW))
    (_, before), refused, (said, after), again = copy(wrong, f"{OLD}={NEW}", f"{OLD}={NEW}")
    assert len({name for name in verified(here) - verified(before) if "NVIDIA H100" in name}) > 5
    assert refused[1] == before and re.match(
        "refused: --rekey rounded_thrice=.*: no record means what it did", refused[0][0]
    )
    assert after == here
    assert re.match(rf"\d+ records carried, with {NEW} read as {OLD}", said[-1])
    assert again[1] == after and again[0][-1].startswith("0 records carried")


def test_what_has_changed_beside_the_name_stays_stale(tmp_path: Path, here: dict[str, str]) -> None:
    def edits(path: str, text: str) -> str:
        if path == "registry/ops/rope.py":
            assert "torch.cat(" in text
            text = text.replace("torch.cat(", "2 * torch.cat(")
        return called(OLD, NEW)(path, text)

    _, (said, after) = of_copy(tmp_path / "tree", edits, f"{OLD}={NEW}")
    lost = verified(here) - verified(after)
    assert lost == {name for name in verified(here) if name.startswith("rope/")} != set()
    assert [
        line for line in said if re.match(rf"rope: \d+ records not carried: with {NEW} read as {OLD}, it means", line)
    ]


def test_a_name_that_another_field_has_is_refused(tmp_path: Path) -> None:
    """`axes` is a name of calls, which the bound reads as well."""
    (_, before), (said, after) = of_copy(tmp_path / "tree", called(OLD, "axes"), f"{OLD}=axes")
    assert after == before
    assert re.match(
        rf"refused: --rekey {OLD}=axes: axes is a name in .*Call in .*two fields would be read as one", said[0]
    )


# --- in this tree -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["1st=first"], r"expected OLD=NEW, two names of a field, got '1st=first': '1st' is no name"),
        (["roundings="], r"got 'roundings=': '' is no name"),
        (["roundings=class"], r"got 'roundings=class': 'class' is no name"),
        (["a=b=c"], r"got 'a=b=c': 'b=c' is no name"),
        (["terms=chain", "chain=terms"], r"expected each name once, got terms, chain more often"),
        (["terms=chain", "roundings=chain"], r"expected each name once, got chain more often"),
        (
            ["terms=rounding"],
            r"nothing is called terms any more, got ErrorModel in registry/spec/numerics\.py.*two fields",
        ),
        (["rounding_count=rounding_number"], r"no field rounding_number counts in .*did you mean \"rounding\"\?$"),
        (["rounded=amax"], r"tensors or Python's own values have an attribute amax"),
        (["amax=roundings"], r"tensors or Python's own values have an attribute amax"),
    ],
)
def test_names_that_cannot_be_one_field_are_refused(given: list[str], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        renamed.command(given, (), lambda line: None)


def wide(x: Any) -> Any:
    return x.width + getattr(x, "width", 1) + len(dict(width=2))


def thick(x: Any) -> Any:
    return x.thickness + getattr(x, "thickness", 1) + len(dict(thickness=2))


def thick_by_text(x: Any) -> Any:
    return x.thickness + getattr(x, "thickness", 1) + len(dict(thickness=2)) + len("width")


def test_attributes_keywords_and_what_getattr_looks_for_are_names() -> None:
    def written(function: Callable[[Any], Any]) -> Callable[[names.Names], str]:
        return lambda how: meaning._ValueWriter(__name__, how).digest([function])

    before = renamed.meaning_of(written(wide), {})
    now = renamed.meaning_of(written(thick), {"thickness": "width"})
    assert now.now != now.then == before.now and now.explains(before.now)
    assert now.met >= {"thickness"} and "width" not in now.met
    beside = renamed.meaning_of(written(thick_by_text), {"thickness": "width"})
    assert beside.spelt == ("width",) and not beside.explains(beside.then)  # that text may be a name of the field


def test_what_variants_declare_has_the_new_name_in_rows_of_earlier_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "declared", lambda spec, one, how: f"<{how('rounds'):.4}>")
    row = partial(launch_keys.SourceKeys, "square", "torch_ref", "then", launch_keys.DECLARED + "aaaaaa")
    found = renamed._restated(row({"plain": "<then>111111"}), {"rounds": "then"})
    assert found == row({"plain": "<roun>111111"})
    for other in ("<else>111111", "<roun>111111"):
        assert renamed._restated(row({"plain": other}), {"rounds": "then"}) == row({"plain": other})


def test_a_word_without_a_new_name_is_an_operator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []

    def noted(*given: Any) -> int:
        asked.append(given[:2])
        return 0

    monkeypatch.setattr(renamed, "command", noted)
    monkeypatch.setattr(rekey, "command", noted)
    for words in (["--rekey"], ["--rekey", "square"], ["square", "--rekey", "a=b", "--rekey", "c=d"]):
        assert ledger_command.main(words) == 0
    square, missing = ["square"], rekey.MISSING
    assert asked == [(missing, []), (missing, square), (["a=b", "c=d"], square), (missing, square)]
    assert ledger_command.main(["--rekey", "pins"]) == 2 and 'unknown operator "pins"' in capsys.readouterr().err
