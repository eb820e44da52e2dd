"""Time a training step, forward and backward, of one block of a Llama: kernelmux beside torch, torch.compile and Liger."""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import kernelmux as kx

COMPILED = "_compile"  # ends the name of a contestant that runs under torch.compile
OURS = ("auto", "auto_compile", "torch_ref", "triton", "cuda")
CONTESTANTS = ("torch_eager", "torch_compile", "liger", *OURS)
ALLOWED = 2.0  # times the error of torch eager, whose roundings to the dtype are the yardstick
EPS = 1e-5

EPILOG = """
The block: RMS norm, queries, keys and values, rotary positions, causal attention with grouped queries, RMS norm, gated
layer; two residual sums. Every contestant has the same parameters, input and incoming gradient. Before anything is timed,
its output and all its gradients are compared with torch in fp32; one that is off by more than twice what torch eager is off
is left out. Then all take turns, round after round, so that what the machine does meanwhile meets all of them alike.

examples:
  python examples/llama_block.py                                          on a GPU: hidden 4096, 4 x 4096 tokens, bf16
  python examples/llama_block.py --contestants torch_eager triton cuda    these only
  python examples/llama_block.py --device cpu --hidden 64 --heads 4 --groups 2 --inner 96 --batch 1 --length 32
"""


@dataclass(frozen=True)
class Parts:
    """What the contestants compute differently; all else is the same code."""

    rms_norm: Callable[..., torch.Tensor]
    linear: Callable[..., torch.Tensor]
    rope: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    attention: Callable[..., torch.Tensor]
    swiglu: Callable[..., torch.Tensor]
    add: Callable[..., torch.Tensor]


class Block(torch.nn.Module):
    """One block of a Llama: x [B, M, hidden] -> [B, M, hidden]; cos and sin [M, columns / 2]."""

    def __init__(self, shape: argparse.Namespace, parts: Parts) -> None:
        super().__init__()
        self.shape, self.parts = shape, parts
        columns = shape.hidden // shape.heads
        sizes = {
            "q": (shape.hidden, shape.hidden),
            "k": (shape.groups * columns, shape.hidden),
            "v": (shape.groups * columns, shape.hidden),
            "o": (shape.hidden, shape.hidden),
            "gate": (shape.inner, shape.hidden),
            "up": (shape.inner, shape.hidden),
            "down": (shape.hidden, shape.inner),
        }
        self.weights = torch.nn.ParameterDict({n: torch.randn(s) / s[1] ** 0.5 for n, s in sizes.items()})
        self.norms = torch.nn.ParameterDict({n: torch.ones(shape.hidden) for n in ("before", "between")})

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        parts, w = self.parts, self.weights
        x = parts.add(x, parts.linear(self.attended(parts.rms_norm(x, self.norms["before"], EPS), cos, sin), w["o"]))
        z = parts.rms_norm(x, self.norms["between"], EPS)
        return parts.add(x, parts.linear(parts.swiglu(parts.linear(z, w["gate"]), parts.linear(z, w["up"])), w["down"]))

    def attended(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attention of all heads [B, M, hidden], before the last product."""
        columns = self.shape.hidden // self.shape.heads
        q, k, v = (
            self.parts.linear(x, self.weights[n]).unflatten(-1, (-1, columns)).transpose(1, 2) for n in ("q", "k", "v")
        )
        q, k = self.parts.rope(q, k, cos, sin)
        return self.parts.attention(q, k, v).transpose(1, 2).flatten(2)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions as models write them in torch."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


WITH_TORCH = Parts(
    rms_norm=lambda x, w, eps: F.rms_norm(x, w.shape, w, eps),
    linear=F.linear,
    rope=lambda q, k, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)),
    attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    swiglu=lambda a, b: F.silu(a) * b,
    add=torch.add,
)
WITH_KERNELMUX = Parts(
    rms_norm=lambda x, w, eps: kx.rms_norm(x, w, eps),
    linear=lambda x, weight: kx.linear(x, weight),
    rope=lambda q, k, cos, sin: (kx.rope(q, cos, sin), kx.rope(k, cos, sin)),
    attention=lambda q, k, v: kx.nn.attention(q, k, v, is_causal=True, enable_gqa=True),
    swiglu=lambda a, b: kx.swiglu(a, b),
    add=lambda x, y: kx.add(x, y),
)


def with_liger() -> Parts:
    """Liger's operators where it has them, torch's elsewhere, as its own patches of a Llama do."""
    from liger_kernel.transformers import functional as liger

    def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        return liger.liger_rope(q, k, torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None])

    return Parts(
        rms_norm=lambda x, w, eps: liger.liger_rms_norm(x, w, eps),
        linear=F.linear,
        rope=rope,
        attention=WITH_TORCH.attention,
        swiglu=liger.liger_swiglu,
        add=torch.add,
    )


@dataclass
class Row:
    """What became of a contestant. error: of its worst tensor, relative to fp32; times: of its steps in milliseconds."""

    name: str
    error: float = 0.0
    problem: str = ""
    times: list[float] = field(default_factory=list)


class Step:
    """A training step of one contestant: forward and backward, gradients made anew."""

    def __init__(self, name: str, shape: argparse.Namespace, dtype: torch.dtype) -> None:
        parts = WITH_KERNELMUX if name in OURS else with_liger() if name == "liger" else WITH_TORCH
        torch.manual_seed(shape.seed)
        columns, rounded = shape.hidden // shape.heads, getattr(torch, shape.dtype)  # the same numbers in fp32 too
        with torch.device(shape.device):
            self.name, self.block = name, Block(shape, parts).to(rounded).to(dtype)
            made = torch.randn(2, shape.batch, shape.length, shape.hidden).to(rounded).to(dtype)
            angles = torch.arange(shape.length)[:, None] * 500000.0 ** -(torch.arange(0, columns, 2) / columns)
        self.run = torch.compile(self.block) if name.endswith(COMPILED) else self.block
        self.x, self.incoming = made.unbind()
        self.x = self.x.clone().requires_grad_()
        self.cos, self.sin = (t.to(rounded).to(dtype) for t in (angles.cos(), angles.sin()))

    def __call__(self) -> torch.Tensor:
        self.x.grad = None
        self.block.zero_grad(set_to_none=True)
        with kx.use(self.name.removesuffix(COMPILED)) if self.name in OURS else nullcontext():
            y: torch.Tensor = self.run(self.x, self.cos, self.sin)
            y.backward(self.incoming)
        return y

    def results(self) -> dict[str, torch.Tensor]:
        """The output and every gradient of a step, in fp32."""
        y = self()
        named = {"y": y, "x": self.x.grad, **{n: p.grad for n, p in self.block.named_parameters()}}
        return {name: found.detach().float() for name, found in named.items() if found is not None}


def lacking(name: str, device: str) -> str:
    """Why a contestant cannot take part here, or nothing."""
    if name == "liger" and importlib.util.find_spec("liger_kernel") is None:
        return "liger_kernel is not installed: pip install liger-kernel"
    return "Liger needs a GPU" if name == "liger" and device == "cpu" else ""


def off(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The largest distance of a tensor from fp32, relative to the norm of that tensor; infinite for what is not there."""
    if found.keys() != exact.keys():
        return float("inf")
    distances = [float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact]
    return max(d if d == d else float("inf") for d in distances)  # a NaN is no distance


def admitted(shape: argparse.Namespace, console: Console) -> tuple[list[Step], list[Row]]:
    """The steps whose results are right, and a row for every contestant."""
    dtype = getattr(torch, shape.dtype)
    exact = Step("torch_eager", shape, torch.float32).results()
    yardstick = off(Step("torch_eager", shape, dtype).results(), exact)
    steps, rows = [], []
    for name in shape.contestants:
        rows.append(row := Row(name, problem=lacking(name, shape.device)))
        if row.problem:
            continue
        with console.status(f"{name}: compared with fp32"):
            try:
                step = Step(name, shape, dtype)
                row.error = off(step.results(), exact)
            except kx.KernelmuxError as error:
                row.problem = " ".join(str(error).split("\n")[:2])
                continue
        if row.error > ALLOWED * yardstick:
            row.problem = f"wrong: off by {row.error:.2e} of fp32, expected at most {ALLOWED * yardstick:.2e}"
            continue
        steps.append(step)
    return steps, rows


def timed(step: Step, device: str) -> float:
    """Milliseconds of a step: on a GPU of the device, else of the process."""
    if device == "cpu":
        begin = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begin)
    events: Any = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first, last = events
    first.record()
    step()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last))


def race(steps: list[Step], rows: list[Row], shape: argparse.Namespace, console: Console) -> None:
    """Rounds in which each step runs once, in an order drawn anew: what a step leaves behind, such as a GPU that has to
    slow down for its power, meets every other one alike. The first rounds are not counted."""
    of, order = {row.name: row for row in rows}, random.Random(shape.seed)
    with console.status("timed") as status:
        for number in range(-shape.warmup, shape.rounds):
            status.update(f"round {number + 1} of {shape.rounds}")
            for step in order.sample(steps, len(steps)):
                found = timed(step, shape.device)
                if number >= 0:
                    of[step.name].times.append(found)


def table(rows: list[Row]) -> Table:
    """Medians, beside torch eager, and the middle 80 % of the rounds."""
    made = Table(box=None, header_style="bold")
    for name in ("contestant", "median ms", "of torch eager", "10 % to 90 % ms", "error"):
        made.add_column(name, justify="left" if name == "contestant" else "right")
    base = next((statistics.median(r.times) for r in rows if r.name == "torch_eager" and r.times), None)
    for row in sorted((row for row in rows if row.times), key=lambda row: statistics.median(row.times)):
        median, ordered = statistics.median(row.times), sorted(row.times)
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
        ratio = f"{median / base:.0%}" if base else "-"
        made.add_row(row.name, f"{median:.3f}", ratio, f"{low:.3f} to {high:.3f}", f"{row.error:.1e}")
    return made


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def parsed(words: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpu = torch.cuda.is_available()
    told = f"among {', '.join(CONTESTANTS)} (default: all on a GPU, torch_eager and torch_ref elsewhere)"
    made.add_argument("--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help=told)
    sizes = {"hidden": 4096, "heads": 32, "groups": 8, "inner": 14336, "batch": 4, "length": 4096}
    for name, size in sizes.items():
        made.add_argument(f"--{name}", type=positive, default=size, metavar="N", help=f"default: {size}")
    made.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="default: bfloat16")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if gpu else "cpu")
    made.add_argument("--rounds", type=positive, default=60, metavar="N", help="counted rounds (default: 60)")
    made.add_argument("--warmup", type=positive, default=3, metavar="N", help="rounds before them (default: 3)")
    made.add_argument("--seed", type=int, default=0, help="of the parameters and the input (default: 0)")
    made.add_argument("--out", type=Path, metavar="FILE", help="write sizes, machine, errors and all times as JSON")
    found = made.parse_args(words)
    usual = CONTESTANTS if found.device == "cuda" else ("torch_eager", "torch_ref")
    found.contestants = list(dict.fromkeys(found.contestants or usual))
    if found.hidden % (2 * found.heads) or found.heads % found.groups:
        made.error("expected hidden a multiple of 2 * heads, and heads a multiple of groups")
    return found


def main(words: list[str] | None = None) -> int:
    shape, console = parsed(words), Console()
    machine = torch.cuda.get_device_name() if shape.device == "cuda" else "CPU"
    steps, rows = admitted(shape, console)
    if steps:
        race(steps, rows, shape, console)
    sizes = f"hidden {shape.hidden}, {shape.heads}/{shape.groups} heads, inner {shape.inner}"
    what = f"{sizes}, {shape.batch} x {shape.length} tokens, {shape.dtype}; forward and backward, {shape.rounds} rounds"
    console.print(f"{machine}, torch {torch.__version__}: {what}", soft_wrap=True, highlight=False)
    console.print(table(rows))
    for row in rows:
        if row.problem:
            console.print(f"left out: {row.name}: {row.problem}", soft_wrap=True, highlight=False)
    if shape.out:
        known = {name: value for name, value in vars(shape).items() if name != "out"}
        made = known | {"machine": machine, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
        shape.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0 if steps and not any(row.problem.startswith("wrong") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
