"""Records that ship: what is left out of them follows from the rest; and a record as a user has it."""

import json

import pytest

from kernelmux.perf.record import history, run_file
from kernelmux.perf.rows import compact
from kernelmux.perf.tests import synthetic
from kernelmux.registry.errors import ArgumentError

# As version 1 of the form has it, which is that of a user's record.
USERS = """{"schema": 1, "kind": "kernelmux.perf", "rows": [{"op": "add", "workload": "x=8 y=8", "dtype": "fp32",
"backend": "triton", "variant": "blocked", "idea": "a block per program", "spec": "2c4164e6e958", "source": "6d9c1738b623",
"median_us": 20.0, "spread": 0.01, "least_us": 19.0, "rounds": 12, "bytes": 1000000, "flops": 2000, "unit": "fp32",
"link": "device", "floor_us": 10.0, "floor_by": "memory", "share": 0.5, "rate": 50.0, "rate_unit": "GB/s", "bound":
"memory", "host_us": 7.5, "graph_us": null, "budget": 0.9, "sampled": "", "mhz": 1980.0, "held_us": 21.0, "held_mhz":
1900.0, "status": "ok", "date": "2026-11-23", "packages": {"torch": "2.10.0"}}], "date": "2026-11-24", "command": "told",
"machine": {"name": "NVIDIA H200", "kind": "cuda", "versions": {"torch": "2.11.0"}}, "ceilings": null,
"overhead": [{"op": "add", "label": "triton/blocked", "direct_us": 6.0, "through_us": 8.0, "date": "2026-11-23"}]}"""


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "nvidia_h200.json"
    path.write_text(USERS)
    return run_file.read(path)


def test_a_users_record_is_read_and_written_as_it_was(users):
    (row,) = users.timed
    assert (row.point.share, row.point.bound, row.idea, row.packages) == (
        0.5,
        "memory",
        "a block per program",
        {"torch": "2.10.0"},
    )
    assert history.form(users) == json.loads(USERS)


def test_a_record_that_ships_has_each_fact_once(users, tmp_path):
    made = history.shipped(users)
    assert made["schema"] == 2 and not {"idea", "status", *compact.DERIVED} - {"bound"} & set(made["columns"])
    assert len(made["packages"]) == 1 and made["overhead"]["rows"] == [
        ["add", "triton/blocked", 6.0, 8.0, None, None, "2026-11-23"]
    ]
    (tmp_path / "x.json").write_text(run_file.text(made))
    found = run_file.read(tmp_path / "x.json")
    assert history.form(found) == json.loads(USERS.replace("a block per program", ""))
    assert history.shipped(found) == made


def test_a_second_timing_and_another_bound_come_back(tmp_path):
    rows = synthetic.with_aa()
    made = history.form(synthetic.results(rows))
    made["rows"][0]["bound"] = "launch"
    found = compact.whole(compact.form(made))
    assert [row["bound"] for row in found["rows"]] == [row["bound"] for row in made["rows"]]
    for now, then in zip(found["rows"], made["rows"], strict=True):
        assert {name: now[name] for name in ("share", "rate")} == pytest.approx(
            {n: then[n] for n in ("share", "rate")}, 1e-5
        )
        assert now.get("apart") == (pytest.approx(then["apart"], abs=1e-5) if "apart" in then else None)


@pytest.mark.parametrize("change", [{"rows": [[1, 2, 3]]}, {"columns": ["op"]}, {"rows": 5}, {"columns": None}])
def test_a_damaged_record_is_named(users, tmp_path, change):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**history.shipped(users), **change}))
    with pytest.raises(ArgumentError, match=f"^{path}: expected results of kernelmux.perf: "):
        run_file.read(path)
