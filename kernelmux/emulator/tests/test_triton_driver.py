"""The Triton driver: activation, targets, arguments, tuning, errors."""

import base64
import gc
import hashlib
import importlib.util
import os
import shutil
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from kernelmux.emulator import EmulatorError, checks, recorder
from kernelmux.emulator.compilers import compile_cache, triton_cache, triton_driver, triton_stages
from kernelmux.emulator.resources import resources


@pytest.fixture(autouse=True)
def emulated() -> Any:
    """The emulator as the active driver, and full checks."""
    before = triton.runtime.driver._active
    triton_driver.activate()
    with checks("full"):
        yield
    triton.runtime.driver._active = before
    triton_stages.go_on()


def test_activating_twice_changes_nothing() -> None:
    driver = triton.runtime.driver.active
    triton_driver.activate()
    assert triton.runtime.driver.active is driver
    assert driver.get_current_target().arch == 90


# --- the target -----------------------------------------------------------------------------------------------


@triton.jit
def number_kernel(out_ptr, NUMBER: tl.constexpr):
    tl.store(out_ptr, NUMBER)


def test_the_target_decides_what_is_compiled() -> None:
    """One kernel object, the targets in turn, each from its own cache."""
    driver, out = triton.runtime.driver.active, torch.zeros(1, dtype=torch.int32)
    texts = []
    for name in ("sm_90", "sm_80", "sm_90"):
        with triton_driver.target(name):
            compiled = number_kernel[(1,)](out, NUMBER=7)
            texts.append(compiled.asm["ptx"])
            assert compiled.metadata.target.arch == int(name[3:]) and f".target {name}" in texts[-1]
            assert driver.get_device_capability() == divmod(int(name[3:]), 10)
    assert texts[0] == texts[2] and driver.get_current_target().arch == 90


def test_targets_may_be_nested_and_the_name_must_be_known() -> None:
    driver = triton.runtime.driver.active
    with triton_driver.target("sm_80"):
        with triton_driver.target("sm_90"):
            assert driver.get_current_target().arch == 90
        assert driver.get_current_target().arch == 80
        with pytest.raises(ValueError, match=r"sm_90, sm_80, sm_75, .*, got 'sm_70'"), triton_driver.target("sm_70"):
            pass
    assert driver.get_current_target().arch == 90


def test_a_device_has_the_shared_memory_of_its_target() -> None:
    driver = triton.runtime.driver.active
    for name, most in (("sm_80", 166912), ("sm_90", 232448)):
        with triton_driver.target(name):
            properties = driver.utils.get_device_properties(driver.get_current_device())
        assert properties["max_shared_mem"] == most


# --- arguments ------------------------------------------------------------------------------------------------


@triton.jit
def scalars_kernel(y_ptr, f, flag, small, large, nothing, pair, ONE, BLOCK: tl.constexpr):
    value = f + small.to(tl.float32) + (large >> 33).to(tl.float32) + pair[0] + pair[1]
    if flag:
        value += 1000.0
    if nothing is None:
        value += ONE
    tl.store(y_ptr + tl.arange(0, BLOCK), value)


@pytest.mark.parametrize("flag", [True, False])
def test_scalars_of_every_size(flag: bool) -> None:
    y = torch.empty(32)
    scalars_kernel[(1,)](y, 0.5, flag, -7, 5 << 33, None, (3, 0.25), 1, BLOCK=32)
    assert (y == 0.5 - 7 + 5 + 3.25 + 1 + 1000 * flag).all()


@pytest.mark.parametrize(("kind", "value", "bits"), [("bf16", 1 + 2**-8, 0x3F80), ("bf16", -2.0, 0xC000)])
def test_bf16_scalars_are_rounded_to_even(kind: str, value: float, bits: int) -> None:
    assert triton_driver.scalar(kind, value) == bits


@triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 256)], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)


def test_autotune_takes_the_first_configuration_and_runs_once() -> None:
    x = torch.zeros(500)
    tuned_kernel[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, 500)
    assert tuned_kernel.best_config.kwargs == {"BLOCK": 128}
    assert (x == 1).all()


# --- errors ---------------------------------------------------------------------------------------------------


@triton.jit
def overrun_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)  # reads past the end
    tl.store(y_ptr + offs, x)


def test_an_error_names_the_argument_and_the_line_of_the_kernel() -> None:
    with pytest.raises(EmulatorError, match="x_ptr") as raised:
        overrun_kernel[(1,)](torch.zeros(100), torch.zeros(128), BLOCK=128)
    error = raised.value
    assert error.kind == "out of bounds" and error.kernel == "overrun_kernel"
    assert (error.file or "").endswith("test_triton_driver.py")
    source = Path(__file__).read_text().splitlines()
    assert "reads past the end" in source[(error.line or 0) - 1]


# --- Triton's cache -------------------------------------------------------------------------------------------


@triton.jit
def doubled_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + place, x + x)


@pytest.mark.parametrize("kind", ["*.cubin", "doubled_kernel.json", "*.ttir", "__sha256__*"])
def test_other_damaged_files_of_tritons_cache_are_compiled_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "_told", set())
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        assert triton.knobs.cache.manager_class is triton_cache.CheckedCache
        assert doubled() == 6
        (path,) = tmp_path.rglob(kind)
        good = path.read_bytes()
        path.write_bytes(b"\xff" + good[: len(good) // 2])
        with pytest.warns(compile_cache.CacheWarning, match=path.name):
            assert doubled() == 6
        assert len(path.read_bytes()) == len(good)
        assert doubled() == 6  # and nothing more is said


@pytest.mark.skipif(not triton_stages.KEYED, reason="this version of Triton does not tell such kernels apart")
def test_machine_code_is_made_only_where_it_is_asked_for(tmp_path: Path) -> None:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        with recorder() as launches:
            assert doubled() == 6
        assert [path.stat().st_size for path in tmp_path.rglob("*.cubin")] == [0]
        recipe = launches[0].recipe
        assert recipe is not None and resources(recipe.compile("sm_90a").image)["doubled_kernel"].registers > 0
        assert doubled() == 6
        assert len(list(tmp_path.rglob("*.ptx"))) == 1


def test_a_hook_of_the_users_stays() -> None:
    def hook(*arguments: object) -> tuple[str, str] | None:
        return None if arguments else ("mine", "mine")

    with triton.knobs.runtime.scope():
        triton.knobs.runtime.add_stages_inspection_hook = hook
        assert doubled() == 6
        assert triton.knobs.runtime.add_stages_inspection_hook is hook


def test_a_cache_of_somebodys_choice_stays() -> None:
    with triton.knobs.cache.scope():
        triton.knobs.cache.manager_class = chosen = type("Chosen", (triton_cache.FileCacheManager,), {})
        triton_cache.ensure.__wrapped__()
        assert triton.knobs.cache.manager_class is chosen


@pytest.fixture
def fresh_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No digest is known, and nothing has been said of a damaged file."""
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: tmp_path / "ours")
    monkeypatch.setattr(compile_cache, "_told", set())
    (tmp_path / "ours").mkdir()


def test_the_hash_of_triton_is_kept_while_its_files_stay(
    tmp_path: Path, fresh_digests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def key() -> str:
        hashed.append("key")
        return f"key {len(hashed)}"

    assert [triton_cache.known_key(key) for _ in range(3)] == ["key 1"] * 3
    (kept,) = (tmp_path / "ours").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"2")
    with pytest.warns(compile_cache.CacheWarning, match=kept.name):
        assert triton_cache.known_key(key) == "key 2"
    assert triton_cache.known_key(key) == "key 2"
    monkeypatch.setattr(triton_cache, "_files", lambda: iter(["_C/libtriton.so 1 2 3"]))
    assert [triton_cache.known_key(key) for _ in range(2)] == ["key 3"] * 2


def test_triton_looks_its_hash_up() -> None:
    where = importlib.util.spec_from_file_location("triton.runtime.another_cache", triton.runtime.cache.__file__)
    assert where and where.loader
    where.loader.exec_module(plain := importlib.util.module_from_spec(where))
    found = triton.runtime.cache.triton_key
    assert found.__wrapped__.__module__ == triton_cache.__name__ and found() == plain.triton_key()
    assert any("/_C/libtriton" in text for text in triton_cache._files())
    hashed = FunctionType(plain.triton_key.__wrapped__.__code__, vars(triton.runtime.cache))
    assert triton_cache.quick_key(hashed) == plain.triton_key() and "open" not in vars(triton.runtime.cache)


def test_the_installers_digest_of_a_file_counts_until_it_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "triton" / "_C").mkdir(parents=True)
    (tmp_path / "triton-1.dist-info").mkdir()
    library, record = tmp_path / "triton" / "_C" / "libtriton.so", tmp_path / "triton-1.dist-info" / "RECORD"
    library.write_bytes(b"code")
    digest = hashlib.sha256(b"code")
    noted = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
    record.write_text(f"triton/__init__.py,sha256=abc,4\ntriton/_C/libtriton.so,sha256={noted},4\n")
    assert triton_cache._noted_digest(library) == digest.hexdigest()
    os.utime(library, (library.stat().st_atime, record.stat().st_mtime + 1))
    assert triton_cache._noted_digest(library) == ""
    os.utime(library, (0, 0))
    library.write_bytes(b"other code")
    os.utime(library, (0, 0))
    assert triton_cache._noted_digest(library) == ""


@pytest.mark.parametrize("damage", ["edited", "truncated"])
def test_damaged_ptx_in_tritons_cache_is_compiled_again(damage: str, tmp_path: Path, fresh_digests: None) -> None:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "triton")
        assert doubled() == 6
        (path,) = (tmp_path / "triton").rglob("*.ptx")
        good = path.read_text()
        path.write_text(good.replace("add.", "sub.") if damage == "edited" else good[: len(good) // 2])
        with pytest.warns(compile_cache.CacheWarning, match=path.name):
            assert doubled() == 6
        assert path.read_text() == good
        assert doubled() == 6  # and nothing more is said


def test_a_second_cache_may_hold_the_ptx_of_another_checkout(tmp_path: Path, fresh_digests: None) -> None:
    """It differs by the paths that it names, and is as good."""
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "elsewhere")
        assert doubled() == 6
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "here")
        for file in (tmp_path / "here").rglob("__grp__*"):
            file.write_text(file.read_text().replace(str(tmp_path / "elsewhere"), str(tmp_path / "here")))
        (path,) = (tmp_path / "here").rglob("*.ptx")
        path.write_text(theirs := path.read_text().replace('"/', '"/another'))
        for file in (tmp_path / "here").rglob("__sha256__*"):
            file.unlink()
        triton.knobs.cache.dir = str(tmp_path / "here")
        assert doubled() == 6 and path.read_text() == theirs  # and nothing is said


def doubled() -> float:
    """3 + 3 by a kernel that this process has not seen: what it compiles comes from the disk."""
    x, out = torch.full((128,), 3.0), torch.zeros(128)
    triton_driver._launchers.clear()
    triton.JITFunction(doubled_kernel.fn)[(1,)](x, out, BLOCK=128)
    gc.collect()  # a compiled kernel asks the active driver to unload it
    assert out.unique().numel() == 1
    return out[0].item()


def test_a_cache_that_takes_no_files_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(compile_cache, "_told", set())
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = "/dev/null/cache"
        with pytest.warns(compile_cache.CacheWarning, match="/dev/null/cache takes no files"):
            triton_cache.ensure.__wrapped__()
        assert triton.knobs.cache.dir == str(tmp_path / "triton")
        triton_cache.ensure.__wrapped__()  # this one takes files: it stays
    monkeypatch.setattr(compile_cache, "folders", lambda name: iter([Path("/dev/null/other")]))
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = "/dev/null/cache"
        with pytest.raises(OSError, match="set TRITON_CACHE_DIR"):
            triton_cache.ensure.__wrapped__()
