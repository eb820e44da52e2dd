"""Which calls a program makes, seen without a GPU and without memory: those that it makes where it runs."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch

import kernelmux as kx
from kernelmux.emulator import nvrtc
from kernelmux.registry.observe import recorded_calls
from kernelmux.registry.observe.recorded_calls import RecordedCall, TensorForm
from kernelmux.registry.util import cards
from kernelmux.warm import script

needs_compilers = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
H100 = cards.named("h100")

STEP = """
import sys
import torch
import kernelmux as kx
from torch import nn

class Layer(nn.Module):
    def __init__(self, wide, far):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(wide), nn.Linear(wide, far), nn.GELU(), nn.Linear(far, wide)
    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))

model = nn.Sequential(nn.Embedding(29, 16), Layer(16, 32), nn.Linear(16, 29, bias=False)).to(torch.bfloat16)
kx.patch(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with kx.use("cuda"), kx.record() as log:
    tokens = torch.randint(29, (2, 9))
    logits = model(tokens[:, :-1])
    loss = kx.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).mean()
    loss = loss + kx.softmax(logits[:, 1:], 2).sum()
    loss.backward()
    optimizer.step()
if len(sys.argv) > 1:
    log.save(sys.argv[1])
"""

USUAL = """
import sys
import torch
import kernelmux as kx
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.get_device_properties(0).multi_processor_count == 132
model = torch.compile(torch.nn.Linear(24, 40).cuda())
kx.patch(model)
scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.AdamW(model.parameters())
data = DataLoader(TensorDataset(torch.randn(64, 24)), batch_size=8, num_workers=2, pin_memory=True)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for (x,) in data:
    begin.record()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(x.to(device, non_blocking=True))
        assert y.is_cuda and not y.is_cpu and y.get_device() == 0
    scaler.scale(y.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    end.record()
    torch.cuda.synchronize()
    print(y.sum().item(), bool((y > 0).any()), begin.elapsed_time(end), sys.argv[1:])
    torch.save(model.state_dict(), "weights.pt")
sys.exit(3)
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def plain(call: RecordedCall) -> tuple[object, ...]:
    """A call without the backend asked for, and with axes from the end, as callers name them."""
    rank = max(len(v.shape) for _, v in call.arguments if isinstance(v, TensorForm))
    return call.op, tuple((n, v - rank if n == "axis" and v >= 0 else v) for n, v in call.arguments)


@needs_compilers
def test_the_calls_of_a_training_step_are_those_that_kernels_run(tmp_path: Path) -> None:
    path, saved = program(tmp_path, STEP), tmp_path / "calls.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kx.EmulationWarning)
        arguments, sys.argv = sys.argv, [str(path), str(saved)]
        try:
            exec(compile(STEP, path, "exec"), {"__name__": "__main__"})
        finally:
            sys.argv = arguments
    ran = recorded_calls.read(saved, "a test")
    found = script.run(path, (), H100, 1)
    seen = found.calls
    assert found.raised is None and {call.backend for call in seen} == {"cuda"}
    assert {call.backend.split("/")[0] for call in ran} == {"cuda"}
    assert {plain(call) for call in seen} == {plain(call) for call in ran}
    assert {"linear", "matmul", "gelu_backward", "layer_norm_backward", "softmax_backward"} <= {c.op for c in seen}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, where it compiles nothing
def test_a_program_as_users_have_it_runs_for_the_steps_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = vars(torch.cuda).copy(), sys.argv, list(sys.path), torch.save, torch.autocast.__init__
    found = script.run(program(tmp_path, USUAL), ("--lr", "2"), H100, 2)
    seen = found.calls
    assert found.raised is None and not found.late
    assert capsys.readouterr().out == "1.0 False 1.0 ['--lr', '2']\n"  # the second step ends it
    assert not (tmp_path / "weights.pt").exists()
    linear = next(call for call in seen if call.op == "linear")
    assert seen[linear] == 2 and linear.backend == "auto"
    assert dict(linear.arguments)["x"] == TensorForm((8, 24), (24, 1), "bf16")
    assert "matmul" in {call.op for call in seen}
    assert before == (vars(torch.cuda), sys.argv, sys.path, torch.save, torch.autocast.__init__)
    found = script.run(program(tmp_path, USUAL), (), H100)
    assert found.calls[linear] == 8 and isinstance(found.raised, SystemExit) and found.raised.code == 3


ODD = """
import torch, kernelmux as kx
from torch import nn

torch.set_default_device("cuda")
assert nn.Linear(3, 4).weight.is_cuda and torch.device(0).type == "cuda"
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()), torch.autocast("cuda", dtype=torch.bfloat16):
    y = nn.functional.linear(torch.randn(4, 6).to(0), torch.randn(8, 6, device=0))
    assert y.dtype is torch.bfloat16
    assert kx.softmax(y, -1).dtype is torch.softmax(y, -1).dtype is y.exp().dtype is torch.float32
    assert y.double().exp().dtype is torch.float64
assert nn.Linear(3, 4).to(0).weight.shape == (4, 3)
assert torch.tensor([3, 5]).max().item() == 5 and torch.randn(9).split(torch.tensor([2, 7]).tolist())[1].shape == (7,)
made = torch.Generator(device="cuda").manual_seed(1)
assert isinstance(made, torch.Generator) and torch.randn(3, generator=made).shape == (3,)
done, length = torch.zeros(2, dtype=torch.bool), 0
while not done.all():  # as generate() waits for its longest
    length += 1
    done = done | torch.full((2,), length >= 5)
going = torch.ones(2, dtype=torch.int64)
while not going.max() == 0:
    going = going & ~(torch.isin(torch.randint(9, (2,)), torch.tensor([3])) | torch.full((2,), True))
kx.softmax(torch.randn(length, 7), -1)
assert f"{torch.randn(3).mean():.3f} {torch.randn(2).numpy().sum()}" == "1.000 2.0" and torch.equal(y, y)
assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0 and torch.random.fork_rng
critic, maker = (torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.1)) for _ in range(2))
for step in range(100):
    critic.step()
    kx.gelu(torch.randn(step + 1))
    if step % 3 == 2:
        maker.step()
raise AssertionError("not ended")
"""


def test_a_program_finds_what_it_would_find_on_a_gpu(tmp_path: Path) -> None:
    found = script.run(program(tmp_path, ODD), (), H100, 2)
    assert found.raised is None and not found.late
    told = [str(call) for call in found.calls]
    assert (
        told[:2] == ["softmax 4x8:fp32", "softmax 5x7:fp32"] and told[-1] == "gelu 6:fp32"
    )  # both have made two steps
    assert torch.ones(1).device.type == "cpu" and torch.Generator is torch._C.Generator


def test_what_a_program_raises_is_given_with_the_calls_until_then(tmp_path: Path) -> None:
    text = "import torch, kernelmux as kx\nx = torch.randn(5, 3)\nkx.softmax(x.t(), 0)\nx[x > 0]\nkx.gelu(x)\n"
    found = script.run(program(tmp_path, text), (), H100)
    assert found.raised is not None and "nonzero" in str(found.raised)
    (call,) = found.calls
    assert call == RecordedCall(
        "softmax", "auto", (("x", TensorForm((3, 5), (1, 3), "fp32")), ("axis", 0), ("scale", 1.0))
    )


def test_a_program_without_an_end_is_ended(tmp_path: Path) -> None:
    text = """
import torch, kernelmux as kx
tokens = torch.randint(3, (1,))
replayed = kx.graphed(lambda x: kx.softmax(x, -1), torch.zeros(1, 8))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    replayed(torch.zeros(3, 5))
linear = kx.bind("linear", (torch.zeros(4, 6), torch.zeros(8, 6), None), activation="gelu")
linear(torch.zeros(4, 6), torch.zeros(8, 6))
with torch.inference_mode():
    assert (tokens > 0).all() and not (tokens > 0).any() and not tokens.isnan().any()
    while not (tokens == 2).any():
        tokens = torch.cat([tokens, tokens[-1:]])
"""
    found = script.run(program(tmp_path, text), (), H100, seconds=2.0)
    assert (
        found.late
        and found.raised is None
        and [str(call) for call in found.calls]
        == [
            "softmax 3x5:fp32",
            "linear 4x6:fp32 8x6:fp32",
        ]
    )
