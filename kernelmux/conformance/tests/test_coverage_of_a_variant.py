"""A backend whose launcher and kernel have ways that few cases take: what trials did not reach is listed, and only that."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelmux.conformance.cli.main import main
from kernelmux.conformance.coverage import collecting, launcher_marks, waivers
from kernelmux.conformance.coverage.findings import BLOCK, CodePart
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import not_reached
from kernelmux.conformance.session.execute import Outcome, execute, from_dict
from kernelmux.conformance.session.plan import Item
from kernelmux.emulator import nvrtc
from kernelmux.registry.call import temporary_backends

pytestmark = [
    pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable())),
    pytest.mark.skipif(torch.cuda.is_available(), reason="runs without a GPU, on the emulator"),
]

FILES = {
    "__init__.py": """
from kernelmux.registry.backend import Backend

BACKEND = Backend("reach", "launchers with branches", 1, lambda device: None, emulates=True)
""",
    "_threads.py": """
from kernelmux.registry.util.cards import remembered


@remembered
def threads(n):
    if n > 300:
        return 256
    return 64
""",
    "square.py": """
import torch

from kernelmux.backends.cuda import Source, ctype
from kernelmux.registry.backend import Implementation
from reach_backend._threads import threads

SOURCE = Source(__file__)


def square(x):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    block = threads(x.numel())
    kernel = SOURCE.kernel("square", "x* y* n:i64", ELEMENT=ctype(x.dtype))
    if x.numel() > 2000:
        block = 128
    kernel(-(-x.numel() // block), block, x, y, x.numel())
    return y


VARIANTS = {
    "plain": Implementation(fn=square, idea="a thread per element", layout={"x": "contiguous"}),
    "other": Implementation(fn=lambda x: square(x), idea="the same", layout={"x": "contiguous"}),
}
""",
    "square.cu": """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void square(const ELEMENT* x, ELEMENT* y, long long n) {
    long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    float value = i < n ? static_cast<float>(x[i]) : 0.0f;
    if (n > 1500) {
        __syncthreads();
    }
    if (i < n) y[i] = static_cast<ELEMENT>(value * value);
}
""",
}
LARGE = "square.py:15 `if x.numel() > 2000`"
SYNC = "square.cu:8 `__syncthreads();` in kernel square"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The backend, registered as if a distribution had announced it."""
    home = tmp_path / "reach_backend"
    home.mkdir()
    for name, text in FILES.items():
        (home / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with temporary_backends.announced({"reach": "reach_backend"}):
        yield home
    launcher_marks.restore()
    import sys

    for name in [name for name in sys.modules if name.startswith("reach_backend")]:
        del sys.modules[name]


def options(*cases: str, **more: object) -> Options:
    asked = Options(ops=("square",), backends=("reach",), cases=cases, dtypes=("fp32",), coverage=True)
    return replace(asked, **more)  # type: ignore[arg-type]


def run(chosen: Options, variant: str = "plain") -> Outcome:
    """An item, as a row that has crossed to another process."""
    outcome = execute(Item("square", "reach", variant, "accuracy"), chosen)
    assert outcome.status == "passed", outcome.text
    return from_dict(json.loads(json.dumps(outcome.as_dict())))


def told(chosen: Options, *outcomes: Outcome) -> list[str]:
    return [line.partition("not reached: ")[2] for line in not_reached.lines(chosen, list(outcomes))]


def test_what_no_case_reaches_is_listed_with_its_line_and_the_rest_is_not(folder: Path) -> None:
    chosen = options("x=100", "x=400")
    assert told(chosen, run(chosen)) == [SYNC, LARGE]


def test_a_helper_that_several_operators_share_is_told_once(folder: Path) -> None:
    chosen = options("x=100")
    outcomes = [run(chosen), run(chosen, "other")]
    shared = "reach, no variant asked: not reached: _threads.py:7 `if n > 300`"
    assert not_reached.lines(chosen, outcomes) == [
        shared,
        f"square, reach, no variant asked: not reached: {SYNC}",
        f"square, reach, no variant asked: not reached: {LARGE}",
    ]


def test_the_rows_of_several_processes_count_together(folder: Path) -> None:
    small, middle, large = options("x=100"), options("x=1600"), options("x=2500")
    first, second, third = run(small), run(middle), run(large)
    assert told(small, first, second) == [LARGE]
    assert told(small, first, second, third) == []
    run_blocks = [not_reached.results(list(some))[0]["blocks"] for some in ((first, third), (third, first), (first,))]
    assert run_blocks[0] == run_blocks[1] > run_blocks[2]


def test_what_one_variant_reached_is_still_open_for_the_other(folder: Path) -> None:
    small, large = options("x=100"), options("x=100", "x=2500")
    outcomes = [run(small), run(large, "other")]
    lines = not_reached.lines(small, outcomes)
    assert f"square, reach/plain: not reached: {LARGE}" in lines and not any("reach/other" in line for line in lines)
    assert failures(options(**FULL), outcomes) == []
    (entry,) = [e for e in not_reached.results(outcomes) if e["variant"] == "plain"]
    assert entry["branches"] == [2, 4] and entry["blocks"][0] < entry["blocks"][1]


def test_what_a_launcher_remembers_of_another_variant_is_forgotten(folder: Path) -> None:
    """Else the second one would not run what the first has left behind."""
    chosen = options("x=100", "x=2500")
    assert told(chosen, run(chosen), run(chosen, "other")) == []


def test_calls_of_which_some_blocks_run_count_too(folder: Path) -> None:
    """As in `offsets`: what was written is judged there."""
    outcome = execute(Item("square", "reach", "plain", "offsets"), options("x=100"))
    assert outcome.status == "passed", outcome.text
    assert int(outcome.coverage["ways"]["square.py"], 16) and outcome.coverage["functions"]


def test_what_other_backends_run_in_a_call_is_not_the_variants(folder: Path) -> None:
    """A call that is refused asks the conditions of all of them, and may find a file of the same name there."""
    noted = collecting.CallCoverage(folder, emulated=True)
    noted.ways = {folder / "square.py": {1}, folder.parent / "elsewhere/square.py": {6}}
    assert noted.row()["ways"] == {"square.py": "0x2"}


def test_a_run_without_coverage_leaves_the_functions_alone(folder: Path) -> None:
    chosen = options("x=100", coverage=False)
    outcome = run(chosen)
    assert outcome.coverage == {} and not_reached.lines(chosen, [outcome]) == []
    assert not_reached.counted(chosen, [outcome]) == not_reached.markdown(chosen, [outcome]) == ""


@pytest.mark.parametrize("asked", [True, False])
def test_what_shows_a_failure_again_asks_as_many_calls(folder: Path, asked: bool) -> None:
    (folder / "square.cu").write_text(FILES["square.cu"].replace("value * value", "value"), encoding="utf-8")
    outcome = execute(Item("square", "reach", "plain", "accuracy"), options("x=100", coverage=asked))
    assert outcome.status == "failed"
    (command,) = {line for line in outcome.text.splitlines() if "reproduce: " in line}
    assert (" --coverage" in command) is asked


def test_the_command_says_it_on_the_screen_and_in_all_reports(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    selection = ["--op", "square", "--backend", "reach", "--check", "accuracy", "--case", "x=400", "--dtype", "fp32"]
    assert main([*selection, "--coverage", "--device", "cpu", "--out", str(tmp_path)]) == 0
    told = "3 lines of the report say what no variant has reached, 0 what others have"
    assert told in " ".join(capsys.readouterr().out.split())
    line = f"square, reach, no variant asked: not reached: {LARGE}"
    assert f"* {line}" in (tmp_path / "matrix-partial.md").read_text()
    assert html.escape(line) in (tmp_path / "report-partial.html").read_text()
    results = [json.loads(text) for text in (tmp_path / "results-partial.jsonl").read_text().splitlines()]
    (found,) = [one for one in results if one["kind"] == "coverage" and one["variant"] == "plain"]
    part = {
        "kind": "branch",
        "file": "square.py",
        "line": 15,
        "text": "`if x.numel() > 2000`",
        "kernel": "",
        "within": "",
    }
    assert part in found["not_reached"]


# --- failures and waivers -------------------------------------------------------------------------------------------


def failures(chosen: Options, outcomes: list[Outcome]) -> list[str]:
    return not_reached.failures(chosen, [o.item for o in outcomes], outcomes)


FULL = {"tier": "full", "cases": (), "dtypes": ()}
WITHIN = """
[[waived]]
backend = "reach"
file = "square.cu"
code = "++i"
within = "f(1);"
needs = "no call"
reason = "for the test"
"""
WAIVER = """
[[waived]]
backend = "reach"
file = "square.py"
code = "if x.numel() > 2000"
needs = "elements"
reason = "for the test"

[[waived]]
backend = "reach"
file = "square.cu"
code = "__syncthreads();"
kernel = "square"
device = "cpu"
needs = "device"
reason = "for the test"
"""


def test_tier_full_fails_by_what_was_not_reached_and_tier_ci_does_not(folder: Path) -> None:
    outcomes = [run(options("x=100", "x=400"))]
    assert failures(options(**FULL), outcomes) == [
        f"square, reach: not reached: {SYNC}",
        f"square, reach: not reached: {LARGE}",
    ]
    assert failures(options(**{**FULL, "tier": "ci"}), outcomes) == []
    assert failures(options("x=100", tier="full"), outcomes) == []  # asks a part
    failed = [*outcomes, replace(outcomes[0], status="failed", coverage={})]
    assert failures(options(**FULL), failed) == []  # by that
    more = [outcomes[0].item, replace(outcomes[0].item, check="exact")]
    assert not_reached.failures(options(**FULL), more, outcomes) == []  # it was stopped


def test_shared_code_fails_a_run_of_all_operators_alone(folder: Path) -> None:
    outcomes = [run(options("x=100", "x=2500")), run(options("x=100"), "other")]
    outcomes[0].coverage["ways"].pop("_threads.py")
    assert failures(options(**FULL), outcomes) == []
    everything = options(**FULL, ops=(), backends=())
    assert failures(everything, outcomes) == ["reach: not reached: _threads.py:7 `if n > 300`"]


def test_a_waiver_takes_a_line_out_of_the_report_and_of_the_failures(folder: Path) -> None:
    outcomes = [run(options("x=100", "x=400"))]
    (folder / waivers.NAME).write_text(WAIVER, encoding="utf-8")
    waivers.entries.cache_clear()
    chosen = options(**FULL)
    assert failures(chosen, outcomes) == [] and not_reached.lines(chosen, outcomes) == []
    huge = replace(chosen, tier="huge")
    assert failures(huge, outcomes) == [f"square, reach: not reached: {LARGE}"]
    cuda = replace(chosen, device="cuda")
    assert failures(cuda, outcomes) == [f"square, reach: not reached: {SYNC}"]


def test_what_large_cases_alone_reach_is_waived_where_a_tier_has_none(folder: Path) -> None:
    outcomes = [run(options("x=100", "x=1600"))]
    (folder / waivers.NAME).write_text(WAIVER.partition('[[waived]]\nbackend = "reach"\nfile = "square.cu"')[0])
    text = (folder / waivers.NAME).read_text()
    (folder / waivers.NAME).write_text(text.replace('needs = "elements"', 'needs = "full"'))
    waivers.entries.cache_clear()
    assert not_reached.lines(options(**{**FULL, "tier": "ci"}), outcomes) == []
    assert failures(options(**FULL), outcomes) == [f"square, reach: not reached: {LARGE}"]
    reached = [run(options("x=100", "x=2500"))]
    assert failures(options("x=100", "x=2500"), reached) == []  # by name
    (stale,) = failures(options(**{**FULL, "tier": "ci"}), reached)
    assert "a trial has run it" in stale


def test_what_launchers_elsewhere_reach_is_waived_until_one_of_ours_does(folder: Path) -> None:
    text = WAIVER.partition('[[waived]]\nbackend = "reach"\nfile = "square.cu"')[0].replace('"elements"', '"package"')
    (folder / waivers.NAME).write_text(text, encoding="utf-8")
    waivers.entries.cache_clear()
    assert failures(options(**FULL), [run(options("x=100", "x=1600"))]) == []
    (stale,) = failures(options(**FULL, device="cuda"), [run(options("x=100", "x=1600", "x=2500"))])
    assert "a trial has run it" in stale


def test_a_waiver_of_what_a_trial_has_run_or_of_no_code_fails_in_every_tier(folder: Path) -> None:
    outcomes = [run(options("x=100", "x=2500"))]
    (folder / waivers.NAME).write_text(WAIVER.replace("__syncthreads", "__syncwarp"), encoding="utf-8")
    waivers.entries.cache_clear()
    assert failures(options("x=100"), outcomes) == [
        "coverage_waivers.toml: reach/square.py `if x.numel() > 2000`: a trial has run it (for the test): remove the entry",
        "coverage_waivers.toml: reach/square.cu `__syncwarp();`: no such code; remove the entry or mend it",
    ]


def test_a_waiver_may_speak_of_one_place_that_code_was_inlined_at(folder: Path) -> None:
    (folder / "square.cu").write_text("f(0);\nf(1);\n", encoding="utf-8")
    (folder / waivers.NAME).write_text(WITHIN, encoding="utf-8")
    waivers.entries.cache_clear()
    (waiver,) = waivers.all_of(["reach"])
    first, second = (CodePart(BLOCK, "square.cu", 9, "`++i`", "square", f"square.cu:{line}") for line in (1, 2))
    assert [waiver.covers("reach", part) for part in (first, second)] == [False, True]
    assert waiver.applies(options(**FULL)) and waiver.is_stale_where_run(options("x=100", device="cuda"))


def test_code_that_needs_another_device_may_run_for_a_card(folder: Path) -> None:
    outcomes = [run(options("x=100", "x=2500"))]
    (folder / waivers.NAME).write_text(WAIVER.replace('needs = "elements"', 'needs = "device"'), encoding="utf-8")
    waivers.entries.cache_clear()
    assert len(failures(options("x=100"), outcomes)) == 2
    assert failures(options("x=100", card="a100"), outcomes) == []
    assert failures(options("x=100", device="cuda"), outcomes) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('reason = "for the test"', "", "needs backend, code, file, needs, reason"),
        ('needs = "elements"', 'needs = "time"', "expected needs in"),
        ('device = "cpu"', 'device = "tpu"', "a device in"),
        ("[[waived]]", "[[waived", "expected a TOML file"),
    ],
)
def test_a_waiver_that_is_not_well_formed_is_an_error(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "waivers.toml"
    path.write_text(WAIVER.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(waivers.SpecError, match=says):
        waivers.entries(path)


def test_every_waiver_of_the_suite_speaks_of_code_that_there_is() -> None:
    assert waivers.entries(waivers.FILE)
    assert [text for waiver in waivers.entries(waivers.FILE) if (text := waivers.stale(waiver, []))] == []
