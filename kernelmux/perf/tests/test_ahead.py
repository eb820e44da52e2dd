"""Compiling ahead: every row once, in any of the processes; what takes too long is late."""

import json
import sys
from subprocess import Popen

import pytest

from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session import precompile
from kernelmux.perf.session.harness import PLAN
from kernelmux.perf.tests import synthetic

BACKEND = """
from kernelmux.registry.backend import Backend

BACKEND = Backend(name="theirs", summary="a test", priority=5, unavailable=lambda device: None)
"""
ADD = """
import os
from kernelmux.registry.backend import Implementation

def make(i):
    def add(x, y):
        if i == 3:
            raise RuntimeError("cannot be compiled")
        with open(os.environ["CALLS"], "a") as file:
            print(i, file=file)
        return x + y
    return add

VARIANTS = {f"v{i}": Implementation(fn=make(i), idea="") for i in range(13)}
"""
ROWS = [Row("add", "x=4099 y=4099", "fp32", "theirs", f"v{i}") for i in range(13)]


@pytest.fixture
def theirs(tmp_path):
    """The environment in which a backend is found that notes its calls."""
    return synthetic.backend_of_their_own(tmp_path, BACKEND, ADD) | {"CALLS": str(tmp_path / "calls")}


def test_every_row_with_code_of_its_own_is_called_once(tmp_path, theirs):
    rows = [Row("add", "x=4099 y=4099", "fp32", plan.BASELINE, "plain"), *ROWS]
    told = {"options": PerfOptions(ops=("add",)).as_dict(), "rows": [encode(row) for row in rows]}
    (tmp_path / PLAN).write_text(json.dumps(told))
    found = precompile.compile_all(tmp_path, rows, 2, theirs)
    assert found.late == () and set(found.seconds) == {row.id for row in ROWS}
    assert sorted(map(int, (tmp_path / "calls").read_text().split())) == [i for i in range(13) if i != 3]
    assert (
        "v3: RuntimeError: cannot be compiled" in (tmp_path / "ahead.log").read_text()
    )  # the timing worker reports it


def test_few_rows_are_not_worth_a_process(tmp_path):
    assert precompile.compile_all(tmp_path, ROWS[: precompile.WORTH - 1], 2, {}) == precompile.CompileTimes()
    assert precompile.compile_all(tmp_path, ROWS, 0, {}) == precompile.CompileTimes()


def test_processes_are_stopped_at_the_limit():
    quick, slow = Popen([sys.executable, "-c", ""]), Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    quick.wait()
    assert precompile._wait([slow, quick], 0.2) == {0}
    assert slow.poll() is not None


def test_what_a_process_was_stopped_on_is_late_and_what_it_died_on_is_not(tmp_path):
    for row, taker in ((0, 0), (1, 1), (2, 2)):
        (tmp_path / precompile.TAKEN.format(row)).write_text(str(taker))
    (tmp_path / precompile.DONE.format(0)).write_text(json.dumps([ROWS[0].id, 1.5]) + '\n["cut of')
    assert precompile._compile_times(tmp_path, ROWS[:4], {0, 1}) == precompile.CompileTimes(
        {ROWS[0].id: 1.5}, (ROWS[1].id,)
    )
