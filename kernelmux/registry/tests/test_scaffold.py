"""kernelmux new op: which names and folders it takes, what it would write, and that it writes over nothing."""

import ast
from pathlib import Path

import pytest

from kernelmux.registry.cli import main
from kernelmux.registry.scaffold import command

FILES = ("ops/new_thing.py", *(f"backends/{b}/new_thing.py" for b in ("torch_ref", "triton", "cuda")))


def run(capsys, *words):
    code = main.main(["new", "op", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("like", command.LIKE)
def test_a_new_package_has_all_files(like, tmp_path, capsys):
    code, out, err = run(capsys, "new_thing", "--like", like, "--package", tmp_path / "our-ops")
    assert code == 0 and not err
    top = tmp_path / "our-ops"
    written = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
    inside = {f"our_ops/{name}" for name in (*FILES, "__init__.py", "backends/cuda/new_thing.cu")}
    assert written == {"pyproject.toml", "README.md", "tests/test_new_thing.py", *inside}
    for name in FILES:
        text = (top / "our_ops" / name).read_text()
        ast.parse(text)
        assert command.OLD not in text
    assert all("TODO(new_thing)" in (top / "our_ops" / name).read_text() for name in FILES[:3])
    assert 'our_ops = "our_ops"' in (top / "pyproject.toml").read_text()
    assert "pip install -e '.[test]'" in out and f"cd {top}" in out


def test_a_second_operator_joins_the_package_and_leaves_the_rest(tmp_path, capsys):
    top = tmp_path / "our_ops"
    assert run(capsys, "first", "--like", "relu", "--package", top)[0] == 0
    (top / "README.md").write_text("mine")
    assert run(capsys, "second", "--like", "softmax", "--package", top)[0] == 0
    assert {p.stem for p in (top / "our_ops/ops").iterdir()} == {"first", "second"}
    assert (top / "README.md").read_text() == "mine"


def test_a_project_with_another_layout_is_followed(tmp_path, capsys):
    (tmp_path / "src/theirs").mkdir(parents=True)
    announced = '[project.entry-points."kernelmux.operators"]\nmine = "theirs"\n'
    (tmp_path / "pyproject.toml").write_text(announced)
    assert run(capsys, "first", "--like", "relu", "--package", tmp_path)[0] == 0
    assert (tmp_path / "src/theirs/ops/first.py").is_file() and (tmp_path / "tests/test_first.py").is_file()
    assert (tmp_path / "pyproject.toml").read_text() == announced


def test_nothing_is_written_over(tmp_path, capsys):
    top = tmp_path / "our_ops"
    (top / "our_ops/ops").mkdir(parents=True)
    (top / "our_ops/ops/first.py").write_text("mine")
    code, _, err = run(capsys, "first", "--like", "relu", "--package", top)
    assert code == 2 and f"got {top / 'our_ops/ops/first.py'}: nothing is written" in err
    assert [path for path in top.rglob("*") if path.is_file()] == [top / "our_ops/ops/first.py"]


def test_a_dry_run_shows_the_files_of_this_checkout_and_writes_none(capsys):
    before = {path for path in (command.TOP / "kernelmux/registry/ops").iterdir() if path.suffix == ".py"}
    code, out, _ = run(capsys, "new_thing", "--like", "matmul", "--dry-run")
    if (command.TOP / "CONTRIBUTING.md").is_file():  # which Bazel leaves out
        assert code == 0 and out.startswith("would be written:")
        assert out.count("new_thing.py") == 4 and out.count("new_thing.cu") == 1
    assert {path for path in (command.TOP / "kernelmux/registry/ops").iterdir() if path.suffix == ".py"} == before


def test_without_a_checkout_it_asks_for_a_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "TOP", tmp_path)
    code, _, err = run(capsys, "new_thing", "--like", "relu")
    assert code == 2 and "expected a checkout of kernelmux, or --package FOLDER" in err


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("softmax", "kernelmux has an operator of this name"),
        ("patch", "kernelmux.patch means something else"),
        ("registry", "kernelmux.registry means something else"),
        ("Hardswish", "lower-case letters"),
        ("2d_thing", "begins with a letter"),
        ("_thing", "begins with a letter"),
        ("a-b", "lower-case letters"),
        ("lambda", "a word of Python"),
        ("match", "a word of Python"),
        ("select", "named like one of Python"),
    ],
)
def test_a_name_that_no_operator_can_have_is_refused(name, problem, capsys):
    code, _, err = run(capsys, name, "--like", "relu")
    assert code == 2 and f"expected a name for a new operator, got {name!r}" in err and problem in err


def test_a_package_may_have_an_operator_named_like_a_module_of_python(tmp_path, capsys):
    assert run(capsys, "select", "--like", "relu", "--package", tmp_path / "our_ops")[0] == 0


@pytest.mark.parametrize(
    ("folder", "problem"),
    [("torch", "is installed"), ("json", "a module of Python"), ("1ops", "begins with a letter")],
)
def test_a_folder_whose_name_no_package_can_have_is_refused(folder, problem, tmp_path, capsys):
    code, _, err = run(capsys, "first", "--like", "relu", "--package", tmp_path / folder)
    assert code == 2 and f"got {folder!r}" in err and problem in err and not (tmp_path / folder).exists()


@pytest.mark.parametrize(
    ("text", "problem"), [("[project]", "got 0 in"), ("= 1", "cannot be read"), ("project = 1", "cannot be read")]
)
def test_a_folder_with_another_project_is_refused(text, problem, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text(text)
    code, _, err = run(capsys, "first", "--like", "relu", "--package", tmp_path)
    assert code == 2 and problem in err and "Traceback" not in err


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "ops").write_text("")
    code, _, err = run(capsys, "first", "--like", "relu", "--package", tmp_path / "ops")
    assert code == 2 and "expected a folder, got the file" in err


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    top = tmp_path / "our_ops"
    top.mkdir()
    (top / "our_ops").write_text("a file in the way")
    code, _, err = run(capsys, "first", "--like", "relu", "--package", top)
    assert code == 2 and "cannot be written" in err and err.count("\n") == 1


def test_each_family_has_its_five_files():
    for like in command.LIKE:
        names = {path.name for path in (Path(command.TEMPLATES) / like).iterdir() if path.is_file()}
        assert names == {"spec.py", "torch_ref.py", "triton.py", "cuda.py", "cuda.cu"}
