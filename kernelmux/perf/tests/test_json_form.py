"""Results as JSON and back: nothing is lost, recorded files keep their form, and what is damaged is named."""

import pytest

from kernelmux.perf.record import history, run_file
from kernelmux.perf.record.run_file import KernelNeed, Overhead
from kernelmux.perf.rows.codec import Malformed, decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.row_result import NotTimed, RowResult, Timed
from kernelmux.perf.tests import synthetic

RECORDS = history.PLACE.all()
GOOD = encode(synthetic.row())


def test_all_of_a_run_survives_its_file(tmp_path):
    rows = [*synthetic.with_aa(), synthetic.failed(variant="naive"), synthetic.skipped(), synthetic.row(point=None)]
    overhead = (Overhead("add", "cuda/scalar", 1.5, 3.0, 2.0, 9.5), Overhead("add", "triton", error="ImportError: no"))
    need = (KernelNeed("add", "cuda/scalar", registers=16), KernelNeed("add", "triton", error="no"))
    found = synthetic.results(rows, errors=("a worker died",), overhead=overhead, resources=need)
    run_file.write(found, tmp_path / "x.json")
    assert run_file.read(tmp_path / "x.json") == found
    assert {type(row) for row in found.rows} == {Timed, NotTimed}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_record_is_written_again_as_it_was(path):
    """Byte for byte: a new row must not change the lines of the others."""
    found = run_file.read(path)
    assert run_file.text(history.shipped(found)) == path.read_text(encoding="utf-8")
    assert found.timed and all(row.point is not None and row.date for row in found.timed)


def test_a_field_that_was_not_measured_is_null_and_a_part_that_was_not_made_is_left_out():
    told = encode(synthetic.row(graph_us=None, point=None))
    assert told["graph_us"] is None and told["status"] == "ok"
    assert not {"share", "floor_us", "again_us", "apart", "stale", "date"} & set(told)


def test_what_is_found_out_after_reading_is_not_taken_from_a_file():
    assert not decode(Timed, GOOD | {"stale": True}, "x").stale


def test_keys_of_another_version_are_ignored():
    assert decode(RowResult, GOOD | {"id": "softmax-x", "problem": "", "broken": False}, "x") == synthetic.row()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"median_us": "fast"}, r"rows\[0\]: median_us: expected a number, got 'fast'"),
        ({"median_us": -1.0}, r"rows\[0\]: median_us: expected microseconds, more than 0, got -1.0"),
        ({"rounds": 1.5}, r"rows\[0\]: rounds: expected a whole number, got 1.5"),
        ({"rounds": True}, r"rows\[0\]: rounds: expected a whole number, got True"),
        ({"op": None}, r"rows\[0\]: op: expected a text, got None"),
        ({"spread": float("nan")}, r"rows\[0\]: spread: expected a finite number, got nan"),
        ({"again": 1}, r"rows\[0\]: again: expected true or false, got 1"),
        ({"again_us": 4.0}, r"rows\[0\]: apart is missing"),
        ({"status": "fine"}, r"rows\[0\]: status: expected one of ok, failed, skipped, wrong, late, got \'fine\'"),
        ({"bound": "power"}, r"rows\[0\]: bound: expected one of launch, link, memory, compute, got 'power'"),
        ({"status": "failed"}, r"rows\[0\]: error is missing"),
    ],
)
def test_a_damaged_row_is_named(change, message):
    whole = encode(synthetic.results([])) | {"rows": [GOOD | change]}
    with pytest.raises(Malformed, match=message):
        decode(run_file.Results, whole, "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 5}, "^rows: expected a list, got 5"),
        ({"rows": [5]}, r"^rows\[0\]: expected an object, got 5"),
        ({"machine": []}, r"^machine: expected an object, got \[\]"),
        ({"machine": {"versions": {"torch": 2}}}, "^machine: versions: torch: expected a text, got 2"),
        ({"ceilings": {"copy": 1.0}}, "^ceilings: read is missing"),
        ({"errors": ["a", 2]}, r"^errors\[1\]: expected a text, got 2"),
    ],
)
def test_a_damaged_head_is_named(change, message):
    with pytest.raises(Malformed, match=message):
        decode(run_file.Results, encode(synthetic.results([])) | change, "")


def test_what_is_no_object_is_reported():
    with pytest.raises(Malformed, match=r"the whole: expected an object, got \[1\]"):
        decode(MeasuringMachine, [1], "")
