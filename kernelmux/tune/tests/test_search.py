"""A search from its candidates to the table, on a product in plain Python whose times are made up."""

import io
import json
import time
from dataclasses import replace

import pytest
from rich.console import Console

from kernelmux.registry.backend import device_tables, tuned_configs
from kernelmux.registry.backend.device_tables import Table
from kernelmux.runner import results
from kernelmux.runner import run as of_runner
from kernelmux.runner.local_pool import LocalPool
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import TimeLimit
from kernelmux.tune import report, suite, tables, timing, worker
from kernelmux.tune.job import candidates
from kernelmux.tune.progress import Progress
from kernelmux.tune.search import known
from kernelmux.tune.suite import ALWAYS, LATE, TuneSuite
from kernelmux.tune.tests import fakes
from kernelmux.tune.tests.fakes import BROKEN, CARD, GPU, JOB, OTHER, RULE, SPACE, WRONG, Problem

HEAD: Table[tuned_configs.TunedConfig] = Table(GPU, (), "8.9", 128, dict(device_tables.installed()))


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    fakes.install(monkeypatch)


def searches(folder, *jobs, most=64, seconds=60.0, serve="", times=True):
    """A whole search, as the command line does it, and the report of its run."""
    progress = Progress(Console(file=io.StringIO()))
    made = TuneSuite(jobs or (JOB,), most, "smoke", known(folder), progress, times)
    made.serve = serve or made.serve
    limit = TimeLimit(time.monotonic() + seconds, ALWAYS)
    ran = of_runner.execute(
        made, lambda found: made.items(*found), Workers(), folder, "a test", False, limit, keep=True
    )
    return made.searches, ran


def search(folder, **more):
    return searches(folder, **more)[0][0]


def rows(folder, step=""):
    return [line for line in results.kept(folder).rows if line.get("item", "").startswith(step)]


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
    (entry,) = tables.entries([found])
    assert (entry.config, entry.us, entry.rule_us) == ({"BLOCK": 8}, 5.0, 10.0)
    assert found.gpu == HEAD
    path = tables.write([entry], found.gpu, tmp_path)
    assert path.name == "fake_gpu_9000.json"
    assert tuned_configs.TABLES.read(path) == replace(HEAD, rows=(entry,))
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


def test_one_far_behind_the_best_so_far_is_timed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(fakes, "TIMES", {**fakes.TIMES, 2: 100.0, 8: 300.0})
    search(tmp_path)
    firsts = fakes.ran[: fakes.ran.index(BROKEN)]  # then come the finals, of which it is one
    assert firsts.count(2) == 1 + timing.SAMPLES and firsts.count(8) == 2


def test_the_jobs_are_spread_over_all_gpus_and_one_is_timed_at_a_time_on_each(tmp_path, monkeypatch):
    fakes.install(monkeypatch, gpus=2)
    found, ran = searches(tmp_path, JOB, OTHER)
    assert all(one.wins for one in found) and not ran.errors
    timed = rows(tmp_path, "time ")
    assert len(timed) == 14 and {row["slot"] for row in timed} == {"alone0", "alone1"}
    assert {row["slot"] for row in rows(tmp_path, "compile ")} == {"cpu0"}
    assert {row["slot"] for step in ("candidates", "check") for row in rows(tmp_path, step)} <= {"gpu0-0", "gpu1-0"}


def test_items_are_for_the_card_of_the_search_and_nothing_but_these_wants_a_gpu(tmp_path):
    made = TuneSuite([JOB], 2, "smoke", {}, Progress(Console(file=io.StringIO())))
    (first,) = made.items(CARD)
    assert (first.gpus, first.card, first.cpu) == (1, CARD, False)
    row, _ = worker.Steps().row(first.work)
    compiling = list(made.takes(first, json.loads(json.dumps(row))))
    assert [(item.gpus, item.card, item.cpu) for item in compiling] == [(0, "", True)] * 2
    (timing,) = made.takes(compiling[0], {"key": compiling[0].work["key"]})
    assert (timing.gpus, timing.card, timing.alone, timing.group) == (1, CARD, True, JOB.name)
    (without,) = made.items("")
    assert without.cpu and without.work["device"] == "cpu"


def test_a_process_that_dies_or_hangs_costs_its_configuration_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(of_runner, "LocalPool", LocalPool)
    needs = {**suite.NEEDS, suite.TIME: {**suite.NEEDS[suite.TIME], "limit": 3.0}}
    monkeypatch.setattr(suite, "NEEDS", needs)
    found, ran = searches(tmp_path, serve="kernelmux.tune.tests.fakes:serve")
    (one,) = found
    assert one.measured and one.measured.config == {"BLOCK": 8} and one.wins and not ran.errors
    ended = {row["item"].rpartition("#")[2]: row["row"] for row in rows(tmp_path, "time ")}
    problems = {place: row["problem"] for place, row in ended.items() if "problem" in row}
    place = {config["BLOCK"]: str(i) for i, config in enumerate(one.found.chosen)}
    assert problems.pop(place[4]).startswith("the process ended by SIGABRT")
    assert problems.pop(place[16]) == "it took more than 3 s, and was ended"
    assert problems == {place[BROKEN]: "RuntimeError: out of registers"}
    monkeypatch.setattr(of_runner, "LocalPool", fakes.Pool)
    again = search(tmp_path)
    assert fakes.ran and not {4, 16} & set(fakes.ran), "nor is it run again"
    assert again.problems["it took more than 3 s, and was ended"] == 1


def test_a_gpu_that_answers_no_more_costs_a_configuration_and_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "lost", lambda: fakes.ran[-1] == BROKEN)
    found = search(tmp_path)
    assert found.wins and fakes.Pool.renewed == 1
    assert found.problems == {"RuntimeError: out of registers": 1}


def test_inputs_that_cannot_be_made_say_nothing_of_a_configuration(tmp_path, monkeypatch):
    def make(row, device):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(timing.inputs, "make", make)
        found = search(tmp_path)
    assert found.problems == {"MemoryError: no room": 7} and "not timed" in told(found)
    assert not known(tmp_path) and search(tmp_path).wins


def test_a_second_search_goes_on_where_the_first_was_stopped(tmp_path, monkeypatch):
    real, left = fakes.Stopwatch.__call__, iter(range(20))

    def stopped(self, call):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(fakes.Stopwatch, "__call__", stopped)
        found, ran = searches(tmp_path)
    assert ran.interrupted and not found[0].wins
    assert "not timed" in told(found[0])
    timed = [block for block in dict.fromkeys(fakes.ran)][:-1]
    assert len(timed) == 2
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"item": "cut o')
    before = len(rows(tmp_path, "time "))
    again = search(tmp_path)
    assert again.measured and again.measured.config == {"BLOCK": 8}
    assert len(rows(tmp_path, "time ")) == 7 > before == 2, "each is timed once"
    compiled = [row["row"]["key"] for row in rows(tmp_path, "compile ")]
    assert all(compiled.count(again.key({"BLOCK": block})) == 1 for block in timed), "nor are they compiled again"


def test_what_another_search_timed_is_kept(tmp_path):
    search(tmp_path)
    searches(tmp_path, OTHER)
    fakes.ran.clear()
    assert search(tmp_path).wins
    assert len(rows(tmp_path, "time ")) == 14
    assert len(known(tmp_path)) == 14


def test_times_of_another_source_say_nothing(tmp_path, monkeypatch):
    search(tmp_path)
    monkeypatch.setattr(tables.registered, "source_hash", lambda backend, op, variant="": "changed")
    search(tmp_path)
    assert len(rows(tmp_path, "time ")) == 14


def test_what_there_is_no_time_for_is_left_for_the_next_search(tmp_path):
    found = search(tmp_path, seconds=0.0)
    assert found.measured is None and not fakes.ran
    assert found.problems == {LATE: 7} and not known(tmp_path)
    assert search(tmp_path).measured


def test_a_dry_run_compiles_and_times_nothing(tmp_path):
    found = search(tmp_path, times=False)
    assert len(rows(tmp_path, "compile ")) == 7 and not fakes.ran
    assert found.measured is None and "rule: BLOCK=2" in told(found)


def test_a_job_that_asks_for_no_tile_costs_that_job_alone(tmp_path, monkeypatch):
    real = worker.problem_of

    def refuses(job, device):
        if job == OTHER:
            raise worker.UnsupportedError("the call asks for no configuration")
        return real(job, device)

    monkeypatch.setattr(worker, "problem_of", refuses)
    first, other = searches(tmp_path, JOB, OTHER)[0]
    assert first.wins and not other.wins
    assert "not searched: UnsupportedError: the call asks for no configuration" in told(other)


def test_a_gain_within_noise_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(fakes, "TIMES", {**dict.fromkeys(fakes.TIMES, 10.0), 8: 9.85, WRONG: 11.0, BROKEN: 11.0})
    found = search(tmp_path)
    assert found.measured and found.measured.config == {"BLOCK": 8} and not found.measured.gains
    assert not list(tables.entries([found]))
    assert "the rule stays" in told(found)


def test_a_stale_entry_goes_once_the_rule_is_as_fast(tmp_path, monkeypatch):
    (entry,) = tables.entries([search(tmp_path)])
    stale = replace(entry, source="another")
    monkeypatch.setattr(fakes, "TIMES", dict.fromkeys(fakes.TIMES, 10.0))
    (tmp_path / "rows.jsonl").unlink()
    refuted = tables.refuted([search(tmp_path)])
    assert refuted == {entry.place}
    for before, after in ((stale, ()), (entry, (entry,))):
        tables.write([before], HEAD, tmp_path / before.source)
        assert tuned_configs.TABLES.read(tables.write([], HEAD, tmp_path / before.source, refuted)).rows == after


def test_what_the_suite_refuses_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "refusal", lambda job, config, kind, tier: f"accuracy: {config}, {kind}, {tier}")
    found = search(tmp_path)
    assert not list(tables.entries([found]))
    assert "REFUSED by the suite: accuracy: {'BLOCK': 8}, fp32, smoke" in told(found)


def test_what_the_suite_was_not_asked_about_is_not_written(tmp_path, monkeypatch):
    def stopped(*asked):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "refusal", stopped)
    (found,), ran = searches(tmp_path)
    assert ran.interrupted and found.measured and not found.wins
    assert "not written: the suite was not asked" in told(found)


def test_what_does_not_compile_is_neither_run_nor_compiled_again(tmp_path, monkeypatch):
    def compiled(job, config, kind):
        if config["BLOCK"] == 8:
            raise ValueError("no")
        return 0

    monkeypatch.setattr(worker, "compiled", compiled)
    for _ in range(2):
        found = search(tmp_path)
        assert 8 not in fakes.ran and found.measured.config == {"BLOCK": 4}
        assert found.problems["ValueError: no"] == 1
    assert len(rows(tmp_path, "compile ")) == 7


def test_a_table_that_cannot_be_read_is_replaced(tmp_path):
    (entry,) = tables.entries([search(tmp_path)])
    (tmp_path / "fake_gpu_9000.json").write_text("{")
    assert tuned_configs.TABLES.read(tables.write([entry], HEAD, tmp_path)).rows == (entry,)


def test_the_page_has_what_was_gained(tmp_path):
    assert report.markdown(tmp_path) == "No GPU has a table yet."
    tables.write(list(tables.entries([search(tmp_path)])), HEAD, tmp_path)
    assert "| `matmul` a=8x8 b=8x8 fp32 | fake/tiles | 10.0 | 5.0 | 2.00x | BLOCK=8 |" in report.markdown(tmp_path)


def test_the_space_still_asks_the_rule_afterwards(tmp_path):
    before = SPACE.choice
    search(tmp_path)
    assert SPACE.choice is before
