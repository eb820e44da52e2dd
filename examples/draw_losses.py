"""Draw the losses of several runs of tiny_transformer.py on each other, and how far they are apart."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kernelmux.perf.pictures import figures
from kernelmux.perf.pictures.themes import BACKENDS, FAINT, MORE

PICTURE = Path(__file__).parents[1] / "docs/images/losses.svg"
SAME = ("steps", "batch", "length", "seed")  # what runs have in common whose losses should agree
COLOURS = [*BACKENDS.values(), *MORE]  # of the runs in their order
NUDGED = {"color": FAINT}
EPILOG = """
example:
  python examples/tiny_transformer.py --out eager.json
  python examples/tiny_transformer.py --out compiled.json --compile
  python examples/tiny_transformer.py --out nudged.json --nudge      what rounding alone does
  python examples/draw_losses.py eager.json nudged.json compiled.json
"""


class DrawError(Exception):
    """A file that is no run, or runs that cannot be compared."""


def read(path: Path) -> list[dict[str, Any]]:
    """The run that tiny_transformer.py wrote, or those of a record: "runs", and in "run" what they have in common."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [_told(content["run"] | run) for run in content["runs"]] if "runs" in content else [_told(content)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DrawError(f"{path}: expected what tiny_transformer.py --out wrote, got {problem}") from error


def _told(run: dict[str, Any]) -> dict[str, Any]:
    """A run with its losses as numbers, and with its name for the legend."""
    losses = [float(loss) for loss in run["losses"]]
    how = ["compiled" if run["compile"] else "eager", *(["nudged"] if run.get("nudge") else [])]
    return run | {"losses": losses, "what": f"{', '.join((run['backend'], *how))} on {run['device']}"}


def compared(runs: list[dict[str, Any]]) -> None:
    """DrawError for runs that were not asked to do the same."""
    for name in SAME:
        if len(found := {str(run.get(name)) for run in runs}) > 1:
            raise DrawError(f"{name}: expected runs that have it in common, got {', '.join(sorted(found))}")


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """The losses of all runs; below, if there are several, their distance from the first run. In light and dark."""
    several = len(runs) > 1
    with figures.blank(7.0, 5.0 if several else 3.2) as figure:
        axes = figure.subplots(1 + several, 1, sharex=True, squeeze=False)[:, 0]
        for each in axes:
            each.set_prop_cycle(color=COLOURS)
        _losses(axes[0], runs)
        if several:
            _distances(axes[1], runs)
        axes[-1].set_xlabel("step")
        path.write_text(figures.svg(figure), encoding="utf-8")


def _losses(axes: Any, runs: list[dict[str, Any]]) -> None:
    for number, run in enumerate(runs):  # dashes of their own, so that lines on each other can all be seen
        style = NUDGED if run.get("nudge") else {}
        dashes = (2 * number, (4, 2 * (len(runs) - 1)))
        axes.plot(run["losses"], label=run["what"], linewidth=1.6, linestyle=dashes, **style)
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)
    for line in axes.legend(frameon=False).get_lines():
        line.set_linestyle("-")


def _distances(axes: Any, runs: list[dict[str, Any]]) -> None:
    first = runs[0]["losses"]
    axes.plot([])  # the first run's colour
    for run in runs[1:]:
        style = NUDGED | {"linewidth": 3.0} if run.get("nudge") else {"linewidth": 1.0}
        axes.plot([abs(a - b) for a, b in zip(run["losses"], first, strict=True)], **style)
    axes.set_yscale("symlog", linthresh=1e-7)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"distance from\n{runs[0]['what']}")


def main(words: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "runs", nargs="+", type=Path, metavar="FILE", help="what tiny_transformer.py --out wrote, or a record"
    )
    made.add_argument("--out", type=Path, default=PICTURE, metavar="SVG", help="default: docs/images/losses.svg")
    arguments = made.parse_args(words)
    try:
        runs = [run for path in arguments.runs for run in read(path)]
        compared(runs)
    except DrawError as error:
        print(f"draw_losses: {error}", file=sys.stderr)
        return 2
    draw(runs, arguments.out)
    print(f"{arguments.out}: {', '.join(run['what'] for run in runs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
