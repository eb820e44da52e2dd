"""The spaces of the shipped kernels: what a table gives them is what is launched, compiled and checked."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from kernelmux import emulator
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import device_tables, tuned_configs
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.util.files import GpuFiles
from kernelmux.tune import check
from kernelmux.tune.check import UNSEEN, refusal
from kernelmux.tune.job import Candidates, Job, candidates, problem_of
from kernelmux.tune.worker import CANDIDATES, COMPILE, NO_GPU, Steps

pytestmark = pytest.mark.filterwarnings("ignore")
GPU = "Fake GPU 9000"
PRODUCT = Job("matmul", "triton", "by_shape", "a=64x32 b=32x48", "bf16")
IMAGES = Job("conv2d", "triton", "implicit_gemm", "x=1x16x8x8 weight=40x16x3x3 padding=1 channels-last", "fp16")
TILES = {
    PRODUCT: dict(BLOCK_M=32, BLOCK_N=64, BLOCK_K=32, GROUP_M=4, num_warps=8, num_stages=2, SPLIT_K=1),
    IMAGES: dict(BLOCK_O=32, BLOCK_P=64, BLOCK_K=16, GROUP_O=4, num_warps=8, num_stages=2),
}
GRIDS = {PRODUCT: 2 * 1, IMAGES: 2 * 1}


@pytest.fixture
def table(monkeypatch, tmp_path):
    """The CPU is a made-up GPU with a table."""
    monkeypatch.setattr(tuned_configs, "TABLES", replace(tuned_configs.TABLES, place=GpuFiles(tmp_path)))
    monkeypatch.setattr(device_tables, "gpu", lambda device: GPU)
    tuned_configs.forget()
    yield tuned_configs.TABLES.path(GPU)
    monkeypatch.undo()
    tuned_configs.forget()


def entry(job, config, **more):
    key = job.space.key(problem_of(job, "cpu"))
    fields = dict(
        op=job.op,
        backend=job.backend,
        variant=job.variant,
        kind=key.kind,
        sizes=key.sizes,
        config=config,
        us=1.0,
        rule={},
        rule_us=2.0,
        workload=job.workload,
        dtype=job.dtype,
        spec=catalog.spec(job.op).hash,
        source=registered.source_hash(job.backend, job.op),
        versions=dict(device_tables.installed()),
    )
    return TunedConfig(**{**fields, **more})


def run(job):
    """What is launched for random inputs, and how far the result is from torch's."""
    call = job.untouched("cpu")
    values = [x.normal_() if isinstance(x, torch.Tensor) else x for x in call.arguments.values()]
    with emulator.recorder() as launched, registered.backend("triton").emulation():
        result = job.implementation.fn(*values)
    wide = [x.double() if isinstance(x, torch.Tensor) else x for x in values]
    return launched[-1], (result - catalog.spec(job.op).reference(*wide)).abs().max()


@pytest.mark.parametrize("job", TILES, ids=lambda job: job.op)
def test_a_kernel_runs_with_the_tile_of_the_table(table, job):
    before, _ = run(job)
    table.write_text(tuned_configs.TABLES.text(Table(GPU, (entry(job, TILES[job]),))))
    tuned_configs.forget()
    launch, error = run(job)
    assert (launch.grid[0], launch.block[0]) == (GRIDS[job], 32 * 8) != (before.grid[0], before.block[0])
    assert error < 0.1
    table.write_text(tuned_configs.TABLES.text(Table(GPU, (entry(job, TILES[job], source="of another tree"),))))
    tuned_configs.forget()
    again, _ = run(job)
    assert (again.grid, again.block) == (before.grid, before.block), "a stale entry is ignored"


def test_every_rule_of_matmul_is_among_what_a_search_may_try():
    ladder = registered.variants("triton", "matmul")
    for variant, job_text in {
        "persistent": "a=1000x3000 b=3000x5000",
        "specialised": "a=1000x3000 b=3000x5000",
    }.items():
        job = Job("matmul", "triton", variant, job_text, "bf16")
        problem = problem_of(job, "cpu")
        assert ladder[variant].space and ladder[variant].space.holds(job.space.rule(problem))
        found = candidates(job, problem, 1)
        assert found.chosen == (found.rule,), "nearest to the rule is the rule"


def test_what_does_not_compile_is_told_and_the_others_are_compiled():
    tile = TILES[PRODUCT]
    work = {"step": COMPILE, "job": asdict(PRODUCT), "device": "cpu", "kind": "bf16 rr unit16", "key": "k"}
    steps = Steps()
    (broken, _), (made, lost) = (steps.row({**work, "config": {**tile, "BLOCK_M": m}}) for m in (48, tile["BLOCK_M"]))
    assert broken["problem"].startswith("CompilationError") and broken["key"] == "k"
    assert (made, lost) == ({"key": "k"}, False)
    other, _ = steps.row({**work, "config": tile, "kind": "fp16 rr unit16"})
    assert other["problem"].endswith("the call is not of the kind 'fp16 rr unit16'")


def test_candidates_travel_as_json():
    work = {"step": CANDIDATES, "job": asdict(PRODUCT), "device": "cpu", "most": 3}
    row, _ = Steps().row(work)
    assert row["gpu"]["gpu"] == NO_GPU and tuple(row["identity"]) == PRODUCT.identity
    found = Candidates.of(json.loads(json.dumps(row["found"])))
    assert found == candidates(PRODUCT, problem_of(PRODUCT, "cpu"), 3)


def test_the_suite_judges_a_configuration_on_calls_of_its_kind(monkeypatch):
    assert refusal(PRODUCT, TILES[PRODUCT], "bf16 rr unit16", "smoke") == ""
    told = refusal(IMAGES, {**TILES[IMAGES], "BLOCK_P": 48}, "fp16 channels_last", "smoke")
    assert told.startswith("accuracy: ") and IMAGES.workload.replace(" ", "-").replace("=", "") in told
    broken = {**TILES[PRODUCT], "BLOCK_M": 48}
    assert refusal(PRODUCT, broken, "bf16 rr unit16", "smoke").startswith("accuracy: ")
    monkeypatch.setattr(check, "_failures", lambda *args: iter(()))
    assert refusal(PRODUCT, broken, "bf16 rr unit16", "smoke") == UNSEEN


def test_each_dtype_and_layout_is_a_kind_of_its_own():
    kinds = {
        problem_kind(Job("matmul", "triton", "by_shape", text, dtype))
        for text, dtype in (("a=96x64 b=64x80", "bf16"), ("a=96x64 b=64x80", "fp16"), ("a=95x63 b=63x80", "bf16"))
    }
    assert kinds == {"bf16 rr unit16", "fp16 rr unit16", "bf16 rr unit1"}
    assert problem_kind(IMAGES) == "fp16 channels_last"


def problem_kind(job):
    assert dtypes.parse(job.dtype)
    return job.space.key(problem_of(job, "cpu")).kind
