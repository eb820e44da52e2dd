"""A/A: the second contestants, what they say of the first, the limits, and which variant may be called faster."""

import pytest
from rich.console import Console

from kernelmux.perf.cli import main
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.record import history, run_file
from kernelmux.perf.report import compare, tables
from kernelmux.perf.rows.row_result import SecondTiming
from kernelmux.perf.tests import synthetic
from kernelmux.perf.timing import noise_floor
from kernelmux.perf.wording.groups import groups
from kernelmux.perf.wording.noise import noise


def ladder(*times):
    """Folded rows of one group; each time a pair (first, second)."""
    names = ("naive", "online", "registers")
    return noise_floor.fold(
        [row for (a, b), name in zip(times, names, strict=False) for row in synthetic.pair(a, b, variant=name)]
    )


def test_each_group_comes_again_in_reverse_order():
    def row(workload, variant, problem=""):
        return Row("softmax", workload, "bf16", "cuda", variant, problem)

    told = noise_floor.twice([row("x=8x8", "a"), row("x=8x8", "b"), row("x=8x8", "c", "no GPU"), row("x=9x9", "a")])
    assert [(r.workload, r.variant, r.again) for r in told] == [
        ("x=8x8", "a", False),
        ("x=8x8", "b", False),
        ("x=8x8", "c", False),
        ("x=8x8", "b", True),
        ("x=8x8", "a", True),
        ("x=9x9", "a", False),
        ("x=9x9", "a", True),
    ]
    assert len({r.id for r in told}) == len(told)


def test_the_second_time_becomes_a_part_of_the_first():
    (row,) = noise_floor.fold(synthetic.pair(100.0, 98.0))
    assert row.median_us == 100.0
    assert row.second == SecondTiming(again_us=98.0, again_spread=0.01, apart=100 / 98 - 1)
    assert not row.again


def test_a_variant_that_fails_the_second_time_has_failed():
    first, again = synthetic.pair(100.0, 98.0)
    (row,) = noise_floor.fold([first, again.not_timed("failed", "WrongOutput: y")])
    assert (row.status, row.error) == ("failed", "the second time: WrongOutput: y")


def test_rows_without_a_second_time_stay_as_they_are():
    rows = synthetic.ladder()
    assert noise_floor.fold(rows) == rows
    assert noise(rows) is None


def test_nothing_within_the_noise_of_its_group_is_faster():
    (group,) = groups(ladder((100.0, 104.0), (103.0, 103.0), (105.0, 105.0)))
    assert group.noise == pytest.approx(0.04)
    assert [group.leads(row) for row in group.rows] == [True, True, False]


def test_without_a_second_time_three_percent_are_no_difference():
    rows = [synthetic.row(variant=v, us=us) for v, us in (("naive", 100.0), ("online", 102.0), ("registers", 104.0))]
    (group,) = groups([*rows, synthetic.failed(backend="triton")])
    assert [group.leads(row) for row in group.rows] == [True, True, False, False]


@pytest.mark.parametrize(
    ("first", "second", "spread", "beyond"),
    [
        (100.0, 107.0, 0.01, 1),
        (107.0, 100.0, 0.01, 1),
        (100.0, 104.0, 0.01, 0),  # within 5 %
        (100.0, 107.0, 0.10, 0),  # the samples of one row lie as far apart
        (4.0, 4.9, 0.01, 0),  # within a microsecond
    ],
)
def test_two_timings_of_a_variant_fail_the_run_beyond_all_three_limits(first, second, spread, beyond):
    found = noise(noise_floor.fold(synthetic.pair(first, second, spread=spread)))
    assert len(found.beyond) == beyond


def test_the_terminal_says_how_large_the_noise_is():
    console = Console(width=120, record=True)
    rows = ladder((100.0, 101.0), (100.0, 110.0))
    assert tables.noise(console, noise(rows)) == 1
    text = console.export_text()
    assert "5.5% apart in the median, 10.0% at most (softmax x=16384x8192 bf16 cuda/online)" in text
    assert "UNSTABLE softmax x=16384x8192 bf16 cuda/online: 100.0 us, then 110.0 us (10.0% apart)" in text


def test_a_comparison_of_runs_allows_for_the_noise_of_either():
    earlier = synthetic.results(ladder((100.0, 106.0)))
    now = synthetic.results([synthetic.row(variant="naive", us=105.0)])
    (change,) = compare.changes(earlier, now)
    assert change.verdict == "same"


def test_a_record_keeps_it(tmp_path):
    path = history.record(synthetic.results(ladder((100.0, 101.0))), tmp_path)
    (row,) = run_file.read(path).timed
    assert (row.second.again_us, row.apart) == (101.0, 0.01)


def test_a_run_with_it_makes_one_row_of_two_and_a_page(tmp_path, capsys):
    out, page = tmp_path / "out", tmp_path / "page.html"
    words = "--device cpu --op add --backend torch_ref --dtype fp32 --samples 5 --quick --aa".split()
    status = main.main([*words, "--out", str(out), "--html", str(page)])
    told = capsys.readouterr()
    assert status in (0, 1), told.err  # a busy machine may differ from itself
    assert "A/A: the same variant timed twice" in told.out
    found = run_file.read(out / "results.json")
    assert [row.backend for row in found.timed] == ["torch_ref"]
    assert found.timed[0].second.again_us > 0
    assert "Performance on" in page.read_text(encoding="utf-8")
