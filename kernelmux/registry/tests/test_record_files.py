"""Files of records: where they lie, what is said once, columns, and tables as a user or an older version wrote them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kernelmux.registry.backend import timings, tuned_configs
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.errors import SpecError
from kernelmux.registry.util.files import RECORDS, GpuFiles, columns, in_full, rows_of, said_once

GPU = "Fake GPU 9000"
PACKAGES = {"torch": "9.1", "triton": "9.2"}
HEAD: dict[str, Any] = {"schema": 2, "gpu": GPU, "capability": "9.0", "processors": 132, "packages": PACKAGES}
TIME: dict[str, Any] = {
    "op": "add",
    "workload": "x=8 y=8",
    "dtype": "fp32",
    "backend": "triton",
    "variant": "blocked",
    "median_us": 1.5,
    "source": "0123456789ab",
    "bytes": 96,
    "flops": 8,
}
ENTRY: dict[str, Any] = {
    "op": "matmul",
    "backend": "triton",
    "variant": "by_shape",
    "kind": "bf16",
    "sizes": [8, 8],
    "config": {"M": 4},
    "us": 1.5,
    "rule": {"M": 2},
    "rule_us": 2.5,
    "workload": "a=8x8 b=8x8",
    "dtype": "bf16",
    "spec": "0123456789ab",
    "source": "ba9876543210",
    "versions": PACKAGES,
}
ROW = timings.Time(**TIME)


def test_files_of_gpus_lie_in_one_folder_or_in_a_folder_of_each(tmp_path):
    flat, rooms = GpuFiles(tmp_path), GpuFiles(tmp_path, "perf.json")
    assert (flat.of("NVIDIA H200"), rooms.of("NVIDIA H200")) == (
        tmp_path / "nvidia_h200.json",
        tmp_path / "nvidia_h200/perf.json",
    )
    for path in (flat.of("B"), flat.of("A"), rooms.of("D"), rooms.of("C"), tmp_path / "c/tuned.json"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert flat.all() == [flat.of("A"), flat.of("B")] and rooms.all() == [rooms.of("C"), rooms.of("D")]


def test_what_rows_share_is_said_once():
    rows: list[dict[str, Any]] = [
        {"n": 1, "with": PACKAGES},
        {"n": 2, "with": {"torch": "9.3"}},
        {"n": 3, "with": PACKAGES},
        {"n": 4},
    ]
    shared, short = said_once(rows, "with")
    assert len(shared["with"]) == 2 and short[0]["with"] == short[2]["with"] != short[1]["with"]
    assert in_full(json.loads(json.dumps(shared)), short, "with") == rows
    assert in_full({}, rows, "with") == rows  # which have their values themselves
    with pytest.raises(KeyError):
        in_full({"with": {}}, short, "with")


def test_columns_have_no_empty_end():
    rows: list[dict[str, Any]] = [{"a": 1, "b": None, "c": "x"}, {"a": 2}, {"c": "y"}]
    table = columns(rows, ("a", "b", "c"))
    assert table == {"columns": ["a", "b", "c"], "rows": [[1, None, "x"], [2], [None, None, "y"]]}
    assert rows_of(table) == [{"a": 1, "c": "x"}, {"a": 2}, {"c": "y"}]
    with pytest.raises(ValueError, match="at most 1 columns"):
        rows_of({"columns": ["a"], "rows": [[1, 2]]})


@pytest.mark.parametrize("head", [{"schema": 1, "gpu": GPU}, HEAD])
def test_times_that_a_user_kept_are_read(head, tmp_path):
    path = tmp_path / "fake_gpu_9000.json"
    path.write_text(json.dumps({**head, "rows": [TIME]}))
    made = {name: value for name, value in head.items() if name != "schema"}
    assert timings.TABLES.at(tmp_path).of(GPU) == timings.TABLES.read(path) == Table(**made, rows=(ROW,))


@pytest.mark.parametrize("head", [{"schema": 1, "gpu": GPU}, HEAD])
def test_configurations_that_a_user_kept_are_read(head, tmp_path):
    path = tmp_path / "fake_gpu_9000.json"
    path.write_text(json.dumps({**head, "entries": [ENTRY]}))
    tables = tuned_configs.TABLES.at(tmp_path)
    (row,) = tables.of(GPU).rows
    assert (row.config, row.sizes, row.versions) == ({"M": 4}, (8, 8), PACKAGES)
    assert json.loads(tables.text(tables.of(GPU)))["entries"] == [ENTRY]  # as it was written, it is


def test_configurations_that_ship_say_versions_once(tmp_path):
    tables = replace(tuned_configs.TABLES, place=GpuFiles(tmp_path, "tuned.json"))
    entries = [tuned_configs._entry({**ENTRY, "sizes": [n, n]}) for n in (8, 16)]
    made = Table(GPU, tuple(entries), "9.0", 132, PACKAGES)
    path = tables.path(GPU)
    path.parent.mkdir()
    path.write_text(tables.text(made))
    assert tables.read(path) == made and path.read_text().count('"triton": "9.2"') == 2  # of the head, and of entries


def test_a_record_of_perf_is_a_table_of_times(tmp_path):
    machine = {"name": GPU, "capability": "9.0", "processors": 132, "driver": "1.0", "versions": {"torch": "9.1+cu130"}}
    own, table = (
        {"torch": "9.0"},
        columns([{**TIME, "rounds": 3}, {**TIME, "packages": "a"}], (*TIME, "rounds", "packages")),
    )
    path = tmp_path / "perf.json"
    path.write_text(json.dumps({"kind": timings.KIND, "machine": machine, "packages": {"a": own}, **table}))
    found = timings.TABLES.read(path)
    assert found == Table(GPU, (ROW, replace(ROW, packages=own)), "9.0", 132, {"torch": "9.1", "driver": "1.0"})
    path.write_text(json.dumps({"kind": timings.KIND, "machine": machine, "rows": [TIME]}))
    with pytest.raises(SpecError, match="expected times"):
        timings.TABLES.read(path)


def test_each_kind_of_record_that_ships_lies_in_the_folder_of_its_gpu():
    assert RECORDS.is_dir() and timings.TABLES.place.all() and tuned_configs.TABLES.place.all()
    for tables in (timings.TABLES, tuned_configs.TABLES):
        assert [tables.path(tables.read(path).gpu) for path in tables.place.all()] == tables.place.all()
