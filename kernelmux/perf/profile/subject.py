"""What is profiled of an operator: a variant on a workload in a dtype, and the command lines that profile it elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.timing import inputs
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch, temporary_backends
from kernelmux.registry.cases import Case
from kernelmux.registry.errors import ArgumentError, KernelmuxError, UnsupportedError
from kernelmux.registry.observe.profiler_ranges import ranges
from kernelmux.registry.spec import OpSpec

H200 = (9, 0)  # the capability whose variants are listed where there is no GPU
MODULE = "kernelmux.perf.profile"
profiler: Any = torch.cuda.profiler  # untyped in torch


@dataclass(frozen=True)
class Subject:
    """One variant to look at; backend is "name/variant", impl the file and the function behind it, if it has any."""

    op: str
    backend: str
    workload: str
    dtype: str
    device: str
    impl: str = ""

    @property
    def name(self) -> str:
        """As the range of its calls: softmax[cuda/rows]."""
        return f"{self.op}[{self.backend}]"

    @property
    def stem(self) -> str:
        """For files."""
        return f"{self.op}-{self.backend.replace('/', '-')}-{Case(self.workload).name}-{self.dtype}"

    @property
    def spec(self) -> OpSpec:
        return catalog.spec(self.op)

    @cached_property
    def inputs(self) -> inputs.Inputs:
        """Calls of this workload with other values each, which together do not fit into the L2 cache."""
        return inputs.make(Row(self.op, self.workload, self.dtype, self.backend, ""), self.device)

    def call(self, i: int) -> Any:
        """One call of the public function."""
        calls = self.inputs.calls
        values = calls[i % len(calls)].arguments
        return dispatch.function(self.op)(**values, backend=self.backend)

    @property
    def words(self) -> list[str]:
        """The options that choose it."""
        chosen = (
            ["--impl", self.impl]
            if self.backend.startswith(f"{temporary_backends.NAME}/")
            else ["--backend", self.backend]
        )
        return ["--op", self.op, *chosen, "--workload", self.workload, "--dtype", self.dtype]

    def commands(self) -> Iterator[str]:
        """How nsys and ncu look at one call of it, on a machine that has them."""
        child = shlex.join(["python", "-m", MODULE, "--launch", *self.words])
        yield f"nsys profile -t cuda,nvtx --capture-range=cudaProfilerApi -o {self.stem} {child}"
        yield f"ncu --set full --clock-control none --profile-from-start off -o {self.stem} {child}"


def subjects(op: str, backends: Sequence[str], workload: str, dtype: str, device: str, impl: str = "") -> list[Subject]:
    """One per backend that is named: the variant, or the one that the backend picks by itself for this call."""
    spec = catalog.spec(op)
    case = _case(spec, workload, device)
    kind = _dtype(spec, case, dtype)
    call = inputs.one(Row(op, case.text, kind, "", ""), device)
    names = [dispatch.which(op, *call.arguments.values(), backend=name) for name in backends or _usable(device)]
    return [Subject(op, name, case.text, kind, device, impl) for name in dict.fromkeys(names)]


def _usable(device: str) -> list[str]:
    """The backend that is chosen by itself; on a CPU the one of torch, as nothing emulated is timed."""
    return [plan.BASELINE] if device == "cpu" else ["auto"]


def _case(spec: OpSpec, workload: str, device: str) -> Case:
    found = plan.workloads(
        spec, PerfOptions(ops=(spec.name,), workloads=(workload,) if workload else (), device=device)
    )
    if not found:
        raise ArgumentError(f"--workload: {spec.name}: expected {plan.FORMS}, got {workload!r}")
    return plan.large(spec, tuple(found))


def _dtype(spec: OpSpec, case: Case, dtype: str) -> str:
    able = case.dtypes or spec.dtypes
    if dtype:
        if dtypes.parse(dtype) not in able:
            raise ArgumentError(f"--dtype: {spec.name} {case.text}: expected one of {_listed(able)}, got {dtype}")
        return dtype
    return dtypes.SHORT[next((d for d in plan.USUAL if d in able), able[0])]


def _listed(able: Sequence[torch.dtype]) -> str:
    return ", ".join(dtypes.SHORT[d] for d in able)


def ladder(op: str, workload: str, dtype: str) -> list[Subject]:
    """Every variant of every backend with kernels that can run the call on a GPU."""
    spec = catalog.spec(op)
    case = _case(spec, workload, "cuda")
    kind = _dtype(spec, case, dtype)
    call = spec.hypothetical(case, dtypes.parse(kind), capability=_capability())
    found = []
    for name in (n for n in registered.backend_names() if n != temporary_backends.NAME):
        try:
            variants = registered.variants(name, op)
        except KernelmuxError:
            continue
        able = [v for v, i in variants.items() if plan.emulates(name) and not i.reasons(call)]
        found += [Subject(op, f"{name}/{variant}", case.text, kind, "cuda") for variant in able]
    return found


def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else H200


def launch(one: Subject) -> None:
    """One call between cudaProfilerStart and cudaProfilerStop, after calls that compile: what nsys and ncu run."""
    if one.device != "cuda":
        raise UnsupportedError("--launch: expected a machine with a GPU, torch sees none here")
    with ranges():
        for i in range(WARMUP):
            one.call(i)
        torch.cuda.synchronize()
        profiler.start()
        one.call(WARMUP)
        torch.cuda.synchronize()
        profiler.stop()


WARMUP = 3  # calls, after which one of a kernel is replayed
