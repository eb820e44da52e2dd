"""A candidate's process: what crosses to it and back, and every way in which it can break its word."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.candidate import limits, sandbox
from kernelmux.candidate.allocations import Guard
from kernelmux.candidate.channel import Channel, close
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.process import DEATHS, CandidateProcess
from kernelmux.emulator import EmulatorError

Open = Callable[..., CandidateProcess]
X = torch.arange(12.0).view(3, 4)
CHANNEL = "import gc\nfrom kernelmux.candidate.channel import Channel\n"
CHANNEL += "channel = next(o for o in gc.get_objects() if isinstance(o, Channel))\n"
walls = pytest.mark.skipif(bool(sandbox.not_held()), reason="; ".join(sandbox.not_held()))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a candidate that consists of this text, under the name f."""
    made = []

    def opening(text: str, **given: Any) -> CandidateProcess:
        (tmp_path / "mine.py").write_text(f"import os, sys, time, torch\n{text}\n", encoding="utf-8")
        made.append(CandidateProcess(tmp_path / "mine.py", "f", "cpu", Limits(**given)))
        return made[-1]

    yield opening
    for one in made:
        one.close()


class Written:
    """A function that is written when it is called, in a process that many tests have."""

    def __init__(self, process: CandidateProcess, text: str) -> None:
        self.process, self.text = process, text

    def call(self, values: tuple[Any, ...]) -> Any:
        return self.process.call((self.text, *values))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Written]]:
    """Makes functions of texts, one process for all."""
    path = tmp_path_factory.mktemp("candidate") / "mine.py"
    text = "import os, sys, time, torch\nknown = {}\ndef f(text, *values):\n    if text not in known:\n"
    text += "        known[text] = dict(globals())\n        exec(compile(text, __file__, 'exec'), known[text])\n"
    path.write_text(f"{text}    return known[text]['f'](*values)\n", encoding="utf-8")
    with CandidateProcess(path, "f", "cpu") as process:
        yield lambda text: Written(process, text)


def refused(process: CandidateProcess | Written, *values: Any) -> str:
    with pytest.raises(CandidateError) as error:
        process.call(values or (X,))
    return str(error.value)


# --- what crosses -------------------------------------------------------------------------------------------------


def test_arguments_of_every_kind_and_results_in_their_structure(shared: Callable[[str], Written]) -> None:
    process = shared(
        "def f(x, *more): return x.T.contiguous(), [torch.tensor(1), x.sum()], {type(m) for m in more}, None"
    )
    transposed, (one, total), other, nothing = process.call((X, 1, 2.5, True, "word", None, float("inf")))
    assert torch.equal(transposed, X.T) and one == 1 and total == X.sum()
    assert type(other).__name__ == "set" and nothing is None


def test_tensors_come_as_they_lie(shared: Callable[[str], Written]) -> None:
    process = shared("def f(*every): return torch.tensor([[*x.stride(), x.storage_offset()] for x in every])")
    whole = torch.zeros(40)
    every = (whole[3:15].view(3, 4), whole.as_strided((2, 5), (0, 2), 1), whole[::2][:4].view(2, 2))
    assert process.call(every).tolist() == [[*x.stride(), x.storage_offset()] for x in every]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.float64])
def test_bits_stay(shared: Callable[[str], Written], dtype: torch.dtype) -> None:
    given = torch.randint(0, 2, (64,), dtype=torch.uint8).view(torch.uint8).view(dtype)
    found = shared("def f(x): return x.clone()").call((given,))
    assert found.dtype == dtype and torch.equal(found.view(torch.uint8), given.view(torch.uint8))


def test_what_a_call_does_to_its_inputs_is_seen(shared: Callable[[str], Written]) -> None:
    whole = torch.zeros(8)
    shared("def f(x): x += 1; x.as_strided((8,), (1,), 0)[7] = 5").call((whole[2:4],))
    assert whole.tolist() == [0, 0, 1, 1, 0, 0, 0, 5]


def test_results_that_share_memory_share_it_here(shared: Callable[[str], Written]) -> None:
    process = shared("kept = torch.zeros(4)\ndef f(x):\n    kept.copy_(x[0]); return x, kept, kept[1:]")
    x = X.clone()
    same, first, part = process.call((x,))
    assert same.data_ptr() == x.data_ptr() and part.data_ptr() == first.data_ptr() + 4
    _, second, _ = process.call((x + 1,))
    assert second.data_ptr() == first.data_ptr() and first[0] == 1


def test_an_address_stays_as_long_as_its_tensor(shared: Callable[[str], Written]) -> None:
    process = shared("def f(x): return torch.tensor(x.data_ptr())")
    x = X.clone()
    assert process.call((x,)) == process.call((x[1:],)) - 16 == process.call((x,))


def test_allocations_are_guarded_where_ours_are(shared: Callable[[str], Written]) -> None:
    process = shared("def f(x):\n    y = torch.empty(4); y.as_strided((5,), (1,))[4] = 1\n    return torch.empty(3)")
    with Guard() as watch:
        assert process.call((X,)).isnan().all()
    assert "4 bytes behind its end" in str(watch.memory[0].damage()) and watch.memory[1].damage() is None


def test_a_call_that_exits_has_raised(shared: Callable[[str], Written]) -> None:
    assert refused(shared("def f(x): sys.exit(0)")).startswith("raised SystemExit: 0\n  at ")


def test_what_it_raises_names_its_line(opened: Open) -> None:
    assert "raised ZeroDivisionError: division by zero\n  at " in (
        text := refused(opened("def f(x):\n    return 1 / 0"))
    )
    assert "mine.py:3 in f: return 1 / 0" in text


# --- walls ---------------------------------------------------------------------------------------------------------


@walls
@pytest.mark.parametrize(
    "attempt",
    [
        "from kernelmux.registry.ops import softmax",
        "import kernelmux.conformance",
        "import kernelmux; kernelmux.softmax(x)",
        "import socket; socket.create_connection(('127.0.0.1', 9), 2)",
        "os.kill({pid}, 0)",
        "open('/etc/kernelmux', 'w')",
        "open(__file__, 'a')",
        "os.listdir({home!r} + '/.ssh/..')",
        "open(os.path.join(sys.prefix, 'x.pth'), 'w')",
    ],
)
def test_what_lies_behind_the_walls(shared: Callable[[str], Written], attempt: str) -> None:
    """Each raises what the system says: nothing of it is there, or it may not."""
    given = attempt.format(pid=os.getpid(), home=str(Path.home()))
    text = refused(shared(f"def f(x):\n    {given}\n    return x.clone()"))
    assert text.startswith("raised") and any(kind in text for kind in ("Error: ", "UnknownName", "NotFound")), text


@walls
def test_a_scratch_folder_goes_with_it(opened: Open) -> None:
    process = opened("def f(x):\n    open('there', 'a').write('x')\n    return torch.tensor(os.path.getsize('there'))")
    assert process.call((X,)) == 1 and process.call((X,)) == 2
    process.close()
    assert process.call((X,)) == 1


# --- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("os._exit(0)", "ended with status 0"),
        ("os.kill(os.getpid(), 9)", "ended by SIGKILL"),
        ("os.abort()", "ended by SIGABRT; it printed:\n  Fatal Python error: Aborted"),
        ("time.sleep(60)", "no answer within the limit of time"),
        ("os.closerange(3, 256); time.sleep(60)", "its process ended|it closed its channel and did not end"),
        ("print('so long', flush=True); os._exit(3)", "ended with status 3; it printed:\n  so long"),
    ],
)
def test_an_end_in_a_call_fails_that_call_alone(opened: Open, what: str, told: str) -> None:
    process = opened(f"def f(x):\n    if x.sum() == 0:\n        {what}\n    return x.clone()", call=3.0)
    assert torch.equal(process.call((X,)), X)
    text = refused(process, X * 0)
    assert text.startswith("in the call: ") and any(one in text for one in told.split("|")), text
    assert torch.equal(process.call((X,)), X)


def test_an_end_at_the_import(opened: Open) -> None:
    process = opened("os._exit(0)\ndef f(x): return x")
    assert "while its file was imported: its process ended with status 0" in refused(process)


def test_it_is_not_started_for_ever(opened: Open) -> None:
    process = opened("def f(x): os._exit(0)")
    assert all("ended with status 0" in refused(process) for _ in range(DEATHS))
    assert "it is not started again" in refused(process)


def test_memory_has_a_limit(opened: Open) -> None:
    text = refused(opened("kept = []\ndef f(x):\n    while True: kept.append(torch.ones(1 << 22))", memory=1 << 29))
    assert "GiB of memory, more than 0.5, and was ended" in text


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (
            "processes",
            "def f(x):\n    for _ in range(30):\n        if os.fork() == 0: time.sleep(60)\n    time.sleep(30)",
        ),
        (
            "threads",
            "import threading\ndef f(x):\n    for _ in range(30):"
            " threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n    time.sleep(30)",
        ),
    ],
)
def test_processes_and_threads_have_a_limit(opened: Open, kind: str, code: str) -> None:
    assert f"{kind}, more than 20, and was ended" in refused(opened(code, **{kind: 20}))


def test_nothing_is_left_of_it(opened: Open) -> None:
    code = "def f(x):\n    for _ in range(3):\n        if os.fork() == 0: os.setsid(); time.sleep(60)\n    return x.clone()"
    process = opened(code)
    process.call((X,))
    assert process._worker
    there = [int(folder.name) for folder in limits.family(process._worker.popen.pid)]
    assert len(there) >= 4
    process.close()
    for _ in range(40):
        left = [one for one in there if Path(f"/proc/{one}").exists() and _alive(one)]
        if not left:
            return
        time.sleep(0.1)
    assert not left


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# --- the channel ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("channel.send({'result': {'other': 'x'}, 'memories': [], 'nonce': 'guessed'})", "not asked"),
        ("channel.send(['no', 'object'])", "an answer that is none"),
        ("channel.end.sendall(b'\\xff' * 64)", "a message of 4294967295 bytes"),
        ("channel.end.sendall(b'\\x02\\0\\0\\0\\0{]')", "no JSON"),
        (
            "channel.send({'launch': 'k', 'module': 7, 'ptx': None, 'memories': [], 'arguments': []})",
            "a launch that is none",
        ),
        ("channel.end.shutdown(2); time.sleep(9)", "did not end|ended"),
    ],
)
def test_a_broken_channel_fails_the_call(opened: Open, what: str, told: str) -> None:
    process = opened(f"{CHANNEL}def f(x):\n    {what}\n    return x.clone()")
    text = refused(process)
    assert any(one in text for one in told.split("|")), text


def test_a_second_answer_fails_a_call(opened: Open) -> None:
    """The next one, or the one that is waited for when it comes."""
    code = "import threading\ndef again(): time.sleep(0.2); channel.send({'nonce': 'x'})\n"
    process = opened(f"{CHANNEL}{code}def f(x):\n    threading.Thread(target=again).start()\n    return x.clone()")
    with pytest.raises(CandidateError, match=r"before it was asked, or twice|something that was not asked"):
        for _ in range(2):
            process.call((X,))
            time.sleep(0.5)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            "{'tensor': 0, 'dtype': 'float32', 'shape': [1 << 40], 'strides': [1], 'offset': 0, 'device': 'cpu'}",
            "in 16 bytes",
        ),
        ("{'tensor': 0, 'dtype': 'float32', 'shape': [2], 'strides': [-1], 'offset': 1, 'device': 'cpu'}", "strides"),
        ("{'tensor': 5, 'dtype': 'float32', 'shape': [2], 'strides': [1], 'offset': 0, 'device': 'cpu'}", "no result"),
        (
            "{'tensor': 0, 'dtype': 'Tensor', 'shape': [2], 'strides': [1], 'offset': 0, 'device': 'cpu'}",
            "described as",
        ),
    ],
)
def test_a_description_that_does_not_fit_is_no_result(opened: Open, reply: str, told: str) -> None:
    code = "from kernelmux.candidate import serve\ntrue = serve.Server._answer\ndef lying(*given):\n"
    code += f"    told, sent = true(*given)\n    told['results'] = [{reply}]\n    return told, sent\n"
    code += "sys.modules['__main__'].Server._answer = lying\n"
    assert told in refused(opened(f"{code}def f(x): return torch.zeros(4)"))


def test_memory_that_shrinks_is_no_result(opened: Open) -> None:
    code = "from kernelmux.candidate import memory\ndef small(size):\n    file = os.memfd_create('x')\n"
    code += (
        "    os.ftruncate(file, 64); made = memory.Region.__new__(memory.Region); made.file, made.size = file, size\n"
    )
    code += "    import numpy; made.bytes = numpy.zeros(size, numpy.uint8); return made\nmemory.region = small\n"
    assert "expected 4096 bytes of memory, got 64" in refused(opened(f"{code}def f(x): return torch.zeros(1024)"))


# --- kernels -------------------------------------------------------------------------------------------------------

KERNEL = """
import triton, triton.language as tl

@triton.jit
def scaled(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) * 2, i < n + {beyond})

def f(x):
    y = torch.empty(x.shape)
    scaled[(triton.cdiv(x.numel(), 8),)](x, y, x.numel(), 8)
    return y
"""


def test_kernels_run_on_the_emulator_of_the_suite(opened: Open) -> None:
    pytest.importorskip("triton")
    process = opened(KERNEL.format(beyond=0))
    assert torch.equal(process.call((X,)), X * 2) and process.launched == {"scaled": 1}
    files = len(os.listdir("/proc/self/fd"))
    assert all(torch.equal(process.call((X,)), X * 2) for _ in range(5))
    assert len(os.listdir("/proc/self/fd")) == files, "a launch leaves files open"


def test_what_the_emulator_finds_is_its_word(opened: Open) -> None:
    """A candidate that catches the error of its launch gets nothing by it."""
    pytest.importorskip("triton")
    process = opened(
        KERNEL.format(beyond=4)
        .replace("    scaled[", "    try: scaled[")
        .replace("8)\n", "8)\n    except RuntimeError: pass\n")
    )
    with pytest.raises(EmulatorError, match=r"beyond|outside|out of"):
        process.call((X,))


def test_signals_of_a_terminal_are_not_its_own(opened: Open) -> None:
    process = opened("def f(x): return x.clone()")
    process.call((X,))
    worker = process._worker
    assert worker and os.getsid(worker.popen.pid) != os.getsid(0)


def test_a_message_takes_a_tensor_for_each_parameter_of_a_network() -> None:
    ends = socket.socketpair()
    here, there = (Channel(end) for end in ends)
    try:
        given = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
        here.send({"many": len(given)}, given)
        told, files = there.receive(time.monotonic() + 60)
        assert told == {"many": 200} and len(files) == 200
        close([*given, *files])
    finally:
        here.close()
        there.close()
