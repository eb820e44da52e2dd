"""What the script of `kernelmux completion` completes, asked of a real shell."""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelmux.registry import catalog
from kernelmux.registry.cli import completion, main

pytest.importorskip("shtab")
ASKED = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_shtab_kernelmux
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell, under its name."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in completion.SHELLS:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            assert main.main(["completion", shell]) == 0
        assert not err.getvalue()
        (folder / shell).write_text(out.getvalue())
    return folder


def completed(scripts: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    if not (bash := shutil.which("bash")):
        pytest.skip("bash is not installed")
    words = line.split(" ")
    command = [bash, "--norc", "-c", ASKED, "bash", str(scripts / "bash"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=scripts)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kernelmux exp", ["explain"]),
        ("kernelmux explain soft", ["softmax", "softmax_backward"]),
        ("kernelmux explain softmax --sh", ["--shape"]),
        ("kernelmux explain softmax --backend cuda/reg", ["cuda/register_tiled", "cuda/registers"]),
        ("kernelmux support --device sm_9", ["sm_90"]),
        ("kernelmux support --card rtx4", ["rtx4090"]),
        ("kernelmux emulate softmax --card sm_8", ["sm_80", "sm_86", "sm_87", "sm_89"]),
        ("kernelmux conformance --fits t4 gb", ["gb10"]),
        ("kernelmux emulate transpose --backend tri", None),
        ("kernelmux conformance --op soft", ["softmax", "softmax_backward"]),
        ("kernelmux conformance --op add soft", ["softmax", "softmax_backward"]),
        ("kernelmux conformance --check accu", ["accuracy"]),
        ("kernelmux conformance --tier sm", ["smoke"]),
        ("kernelmux conformance --prog", []),
        ("kernelmux perf --every", ["--every-row"]),
        ("kernelmux perf --op mat", ["matmul", "matvec"]),
        ("kernelmux tune --dry", ["--dry-run"]),
        ("kernelmux profile --no", ["--no-ncu"]),
        ("kernelmux check-model qw", None),
        ("kernelmux ledger --sta", ["--stale"]),
        ("kernelmux docs --pic", ["--pictures"]),
        ("kernelmux completion zs", ["zsh"]),
        ("kernelmux perf --out ", ["folder"]),
    ],
)
def test_bash_completes(scripts: Path, line: str, offered: list[str] | None) -> None:
    (scripts / "folder").mkdir(exist_ok=True)
    found = completed(scripts, line)
    if offered is None:
        assert found and all(word.startswith(line.rpartition(" ")[2]) for word in found)
    else:
        assert sorted(found) == offered


def test_every_command_completes_its_options(scripts: Path) -> None:
    for name in (*main.COMMANDS, *main.PROVIDED, *main.PROGRAMS):
        assert "--help" in completed(scripts, f"kernelmux {name} --"), name


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells_read_their_script(scripts: Path, shell: str) -> None:
    text = (scripts / shell).read_text()
    assert all(word in text for word in ("explain", "every-row", *catalog.names()))
    if found := shutil.which(shell):
        done = subprocess.run([found, "-n", str(scripts / shell)], capture_output=True, text=True, check=False)
        assert not done.returncode and not done.stderr


def test_the_commands_of_the_page_write_the_script_of_each_shell() -> None:
    page = (Path(__file__).parents[3] / "docs/installing.md").read_text(encoding="utf-8")
    lines = [shlex.split(line, comments=True) for line in page.splitlines() if line.startswith("kernelmux completion")]
    assert [line[2] for line in lines] == list(completion.SHELLS) and all(line[3] == ">" for line in lines)
