"""The folder of cached kernels: what it accepts, and where it goes when the home is of no use."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmux.emulator.compilers import compile_cache

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX's")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A home and a temporary folder of this test, nothing told yet, and the umask as it was."""
    monkeypatch.delenv(compile_cache.VARIABLE, raising=False)
    monkeypatch.setattr(compile_cache, "_told", set())
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(compile_cache, "platform_folder", lambda: tmp_path / "home" / ".cache")
    monkeypatch.setattr(compile_cache.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    mask = os.umask(0o022)
    yield
    os.umask(mask)


def folder() -> Path:
    """The folder as a new process finds it."""
    found = compile_cache.cache_folder.__wrapped__()
    assert found is not None
    return found


def test_it_lies_in_the_users_cache_folder(tmp_path: Path) -> None:
    assert folder() == tmp_path / "home/.cache/kernelmux/ptx"


@pytest.mark.parametrize("mask", [0, 0o002, 0o077])
def test_no_umask_opens_any_folder_on_the_way(tmp_path: Path, mask: int) -> None:
    os.umask(mask)
    made = folder()
    compile_cache.write("name", (b"code", b"log"), made)
    for place in (made, made.parent, made.parent.parent, made / "name"):
        assert not stat.S_IMODE(place.stat().st_mode) & 0o077
    assert compile_cache.read("name", made) == (b"code", b"log")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707])
@pytest.mark.parametrize("which", ["kernelmux/ptx", "kernelmux"])
def test_folders_of_ours_that_others_can_write_are_closed(tmp_path: Path, which: str, mode: int) -> None:
    usual = folder()
    place = tmp_path / "home/.cache" / which
    place.chmod(mode)
    assert folder() == usual and not place.stat().st_mode & 0o022


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_place_above_in_which_others_can_rename_is_avoided(tmp_path: Path, mode: int) -> None:
    (tmp_path / "home").chmod(mode)
    assert folder().is_relative_to(tmp_path / "temporary")


def test_a_sticky_folder_above_is_fine(tmp_path: Path) -> None:
    (tmp_path / "home").chmod(0o1777)
    assert folder().is_relative_to(tmp_path / "home")


@pytest.mark.parametrize("which", ["", "ptx"])
def test_a_link_in_the_shared_temporary_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(compile_cache, "platform_folder", lambda: Path(os.devnull))
    (tmp_path / "trap").mkdir()
    link = tmp_path / "temporary" / f"kernelmux-{os.getuid()}" / which
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "trap")
    assert not folder().resolve().is_relative_to(tmp_path / "trap")


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert not compile_cache._usable(tmp_path / "home/.cache/kernelmux/ptx")


def test_a_file_of_another_user_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cache.write("name", (b"code", b"log"), tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(compile_cache.Damaged, match="not a file of this user"):
        compile_cache.read("name", tmp_path)


def test_a_link_in_the_place_of_a_file_is_damage(tmp_path: Path) -> None:
    compile_cache.write("name", (b"code", b"log"), tmp_path)
    (tmp_path / "name").rename(tmp_path / "moved")
    (tmp_path / "name").symlink_to(tmp_path / "moved")
    with pytest.raises(compile_cache.Damaged, match="name"):
        compile_cache.read("name", tmp_path)


def test_a_home_of_no_use_falls_back_to_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for home in (Path(os.devnull), tmp_path / "missing" / ".cache"):
        monkeypatch.setattr(compile_cache, "platform_folder", lambda home=home: home)
        assert folder() == tmp_path / "temporary" / f"kernelmux-{os.getuid()}" / "ptx"
    assert not (tmp_path / "missing").exists()


def test_without_any_folder_nothing_is_kept_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(compile_cache, "platform_folder", lambda: Path(os.devnull))
    monkeypatch.setattr(compile_cache.tempfile, "gettempdir", nothing)
    monkeypatch.setattr(compile_cache.tempfile, "mkdtemp", lambda **_: nothing())
    monkeypatch.setattr(compile_cache, "cache_folder", compile_cache.cache_folder.__wrapped__)
    compile_cache.write("name", (b"code", b"log"))
    assert compile_cache.cache_folder() is None and compile_cache.read("name") is None


def test_the_variable_names_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path / "mine"))
    assert folder() == tmp_path / "mine/ptx"


def test_a_place_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(compile_cache.VARIABLE, os.devnull)
    with pytest.warns(compile_cache.CacheWarning, match="KERNELMUX_CACHE_DIR"):
        assert folder().is_relative_to(tmp_path / "home")


def test_a_full_disk_costs_the_next_process_a_compilation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compile_cache.os, "replace", full)
    compile_cache.write("name", (b"code", b"log"), tmp_path / "home")
    assert compile_cache.read("name", tmp_path / "home") is None
    assert not list((tmp_path / "home").iterdir())


def test_writing_to_a_folder_that_vanished_is_no_error(tmp_path: Path) -> None:
    compile_cache.write("name", (b"code", b"log"), tmp_path / "gone")
    assert compile_cache.read("name", tmp_path / "gone") is None


def test_neighbouring_parts_of_a_key_do_not_run_together() -> None:
    assert compile_cache.digest(["ab", "c"]) != compile_cache.digest(["a", "bc"])
