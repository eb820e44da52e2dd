"""The file of rows: full disks, folders that cannot be written to, torn lines, rows of another run."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results
from kernelmux.runner.tests import toy

TOP = Path(__file__).resolve().parents[3]


def opened(home, resume=False, **head):
    return results.opened(home, {**toy.HEAD, **head}, resume)


def fails_after(monkeypatch, written):
    """os.write takes so many bytes more, the last of them in part; then the disk is full."""
    write, left = os.write, [written]

    def short(file, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[: left[0]]
        left[0] -= len(part)
        return write(file, part)

    monkeypatch.setattr(os, "write", short)


def test_on_a_full_disk_the_rows_stay_whole(tmp_path, monkeypatch):
    with opened(tmp_path) as (file, _):
        file.append({"item": "a", "row": 1})
        before = file.path.read_bytes()
        fails_after(monkeypatch, 7)
        with pytest.raises(
            ArgumentError, match=r"rows.jsonl: a row cannot be written: No space left on device; the rows"
        ):
            file.append({"item": "b", "row": 2})
        assert file.path.read_bytes() == before
        monkeypatch.undo()
    with opened(tmp_path, resume=True) as (file, done):
        assert [line["item"] for line in done] == ["a"]
        file.append({"item": "b", "row": 2})
    assert toy.rows(tmp_path) == {"a": 1, "b": 2}


def test_a_run_on_a_full_disk_ends_with_that(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match="No space left on device"):
        toy.go(tmp_path, toy.items(20), suite=Filling(monkeypatch))
    monkeypatch.undo()
    assert 1 < len(toy.rows(tmp_path)) < 20
    assert toy.wait_until(lambda: not any(map(toy.alive, toy.workers_of(tmp_path))), 2)
    report, rows = toy.go(tmp_path, toy.items(20), resume=True)
    assert len(rows) == len(report.rows) == 20


class Filling(toy.Toy):
    """The disk is full soon after the third row."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.monkeypatch = monkeypatch

    def takes(self, item, row):
        super().takes(item, row)
        if len(self.taken) == 3:
            fails_after(self.monkeypatch, 200)


FULL = """
mount -t tmpfs -o size=128k none "$1" || exit 77
"$0" -m kernelmux.runner.tests.toy_program --out "$1" --items 9000 -n 2; echo "status $?"
ls "$1"; rm "$1"/began "$1"/logs/* "$1"/filler; mount -o remount,size=8m "$1"
"$0" -m kernelmux.runner.tests.toy_program --out "$1" --items 9000 -n 2 --resume; echo "status $?"
"$0" -c "from pathlib import Path; from kernelmux.runner.tests import toy; import sys
print(len(toy.rows(Path(sys.argv[1]))), 'rows are there')" "$1"
"""


def in_a_namespace(script, *words):
    """What a script prints that may mount; the test is skipped where it may not."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        pytest.skip("no unshare")
    command = ["unshare", "-Urm", "bash", "-c", script, sys.executable, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip(f"no mount in a user namespace: {done.stderr.strip()}")
    return done.stdout + done.stderr


def test_a_real_full_disk(tmp_path):
    said = in_a_namespace(FULL.replace("9000", "900").replace("128k", "64k"), tmp_path)
    assert "a row cannot be written: No space left on device" in said
    assert "Traceback" not in said
    assert said.count("status 2") == 1
    assert "status 0" in said
    assert "900 rows are there" in said


READ_ONLY = """
mount -t tmpfs none "$1" || exit 77
mount -o remount,ro "$1"
"$0" -m kernelmux.runner.tests.toy_program --out "$1" $2; echo "status $?"
"""


@pytest.mark.parametrize(("below", "words"), [("", ""), ("/below", ""), ("", "--resume")])
def test_a_folder_that_is_read_only(tmp_path, below, words):
    script = READ_ONLY.replace('--out "$1"', f'--out "$1{below}"')
    said = in_a_namespace(script, tmp_path, words)
    told = f"toy: --out {tmp_path}{below}: expected a folder that can be written to: Read-only file system"
    assert said.splitlines() == ["status 2", told]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ArgumentError, match="expected a folder that can be written to: Permission denied"):
        results.folder(tmp_path)


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(ArgumentError, match=rf"--out {path}: expected a folder .* a file is in its place"):
            results.folder(path)


def test_links_and_dots_are_resolved(tmp_path):
    real = tmp_path / "real"
    (tmp_path / "link").symlink_to(real)
    assert results.folder(tmp_path / "link") == real  # it is made, though the link was dangling
    assert results.folder(tmp_path / "link") == real
    assert results.folder(tmp_path / "link/../real/new/..") == real
    assert list(real.iterdir()) == []


def test_a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ArgumentError, match=r"--out .*/a: expected a folder that can be written to"):
        results.folder(tmp_path / "a")


def test_a_folder_in_place_of_the_file(tmp_path):
    (tmp_path / results.NAME).mkdir()
    with (
        pytest.raises(ArgumentError, match=r"rows.jsonl: expected a file of rows: Is a directory"),
        opened(tmp_path, resume=True),
    ):
        pass
    (tmp_path / results.BEFORE).touch()
    with pytest.raises(ArgumentError, match=r"rows.jsonl: expected a file that can be written to"), opened(tmp_path):
        pass


def test_a_torn_last_line_is_cut_off(tmp_path):
    with opened(tmp_path) as (file, _):
        file.append({"item": "a", "row": 1})
        file.append({"item": "b", "row": "x" * 100})
    path = tmp_path / results.NAME
    whole = path.read_bytes()
    for cut in range(len(whole) - 110, len(whole)):
        path.write_bytes(whole[:cut])
        assert [row["item"] for row in results.read(path).rows] == ["a"]
    with opened(tmp_path, resume=True) as (file, done):
        assert [row["item"] for row in done] == ["a"]
        file.append({"item": "b", "row": 2})
    assert toy.rows(tmp_path) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("program", "perf", 'program was "toy", and is "perf"'),
        ("version", "2", 'version was "1", and is "2"'),
        ("asked", ["b"], r'asked was \["a"\], and is \["b"\]'),
        ("items", 3, "items was 2, and is 3"),
    ],
)
def test_rows_of_another_run_are_refused_with_what_differs(tmp_path, name, value, told):
    head = {"program": "toy", "version": "1", "asked": ["a"], "items": 2}
    with opened(tmp_path, **head) as (file, _):
        file.append({"item": "a", "row": 1})
    before = file.path.read_bytes()
    with pytest.raises(ArgumentError, match=told), opened(tmp_path, resume=True, **{**head, name: value}):
        pass
    assert file.path.read_bytes() == before
    with opened(tmp_path, resume=True, **head) as (file, done):
        assert len(done) == 1


@pytest.mark.parametrize("text", ["", "{}\n", "[]\n", "no JSON\n", '{"kind": "rows", "schema": 99}\n'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / results.NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match="expected a file of rows of schema 1"), opened(tmp_path, True):
        pass


@pytest.mark.parametrize("line", ["[1]", "torn"])
def test_a_damaged_line_in_the_middle_is_told(tmp_path, line):
    head = json.dumps({"kind": "rows", "schema": 1, **toy.HEAD})
    (tmp_path / results.NAME).write_text(f'{head}\n{line}\n{{"item":"a","row":1}}\n', encoding="utf-8")
    with pytest.raises(ArgumentError, match="expected a file of rows"), opened(tmp_path, resume=True):
        pass


def test_in_one_process_too_a_folder_is_one_runs(tmp_path):
    with opened(tmp_path), pytest.raises(ArgumentError, match="another run writes there"), opened(tmp_path):
        pass
    with opened(tmp_path):
        pass


def test_what_ran_before_stays_beside_it(tmp_path):
    with opened(tmp_path) as (file, _):
        file.append({"item": "a", "row": 1})
    with opened(tmp_path):
        pass
    assert toy.rows(tmp_path) == {}
    assert results.read(tmp_path / results.BEFORE).rows == ({"item": "a", "row": 1},)
