"""What "auto" makes of times: which workload is near, which times count, and who wins; on a table of a made-up GPU."""

import json
from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, timings
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence, warn_once
from kernelmux.registry.errors import ArgumentError, SpecError, UnmeasuredWarning, UnsupportedError
from kernelmux.registry.tests import fakes
from kernelmux.registry.util import cards, user_folder
from kernelmux.registry.util.files import GpuFiles

pytestmark = pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")  # see test_fallbacks

GPU = "Fake GPU 9000"
FORM = '{"schema": %d, "gpu": "x", "rows": %s}'
NOW, THEN = {"torch": "9.2", "driver": "900.1"}, {"torch": "9.1", "driver": "900.1"}


@pytest.fixture(autouse=True)
def backends(monkeypatch, tmp_path):
    """Fake backends whose sources have known hashes, on a machine whose CPU is the made-up GPU."""
    fakes.install(monkeypatch)
    monkeypatch.setattr(timings, "TABLES", replace(timings.TABLES, place=GpuFiles(tmp_path)))
    monkeypatch.setattr(device_tables, "gpu", lambda device: GPU)
    monkeypatch.setattr(device_tables, "installed", lambda: NOW)
    monkeypatch.setenv("KERNELMUX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registered, "source_hash", lambda backend, op, variant="": f"{backend} as it is")
    timings.forget()
    yield
    monkeypatch.undo()
    timings.forget()
    precedence.reread()


def time(name, us, workload="x=64x64", dtype="fp32", op="transpose", **more):
    backend, variant = name.split("/")
    spec = catalog.spec(op)
    cost = spec.hypothetical(spec.case(workload), {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).cost
    made = timings.Time(op, workload, dtype, backend, variant, us, f"{backend} as it is", cost.bytes, cost.flops)
    return replace(made, **more)


def write(*times, tables=None, **head):
    tables = tables or timings.TABLES
    table = device_tables.Table(**{"gpu": GPU, "rows": times, "packages": NOW} | head)
    tables.place.folder.mkdir(parents=True, exist_ok=True)
    path = tables.path(table.gpu)
    path.write_text(tables.text(table))
    timings.forget()
    precedence.reread()
    return path


def decision(m=64, n=64, dtype=torch.float32, **kwargs):
    return dispatch.explain("transpose", torch.zeros(m, n, dtype=dtype), **kwargs)


def test_the_fastest_runs_and_the_decision_says_on_which_workload():
    write(time("ladder/slow", 9.0), time("ladder/fast", 5.0), time("plain/only", 2.0))
    assert fakes.run(64, 64) == 4
    assert "requested: auto (from auto: measured on Fake GPU 9000, x=64x64 fp32)\n  chosen: plain/only" in str(
        decision()
    )
    assert dispatch.which("transpose", torch.zeros(64, 64)) == "plain/only"


def test_a_fast_variant_that_cannot_run_the_call_is_passed_over_for_the_next():
    write(time("tiny/only", 1.0), time("ladder/slow", 9.0), time("ladder/fast", 2.0), time("plain/only", 5.0))
    assert fakes.run(64, 64) == 3
    assert fakes.run(64, 63) == 4


def test_a_variant_that_would_have_to_copy_is_not_what_was_measured():
    write(time("ladder/fast", 2.0), time("plain/only", 5.0))
    strided = torch.zeros(64, 64).t()
    assert dispatch.which("transpose", strided) == "plain/only"
    assert dispatch.which("transpose", strided.contiguous()) == "ladder/fast"
    write(time("plain/only", 5.0))  # of the one that would copy nothing is known
    assert dispatch.which("transpose", strided) == "ladder/fast"


def test_a_backend_is_not_passed_over_for_want_of_a_time():
    write(time("plain/only", 1.0))
    assert (decision().chosen.name, decision().request.source) == ("ladder/fast", "auto")
    write(time("plain/only", 2.0), time("ladder/slow", 1.0), time("ladder/fast", 0.5, source="an older one"))
    assert decision().chosen.name == "ladder/fast", "of the variant that would run nothing is known"


def test_equal_times_leave_it_to_the_priority():
    write(time("ladder/slow", 102.9), time("ladder/fast", 102.0), time("plain/only", 100.0))
    assert decision().chosen.name == "ladder/fast"
    write(time("ladder/slow", 102.9), time("ladder/fast", 103.5), time("plain/only", 100.0))
    assert decision().chosen.name == "ladder/slow"
    write(time("ladder/fast", 103.5), time("plain/only", 100.0))
    assert decision().chosen.name == "plain/only"


def test_without_a_table_or_a_time_the_priority_decides_as_ever():
    assert (decision().chosen.name, decision().request.source) == ("ladder/fast", "auto")
    write(time("plain/only", 1.0, dtype="bf16"), time("ladder/fast", 9.0, dtype="bf16"))
    assert (decision().chosen.name, decision().request.source) == ("ladder/fast", "auto")
    assert decision(dtype=torch.bfloat16).chosen.name == "plain/only"


@pytest.mark.parametrize(
    "stale",
    [{name: "-"} for name in ("source", "workload", "backend", "op", "variant")] + [{"bytes": 1}, {"flops": 3}],
)
def test_a_time_of_another_source_or_other_work_says_nothing(stale):
    write(replace(time("plain/only", 1.0), **stale), time("ladder/fast", 5.0))
    assert decision().chosen.name == "ladder/fast" and "measured" in decision().request.source
    write(replace(time("plain/only", 1.0), **stale))
    assert (decision().chosen.name, decision().request.source) == ("ladder/fast", "auto")


def test_the_summary_counts_what_counts_and_names_what_does_not():
    write(time("plain/only", 1.0), time("ladder/slow", 2.0, source="old"), time("ladder/fast", 2.0, bytes=1))
    changed = "the source or the work of these has changed since: transpose ladder (2)"
    assert timings.summary() == [f"Fake GPU 9000: 1 of 3 measured times count; {changed}"]
    write(time("plain/only", 1.0))
    assert timings.summary() == ["Fake GPU 9000: 1 of 1 measured times count"]


@pytest.mark.parametrize(
    ("m", "n", "chosen"),
    [
        (1024, 1024, "ladder/fast"),
        (512, 512, "ladder/fast"),  # two octaves from 1024x1024, six from the other
        (64, 64, "plain/only"),
        (128, 16, "plain/only"),  # one and two octaves
        (64, 1024, "plain/only"),  # four octaves from either: the first on record
        (1024, 16384, "ladder/fast"),
        (1024, 16392, "ladder/fast"),  # a little more than four octaves: nothing is near, the priority decides
        (2, 64, "tiny/only"),
        (0, 64, "tiny/only"),  # nothing is computed
    ],
)
def test_the_nearest_workload_speaks_up_to_four_octaves_away(m, n, chosen):
    write(time("plain/only", 1.0), time("ladder/fast", 7.0), time("ladder/fast", 1.0, "x=1024x1024"))
    assert decision(m, n).chosen.name == chosen


def near(op, text, *workloads, dtype=torch.float32):
    """The workload of a table that is nearest to a case of a real operator."""
    write(*(time("plain/only", 1.0, workload, op=op) for workload in workloads))
    spec = catalog.spec(op)
    found = timings.nearest(spec.hypothetical(spec.case(text), dtype))
    return found and found.workload


def test_calls_are_compared_by_their_axes_and_not_by_the_number_of_leading_ones():
    assert near("softmax", "x=8x32x128", "x=256x128", "x=64x512") == "x=256x128"
    assert near("rms_norm", "x=2x4x64 weight=64", "x=8x128 weight=128") == "x=8x128 weight=128"
    assert near("add", "x=32x32 y=32x32", "x=16384 y=16384") == "x=16384 y=16384"
    assert near("add", "x=32x32 y=32x32", "x=16400 y=16400") is None
    assert near("gelu", "x=scalar", "x=16") == "x=16"


def test_options_and_the_place_of_the_axis_must_be_the_same_numbers_need_not():
    assert near("softmax", "x=8x8 scale=0.5", "x=8x8") == "x=8x8"
    assert near("softmax", "x=8x8 axis=0", "x=8x8") is None
    assert near("softmax", "x=2x4x8 axis=2", "x=8x8 axis=1") == "x=8x8 axis=1"
    assert near("gelu", "x=8 approximate=tanh", "x=8") is None
    assert near("reduce_sum", "x=8x8", "x=8x8 axis=1") is None
    assert near("reduce_sum", "x=8x8 axis=1", "x=8x8", "x=9x9 axis=1") == "x=9x9 axis=1"
    assert near("layer_norm", "x=8x8 weight=8 bias=8", "x=8x8 weight=8 bias=8") is not None
    assert near("matmul", "a=8x8 b=8x8", "a=8x8 b=8x8", dtype=torch.bfloat16) is None


def test_times_of_images_that_lie_channels_last_are_for_such_images():
    plain = "x=2x8x8x8 weight=8x8x3x3"
    assert near("conv2d", plain, f"{plain} channels-last") is None
    assert near("conv2d", f"{plain} channels-last", plain, f"{plain} channels-last") == f"{plain} channels-last"
    assert near("conv2d", plain, f"{plain} channels-last", plain) == plain


def test_the_choice_is_remembered_and_no_file_is_read_again(monkeypatch):
    path = write(time("plain/only", 1.0), time("ladder/slow", 9.5), time("ladder/fast", 9.0))
    assert fakes.run(64, 64) == 4
    path.unlink()

    def refuse(*args, **kwargs):
        raise AssertionError("a call that is known asked for a choice, or read a file")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    assert fakes.run(64, 65) == 4  # a new kind of call: the table is in memory
    monkeypatch.setattr(timings, "nearest", refuse)
    assert fakes.run(64, 64) == fakes.run(64, 65) == 4


def test_whoever_names_a_backend_does_not_get_another_for_its_speed():
    write(time("plain/only", 1.0), time("ladder/fast", 9.0))
    assert fakes.run(64, 64, backend="ladder") == fakes.run(64, 64, backend="absent,ladder,plain") == 3
    assert fakes.run(64, 64, backend="auto") == 4


def test_strict_auto_asks_the_highest_priority_first_and_then_takes_the_fastest():
    write(*(time(name, us, "x=4x64") for name, us in {"plain/only": 1.0, "ladder/fast": 5.0, "tiny/only": 9.0}.items()))
    with precedence.use("auto", strict=True):
        assert fakes.run(4, 64) == 4
        with pytest.raises(UnsupportedError, match=r"^tiny cannot run this call, and use\(strict=True\) forbids"):
            fakes.run(5, 64)
    assert fakes.run(5, 64) == 4


def test_a_call_that_is_traced_or_mapped_has_no_kernel_to_choose():
    write(time("plain/only", 1.0))
    spec = catalog.spec("transpose")
    with FakeTensorMode():
        assert timings.nearest(spec.bind(torch.zeros(64, 64))) is None
    seen = []

    def look(x):
        seen.append(timings.nearest(spec.bind(x)))
        return x

    torch.func.vmap(look)(torch.zeros(2, 64, 64))
    assert seen == [None] and timings.nearest(spec.bind(torch.zeros(64, 64))) is not None


def test_a_cpu_has_no_table_nor_has_the_question_about_another_machine(monkeypatch):
    write(time("plain/only", 1.0))
    spec = catalog.spec("transpose")
    call = spec.hypothetical(spec.case("x=64x64"))
    assert dispatch.decide(call, precedence.Request(("auto",), "auto"), elsewhere=True).request.source == "auto"
    monkeypatch.undo()
    assert device_tables.gpu(torch.device("cpu")) is None and timings.nearest(call) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 1, "rows": []}', FORM % (3, "[]"), FORM % (2, "[]"), FORM % (1, '[{"op": "add"}]')],
)
def test_a_table_of_another_form_is_an_error_that_names_the_file(text):
    path = timings.TABLES.path(GPU)
    path.write_text(text)
    timings.forget()
    with pytest.raises(SpecError, match=f"^{path}: expected times of schema 2, got "):
        decision()
    (told,) = timings.summary()
    assert told.startswith(f"! {path}: expected times")


def test_a_file_holds_a_row_on_each_line():
    path = write(time("plain/only", 1.5), time("ladder/fast", 2.0))
    lines = path.read_text().splitlines()
    assert len(lines) == 11 and json.loads(lines[7].strip(" ,"))["median_us"] == 1.5
    assert timings.TABLES.read(path).rows == (time("plain/only", 1.5), time("ladder/fast", 2.0))


def test_lengths_in_use_may_be_other_work_from_run_to_run():
    pages = "q=2x4x16 k_pages=6x2x8x16 v_pages=6x2x8x16 page_table=2x3 lengths=2"
    less = time("torch_ref/exact", 1.0, workload=pages, op="paged_attention", bytes=1.0, flops=1.0)
    assert less.current
    assert not replace(less, source="an older one").current


def test_of_a_backend_made_of_operators_of_torch_only_the_default_counts(monkeypatch):
    write(time("ladder/slow", 1.0), time("ladder/fast", 5.0), time("plain/only", 9.0))
    assert decision().chosen.name == "ladder/slow"
    monkeypatch.setattr(registered, "backend", lambda n: replace(fakes.FAKES[n][0], composite=n == "ladder"))
    registered.forget_ladders()  # the other variants of such a backend may round more often than the spec says
    assert decision().chosen.name == "ladder/fast"


# --- whose times they are, and of what ----------------------------------------------------------------------------


def mine():
    return timings.TABLES.at(user_folder.folder() / "times")


def test_the_users_times_win_over_those_that_ship_for_the_same_variant_and_workload():
    write(time("ladder/fast", 1.0), time("plain/only", 5.0))
    write(time("ladder/fast", 9.0), tables=mine())
    assert decision().chosen.name == "plain/only"
    told = [line.partition(": ") for line in timings.summary()]
    assert [head for head, *_ in told] == [GPU, f"{GPU}, yours"]


def test_a_damaged_table_of_the_user_is_left_out_and_said():
    write(time("plain/only", 1.0), time("ladder/fast", 2.0))
    write(tables=mine()).write_text("{")
    timings.forget()
    assert decision().chosen.name == "plain/only"
    assert [line[:2] for line in timings.summary()] == ["Fa", "! "]


def test_times_of_other_packages_come_after_those_at_hand_and_before_the_priority():
    write(time("plain/only", 1.0), time("ladder/fast", 9.0), packages=THEN)
    older = "; older: torch is 9.2 and was 9.1"
    assert decision().chosen.name == "plain/only"
    assert decision().request.source == f"auto: measured on {GPU}, x=64x64 fp32{older}"
    assert timings.summary() == [f"{GPU}: 2 of 2 measured times count, 2 of them older (torch is 9.2 and was 9.1)"]
    write(time("ladder/slow", 1.0, "x=128x128"), time("ladder/fast", 3.0, "x=128x128"), tables=mine())
    assert decision().chosen.name == "ladder/slow" and older not in decision().request.source
    write(time("ladder/slow", 1.0, packages=THEN), time("ladder/fast", 3.0), time("plain/only", 2.0))
    assert decision().chosen.name == "ladder/slow", "of one workload older times fill in what is not measured since"
    write(tables=mine())
    write(time("ladder/fast", 1.0), time("plain/only", 2.0), packages={})
    assert decision().request.source.endswith("; older: its packages are not known")


def test_a_file_of_the_first_schema_is_read_as_older():
    path = write(time("plain/only", 1.0))
    row = json.loads(path.read_text())["rows"]
    path.write_text(json.dumps({"schema": 1, "gpu": GPU, "rows": row}))
    timings.forget()
    assert timings.TABLES.read(path) == device_tables.Table(GPU, (time("plain/only", 1.0),))


def test_gpus_with_the_same_multiprocessors_share_their_times(monkeypatch):
    monkeypatch.setattr(device_tables, "card", lambda device: cards.named("h100"))
    hopper = {"gpu": "NVIDIA H200", "capability": "9.0", "processors": 132}
    write(time("plain/only", 10.0), time("ladder/fast", 30.0), **hopper)
    assert decision().chosen.name == "plain/only"
    assert decision().request.source == (
        "auto: measured on NVIDIA H200, which has the same multiprocessors, x=64x64 fp32"
    )
    slower = 4800 / 3352  # of memory, which binds a transpose
    assert timings.nearest(decision().call).times == pytest.approx(
        {"plain/only": 10 * slower, "ladder/fast": 30 * slower}
    )
    write(time("ladder/fast", 1.0, "x=128x128"), time("plain/only", 2.0, "x=128x128"))
    assert decision().chosen.name == "ladder/fast", "its own come first, also of the workload that is further away"
    write()
    write(time("plain/only", 10.0), **hopper | {"processors": 114})
    assert decision().request.source == "auto"


def test_arithmetic_takes_as_long_on_a_gpu_whose_memory_alone_is_slower():
    there, product = "NVIDIA H200", time("plain/only", 10.0, "a=4096x4096 b=4096x4096", op="matmul")
    assert timings._scale(product, there, cards.named("h100")) == 1.0
    assert timings._scale(time("plain/only", 10.0), there, cards.named("h100")) == pytest.approx(4800 / 3352)
    assert timings._scale(time("plain/only", 10.0), "a GPU of no table", cards.named("h100")) == 1.0


def test_a_gpu_without_times_is_said_once_and_one_with_those_of_another_is_not(monkeypatch):
    monkeypatch.setattr(warn_once, "_told", set())
    monkeypatch.setattr(device_tables, "card", lambda device: cards.named("h100"))
    hopper = {"gpu": "NVIDIA H200", "capability": "9.0", "processors": 132}
    path = write(time("plain/only", 1.0, "x=4096x4096"), **hopper)
    assert fakes.run(64, 64) == 3
    path.unlink()
    timings.forget()
    precedence.reread()
    fakes.run(64, 64, backend="plain")
    with pytest.warns(UnmeasuredWarning, match="no measured times for Fake GPU 9000: backends by priority"):
        assert fakes.run(64, 65) == 2
    assert fakes.run(64, 66) == 2
    monkeypatch.setattr(warn_once, "_told", set())
    monkeypatch.setattr(device_tables, "gpu", lambda device: None)  # a CPU
    assert fakes.run(64, 67) == 2


# --- what tables are of -------------------------------------------------------------------------------------------


def test_the_folder_of_the_user(monkeypatch, tmp_path):
    assert user_folder.folder() == tmp_path / "home"
    monkeypatch.delenv("KERNELMUX_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_folder.required("times", "--record") == tmp_path / "data/kernelmux/times"
    for unset in ("", "not/absolute"):
        monkeypatch.setenv("XDG_DATA_HOME", unset)
        assert user_folder.folder() == tmp_path / ".local/share/kernelmux"
    monkeypatch.setattr(user_folder.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert user_folder.folder() is None
    with pytest.raises(ArgumentError, match=r"--record: expected a folder .* set KERNELMUX_HOME"):
        user_folder.required("times", "--record")


def test_versions_are_kept_without_what_is_local_to_a_build(monkeypatch, tmp_path):
    given = {"torch": "2.13.0+cu130", "cupy-cuda13x": "14.2.0", "numpy": "2.5"}
    assert device_tables.versions_of(given, "") == {"torch": "2.13.0", "cupy": "14.2.0"}
    told = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 13.3.0\n"
    monkeypatch.setattr(device_tables, "DRIVER", tmp_path / "version")
    assert not device_tables._driver() and device_tables.DRIVER.write_text(told)
    assert device_tables._driver() == "580.159.04"


def test_a_gpu_that_stands_for_a_lesser_card_has_no_table(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    for title, expected in (("NVIDIA H200", "NVIDIA H200"), ("NVIDIA GeForce RTX 4090", None)):
        monkeypatch.setattr(cards, "of", lambda index, title=title: replace(cards.named("h200"), title=title))
        device_tables.gpu.cache_clear()
        assert device_tables.gpu(0) == expected and device_tables.gpu(-1) is None
    monkeypatch.undo()
    device_tables.gpu.cache_clear()
