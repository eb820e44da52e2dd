"""Ctrl-C in real processes: several at once are one, and one that comes later ends the process."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from kernelmux.runner.interrupts import ONE

PROGRAM = """
import time
from kernelmux.runner import interrupts as module

module.ONE, interrupts = {one}, module.interrupts
interrupts.listen("conformance")
interrupts.before_the_end = lambda: print("workers end", flush=True)
try:
    print("begins", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    with interrupts.held():
        print("writes", flush=True)
        {work}
"""


def started(work: str, one: float = ONE) -> subprocess.Popen[str]:
    """one: seconds in which several Ctrl-C are one."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work, one=one)],
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[3]))},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_several_at_once_are_one_which_lets_files_be_written() -> None:
    process = started("time.sleep(0.3); print('whole', flush=True)", one=60.0)
    assert said(process) == "begins"
    process.send_signal(signal.SIGINT)
    assert said(process) == "writes"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "whole\n", "")


def test_a_later_one_ends_the_process_without_a_traceback() -> None:
    process = started("time.sleep(60)")
    assert said(process) == "begins"
    process.send_signal(signal.SIGINT)
    assert said(process) == "writes"
    time.sleep(ONE + 0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "workers end\n", "conformance: interrupted\n")
