"""Workers whose sources are not those of the run: files were changed while it went on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernelmux

PACKAGE = Path(str(kernelmux.__file__)).parent
RUN = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from kernelmux.runner.tests import toy
from kernelmux.runner.item import WorkItem

class Changes(toy.Toy):
    '''Once both workers are there a source is another; workers from then on are of another version.'''
    changed = False

    def takes(self, item, row):
        super().takes(item, row)
        pids = {line["worker"]: line["pid"] for line in toy.lines(Path(sys.argv[2]), "worker")}
        if len(pids) == 2 and not self.changed:
            self.changed = True
            with open(Path(sys.argv[1]) / "kernelmux/runner/item.py", "a") as file:
                file.write("# changed\\n")
            for slot in self.lose:
                os.kill(pids[slot], signal.SIGKILL)

suite = Changes()
suite.lose = sys.argv[3:]
report, rows = toy.go(Path(sys.argv[2]), toy.items(60, 0.1), 2, suite)
print(json.dumps([report.errors, len(rows)]))
"""


def copied(folder):
    """A copy of what a run needs of the package."""
    shutil.copytree(PACKAGE / "runner", folder / "kernelmux/runner", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ("registry/errors.py", "registry/util/files.py", "registry/util/fingerprint.py"):
        (folder / "kernelmux" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / path, folder / "kernelmux" / path)
    for path in ("", "registry", "registry/util"):
        (folder / "kernelmux" / path / "__init__.py").touch()
    return folder


def run(tmp_path, *lose):
    command = [sys.executable, "-c", RUN, str(copied(tmp_path / "copy")), str(tmp_path / "out"), *lose]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


REFUSED = "its sources are not those of this process: were files changed during the run?"


def test_a_worker_of_another_version_is_refused_and_the_others_go_on(tmp_path):
    errors, rows = run(tmp_path, "worker0")
    assert errors == [f"worker worker0: {REFUSED}"]
    assert rows == 60


def test_where_all_are_refused_the_run_ends_with_that(tmp_path):
    errors, rows = run(tmp_path, "worker0", "worker1")
    assert sorted(errors[:2]) == [f"worker worker{i}: {REFUSED}" for i in range(2)]
    assert errors[2].startswith("no worker is left that can run ")
    assert 1 <= rows < 60


def test_the_version_is_of_files_below_the_package_alone(tmp_path):
    """Neither of a checkout below a folder named tests, nor of tests, nor of a link to nothing that an editor leaves."""
    ask = "from kernelmux.runner.worker import version; print(version())"

    def version(folder):
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-c", ask]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True).stdout

    one, two = copied(tmp_path / "one"), copied(tmp_path / "tests/two")
    (two / "kernelmux/runner/.#item.py").symlink_to("nobody@nowhere")
    (two / "kernelmux/runner/tests/test_more.py").touch()
    assert version(one) == version(two)
    (two / "kernelmux/runner/item.py").touch()
    (two / "kernelmux/runner/more.py").touch()
    assert version(one) != version(two)
