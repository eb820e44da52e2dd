"""Processes: two at once, one that is killed, forks, spawns; disks and folders of no use. One warning at most, and the
right result.

A process per backend goes through everything: its children are forks, which import nothing again.
"""

import json
import os
import signal

import pytest
import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.tests import made_up

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the children of these tests are forks")
BACKENDS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            registered.unavailable(name, CPU) is not None, reason=f"{name}: {registered.unavailable(name, CPU)}"
        ),
    )
    for name in ("cuda", "triton")
]

# use(): the warnings of a call whose result is right, but for those that every such call gives.
# children(f, ...): forks at once; what each returned, the text of what it raised, or how it died.
PRELUDE = """
import json, os, resource, signal, sys, warnings
from pathlib import Path
import torch
import kernelmux as kx

BACKEND, FOLDER = sys.argv[1], Path(sys.argv[2])

def use():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", kx.EmulationWarning)
        warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")
        warnings.filterwarnings("ignore", "AnnAssign.__init__ missing", DeprecationWarning)  # Triton 3.7, Python 3.13
        result = kx.square(torch.arange(5.0), backend=BACKEND).tolist()
    assert result == [0, 1, 4, 9, 16], result
    return [str(warning.message).splitlines()[0] for warning in told]

def children(*bodies):
    opened = []
    for body in bodies:
        end, begin = os.pipe()
        if not (child := os.fork()):
            try:
                found = body()
            except BaseException as error:
                found = f"{type(error).__name__}: {error}"
            os.write(begin, json.dumps(found).encode())
            os._exit(0)
        os.close(begin)
        opened.append((child, end))
    found = []
    for child, end in opened:
        with os.fdopen(end, "rb") as pipe:
            text = pipe.read().decode()
        status = os.waitpid(child, 0)[1]
        found.append(json.loads(text) if status == 0 else f"died of {status}")
    return found

def files():
    return [p for p in FOLDER.rglob("*") if p.is_file()]
"""


SCENARIOS = """
def killed():
    os.replace = os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    use()

def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return use(), use()

def nowhere():
    os.environ |= dict.fromkeys(("HOME", "XDG_CACHE_HOME", "KERNELMUX_CACHE_DIR", "TRITON_CACHE_DIR"), "/dev/null/nowhere")
    return use()

def after():
    kx.square(torch.ones(7, dtype=torch.float16), backend=BACKEND)
    return use(), kx.stats().calls

told = {"two": children(use, use)}
for path in files():
    path.unlink()
told["full"] = [*children(full), len(files())]
told["nowhere"] = children(nowhere)
told["killed"] = children(killed, lambda: None) + children(use)
for path in files():
    if not path.name.startswith("__grp__"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
told["damaged"] = children(use) + children(use)
use()
told["forked"] = [*children(after, after), kx.stats().calls]
print(json.dumps(told))
"""


def run(code, *arguments, **variables):
    """What a process prints."""
    found = made_up.python(PRELUDE + code, *arguments, **variables)
    assert not found.returncode and not found.stderr, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module", params=BACKENDS)
def told(request, tmp_path_factory):
    """What a process saw, whose caches lie in a folder of the test."""
    folder = tmp_path_factory.mktemp(request.param)
    places = {"KERNELMUX_CACHE_DIR": "ours", "TRITON_CACHE_DIR": "triton", "XDG_CACHE_HOME": "home", "HOME": "home"}
    (folder / "home").mkdir()
    named = {variable: str(folder / place) for variable, place in places.items()}
    out = run(SCENARIOS, request.param, str(folder), **named)
    return json.loads(out) | {"backend": request.param}


def test_two_processes_that_compile_at_once_do_not_disturb_each_other(told):
    assert told["two"] == [[], []]


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_disturbs_the_next(told):
    assert told["killed"] == [f"died of {int(signal.SIGKILL)}", None, []]


def test_cut_off_files_cost_one_warning_and_then_none(told):
    first, second = told["damaged"]
    assert len(first) == 1 and first[0].startswith("a cached kernel was damaged and has been compiled again")
    assert second == []


def test_on_a_full_disk_a_call_computes_or_says_what_to_do(told):
    """Triton compiles nothing without a file; the emulator keeps what NVRTC made in memory."""
    found, kept = told["full"]
    assert kept == 0
    if told["backend"] == "triton":
        assert "BackendUnavailable: no requested backend can run this call" in found
        assert "takes no files, and no other folder does: set TRITON_CACHE_DIR to one" in found
    else:
        assert found == [[], []]


def test_without_a_folder_that_can_be_written_a_warning_at_most_per_setting(told):
    """That of the user for our cache, and that for Triton's."""
    (found,) = told["nowhere"]
    said = ["KERNELMUX_CACHE_DIR=/dev/null/nowhere cannot be used", "Triton's cache /dev/null/nowhere takes no files"]
    assert len(found) == (2 if told["backend"] == "triton" else 1)
    assert all(any(text.startswith(start) for start in said) for text in found)


def test_after_a_fork_kernels_run_and_the_counts_go_on_from_those_of_the_parent(told):
    assert told["forked"] == [[[], 3], [[], 3], 1]


def test_a_process_that_is_spawned_after_first_use_begins_anew(tmp_path):
    """It inherits the environment, and neither scopes nor counts."""
    (tmp_path / "child.py").write_text(
        "import torch, kernelmux as kx\n"
        "def body(queue):\n"
        "    y = kx.square(torch.arange(3.0))\n"
        "    queue.put((y.tolist(), kx.stats().calls, kx.which('add', y, y), kx.stats().entries[0].source))\n"
    )
    code = f"""
import multiprocessing
sys.path.insert(0, {str(tmp_path)!r})
import child
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with kx.use("torch_ref/plain"), kx.record():
        kx.square(torch.arange(3.0))
        process = context.Process(target=child.body, args=(queue,))
        process.start()
    print(queue.get(timeout=100))
    process.join()
"""
    out = run(code, "torch_ref", str(tmp_path), KERNELMUX_BACKEND_SQUARE="torch_ref")
    assert out == "([0.0, 1.0, 4.0], 1, 'torch_ref/plain', 'KERNELMUX_BACKEND_SQUARE')\n"
