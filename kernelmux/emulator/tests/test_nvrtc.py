"""NVRTC: what comes out, what is cached, and what an error says."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from kernelmux.emulator import nvrtc
from kernelmux.emulator.compilers import compile_cache

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

COPY = 'extern "C" __global__ void copy(const DTYPE* x, DTYPE* y) { y[threadIdx.x] = x[threadIdx.x]; }\n'


@pytest.fixture
def empty_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Caches of this test alone; the folder is the one on disk."""
    monkeypatch.setattr(nvrtc, "_memory", {})
    monkeypatch.setattr(compile_cache, "_told", set())
    folder = tmp_path / "ptx"
    folder.mkdir()
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: folder)
    return folder


def test_ptx_has_the_architecture_the_entry_and_the_source_lines() -> None:
    ptx = nvrtc.compile_ptx("\n" + COPY, options=("-DDTYPE=float",), arch="sm_80", filename="copy.cu")
    assert ".target sm_80" in ptx and ".entry copy(" in ptx
    assert '"copy.cu"' in ptx and ".loc\t1 2 " in ptx


@pytest.mark.parametrize("header", ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "cuda/std/array"])
def test_cudas_headers_are_found(header: str) -> None:
    needed = {"mma.h": "crt/mma.h"}.get(header, header)
    if not any((folder / needed).is_file() for folder in nvrtc._headers()):
        pytest.skip(f"{needed} is not installed here")
    assert ".entry copy(" in nvrtc.compile_ptx(f"#include <{header}>\n" + COPY, options=("-DDTYPE=float",))


def test_an_error_names_file_line_and_options() -> None:
    with pytest.raises(nvrtc.CompileError) as raised:
        nvrtc.compile_ptx(COPY, filename="copy.cu", options=("-DUNUSED=1",))
    assert "copy.cu(1)" in str(raised.value) and "-DUNUSED=1" in str(raised.value)
    assert 'identifier "DTYPE" is undefined' in raised.value.log


def test_a_cubin_is_an_elf_image_with_the_log_of_ptxas() -> None:
    cubin = nvrtc.compile_cubin(COPY, options=("-DDTYPE=float",), arch="sm_80")
    assert cubin.image.startswith(b"\x7fELF") and "registers" in cubin.log


def test_a_second_process_finds_the_result_on_disk(empty_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    nvrtc._memory.clear()
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("compiled again"))
    assert nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",)) == first


def test_machine_code_comes_with_ptx_in_one_compilation(empty_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",)), nvrtc.compile_cubin(COPY, options=("-DDTYPE=int",))
    nvrtc._memory.clear()
    for path in empty_caches.iterdir():
        path.unlink()
    with nvrtc.with_machine_code():
        ptx = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("compiled again"))
    cubin = nvrtc.compile_cubin(COPY, options=("-DDTYPE=int",))
    assert ptx == alone[0] and cubin.image == alone[1].image and "registers" in cubin.log


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "edited": lambda content: content.replace(b"ld.global", b"ld.shared"),
    "a bit": lambda content: content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
    "truncated": lambda content: content[: len(content) // 2],
    "header only": lambda content: content[:30],
    "longer": lambda content: content + b"x",
    "empty": lambda content: b"",
    "foreign": lambda content: b"\xff\xfe not ours",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_compiled_again_with_one_warning(empty_caches: Path, damage: str) -> None:
    first = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    (path,) = empty_caches.iterdir()
    good = path.read_bytes()
    for expected in (pytest.warns(compile_cache.CacheWarning, match=path.name), nullcontext()):
        path.write_bytes(DAMAGE[damage](good))
        nvrtc._memory.clear()
        with expected:  # the second time nothing more is said
            assert nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",)) == first
        assert path.read_bytes() == good


def test_a_kernel_under_the_name_of_another_is_not_used(empty_caches: Path) -> None:
    wide = nvrtc.compile_ptx(COPY, options=("-DDTYPE=double",))
    (other,) = empty_caches.iterdir()
    narrow = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    path = next(file for file in empty_caches.iterdir() if file != other)
    path.write_bytes(other.read_bytes())
    nvrtc._memory.clear()
    with pytest.warns(compile_cache.CacheWarning, match=path.name):
        assert nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",)) == narrow != wide


def test_where_warnings_are_errors_a_damaged_file_costs_one_call(empty_caches: Path) -> None:
    first = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    (path,) = empty_caches.iterdir()
    path.write_bytes(b"")
    nvrtc._memory.clear()
    with pytest.raises(compile_cache.CacheWarning):  # pytest's own configuration makes it one
        nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    nvrtc._memory.clear()
    assert nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",)) == first


@pytest.mark.parametrize("kind", ["deleted", "not UTF-8"])
def test_the_working_directory_may_be_anything(
    empty_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """NVRTC writes it into the PTX, from where it has to go."""
    before = nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",))
    next(empty_caches.iterdir()).unlink()
    nvrtc._memory.clear()
    place = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9")
    os.mkdir(place)
    monkeypatch.chdir(place)
    if kind == "deleted":
        os.rmdir(place)
    assert nvrtc.compile_ptx(COPY, options=("-DDTYPE=int",)) == before


@pytest.mark.parametrize("included_by", ["source", "another header"])
def test_a_changed_header_is_compiled_again(empty_caches: Path, tmp_path: Path, included_by: str) -> None:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "outer.h").write_text('#include "inner.h"\n')
    source = f'#include "{"inner" if included_by == "source" else "outer"}.h"\n' + COPY
    (folder / "inner.h").write_text("#define DTYPE float\n")
    before = nvrtc.compile_ptx(source, include=[folder])
    (folder / "inner.h").write_text("#define DTYPE double\n")
    assert nvrtc.compile_ptx(source, include=[folder]) != before
