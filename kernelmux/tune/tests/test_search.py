"""A search from its candidates to the table, on a product in plain Python whose times are made up."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kernelmux.registry.backend import device_tables, tuned_configs
from kernelmux.registry.backend.device_tables import Table
from kernelmux.tune import ahead, check, report, run
from kernelmux.tune.job import candidates
from kernelmux.tune.log import LOST, TrialResult, TuningLog
from kernelmux.tune.progress import Progress
from kernelmux.tune.tests import fakes
from kernelmux.tune.tests.fakes import BROKEN, GPU, JOB, RULE, SPACE, WRONG, Problem


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    fakes.install(monkeypatch)


def search(folder, most=64, seconds=60.0):
    """A whole search, as the command line does it."""
    settings = run.Settings(most, seconds, 2, "smoke")
    log, progress = TuningLog(folder / "log.jsonl"), Progress(Console(file=io.StringIO()))
    searches = [run.Search(JOB, candidates(JOB, Problem(-1, 8), most))]
    run.compile_all(searches, settings, log, progress)
    run.time_all(searches, settings, log, progress)
    run.check_winners(searches, settings, progress)
    return searches[0]


def told(found):
    console = Console(file=io.StringIO(), width=200)
    report.show(console, [found])
    return console.file.getvalue()


@pytest.mark.parametrize("most, blocks", [(1, [2]), (4, [2, 1, 4, 16]), (9, [2, 1, 4, 8, 16, WRONG, BROKEN])])
def test_candidates_are_those_near_the_rule_and_some_of_the_rest(most, blocks):
    found = candidates(JOB, Problem(-1, 8), most)
    assert [config["BLOCK"] for config in found.chosen] == blocks
    assert (found.refused, found.left, found.rule) == ({"odd": 1}, 7 - len(blocks), {"BLOCK": RULE})


def test_the_fastest_that_is_right_wins_and_is_written(tmp_path):
    found = search(tmp_path)
    (entry,) = run.entries([found])
    assert (entry.config, entry.us, entry.rule_us) == ({"BLOCK": 8}, 5.0, 10.0)
    path = run.write([entry], GPU, tmp_path)
    assert path.name == "fake_gpu_9000.json"
    table = tuned_configs.TABLES.read(path)
    assert table == Table(GPU, (entry,), "8.9", 128, dict(device_tables.installed()))
    assert not entry.stale and not entry.older
    assert "rule 10.0 us, fastest 5.0 us (2.00x): BLOCK=8" in told(found)


def test_a_wrong_configuration_is_dropped_and_named(tmp_path):
    found = search(tmp_path)
    assert found.measured
    ((config, why),) = found.measured.wrong
    assert config == {"BLOCK": WRONG} and "wrong at" in why
    assert f"WRONG: BLOCK={WRONG}: c: wrong at" in told(found)


def test_one_that_does_not_run_is_dropped_and_counted(tmp_path):
    found = search(tmp_path)
    assert found.problems == {"RuntimeError: out of registers": 1}
    assert "dropped: 1 for RuntimeError: out of registers" in told(found)


def test_a_second_search_goes_on_where_the_first_was_stopped(tmp_path, monkeypatch):
    real, left = fakes.Stopwatch.__call__, iter(range(20))

    def stopped(self, call):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(fakes.Stopwatch, "__call__", stopped)
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path)
    timed = [block for block in dict.fromkeys(fakes.ran)][:-1]
    assert len(timed) == 2
    compiled: list[dict[str, int]] = []

    def compile_all(tasks, *rest):
        compiled.extend(config for _, config, _ in tasks)
        return dict.fromkeys(range(len(tasks)), "")

    monkeypatch.setattr(ahead, "compile_all", compile_all)
    found = search(tmp_path)
    assert not any(config["BLOCK"] in timed for config in compiled), "nor are they compiled again"
    assert found.measured and found.measured.config == {"BLOCK": 8}


def test_one_that_did_not_come_back_is_not_run_again(tmp_path):
    log = TuningLog(tmp_path / "log.jsonl")
    log.begins(JOB, {"BLOCK": 8})
    with log.path.open("a") as file:
        file.write('{"key": "cut o')
    assert TuningLog(log.path).seen(JOB, {"BLOCK": 8}) == TrialResult(problem=LOST)
    found = search(tmp_path)
    assert found.measured and found.measured.config == {"BLOCK": 4}
    assert found.problems[LOST] == 1


def test_a_log_of_another_source_says_nothing(tmp_path, monkeypatch):
    TuningLog(tmp_path / "log.jsonl").ends(JOB, {"BLOCK": 8}, TrialResult(0.1))
    monkeypatch.setattr(run.registered, "source_hash", lambda backend, op, variant="": "changed")
    assert TuningLog(tmp_path / "log.jsonl").seen(replace(JOB), {"BLOCK": 8}) is None


def test_what_there_is_no_time_for_is_left_for_the_next_search(tmp_path):
    found = search(tmp_path, seconds=0.0)
    assert found.measured is None and not fakes.ran
    assert search(tmp_path).measured


def test_a_gain_within_noise_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(fakes, "TIMES", {**dict.fromkeys(fakes.TIMES, 10.0), 8: 9.85, WRONG: 11.0, BROKEN: 11.0})
    found = search(tmp_path)
    assert found.measured and found.measured.config == {"BLOCK": 8} and not found.measured.gains
    assert not list(run.entries([found]))
    assert "the rule stays" in told(found)


def test_a_stale_entry_goes_once_the_rule_is_as_fast(tmp_path, monkeypatch):
    (entry,) = run.entries([search(tmp_path)])
    stale = replace(entry, source="another")
    monkeypatch.setattr(fakes, "TIMES", dict.fromkeys(fakes.TIMES, 10.0))
    (tmp_path / "log.jsonl").unlink()
    refuted = run.refuted([search(tmp_path)])
    assert refuted == {entry.place}
    for before, after in ((stale, ()), (entry, (entry,))):
        run.write([before], GPU, tmp_path / before.source)
        assert tuned_configs.TABLES.read(run.write([], GPU, tmp_path / before.source, refuted)).rows == after


def test_what_the_suite_refuses_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "refusals", lambda asked, *rest: [f"accuracy: {config}" for _, config, _ in asked])
    found = search(tmp_path)
    assert not list(run.entries([found]))
    assert "REFUSED by the suite: accuracy: {'BLOCK': 8}" in told(found)


def test_what_does_not_compile_is_neither_run_nor_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ahead, "compile_all", lambda tasks, *rest: {i: "no" * (t[1]["BLOCK"] == 8) for i, t in enumerate(tasks)}
    )
    found = search(tmp_path)
    assert 8 not in fakes.ran
    assert found.problems["no"] == 1
    assert TuningLog(tmp_path / "log.jsonl").seen(JOB, {"BLOCK": 8}) == TrialResult(problem="no")


def test_a_table_that_cannot_be_read_is_replaced(tmp_path):
    (entry,) = run.entries([search(tmp_path)])
    (tmp_path / "fake_gpu_9000.json").write_text("{")
    assert tuned_configs.TABLES.read(run.write([entry], GPU, tmp_path)).rows == (entry,)


def test_the_page_has_what_was_gained(tmp_path):
    assert report.markdown(tmp_path) == "No GPU has a table yet."
    run.write(list(run.entries([search(tmp_path)])), GPU, tmp_path)
    assert "| `matmul` a=8x8 b=8x8 fp32 | fake/tiles | 10.0 | 5.0 | 2.00x | BLOCK=8 |" in report.markdown(tmp_path)


def test_the_space_still_asks_the_rule_afterwards(tmp_path):
    before = SPACE.choice
    search(tmp_path)
    assert SPACE.choice is before
