"""Whether a configuration passes the suite: its checks of accuracy and shapes, in a process of its own.

`python -m kernelmux.tune.check FILE` gives every plan of the kind the configuration, and writes a line of JSON. Where none
of the calls is of the kind, the workload is asked about too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import execute
from kernelmux.conformance.session.plan import Item
from kernelmux.perf.session.supervisor import environment
from kernelmux.registry.backend.search_space import Config, Forced
from kernelmux.tune.job import Job

CHECKS = ("accuracy", "shapes")
SHOWN = 2000  # characters of a failure
UNSEEN = "no call of the checks is of its kind, so that nothing is known of it"

Asked = tuple[Job, Config, str]  # and the kind


def refusals(asked: Sequence[Asked], tier: str, jobs: int, watch: Callable[[], None]) -> list[str]:
    """For each configuration "", or what the suite says against it; so many processes at a time."""
    found = [""] * len(asked)
    with tempfile.TemporaryDirectory(prefix="kernelmux-tune-") as folder:
        for first in range(0, len(asked), max(jobs, 1)):
            share = list(enumerate(asked))[first : first + max(jobs, 1)]
            started = [(i, _started(Path(folder, f"{i}.json"), one, tier)) for i, one in share]
            try:
                for i, process in started:
                    found[i] = _refusal(process)
                    watch()
            finally:
                for _, process in started:
                    process.kill()
                    process.wait()
    return found


def _started(file: Path, asked: Asked, tier: str) -> subprocess.Popen[str]:
    job, config, kind = asked
    file.write_text(json.dumps([asdict(job), config, kind, tier]))
    command = [sys.executable, "-m", "kernelmux.tune.check", str(file)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment(), **pipes)


def _refusal(process: subprocess.Popen[str]) -> str:
    output = process.communicate()[0].strip()
    try:
        return str(json.loads(output.splitlines()[-1])["refusal"])
    except (ValueError, IndexError, KeyError, TypeError):
        return f"its process ended with status {process.returncode}: {output[-SHOWN:]}"


def refusal(job: Job, config: Config, kind: str, tier: str) -> str:
    """ "", or the failures of a configuration under the suite."""
    with job.space.using(Forced(job.space, config, kind)) as forced:
        failures = [text for name in CHECKS for text in _failures(job, tier, name)]
        if not failures and not forced.count:
            failures = list(_failures(job, tier, "accuracy", job.workload))
    return "\n".join(failures)[:SHOWN] or ("" if forced.count else UNSEEN)


def _failures(job: Job, tier: str, check: str, case: str = "") -> Iterator[str]:
    """What a check finds, on its own cases or on one that is spelt out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = (case.replace(" ", ","),) if case else ()
    options = Options((job.op,), (job.label,), cases=cases, dtypes=(job.dtype,), tier=tier, device=device)
    outcome = execute(Item(job.op, job.backend, job.variant, check), options)
    if outcome.status == "failed":
        yield f"{check}: {outcome.text}"


def main(file: Path) -> None:
    """Answer what a file asks."""
    job, config, kind, tier = json.loads(file.read_text())
    print(json.dumps({"refusal": refusal(Job(**job), config, kind, tier)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
