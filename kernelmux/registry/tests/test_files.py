"""Names of files for GPUs, tables between markers, and files that are written as a whole."""

import json
import os
import stat
from pathlib import Path

import pytest

from kernelmux.registry.util import files
from kernelmux.registry.util.files import between, file_stem

BEGIN, END = "<!-- x -->", "<!-- /x -->"


def test_the_file_name_of_a_gpu() -> None:
    assert file_stem("NVIDIA H200") == "nvidia_h200"
    assert file_stem("NVIDIA GeForce RTX 4090 (Laptop)") == "nvidia_geforce_rtx_4090_laptop"


def test_what_stands_between_markers_is_replaced_and_nothing_else() -> None:
    assert between(f"a\n{BEGIN}\nold\n{END}\nb {END}", BEGIN, END, "new") == f"a\n{BEGIN}\nnew\n{END}\nb {END}"


def test_a_row_of_a_record_is_a_line() -> None:
    rows = [{"op": "add", "us": 1.5, "moved": [3, 4]}, {"op": "ü", "us": None}]
    document = {"schema": 1, "gpu": {"name": "H200"}, "rows": rows, "by_name": {"a": {"x": 1}}, "none": []}
    text = files.json_rows(document)
    assert json.loads(text) == document
    assert text.splitlines()[3:6] == [
        ' "rows": [',
        *(f"  {json.dumps(row)}{end}" for row, end in zip(rows, (",", ""), strict=True)),
    ]
    assert '"by_name": {\n  "a": {"x": 1}\n }' in text
    assert files.json_rows({"a": [{"b": "c" * 2000, "d": 1}]}).count("\n") == 7, "an object that is too long for a row"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_a_document_without_the_markers_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected <!-- x --> \.\.\. <!-- /x -->"):
        between(text, BEGIN, END, "new")


@pytest.mark.parametrize("content", ["new, and ü", b"\x00\xff"])
def test_a_file_has_the_content_and_the_usual_permissions(content: str | bytes, tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    files.write(tmp_path / "x", content)
    assert (tmp_path / "x").read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["usual", "x"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    (tmp_path / "link").symlink_to("precious")
    files.write(tmp_path / "link", "new")
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "link").read_text() == "new" and not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_content_and_no_other_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    (tmp_path / "x").write_text("old")
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(type(error)):
        files.write(tmp_path / "x", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"] and (tmp_path / "x").read_text() == "old"
