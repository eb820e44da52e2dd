"""docs/images/speeds.svg: of every operator the best variant of each backend, as a share of the floor.

A mark is hollow where its source has changed since it was timed.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmux.docs import drawing, rungs
from kernelmux.docs.families import by_family
from kernelmux.docs.rungs import backends
from kernelmux.emulator import themes
from kernelmux.perf import records
from kernelmux.perf.report import wording
from kernelmux.perf.report.groups import ResultGroup, large_groups

WIDTH, TOP, HEIGHT, LABELS, LEFT = 1000, 58, 270, 150, 52  # pixels; LABELS: room for the names below
ASIDE = {"triton": -3, "cuda": 3}  # pixels, so that neither hides the other
STYLE = f"text{{font-size:11px}}.rule{{stroke:{themes.RULE}}}.roof{{stroke:{themes.INK}}}" + "".join(
    f".{name}{{fill:{colour}}}.{name}.stale{{fill:none;stroke:{colour};stroke-width:2}}"
    for name, colour in themes.BACKENDS.items()
)


def picture() -> str:
    """The picture as SVG text: the first GPU on record."""
    record = next(iter(records.recorded()), None)
    rows = rungs.rows(record) if record else ()
    groups = {group.op: group for group in large_groups(rows) if group.best and group.best.point}
    title = f"{record.gpu}: time that the machine allows / time taken" if record else "No GPU is on record yet"
    return drawing.picture(WIDTH, TOP + HEIGHT + LABELS, LEFT, title, STYLE, [*_key(), *_rules(), *_columns(groups)])


def _y(share: float) -> float:
    return round(TOP + HEIGHT * (1 - min(share, 1.05)), 1)


def _key() -> Iterator[str]:
    for i, name in enumerate(backends()):
        x = WIDTH - 90 * (len(backends()) - i)
        yield f'<circle class="{name}" cx="{x}" cy="20" r="5"/><text x="{x + 10}" y="24">{name}</text>'
    x = WIDTH - 90 * len(backends())
    yield f'<circle class="{backends()[-1]} stale" cx="{x}" cy="38" r="4"/>'
    yield f'<text x="{x + 10}" y="42">its source has changed since</text>'


def _rules() -> Iterator[str]:
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        kind = "roof" if percent == 100 else "rule"
        yield f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y}" y2="{y}"/>'
        yield f'<text class="grey" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{percent}%</text>'


def _columns(groups: dict[str, ResultGroup]) -> Iterator[str]:
    ops = [op for names in by_family(groups).values() for op in names]
    step = (WIDTH - LEFT - 16) / max(len(ops), 1)
    for i, op in enumerate(ops):
        x, foot = round(LEFT + step * (i + 0.5), 1), TOP + HEIGHT
        yield f'<line class="rule" x1="{x}" x2="{x}" y1="{TOP}" y2="{foot}"/>'
        yield f'<text x="{x}" y="{foot + 12}" text-anchor="end" transform="rotate(-55 {x} {foot + 12})">{op}</text>'
        for name in backends():
            row = groups[op].best_of(name)
            if row and row.point:
                told = f"{op} {row.label} {wording.microseconds(row.median_us)} us, {wording.share(row)}"
                kind, size = (f"{name} stale", 4) if row.stale else (name, 5)
                place = f'cx="{x + ASIDE.get(name, 0):.1f}" cy="{_y(row.point.share)}"'
                yield f'<circle class="{kind}" {place} r="{size}"><title>{told}</title></circle>'
