"""The records that pages quote: linked, and holding what is quoted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmux.registry.util.files import rows_of

DOCS = Path(__file__).parents[3] / "docs"
TRIALS = DOCS.parent / "kernelmux/records"
RECORDS = sorted(TRIALS.glob("*/trials/*.json"))
PERF = TRIALS / "nvidia_h200/perf.json"
RUNS = ("first run", "second run", "third run")
PERFORMANCE = ("performance", *(f"performance_{name}" for name in ("rows", "attention", "products", "convolutions")))
SECTIONS = (
    ("products", ("Products", "In fp16 and tf32", "Lines at odd multiples of 16 bytes")),
    ("products", ("Products in 8 bits", "fp8, full", "matvec")),
    (
        "convolutions",
        ("Convolution and pooling", "Few channels", "Rows of the image, and what limited few channels", "Pooling"),
    ),
)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_a_record_is_linked_and_names_its_gpu(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) and re.search(r'NVIDIA H\d00|"gpu": "none', text)
    link = f"](../{path.relative_to(DOCS.parent).as_posix()})"
    assert any(link in page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))


@pytest.mark.parametrize(("page", "sections"), SECTIONS)
def test_the_times_of_a_table_are_on_record(page: str, sections: tuple[str, ...]) -> None:
    runs = record("vision_and_products")["us"]
    held = {us for row in runs for name, found in row.items() if name.startswith("run ") for us in found.values()}
    pools = record("max_pool2d_trials")["rows"]
    held |= {us for row in pools for us in (*row["us"].values(), row["copy us"])}
    held |= {us for found in record("product_tiles")["times, us"].values() for us in found.values()}
    trials = record("clusters_and_matvec_trials")
    rows = [*record("product_pairs_trials")["rows"], *(row for run in RUNS for row in trials[run])]
    held |= {us for row in rows for us in row["us"].values()}
    held |= {us for found in record("fp8_and_odd_lines_trials")["us"].values() for us in found.values()}
    beside = [row for run in record("later_runs_beside_others")["runs"] for row in run["rows"]]
    held |= {us for row in beside for kind in ("us", "graph us") for us in row.get(kind, {}).values()}
    perf = rows_of(json.loads(PERF.read_text(encoding="utf-8")))
    held |= {row[kind] for row in perf for kind in ("median_us", "graph_us") if row.get(kind)}
    wanted = [time for section in sections for table in tables(page, section) for time in times(table)]
    missing = [text for text in wanted if not any(is_rounded(us, text) for us in held)]
    assert len(wanted) > 10 and not missing


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_a_time_in_a_sentence_is_on_record(page: Path) -> None:
    kept = [*RECORDS, PERF]
    held = {us for path in kept for us in values(json.loads(path.read_text(encoding="utf-8")))}
    text = re.sub(
        r"^```.*?^```|<!-- (\w+).*?<!-- /\1 -->|^\|.*?$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M
    )
    quoted = re.findall(r"(\d+(?:\.\d+)?) us\b", text)
    assert not [time for time in quoted if not any(is_rounded(us, time) for us in held)]


def values(found: Any) -> Iterator[float]:
    """All numbers in a record."""
    if isinstance(found, dict | list):
        for inner in found.values() if isinstance(found, dict) else found:
            yield from values(inner)
    elif isinstance(found, int | float):
        yield float(found)


def test_the_table_of_the_h200_quotes_the_others() -> None:
    pages = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PERFORMANCE)
    first, *others = re.findall(r"(?:^\|.*\n)+", pages.partition("\n## On an H200\n")[2], re.MULTILINE)
    rows = [numbers(line) for table in others for line in table.splitlines()[2:]]
    quoted = first.splitlines()[2:]
    assert len(quoted) > 10 and not [line for line in quoted if not any(numbers(line) <= row for row in rows)]


def numbers(line: str) -> set[str]:
    """The times and ratios in a row of a table, without those of its first cell."""
    return set(re.findall(r"(?<![\w.-])\d+(?:\.\d+)?x?(?!\w)", line.strip("|").partition("|")[2]))


def record(name: str) -> Any:
    return json.loads((TRIALS / f"nvidia_h200/trials/{name}.json").read_text(encoding="utf-8"))


def tables(page: str, section: str) -> list[list[str]]:
    """The tables of a section of one of the pages of families, each as its lines."""
    text = (DOCS / f"performance_{page}.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"^### {re.escape(section)}\n(.*?)^(?=##)", text, re.DOTALL | re.MULTILINE)
    return [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def times(table: list[str]) -> list[str]:
    """The numbers in the columns of a table whose heads end in microseconds, and in that of cuDNN."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    columns = [i for i, name in enumerate(head) if name.endswith("us") or name == "cuDNN"]
    return [number for row in rows for i in columns for number in re.findall(r"[\d.]+", row[i])]


def is_rounded(us: float, text: str) -> bool:
    """Whether a page may quote the time as `text`; what is on record was rounded before, to a hundredth or less."""
    digits = len(text.partition(".")[2])
    return abs(us - float(text)) <= 0.5 * 10.0**-digits + 0.005
