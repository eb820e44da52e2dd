"""The command line: what it refuses, lists and writes."""

from dataclasses import replace
from io import StringIO
from itertools import count

import pytest
import torch
from rich.console import Console

from kernelmux.registry.backend import tuned_configs
from kernelmux.registry.errors import KernelmuxError, SpecError
from kernelmux.registry.util.files import GpuFiles
from kernelmux.tune import cli, progress, worker
from kernelmux.tune.tests import fakes
from kernelmux.tune.tests.fakes import TABLE

MATMUL = ("--op", "matmul", "--backend", "triton", "--workload", "a=64x64:bf16 b=64x64:bf16")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which would be timed")


@without_gpu
def test_timing_without_a_gpu_is_refused_and_says_what_works(capsys):
    assert cli.main(MATMUL) == 2
    assert "torch sees no GPU here" in (told := capsys.readouterr().err) and "--dry-run" in told


@without_gpu
def test_a_dry_run_lists_what_would_be_timed_and_why_the_rest_is_not(capsys, monkeypatch, tmp_path):
    def compiled(job, config, kind):
        if config["num_warps" if job.variant == "persistent" else "GROUP_M"] == 8:
            raise ValueError("no")
        return 0

    fakes.install_pool(monkeypatch, gpus=0)
    monkeypatch.setattr(worker, "compiled", compiled)
    assert cli.main([*MATMUL, "--dry-run", "--most", "6", "--log", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "matmul triton/persistent, a=64x64 b=64x64 bf16" in told and "k_major" not in told
    assert "for a tile of which half and more lies beyond the result" in told
    assert "6 tried" in told and "for ValueError: no" in told and "nothing was timed: --dry-run" in told


def test_images_lie_channels_last_where_the_option_or_the_workload_says_so():
    plain, last = "x=1x16x8x8 weight=40x16x3x3", "x=1x16x9x9 weight=40x16x3x3 channels-last"
    products = "a=1x2x8x8 b=1x2x8x8"
    asked = ["--op", "conv2d", "matmul", "--backend", "triton/implicit_gemm", "triton/by_shape", "--dtype", "fp16"]
    asked += ["--workload", plain, last, products]
    for more, expected in (((), plain), (("--channels-last",), f"{plain} channels-last")):
        jobs = cli.jobs(cli.parser().parse_args([*asked, *more]), "cpu")
        assert [job.workload for job in jobs] == [expected, last, products]


def test_a_call_that_no_space_fits_is_refused(capsys):
    assert cli.main(["--op", "softmax", "--dry-run"]) == 2
    assert "nothing to search" in capsys.readouterr().err


def test_a_dtype_of_few_operators(capsys, monkeypatch):
    assert cli.main(["--op", "matmul", "int8_matmul", "--dtype", "i8", "--dry-run"]) == 2
    assert capsys.readouterr().err == "tune: --dtype i8: expected one of fp32, fp16, bf16, which matmul takes\n"
    monkeypatch.setattr(cli, "jobs", lambda *_: iter(()))
    assert cli.main(["--dtype", "e4m3", "--dry-run"]) == 2
    assert capsys.readouterr().out.startswith("fp8_matmul alone takes e4m3: the other ")


def test_a_module_that_does_not_fit_its_spec_has_nothing_to_search(monkeypatch):
    def misfit(name, op):
        raise SpecError(f"{name}/one registered {op}(b, a)")

    monkeypatch.setattr(cli.registered, "variants", misfit)
    assert cli._searchable("triton", "matmul", [None], named=False) == []
    with pytest.raises(SpecError, match="registered matmul"):
        cli._searchable("triton", "matmul", [None], named=True)


def test_the_list_names_what_is_stale(capsys, tmp_path):
    (tmp_path / "fake_gpu_9000.json").write_text(TABLE)
    assert cli.main(["--list", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert (
        "matmul triton/persistent a=64x64 b=64x64 bf16: 9.0 -> 5.0 us" in told and "(stale, ignored: source is" in told
    )
    assert cli.main(["--list", "--out", str(tmp_path / "none")]) == 0


def test_the_page_is_written_between_its_markers(capsys, tmp_path):
    (tmp_path / "fake_gpu_9000.json").write_text(TABLE)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tuned -->\nold\n<!-- /tuned -->\nafter\n")
    assert cli.main(["--update", str(page), "--out", str(tmp_path)]) == 0
    text = page.read_text()
    assert "| 9.0 | 5.0 | 1.80x, stale |" in text and "old" not in text and text.endswith("after\n")
    page.write_text("no markers")
    assert cli.main(["--update", str(page), "--out", str(tmp_path)]) == 2
    assert "<!-- tuned -->" in capsys.readouterr().err


@pytest.fixture
def fake(monkeypatch):
    """A GPU and two jobs that are made up."""
    fakes.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cli, "jobs", lambda args, device: iter([fakes.JOB]))


def test_a_search_is_for_one_kind_of_card():
    assert cli.card(["h100"], [], False) == "h100" == cli.card(["h100", "h200"], ["h100"], False)
    assert cli.card(["nvidia_h100", "nvidia_h200"], ["H200"], False) == "nvidia_h200"
    assert cli.card([], [], True) == ""
    for cards, on, said in (
        (["h100", "h200"], [], "expected one kind of card for a search, of h100, h200"),
        (["h100", "h200"], ["all"], "expected one kind of card for a search, of h100, h200"),
        (["a100", "h100", "h200"], ["H"], "expected one kind of card for a search, of h100, h200"),
        (["h100"], ["h200"], "--on h200: expected a part of h100"),
        ([], [], "no GPU is found"),
    ):
        with pytest.raises(KernelmuxError, match=said):
            cli.card(cards, on, False)


def test_ctrl_c_writes_what_was_found_so_far(capsys, monkeypatch, tmp_path, fake):
    def refusal(job, *asked):
        if job == fakes.OTHER:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(cli, "jobs", lambda args, device: iter([fakes.JOB, fakes.OTHER]))
    monkeypatch.setattr(worker, "refusal", refusal)
    assert cli.main(["--op", "matmul", "--out", str(tmp_path), "--log", str(tmp_path / "log")]) == 130
    told = capsys.readouterr()
    assert "1 of 2 searches found a faster configuration" in told.out and told.err == "tune: interrupted\n"
    assert [entry.config for entry in tuned_configs.TABLES.read(tmp_path / "fake_gpu_9000.json").rows] == [{"BLOCK": 8}]


def test_a_search_of_which_nothing_can_run_fails(capsys, monkeypatch, tmp_path, fake):
    monkeypatch.setattr(worker, "problem_of", lambda job, device: 1 / 0)
    assert cli.main(["--op", "matmul", "--out", str(tmp_path), "--log", str(tmp_path / "log")]) == 2
    assert "not searched: ZeroDivisionError" in capsys.readouterr().out and not list(tmp_path.glob("*.json"))


def test_a_whole_search_writes_its_table(capsys, monkeypatch, tmp_path, fake):
    folders = ["--out", str(tmp_path), "--log", str(tmp_path / "log")]
    assert cli.main(["--op", "matmul", *folders]) == 1, "one of the configurations is wrong"
    assert "1 of 1 searches found a faster configuration" in capsys.readouterr().out
    assert [entry.config for entry in tuned_configs.TABLES.read(tmp_path / "fake_gpu_9000.json").rows] == [{"BLOCK": 8}]
    monkeypatch.setenv("KERNELMUX_HOME", str(tmp_path / "home"))
    assert cli.main(["--op", "matmul", *folders[2:]]) == 1
    assert [entry.config for entry in tuned_configs.TABLES.read(tmp_path / "home/tuned/fake_gpu_9000.json").rows] == [
        {"BLOCK": 8}
    ]
    monkeypatch.setattr(tuned_configs, "TABLES", replace(tuned_configs.TABLES, place=GpuFiles(tmp_path / "tuned")))
    assert cli.main(["--op", "matmul", *folders[2:], "--into-checkout"]) == 1
    assert len(tuned_configs.TABLES.of(fakes.GPU).rows) == 1
    capsys.readouterr()
    assert cli.main(["--list"]) == 0
    told = [line.split()[-3] for line in capsys.readouterr().out.splitlines() if "fake_gpu_9000.json:" in line]
    assert told == [f"{tmp_path}/tuned/fake_gpu_9000.json:", f"{tmp_path}/home/tuned/fake_gpu_9000.json:"]


def test_a_long_search_says_how_far_it_is_where_there_is_no_terminal(monkeypatch):
    file, clock = StringIO(), count(0, 15)  # seconds from one look to the next
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.Progress(Console(file=file, width=80)) as shown:
        for i in range(4):
            shown.step("compile", i + 1, 4)
    lines = file.getvalue().splitlines()
    assert lines == ["compile: 2 of 4 in 30 s", "compile: 4 of 4 in 60 s"]
