"""NVRTC: what comes out, what is cached, and what an error says."""

import os
import stat
from pathlib import Path

import pytest

from kernelmux.emulator import compile_cache, nvrtc

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

COPY = 'extern "C" __global__ void copy(const DTYPE* x, DTYPE* y) { y[threadIdx.x] = x[threadIdx.x]; }\n'


@pytest.fixture
def empty_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Caches of this test alone; the folder is the one on disk."""
    monkeypatch.setattr(nvrtc, "_memory", {})
    monkeypatch.setattr(compile_cache, "default_folder", lambda: tmp_path)
    return tmp_path


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


def test_a_read_only_home_falls_back_to_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_cache, "platform_folder", lambda: Path(os.devnull))
    monkeypatch.setattr(compile_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = compile_cache.default_folder.__wrapped__()
    assert folder.is_relative_to(tmp_path) and stat.S_IMODE(folder.stat().st_mode) & stat.S_IWOTH == 0


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert not compile_cache._own_and_writable(tmp_path)


def test_writing_to_a_folder_that_vanished_is_no_error(tmp_path: Path) -> None:
    compile_cache.write("name", b"content", tmp_path / "gone")
    assert compile_cache.read("name", tmp_path / "gone") is None


def test_neighbouring_parts_of_a_key_do_not_run_together() -> None:
    assert compile_cache.digest(["ab", "c"]) != compile_cache.digest(["a", "bc"])
