"""A training step of a Llama of 660 M parameters in bf16: eager, torch.compile, kernelmux.patch, both, and Liger.

Run it from a checkout with kernelmux installed, as `python examples/train_llama.py [--out FILE]`, on a
GPU with 16 GiB free. Each way runs in a process of its own, with the same weights and tokens. Liger is left out where it
is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

WAYS = ("eager", "compile", "patch", "patch+compile", "liger")
VOCABULARY, BATCH, LENGTH = 32000, 4, 2048
WARM, STEPS = 10, 20


def model(way: str) -> Any:
    """The model, prepared for a way to run it, on the GPU."""
    if way == "liger":
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=12,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        use_cache=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def loss_of(way: str, llama: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of a batch of tokens that a step differentiates."""
    if "patch" not in way:
        plain: Callable[[torch.Tensor], torch.Tensor] = lambda t: llama(input_ids=t, labels=t).loss  # noqa: E731
        return torch.compile(plain) if way == "compile" else plain
    import kernelmux as kx

    kx.patch(llama)
    criterion = kx.nn.CrossEntropyLoss()

    def patched(tokens: torch.Tensor) -> torch.Tensor:
        # Each token's target is the next one, the last one's none: the logits stay whole, where a view without the last
        # rows of each sequence would be copied, and its gradient filled up.
        targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=criterion.ignore_index)
        loss: torch.Tensor = criterion(llama(input_ids=tokens).logits.flatten(0, 1), targets.flatten())
        return loss

    return torch.compile(patched) if way == "patch+compile" else patched


def measured(way: str) -> dict[str, Any]:
    """Milliseconds of each step, GiB at most, and the loss of the first batch seen again at the end."""
    llama = model(way)
    loss, optimizer = loss_of(way, llama), torch.optim.AdamW(llama.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator("cuda").manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda", generator=generator)
    milliseconds = []
    for step in range(WARM + STEPS):
        if step == WARM:
            torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        value = loss(tokens)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        milliseconds.append(round(begin.elapsed_time(end), 3))
        if step == WARM - 1:
            after_warming = value.item()
    return {
        "way": way,
        "ms": milliseconds[WARM:],
        "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "loss": round(after_warming, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for all of it")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measured(options.way)))
        return
    if not torch.cuda.is_available():
        sys.exit("train_llama: expected a GPU, got none")
    found = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'way':15} {'ms a step':>9} {'GiB':>6}  loss after {WARM} steps")
    for way in WAYS:
        if way == "liger" and not importlib.util.find_spec("liger_kernel"):
            print(f"{way:15} left out: liger-kernel is not installed")
            continue
        command = [sys.executable, __file__, "--way", way]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        found.append(json.loads(lines[-1]))
        one = found[-1]
        print(f"{way:15} {statistics.median(one['ms']):9.1f} {one['GiB']:6.1f}  {one['loss']}", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "ways": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
