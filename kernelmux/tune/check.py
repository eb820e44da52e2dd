"""Whether a configuration passes the suite: its checks of accuracy and shapes.

Every plan of the kind gets the configuration. Where none of the calls is of the kind, the workload is asked about too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import execute
from kernelmux.conformance.session.plan import Item
from kernelmux.registry.backend.search_space import Config, Forced
from kernelmux.tune.job import Job

CHECKS = ("accuracy", "shapes")
SHOWN = 2000  # characters of a failure
UNSEEN = "no call of the checks is of its kind, so that nothing is known of it"


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
