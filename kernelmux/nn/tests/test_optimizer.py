"""AdamW: the steps of the kernel are those of torch, which takes all others."""

import copy
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.nn import optimizer

OPTIONS: Any = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, fused=True)


@pytest.fixture
def everywhere(monkeypatch):
    """The kernel for every tensor, emulated on the CPU; the numbers of elements that it took."""
    taken = []

    def fits(p, *others):
        taken.append(p.numel())
        return True

    monkeypatch.setattr(optimizer, "fits", fits)
    return taken


def trained(cls, dtype, steps=4, **options):
    """Parameters after steps, by gradients that are drawn, and the state."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in ((3, 16), (7,), (40, 32))]
    params = [torch.nn.Parameter(x.to(dtype)) for x in drawn]
    made = cls(params, **{**OPTIONS, **options})
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
        made.step()
    return params, made.state_dict()["state"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.0, "betas": (0.0, 0.999)}, {"lr": 0.0}])
def test_steps_are_those_of_torch(everywhere, dtype, options):
    ours, state = trained(kx.nn.AdamW, dtype, **options)
    theirs, expected = trained(torch.optim.AdamW, dtype, **options)
    unit = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= unit * b.abs().max()
    for i, found in state.items():
        assert found.keys() == expected[i].keys() and found["step"] == 4
        for name in ("exp_avg", "exp_avg_sq"):
            assert (found[name] - expected[i][name]).abs().max() <= unit * expected[i][name].abs().max()
    assert everywhere == [48, 7, 1280] * 4


@pytest.mark.parametrize(
    "options", [{"amsgrad": True}, {"maximize": True}, {"fused": False}, {"lr": torch.tensor(0.1)}]
)
def test_what_the_kernel_has_not_is_torchs(everywhere, options):
    ours, _ = trained(kx.nn.AdamW, torch.float32, **copy.deepcopy(options))
    theirs, _ = trained(torch.optim.AdamW, torch.float32, **copy.deepcopy(options))
    assert not everywhere and all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_a_scale_of_the_gradients_is_torchs(everywhere):
    p = torch.nn.Parameter(torch.ones(8))
    made = kx.nn.AdamW([p], **OPTIONS)
    made.grad_scale, made.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    p.grad = torch.ones(8)
    made.step()
    assert not everywhere and p.equal(torch.ones(8))  # an infinity was found: there is no step


def test_on_a_cpu_all_of_it_is_torchs():
    p = torch.nn.Parameter(torch.ones(1 << 17))
    p.grad = torch.ones_like(p)
    kx.nn.AdamW([p], **OPTIONS).step()
    assert not optimizer.fits(p, p.grad, p.data, p.data, torch.ones(()))


def test_a_state_goes_from_one_to_the_other():
    p = torch.nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    before = torch.optim.AdamW([p], **OPTIONS)
    before.step()
    after = kx.nn.AdamW([p], lr=1.0)
    after.load_state_dict(before.state_dict())
    after.step()
    assert after.state[p]["step"] == 2 and after.param_groups[0]["lr"] == OPTIONS["lr"]
