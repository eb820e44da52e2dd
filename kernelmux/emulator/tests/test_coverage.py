"""The tables of docs/emulator.md: every operation is described, what is said not to be emulated is refused."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from kernelmux.emulator import ops
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.validation import coverage

DOCUMENT = Path(coverage.__file__).resolve().parents[3] / "docs" / "emulator.md"

needs_document = pytest.mark.skipif(not DOCUMENT.exists(), reason="the documentation is not installed")


def test_every_operation_is_described_once() -> None:
    names = [name for entry in coverage.entries() for name in entry.names]
    assert len(set(names)) == len(names)
    assert not list(coverage._problems())


@pytest.mark.parametrize("name", [n for e in coverage.entries() if not e.what for n in e.names])
def test_what_is_not_emulated_is_refused(name: str) -> None:
    coverage.registered()
    builder = ops.find(name)
    if builder is not None:
        with pytest.raises(Unsupported):
            builder(Instruction(name, (), None, name, None))


@needs_document
@pytest.mark.skipif(find_spec("triton") is None, reason="the catalogue of defects is whole with Triton only")
def test_the_document_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage.main(("--check", str(DOCUMENT))) == coverage.OK, capsys.readouterr()


def test_update_writes_between_the_markers(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    marks = [mark.format(name) for name in coverage.SECTIONS for mark in (coverage.BEGIN, coverage.END)]
    file.write_text("before\n" + "\nold\n".join(marks) + "\nafter\n")
    assert coverage.main(("--check", str(file))) == coverage.DIFFERS
    assert coverage.main(("--update", str(file))) == coverage.OK
    text = file.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "`wgmma.mma_async`" in text
    assert coverage.main(("--check", str(file))) == coverage.OK


def test_a_document_without_markers_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.md"
    file.write_text("nothing here\n")
    assert coverage.main(("--update", str(file))) == coverage.USAGE
    assert "operations begin" in capsys.readouterr().err
