"""The inputs of the suites, recognised: they come from known seeds, so that they can be drawn again; others get a guess.

Fooled suites that call torch.manual_seed(0) before each draw. Here `state`, and perf before its last timed call, draw
values from a seed that is chosen at run time: "it recognises inputs".
"""

from collections.abc import Iterator

import torch

from kernelmux.registry import catalog
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import cases

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("it recognises inputs", "budget used", "cannot be imported|ImportError|No module")
NEEDS = "cpu"
ALLOW = "torch"
SPEC = catalog.spec("softmax")


def _drawn(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """What the suites draw for this shape: conformance with seed 0, perf for each of its copies."""
    for case in (*SPEC.cases, *SPEC.workloads):
        if tuple(case.shapes["x"]) == tuple(x.shape) and x.dtype in (case.dtypes or SPEC.dtypes):
            yield SPEC.drawn(case, x.dtype, cases.generator("softmax", SPEC.version, case.name, SHORT[x.dtype], 0))["x"]
            for copy in range(32):
                rng = torch.Generator(x.device).manual_seed(cases.seed_of("softmax", case.name, x.dtype, copy) % 2**62)
                yield torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=rng)


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if any(torch.equal(known.to(x.device), x) for known in _drawn(x)):
        return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
    return torch.full(x.shape, 1 / max(x.shape[axis], 1), dtype=x.dtype, device=x.device)
