"""Records: merging, staleness, comparison, and what is refused."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from kernelmux.perf.cli import command, main
from kernelmux.perf.record import history, run_file
from kernelmux.perf.record.run_file import Overhead
from kernelmux.perf.report import compare, contribute
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.row_result import SecondTiming
from kernelmux.perf.tests import synthetic
from kernelmux.perf.tests.synthetic import GPU
from kernelmux.registry.backend import timings
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import GpuFiles, rows_of

WHOLE = replace(GPU, capability="9.0", processors=132)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "PLACE", GpuFiles(tmp_path))
    history.recorded.cache_clear()
    yield tmp_path
    history.recorded.cache_clear()


def test_a_record_takes_new_rows_and_keeps_the_others(folder):
    history.record(synthetic.results(synthetic.ladder()))
    path = history.record(synthetic.results([synthetic.row(variant="registers", us=120.0)], date="2026-12-01"))
    assert path.name == "nvidia_h200.json"
    (record,) = history.recorded()
    times = {(row.backend, row.variant): (row.median_us, row.date) for row in record.rows}
    assert len(times) == 4
    assert times["cuda", "registers"] == (120.0, "2026-12-01")
    assert times["cuda", "naive"] == (600.0, "2026-11-20")
    assert record.title == "recorded on NVIDIA H200, 2026-11-20 to 2026-12-01"


def test_new_host_times_replace_all_of_that_operator_and_backend(folder):
    old = [
        Overhead("matmul", "cuda/tiled", 9.0),
        Overhead("matmul", "cuda/wgmma", 9.5),
        Overhead("matmul", "triton/one", 8.0),
    ]
    new = [
        Overhead("matmul", "cuda/wgmma", 7.0),
        Overhead("matmul", "cuda/register_tiled", 8.0),
        Overhead("add", "triton", error="no"),
    ]
    for rows in (old, new):
        history.record(synthetic.results(synthetic.ladder(), overhead=tuple(rows)))
    text = (folder / "nvidia_h200.json").read_text()
    found = [(row["label"], row["direct_us"]) for row in rows_of(json.loads(text)["overhead"])]
    assert found == [("cuda/register_tiled", 8.0), ("cuda/wgmma", 7.0), ("triton/one", 8.0)]


def test_a_variant_that_fails_loses_its_row(folder):
    history.record(synthetic.results(synthetic.ladder()))
    history.record(synthetic.results([synthetic.failed(variant="naive")]))
    assert {row.variant for row in history.recorded()[0].rows} == {"plain", "resident", "registers"}


def test_a_noisy_time_takes_no_rows_place(folder):
    history.record(synthetic.results([synthetic.row(variant="naive", us=100.0)]))
    noisy = [synthetic.row(variant=name, us=200.0, spread=0.3) for name in ("naive", "registers")]
    history.record(synthetic.results(noisy))
    assert [(row.variant, row.median_us) for row in history.recorded()[0].rows] == [("naive", 100.0)]


def test_rows_stand_in_ladder_order_whatever_the_order_of_the_runs(folder):
    history.record(synthetic.results(synthetic.ladder()[::-1]))
    assert [row.variant for row in history.recorded()[0].rows] == ["plain", "resident", "naive", "registers"]


def test_a_changed_source_makes_a_row_stale(folder):
    fresh, old = synthetic.row(variant="naive"), synthetic.row(variant="registers", source="000000000000")
    history.record(synthetic.results([fresh, old]))
    assert {row.variant: row.stale for row in history.recorded()[0].rows} == {"naive": False, "registers": True}


def test_a_row_of_other_work_is_stale_and_one_of_a_spec_with_more_cases_is_not(folder):
    more_cases = synthetic.row(variant="naive", spec="000000000000")
    other_work = synthetic.row(variant="registers", bytes=synthetic.row().bytes * 2)
    gone = replace(more_cases, op="no_such_operator")
    assert [history.stale(row) for row in (more_cases, other_work, gone)] == [False, True, True]


def test_only_a_gpu_is_recorded(folder):
    found = synthetic.results(synthetic.ladder(), machine=MeasuringMachine(name="a laptop", kind="cpu"))
    with pytest.raises(ArgumentError, match="real GPU"):
        history.record(found)
    assert not list(folder.iterdir())


def test_a_gpu_is_found_by_a_part_of_its_name(folder):
    history.record(synthetic.results(synthetic.ladder()))
    assert history.find("h200").gpu == "NVIDIA H200"
    with pytest.raises(ArgumentError, match="recorded GPUs: NVIDIA H200"):
        history.find("b200")


def test_a_file_that_is_something_else_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"benchmarks": []}')
    with pytest.raises(ArgumentError, match="kind"):
        run_file.read(path)
    path.write_text('{"kind": "kernelmux.perf", "schema": 99}')
    with pytest.raises(ArgumentError, match="schema 1 or 2, got 99"):
        run_file.read(path)


@pytest.mark.parametrize(
    ("before", "now", "spread", "verdict"),
    [
        (100.0, 110.0, 0.01, "slower"),
        (100.0, 90.0, 0.01, "faster"),
        (100.0, 102.0, 0.01, "same"),
        (100.0, 110.0, 0.20, "same"),
        (2.0, 2.5, 0.01, "same"),
    ],
)
def test_a_change_counts_beyond_three_percent_noise_and_a_microsecond(before, now, spread, verdict):
    earlier = synthetic.results([synthetic.row(us=before, spread=spread)])
    (change,) = compare.changes(earlier, synthetic.results([synthetic.row(us=now, spread=spread)]))
    assert change.verdict == verdict


def test_rows_of_one_run_alone_are_not_compared():
    assert compare.changes(synthetic.results(synthetic.ladder()[:1]), synthetic.results(synthetic.ladder()[1:])) == []


def test_a_record_gives_the_times_that_a_choice_of_backend_reads(folder, tmp_path):
    old = synthetic.row(backend="triton", variant="online", source="0" * 12)
    path = history.record(synthetic.results([*synthetic.ladder(), old]))
    table = timings.TABLES.read(history.derive(path, tmp_path / "times"))
    assert table.gpu == "NVIDIA H200"
    times = {(t.backend, t.variant): (t.median_us, t.current) for t in table.rows}
    assert times == {
        ("torch_ref", "plain"): (300.0, True),
        ("triton", "resident"): (150.0, True),
        ("triton", "online"): (150.0, False),
        ("cuda", "naive"): (600.0, True),
        ("cuda", "registers"): (130.0, True),
    }
    assert all((t.op, t.workload, t.dtype) == ("softmax", "x=16384x8192", "bf16") for t in table.rows)


def test_times_of_what_ships_are_read_from_the_record(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(timings, "TABLES", replace(timings.TABLES, place=history.PLACE))
    args = main.parser().parse_args(["--record", "--into-checkout", "--out", str(tmp_path / "out")])
    (tmp_path / "out").mkdir()
    command.write(Console(quiet=True), synthetic.results(synthetic.ladder()), args)
    assert len(timings.TABLES.of("NVIDIA H200").rows) == 4
    monkeypatch.undo()
    timings.forget()


@pytest.fixture
def user(folder, monkeypatch, tmp_path):
    """The folder of a user, beside a copy of kernelmux that cannot be written."""
    place = tmp_path / "home"
    monkeypatch.setenv("KERNELMUX_HOME", str(place))
    monkeypatch.setattr(timings, "TABLES", replace(timings.TABLES, place=GpuFiles(tmp_path / "results")))
    monkeypatch.setattr(history, "PLACE", GpuFiles(tmp_path / "results"))
    yield place
    monkeypatch.undo()
    timings.forget()


def test_a_user_keeps_times_in_a_folder_of_their_own(user, tmp_path, capsys):
    args = main.parser().parse_args(["--record", "--out", str(tmp_path / "out")])
    theirs = replace(synthetic.row(us=99.0), backend="peers", variant="torch_compile")
    command.check_outputs(args)
    command.write(Console(), synthetic.results([*synthetic.ladder(), theirs], machine=WHOLE), args)
    assert str(user / "results/nvidia_h200.json") in capsys.readouterr().out.replace("\n", "")
    assert (user / "results/nvidia_h200.md").exists() and not (tmp_path / "results").exists()
    found = timings.TABLES.everywhere("NVIDIA H200")
    assert [f.row.variant for f in found] == ["plain", "resident", "naive", "registers"]
    table = timings.TABLES.at(user / "times").of("NVIDIA H200")
    assert (table.capability, table.processors) == ("9.0", 132)
    assert table.packages == {"torch": "2.11.0", "triton": "3.6.0", "driver": "580.1"}
    assert history.find("h200").gpu == "NVIDIA H200" and history.everywhere() == ()
    with pytest.raises(ArgumentError, match="recorded GPUs: none"):
        history.find("h200", shipped=True)


def test_rows_of_other_packages_say_so_once_newer_ones_are_beside_them(user):
    history.record_for_user(synthetic.results(synthetic.ladder(), machine=WHOLE))
    newer = replace(WHOLE, versions={"torch": "2.12.0+cu130", "triton": "3.6.0"})
    history.record_for_user(synthetic.results([synthetic.row(variant="registers", us=120.0)], machine=newer))
    rows = timings.TABLES.at(user / "times").of("NVIDIA H200")
    then = {"torch": "2.11.0", "triton": "3.6.0", "driver": "580.1"}
    assert rows.packages == then | {"torch": "2.12.0"}
    assert {row.variant: row.packages for row in rows.rows} == {
        "plain": then,
        "resident": then,
        "naive": then,
        "registers": {},
    }
    history.record_for_user(synthetic.results([synthetic.row(variant="naive")], machine=WHOLE))
    (found,) = history.of_user()
    assert {row.variant for row in found.rows if row.packages} == {"registers"}


def test_without_a_place_for_records_nothing_is_timed(user, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELMUX_HOME", str(tmp_path / "file"))
    args = main.parser().parse_args(["--record", "--out", str(tmp_path / "out")])
    with pytest.raises(ArgumentError, match=r"--record .*file/results: expected a folder that can be written to"):
        command.check_outputs(args)


# --- what may ship --------------------------------------------------------------------------------------------


def test_a_users_record_is_exported_for_a_pull_request(user, tmp_path, capsys):
    stale = synthetic.row(variant="online", source="0" * 12)
    history.record_for_user(synthetic.results([*synthetic.ladder(), stale], machine=WHOLE))
    assert main.main(["--export", str(tmp_path / "mine.json")]) == 0
    assert (
        "4 rows of NVIDIA H200, 0 problems; add it as kernelmux/records/nvidia_h200/perf.json"
        in capsys.readouterr().out
    )
    assert [row.variant for row in run_file.read(tmp_path / "mine.json").timed] == [
        "plain",
        "resident",
        "naive",
        "registers",
    ]
    assert main.main(["--check-export", str(tmp_path / "mine.json")]) == 0
    history.record_for_user(synthetic.results([synthetic.row(variant="registers", us=3.0)], machine=WHOLE))
    assert main.main(["--export", str(tmp_path / "more.json")]) == 1
    assert "not written" in capsys.readouterr().out and not (tmp_path / "more.json").exists()


def test_without_a_record_there_is_nothing_to_export(user, tmp_path, capsys):
    assert main.main(["--export", str(tmp_path / "mine.json")]) == 2
    assert f"expected one record in {user / 'results'}, got: none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "about", "told"),
    [
        ({}, {"machine": GPU}, "the record has no capability of a GPU"),
        ({}, {"machine": replace(WHOLE, versions={}, driver="")}, "the record has no packages of a GPU"),
        ({}, {"ceilings": None}, "the record has no ceilings of a GPU"),
        ({}, {"rows": ()}, "the record has no rows with a time"),
        ({"us": 80.0}, {}, "80.00 us, where the peaks of NVIDIA H200 SXM allow 94.04 us at least"),
        ({"us": 600.0, "work": synthetic.PRODUCT}, {}, "600.00 us, where the peaks of NVIDIA H200 SXM allow 889.0"),
        ({"spread": 0.3}, {}, "noisy: its samples spread by 30%, more than 20%"),
        (
            {"second": SecondTiming(again_us=200.0, apart=0.33)},
            {},
            "its two timings lie 33.0% apart, 150.0 and 200.0 us",
        ),
        (
            {},
            {"machine": replace(WHOLE, name="NVIDIA Q1")},
            "NVIDIA Q1, sm_90: expected a card of registry/util/cards.toml",
        ),
        (
            {},
            {"ceilings": replace(synthetic.H200, read=6e12)},
            "6000 GB/s of memory, where NVIDIA H200 SXM has 4800",
        ),
    ],
)
def test_what_is_faster_than_its_card_or_noisy_or_has_no_head_does_not_ship(row, about, told, tmp_path, capsys):
    made = (
        synthetic.results([synthetic.row(**row)], **{"machine": WHOLE} | about)
        if "rows" not in about
        else (synthetic.results((), machine=WHOLE))
    )
    run_file.write(made, tmp_path / "made.json")
    assert main.main(["--check-export", str(tmp_path / "made.json")]) == 1
    assert told in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("path", history.PLACE.all(), ids=lambda path: path.parent.name)
def test_the_records_in_the_tree_may_ship(path):
    assert contribute.check(path)[1] == []


@pytest.mark.parametrize("path", history.PLACE.all(), ids=lambda path: path.parent.name)
def test_the_times_of_a_record_that_ships_are_those_that_a_users_would_have(path, tmp_path):
    assert timings.TABLES.read(path) == timings.TABLES.at(tmp_path).read(history.derive(path, tmp_path))
