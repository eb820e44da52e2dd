"""The comparison with Nsight Compute: its table is read right, and the emulator still counts what a GPU counted."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelmux import emulator
from kernelmux.emulator import nvrtc
from kernelmux.perf.emulated import ncu, ncu_calls, ncu_check
from kernelmux.registry.util import files

# Its calls run on the emulator on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:backend .* runs its GPU kernels on the emulator")

RECORDS = sorted(files.RECORDS.glob("*/ncu_*.json"))
HEAD = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
TABLE = f"""==PROF== Connected to process 7
{HEAD}
"0","transpose_naive(const unsigned int *, long)","l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum","sector","4,096"
"0","transpose_naive(const unsigned int *, long)","launch__registers_per_thread","register/thread","30"
"1","transpose_rows_kernel","l1tex__t_sector_hit_rate.pct","%","12.5"
"1","transpose_rows_kernel","smsp__inst_executed.sum","inst","n/a"
==PROF== Disconnected
"""


def test_the_table_of_ncu_is_read() -> None:
    first, second = ncu.read(TABLE)
    assert first.kernel == "transpose_naive"
    assert first.metrics == {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 4096,
        "launch__registers_per_thread": 30,
    }
    assert (second.kernel, second.metrics) == ("transpose_rows_kernel", {"l1tex__t_sector_hit_rate.pct": 12.5})


def test_launches_are_told_apart_by_their_shape() -> None:
    """Variants may share a kernel, and launch it with other grids."""
    head = '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'
    rows = '"3","reduce_sum_rows(const float *)","(32, 8, 1)","(4, 1, 1)","smsp__inst_executed.sum","inst","9"'
    (seen,) = ncu.read(f"{head}\n{rows}\n")
    launches = [SimpleNamespace(kernel="reduce_sum_rows", block=(32, 8, 1), grid=(n, 1, 1)) for n in (4, 8)]
    assert [seen.fits(launch) for launch in launches] == [True, False]
    assert ncu.NcuLaunch("reduce_sum_rows").fits(launches[1])  # a table without shapes


def test_there_are_items_of_every_kind() -> None:
    labels = [item.label for item in ncu_calls.compared_calls()]
    assert len(labels) == len(set(labels))
    assert {"transpose cuda/naive x=64x64:fp32", "transpose cuda/padded x=512x512:fp32"} <= set(labels)


@pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))
@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_the_emulator_counts_what_the_gpu_counted(record: Path) -> None:
    """All patterns, and the ladder at 64x64. Triton is left out: another version of it makes another kernel."""
    found = json.loads(record.read_text())
    measured = {(entry["call"], entry["kernel"]): entry["counts"] for entry in found["launches"]}
    wrong, seen = [], 0
    for item in ncu_calls.compared_calls():
        kind = item.label.split()[0]
        if kind not in ("transpose", *ncu_calls.PATTERNS) or "512x512" in item.label or "triton" in item.label:
            continue
        with emulator.trace() as trace:
            item.run("cpu")
        for launch in trace.launches:
            for metric, (_, gpu) in measured.get((item.label, launch.kernel), {}).items():
                seen += 1
                if launch.metrics.get(metric, 0) != gpu and not ncu_check.explanation(item.label, metric):
                    wrong.append(f"{item.label}: {metric}: {launch.metrics.get(metric, 0)}, on the GPU {gpu}")
    assert seen > 100
    assert not wrong, "\n".join(wrong)
