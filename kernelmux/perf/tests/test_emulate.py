"""`kernelmux emulate`: the table, the picture, the errors; the transpose ladder as it must look."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelmux.emulator import nvrtc
from kernelmux.perf.emulated import emulate, trace_table
from kernelmux.registry.call import dispatch, temporary_backends
from kernelmux.registry.cli import main

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

LADDER = {  # sectors per load, per store, bank conflicts of a 64x64 fp32 transpose
    "naive": (4, 32, 0),
    "coalesced": (32, 4, 0),
    "tiled": (4, 4, 31 * 128),
    "padded": (4, 4, 0),
}


def counts(launch: dict[str, Any]) -> tuple[float, float, int]:
    """Sectors per load and per store, and bank conflicts, of a launch in the JSON file."""
    metrics = launch["metrics"]
    per = [
        metrics[f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum"]
        / metrics[f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum"]
        for op in ("ld", "st")
    ]
    return *per, metrics["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"]


def test_each_rung_of_the_transpose_ladder_is_better_than_the_last(tmp_path: Path, capsys: Any) -> None:
    names = [f"cuda/{rung}" for rung in LADDER]
    files = ["--json", str(tmp_path / "all.json"), "--picture", str(tmp_path / "all.html")]
    assert main.main(["emulate", "transpose", "--backend", *names, "--shape", "x=64x64:fp32", *files]) == 0
    launches = json.loads((tmp_path / "all.json").read_text())["launches"]
    assert {launch["call"].split()[1].removeprefix("cuda/"): counts(launch) for launch in launches} == LADDER
    printed = capsys.readouterr().out
    assert "stores to y touch 32 sectors per request where 4 would do: consecutive threads write 256 bytes" in printed
    assert "loads of shared memory take 32 passes over the banks where 1 would do" in printed
    assert "y[n * M + m] = x[m * ldx + n];" in printed
    assert "limited by threads" in printed
    page = (tmp_path / "all.html").read_text()
    assert all(f"transpose_{rung}" in page for rung in LADDER)


def test_a_triton_kernel_is_shown_beside_its_python_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # what a checkout elsewhere compiled names that one's files
    arguments = ["softmax", "--backend", "triton", "--shape", "x=8x256:fp16", "--lines", "2"]
    assert emulate.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "load_chunks(" in printed
    assert "tl.store(pointers, value" in printed
    assert "row_kernel.py" in printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--backend", "torch_ref"], "--backend: expected one whose kernels run on the emulator (cuda, triton)"),
        (["--backend", "cuda/nothing"], "nothing"),
        (["--shape", "y=64x64"], "unknown argument"),
        (["--block", "4"], "--block: expected 0 to 3 for this call, got 4"),
        (["--warp", "8"], "--warp: expected 0 to 7 for this call, got 8"),
        (["--block", "-1"], "--block: expected a number from 0 on"),
        (["--lines", "0"], "--lines: expected at least 1, got 0"),
        (["--picture", "out.png"], "--picture: expected a file named .html or .svg, got 'out.png'"),
        (["--shape", "x=64xx64"], "x: expected lengths such as 4x1000"),
        (["--shape", "x=64x64,x=4x4"], "x is given twice"),
        (["--shape", "x=9999999x99999999"], "GiB of memory; this machine has"),
        (["--json", "missing/x.json"], "--json: missing/x.json: the folder missing does not exist"),
        (["--picture", "missing/x.svg"], "--picture: missing/x.svg: the folder missing does not exist"),
        (["--json", "."], "--json: expected a file, got the folder ."),
        (["--shape", "x=0x64"], "launches no kernel for x=0x64"),
    ],
)
def test_usage_errors_are_printed(change: list[str], message: str, capsys: Any) -> None:
    usual = {"--backend": "cuda/naive", "--shape": "x=64x64:fp32"} | dict([change])
    assert emulate.main(["transpose", *(word for pair in usual.items() for word in pair)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_kernel_is_the_one_that_a_card_would_run(capsys: Any) -> None:
    words = ["emulate", "matmul", "--backend", "cuda", "--shape", "a=64x64:bf16,b=64x64:bf16", "--lines", "1"]
    assert main.main([*words, "--card", "rtx4090"]) == 0
    assert "matmul cuda/tensor_cores" in capsys.readouterr().out
    assert main.main([*words, "--card", "rtx490"]) == 2
    assert 'did you mean "rtx4090"?' in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["0", "nan", "-1", "inf", "soon"])
def test_the_limit_is_a_number_of_seconds(limit: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        emulate.main(["add", "--backend", "cuda", "--shape", "x=4,y=4", "--limit", limit])
    errors = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(errors) == 1 and "--limit: expected seconds, more than 0" in errors[0]


def test_a_wrong_place_is_reported_before_the_work(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(emulate, "run", lambda *_: pytest.fail("the work has begun"))
    arguments = ["add", "--backend", "cuda", "--shape", "x=4,y=4", "--json", "missing/x.json"]
    assert emulate.main(arguments) == 2


def test_a_failure_of_the_kernel_is_not_one_of_the_command(capsys: Any) -> None:
    arguments = ["matmul", "--backend", "cuda/naive", "--shape", "a=32x999,b=999x32", "--limit", "1e-9"]
    assert emulate.main(arguments) == emulate.FAILED
    assert "time limit" in capsys.readouterr().err


def test_the_command_line_lists_what_other_parts_bring(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["--help"])
    assert end.value.code == 0
    assert "emulate" in capsys.readouterr().out


def test_no_unit_is_lost_at_any_width(capsys: Any) -> None:
    options = emulate.parser().parse_args(["matmul", "--backend", "cuda/naive", "--shape", "a=40x64,b=64x48"])
    (_, trace), texts = emulate.run(options, "cuda/naive"), []
    for width in (160, 300):
        rows = [
            line for line in shown_on(width, trace).splitlines() if "load a 16 bit" in line or "load a 32 bit" in line
        ]
        texts.append(" ".join(rows[0].split("load a")[1].split()))
    assert len(set(texts)) == 1 and texts[0].endswith("KiB") and "again" in texts[0]


@pytest.mark.parametrize("backend", ["cuda/naive", "cuda/padded"])
def test_a_terminal_of_80_columns_gets_no_longer_lines_and_is_told_what_it_misses(backend: str) -> None:
    options = emulate.parser().parse_args(["transpose", "--backend", backend, "--shape", "x=64x64:fp32"])
    text = shown_on(80, emulate.run(options, backend)[1], force_terminal=True, color_system=None)
    assert max(map(len, text.splitlines())) <= 80 and ("32 (4)" in text or "1 (1)" in text)
    assert "no room for warp instr., moved" in text and "warp instr." not in text.splitlines()[1]


def shown_on(width: int, trace: Any, **console: Any) -> str:
    """The table of the first launch, on a console of so many columns."""
    file = StringIO()
    trace_table.show(Console(file=file, width=width, highlight=False, **console), trace.launches[0])
    return file.getvalue()


def traced(tmp_path: Path, op: str, backend: str, shape: str) -> tuple[str, str]:
    """The sentences below the table, and the picture."""
    options = emulate.parser().parse_args([op, "--backend", backend, "--shape", shape])
    _, trace = emulate.run(options, backend)
    trace.picture(tmp_path / "page.svg")
    return "\n".join(trace_table.sentences(trace.launches[0])), (tmp_path / "page.svg").read_text()


TICK = "✓"


def test_coalesced_accesses_that_read_everything_again_are_no_success(tmp_path: Path) -> None:
    """Naive matmul: each request is as good as can be, and there are 27 times as many as needed."""
    told, picture = traced(tmp_path, "matmul", "cuda/naive", "a=64x64,b=64x64")
    assert "coalesced" in told and "requests move 27 times the bytes that the call has to move" in told
    assert "78% of the sectors the same block had touched before" in told
    assert TICK not in picture and "move 27 times the bytes" in picture


def test_a_planted_uncoalesced_store_is_named_and_its_mended_rung_is_fine(tmp_path: Path) -> None:
    told, picture = traced(tmp_path, "transpose", "cuda/naive", "x=64x64:fp32")
    assert "stores to y touch 32 sectors per request where 4 would do" in told and TICK not in picture
    told, picture = traced(tmp_path, "transpose", "cuda/padded", "x=64x64:fp32")
    assert "times the bytes" not in told and "every access to global memory is coalesced" in told
    assert TICK in picture


PLANTED = Path(__file__).parent / "planted_programs/planted.py"


def test_a_function_from_a_file_is_run_and_its_planted_store_named(capsys: Any) -> None:
    assert emulate.main(["square", "--impl", f"{PLANTED}:stores_scattered", "--shape", "x=5000:fp32"]) == 0
    assert "stores to y touch 31.2 sectors per request where 4 would do" in capsys.readouterr().out
    assert emulate.main(["square", "--impl", f"{PLANTED}:beyond", "--shape", "x=5000:fp32"]) == emulate.FAILED
    told = capsys.readouterr().err
    assert "planted.cu:34: bad pointer: write of 4 bytes" in told and "square_beyond" in told


@pytest.mark.parametrize("name", ["stores_scattered", "spilled"])
@pytest.mark.filterwarnings("ignore:backend .* runs its GPU kernels on the emulator")
def test_a_planted_kernel_is_slow_and_right(name: str) -> None:
    x = torch.randn(5000)
    with temporary_backends.joined(f"{PLANTED}:{name}", "square"):
        assert torch.equal(dispatch.function("square")(x, backend=temporary_backends.NAME), x * x)
