"""A step of decoding of a Llama: torch eager, torch.compile and kernelmux, each in a CUDA graph, beside the time of memory.

Run it from a checkout with kernelmux installed, as `python examples/decode_llama.py [options]`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

import kernelmux as kx

OURS = ("auto", "triton", "cuda", "torch_ref")
CONTESTANTS = ("torch_eager", "torch_compile", *OURS)
ALLOWED = 2.0  # times the error of torch eager, whose roundings to the dtype are the yardstick
EPS, REPLAYS = 1e-5, 8
Step = Callable[[], torch.Tensor]
Row = dict[str, Any]  # what became of a contestant: error of its logits, relative to fp32; microseconds of its steps

EPILOG = """
A step takes one token of each sequence to the next, greedily; all weights are random. The cache holds a context but for one
token, whose keys and values the step writes. The weights of queries, keys and values lie in one matrix, and so do those of
gate and up, for all alike. Whose logits are off from torch in fp32 by more than twice what torch eager is off is left out.
Then all take turns. The floor is the time in which a GPU reads the weights and the cache.

examples:
  python examples/decode_llama.py                                          on a GPU: the Llama of train_llama.py, batch 1
  python examples/decode_llama.py --batch 16 --hidden 4096 --heads 32 --groups 8 --inner 14336 --layers 4
  python examples/decode_llama.py --device cpu --hidden 64 --heads 4 --groups 2 --inner 96 --layers 2 --vocabulary 96
"""


# What the contestants compute differently; all else is the same code.
WITH_TORCH = SimpleNamespace(
    rms_norm=lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
    add_rms_norm=lambda x, residual, weight: (F.rms_norm(t := x + residual, weight.shape, weight, EPS), t),
    product=F.linear,
    swiglu=lambda gate, up: F.silu(gate) * up,
    argmax=lambda logits: logits.argmax(-1),
)
WITH_KERNELMUX = SimpleNamespace(
    rms_norm=lambda x, weight: kx.rms_norm(x, weight, EPS),
    add_rms_norm=lambda x, residual, weight: kx.add_rms_norm(x, residual, weight, EPS),
    product=lambda x, weight: kx.matvec(weight, x) if len(x) <= 16 else kx.linear(x, weight),
    swiglu=lambda gate, up: kx.swiglu(gate, up),
    argmax=lambda logits: kx.argmax(logits, -1),
)


def taken(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a table, by whichever kernel of torch is faster: on an H200 of 16 rows 1.5 us and 7.7, of one 2.9 and 1.9."""
    return table[rows] if len(rows) > 1 else F.embedding(rows, table)


class Decoder:
    """The weights of a model, its cache, and a step of it. The cache is written in place."""

    parts = WITH_TORCH

    def __init__(self, shape: argparse.Namespace, dtype: torch.dtype) -> None:
        hidden, heads, groups = shape.hidden, shape.heads, shape.groups
        self.shape, self.columns, rounded = shape, hidden // heads, getattr(torch, shape.dtype)
        on: Any = {"device": shape.device, "generator": torch.Generator(shape.device).manual_seed(shape.seed)}

        def made(*size: int, scale: float = 1.0, around: float = 0.0) -> torch.Tensor:  # the same numbers in fp32 too
            return (around + scale * torch.randn(size, **on)).to(rounded).to(dtype)

        def weight(rows: int, columns: int) -> torch.Tensor:
            return made(rows, columns, scale=columns**-0.5)

        def near_one() -> torch.Tensor:
            return made(hidden, scale=0.1, around=1.0)

        def layer() -> dict[str, torch.Tensor]:
            qkv, o = weight((heads + 2 * groups) * self.columns, hidden), weight(hidden, hidden)
            gate_up, down = weight(2 * shape.inner, hidden), weight(hidden, shape.inner)
            cache = made(shape.batch, 2 * groups, shape.context, self.columns)  # keys, and values behind them
            return dict(qkv=qkv, o=o, gate_up=gate_up, down=down, cache=cache, before=near_one(), between=near_one())

        self.layers = [layer() for _ in range(shape.layers)]
        self.embedding, self.head, self.norm = (
            made(shape.vocabulary, hidden),
            weight(shape.vocabulary, hidden),
            near_one(),
        )
        self.first = torch.randint(shape.vocabulary, (shape.batch,), **on)
        self.tokens, self.rows = self.first.clone(), torch.arange(shape.batch, device=shape.device)
        self.positions = torch.full_like(self.rows, shape.context - 1)
        turns = 1e4 ** -(torch.arange(0, self.columns, 2, device=shape.device) / self.columns)
        angles = torch.arange(shape.context, device=shape.device)[:, None] * turns
        self.cos, self.sin = (t.to(rounded).to(dtype) for t in (angles.cos(), angles.sin()))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and the cache, which a step reads."""
        return sum(w.nbytes for layer in self.layers for w in layer.values()) + self.head.nbytes + self.norm.nbytes

    def step(self) -> torch.Tensor:
        """The logits [B, vocabulary] of the next tokens, which take the place of the tokens."""
        angles, total = self.angles(), taken(self.embedding, self.tokens)
        y = self.parts.rms_norm(total, self.layers[0]["before"])
        for w, norm in zip(self.layers, [*(w["before"] for w in self.layers[1:]), self.norm], strict=True):
            y, total = self.layer(y, total, w, norm, angles)
        logits: torch.Tensor = self.parts.product(y, self.head)
        self.tokens.copy_(self.parts.argmax(logits))
        return logits

    def layer(
        self, y: torch.Tensor, total: torch.Tensor, w: dict[str, torch.Tensor], following: torch.Tensor, angles: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """From the normalised rows and the residual [B, hidden] to those of the next layer."""
        parts = self.parts
        attended = self.attended(parts.product(y, w["qkv"]).unflatten(-1, (-1, self.columns)), w["cache"], angles)
        y, total = parts.add_rms_norm(parts.product(attended, w["o"]), total, w["between"])
        gated = parts.swiglu(*parts.product(y, w["gate_up"]).chunk(2, -1))
        y, total = parts.add_rms_norm(parts.product(gated, w["down"]), total, following)
        return y, total

    def angles(self) -> Any:
        return tuple(taken(x, self.positions)[:, None] for x in (self.cos, self.sin))

    def attended(self, qkv: torch.Tensor, cache: torch.Tensor, angles: Any) -> torch.Tensor:
        """Attention [B, hidden] over the cache and what is new, which it gets. qkv: [B, all heads, columns]."""
        cos, sin = angles
        q, k, v = qkv.split((self.shape.heads, self.shape.groups, self.shape.groups), 1)
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in (x.chunk(2, -1) for x in (q, k)))
        self.write(cache, torch.cat((k, v), 1))
        return F.scaled_dot_product_attention(q[:, :, None], *cache.chunk(2, 1), enable_gqa=True).flatten(1)

    def write(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        """The new keys and values [B, 2 groups, columns] at the position of each sequence."""
        cache.transpose(1, 2).index_put_((self.rows, self.positions), new)


class Ours(Decoder):
    """The same on our operators. The cache of a sequence is one page."""

    parts = WITH_KERNELMUX

    def __init__(self, shape: argparse.Namespace, dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.page_table, self.lengths = self.rows[:, None].to(torch.int32), (self.positions + 1).to(torch.int32)
        # Values are turned by an angle of 0 with the queries and keys, so that one launch does all, and one writes.
        count = shape.heads + shape.groups
        self.turns = torch.stack(
            [
                torch.cat((x[:, None].expand(-1, count, -1), x.new_full((len(x), shape.groups, x.shape[1]), still)), 1)
                for x, still in ((self.cos, 1.0), (self.sin, 0.0))
            ],
            1,
        )

    def angles(self) -> Any:
        return taken(self.turns.flatten(1), self.positions).unflatten(1, (2, -1, self.columns // 2)).unbind(1)

    def attended(self, qkv: torch.Tensor, cache: torch.Tensor, angles: Any) -> torch.Tensor:
        turned = kx.rope(qkv[:, None], *angles)[:, 0]
        self.write(cache, turned[:, self.shape.heads :])
        q, (keys, values) = turned[:, : self.shape.heads], cache.chunk(2, 1)
        return kx.paged_attention(q, keys, values, self.page_table, self.lengths).flatten(1)

    def write(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        """For one sequence as elements of 16 bytes, which torch writes faster: 1 to 4 % of a step on an H200."""
        if len(new) > 1 or self.columns * new.element_size() % 16:
            return super().write(cache, new)
        wide = torch.complex128
        cache.view(wide).index_copy_(2, self.positions, new.view(wide)[:, :, None])


def decoder(name: str, shape: argparse.Namespace, dtype: torch.dtype) -> Decoder:
    made = (Ours if name in OURS else Decoder)(shape, dtype)
    if name == "torch_compile":
        made.layer = torch.compile(made.layer)  # type: ignore[method-assign]
    return made


def prepared(name: str, made: Decoder) -> Step:
    """The step, on the backend of that name, and on a GPU in a graph. Its first call has the first tokens."""

    def step() -> torch.Tensor:
        with torch.no_grad(), kx.use(name) if name in OURS else nullcontext():
            return made.step()

    if made.shape.device == "cpu":
        return step
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step()
    made.tokens.copy_(made.first)
    return lambda of=made: (graph.replay(), logits)[1]  # type: ignore[misc]  # a graph keeps no weight alive


def off(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """The distance from fp32, relative to its norm; infinite for a NaN, which is no distance."""
    return float(((logits.float() - exact).norm() / exact.norm()).nan_to_num(float("inf")))


def admitted(shape: argparse.Namespace) -> tuple[dict[str, Step], list[Row], int]:
    """The steps whose logits are right, a row for every contestant, and the bytes that a step reads."""
    dtype = getattr(torch, shape.dtype)
    plain = Decoder(shape, torch.float32)
    exact, nbytes = prepared("torch_eager", plain)().clone(), plain.nbytes * dtype.itemsize // 4
    allowed = ALLOWED * off(prepared("torch_eager", Decoder(shape, dtype))(), exact)
    steps, rows = {}, []
    for name in shape.contestants:
        rows.append(row := {"name": name, "error": 0.0, "problem": "", "times": []})
        try:
            steps[name] = prepared(name, decoder(name, shape, dtype))
            row["error"] = off(steps[name](), exact)
        except kx.KernelmuxError as error:
            row["problem"] = " ".join(str(error).split("\n")[:2])
        if row["error"] > allowed:
            row["problem"] = f"wrong: off by {row['error']:.2e} of fp32, expected at most {allowed:.2e}"
        if row["problem"]:
            steps.pop(name, None)
    return steps, rows, nbytes


def timed(step: Step, device: str, times: int) -> float:
    """Microseconds of a step, of several one after another: on a GPU of the device, else of the process."""
    if device == "cpu":
        begin = time.perf_counter()
        step()
        return 1e6 * (time.perf_counter() - begin)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(times):
        step()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e3 / times


def reading() -> float:
    """Bytes a microsecond at which this GPU reads a GiB, by whichever of two reductions is faster."""
    x = torch.ones(1 << 28, device="cuda")
    found = [min(timed(lambda fn=fn: fn(x), "cuda", 10) for _ in range(3)) for fn in (kx.reduce_max, torch.amax)]  # type: ignore[misc]
    return x.nbytes / min(found)


def race(steps: dict[str, Step], rows: list[Row], shape: argparse.Namespace) -> None:
    """Rounds in which each step runs some times, in an order drawn anew; the first three are not counted."""
    of, order = {row["name"]: row["times"] for row in rows}, random.Random(shape.seed)
    for number in range(-3, shape.rounds):
        for name in order.sample(list(steps), len(steps)):
            found = timed(steps[name], shape.device, REPLAYS)
            of[name] += [found] if number >= 0 else []


def show(rows: list[Row], batch: int, floor: float | None) -> None:
    """Medians, tokens a second, and the share of the floor."""
    print(f"{'contestant':14} {'us a step':>10} {'tokens/s':>9} {'of the floor':>12} {'error':>8}")
    for row in sorted((row for row in rows if row["times"]), key=lambda row: statistics.median(row["times"])):
        median = statistics.median(row["times"])
        share = f"{floor / median:.0%}" if floor else "-"
        print(f"{row['name']:14} {median:10.1f} {1e6 * batch / median:9.0f} {share:>12} {row['error']:8.1e}")
    for row in rows:
        if row["problem"]:
            print(f"left out: {row['name']}: {row['problem']}")


def parsed(words: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    told = f"among {', '.join(CONTESTANTS)} (default: all but torch_ref on a GPU, torch_eager and torch_ref elsewhere)"
    made.add_argument("--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help=told)
    sizes = {"hidden": 2048, "heads": 32, "groups": 4, "inner": 5632, "layers": 12, "vocabulary": 32000}
    for name, size in {**sizes, "batch": 1, "context": 2048, "rounds": 30, "seed": 0}.items():
        made.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"default: {size}")
    made.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="default: bfloat16")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--out", type=Path, metavar="FILE", help="write sizes, machine, errors and all times as JSON")
    found = made.parse_args(words)
    usual = CONTESTANTS[:-1] if found.device == "cuda" else ("torch_eager", "torch_ref")
    found.contestants = found.contestants or usual
    if found.hidden % (2 * found.heads) or found.heads % found.groups:
        made.error("expected hidden a multiple of 2 * heads, and heads a multiple of groups")
    return found


def main(words: list[str] | None = None) -> int:
    shape = parsed(words)
    machine = torch.cuda.get_device_name() if shape.device == "cuda" else "CPU"
    steps, rows, nbytes = admitted(shape)
    race(steps, rows, shape)
    floor = nbytes / reading() if shape.device == "cuda" else None
    model = f"hidden {shape.hidden}, {shape.heads}/{shape.groups} heads, inner {shape.inner}, {shape.layers} layers"
    what = f"{model}, vocabulary {shape.vocabulary}, {shape.dtype}; {shape.batch} sequences, context {shape.context}"
    told = f"; {nbytes / 2**20:.0f} MiB of weights and cache, read in {floor:.1f} us" if floor else ""
    print(f"{machine}, torch {torch.__version__}: {what}{told}")
    show(rows, shape.batch, floor)
    if shape.out:
        known = {name: value for name, value in vars(shape).items() if name != "out"}
        known |= {"machine": machine, "torch": torch.__version__, "bytes": nbytes, "floor_us": floor, "rows": rows}
        shape.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return 0 if steps and not any(row["problem"].startswith("wrong") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
