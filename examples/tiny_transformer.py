"""Train a small transformer of kernelmux's operators: python examples/tiny_transformer.py --backend torch_ref

The text is words of a fixed list in random order, letter by letter. The loss begins near log(27) = 3.3; nothing tells the
first letter of a word, but two or three settle it, so that a model that looks back comes to 0.7 within 200 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import kernelmux as kx

WORDS = """add arg block cast chunk column copy cross dot entropy exp fill flash gather gelu grid head index join key
layer lane load loss mask matrix mean norm offset pad query rank reduce rope rotary row scale shape shared silu soft
split square stage store stride sum swish tile token transpose value warp weight""".split()
LETTERS = " abcdefghijklmnopqrstuvwxyz"
BACKENDS = ("torch_ref", "triton", "cuda")

EPILOG = """
examples:
  python examples/tiny_transformer.py                                    torch on the CPU, eager
  python examples/tiny_transformer.py --device cuda --backend triton     our Triton kernels on a GPU
  python examples/tiny_transformer.py --compile --out compiled.json      keep the losses, for examples/draw_losses.py
  python examples/tiny_transformer.py --nudge --out nudged.json          a yardstick for how far runs may be apart

One seed gives the same parameters and the same text for every backend: their curves differ by rounding. Attention runs in
bf16, all else in fp32. Everything, gradients too, runs on the one backend that is asked for.
"""


class Block(torch.nn.Module):
    """Attention with rotary positions and grouped queries, then a gated layer, each behind an RMS norm: [B, M, width]."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, self.columns = heads, groups, width // heads
        self.attention_norm, self.gated_norm = kx.nn.RMSNorm(width), kx.nn.RMSNorm(width)
        self.qkv = kx.nn.Linear(width, (heads + 2 * groups) * self.columns, bias=False)
        self.out = kx.nn.Linear(width, width, bias=False)
        self.gated = kx.nn.SwiGLU(width, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = kx.add(x, self.out(self.attention(self.attention_norm(x), cos, sin)))
        return kx.add(x, self.gated(self.gated_norm(x)))

    def attention(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """What each position takes from those up to it [B, M, width]."""
        parts = self.qkv(x).unflatten(-1, (-1, self.columns)).transpose(1, 2)  # [B, heads + 2 groups, M, columns]
        q, k, v = parts.split((self.heads, self.groups, self.groups), dim=1)
        q, k = kx.rope(q, cos, sin), kx.rope(k, cos, sin)
        y = kx.nn.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=True, enable_gqa=True)
        return y.to(x.dtype).transpose(1, 2).flatten(2)


class Transformer(torch.nn.Module):
    """Logits [B, M, letters] of the letter after each position, from letters [B, M]."""

    def __init__(self, width: int = 128, heads: int = 2, groups: int = 1, inner: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(len(LETTERS), width))
        self.rotary = kx.nn.RotaryEmbedding(width // heads)
        self.blocks = torch.nn.ModuleList(Block(width, heads, groups, inner) for _ in range(layers))
        self.norm, self.head = kx.nn.RMSNorm(width), kx.nn.Linear(width, len(LETTERS), bias=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        chosen = torch.nn.functional.one_hot(letters.flatten(), len(LETTERS)).to(self.table.dtype)
        x = kx.matmul(chosen, self.table).view(*letters.shape, -1)  # rows of the table: no operator looks them up
        cos, sin = self.rotary.angles(torch.arange(letters.shape[1], device=letters.device), x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Training(torch.nn.Module):
    """The loss of a batch of text [B, M + 1]: each letter from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.loss = Transformer(), kx.nn.CrossEntropyLoss()

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return loss


def batches(rows: int, length: int, seed: int) -> Iterator[torch.Tensor]:
    """Batches [rows, length + 1] of the numbers of letters, the same for one seed."""
    rng = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randint(len(WORDS), (rows, length), generator=rng).tolist()
        lines = [" ".join(WORDS[i] for i in row)[: length + 1] for row in order]
        yield torch.tensor([[LETTERS.index(letter) for letter in line] for line in lines])


@torch.no_grad()
def nudge(training: torch.nn.Module) -> None:
    """Move every parameter to the next number of fp32: what such a run differs by is what rounding explains."""
    for parameter in training.parameters():
        parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, math.inf)))


def train(arguments: argparse.Namespace, console: Console) -> list[float]:
    """The loss of every step."""
    torch.manual_seed(arguments.seed)
    training = Training().to(arguments.device)
    if arguments.nudge:
        nudge(training)
    optimizer = torch.optim.AdamW(training.parameters(), lr=3e-3)
    step = torch.compile(training, fullgraph=True) if arguments.compile else training
    losses: list[float] = []
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("loss {task.fields[loss]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar, kx.use(arguments.backend):
        task = bar.add_task("training", total=arguments.steps, loss="")
        for text in islice(batches(arguments.batch, arguments.length, arguments.seed), arguments.steps):
            loss = step(text.to(arguments.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            bar.update(task, advance=1, loss=f"{losses[-1]:.3f}")
    return losses


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def parsed(words: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--backend", choices=BACKENDS, default="torch_ref", help="what computes (default: torch_ref)")
    made.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda for triton and cuda if there is a GPU, else cpu"
    )
    made.add_argument("--compile", action="store_true", help="torch.compile(fullgraph=True) of the model and the loss")
    made.add_argument("--steps", type=positive, default=200, metavar="N", help="updates (default: 200)")
    made.add_argument("--batch", type=positive, default=16, metavar="N", help="rows of text in a step (default: 16)")
    made.add_argument("--length", type=positive, default=64, metavar="N", help="letters in a row (default: 64)")
    made.add_argument("--nudge", action="store_true", help="begin one rounding beside the parameters of the seed")
    made.add_argument("--seed", type=int, default=0, help="of the parameters and the text (default: 0)")
    made.add_argument("--out", type=Path, metavar="FILE", help="write the losses and what they were made with as JSON")
    arguments = made.parse_args(words)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        made.error("--device cuda: torch sees no GPU here; --device cpu runs anywhere")
    gpu = arguments.backend != "torch_ref" and torch.cuda.is_available()
    arguments.device = arguments.device or ("cuda" if gpu else "cpu")
    return arguments


def main(words: list[str] | None = None) -> int:
    arguments, console = parsed(words), Console()
    begin = time.perf_counter()
    try:
        losses = train(arguments, console)
    except kx.KernelmuxError as error:
        print(f"tiny_transformer: {error}", file=sys.stderr)
        return 2
    how = f"{arguments.backend}{', compiled' if arguments.compile else ''} on {arguments.device}"
    last = math.fsum(losses[-10:]) / len(losses[-10:])
    seconds = time.perf_counter() - begin
    told = f"loss {losses[0]:.3f} -> {last:.3f} (mean of the last ten) in {len(losses)} steps, {seconds:.1f} s"
    console.print(f"{how}: {told}", soft_wrap=True, highlight=False)
    if arguments.out:
        known = {name: value for name, value in vars(arguments).items() if name != "out"}
        arguments.out.write_text(json.dumps(known | {"torch": torch.__version__, "losses": losses}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
