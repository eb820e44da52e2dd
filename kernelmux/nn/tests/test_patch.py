"""`patch`: what is swapped, what is shared and kept, what is left alone and why, and the way back."""

import copy
import pickle
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux import nn
from kernelmux.nn.tests.counting import counted


class Scaled(torch.nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


class Named(torch.nn.Linear):
    """A layer that is torch's but for its name and an attribute."""

    note = "mine"


class Model(torch.nn.Module):
    """A layer of every kind, one of them under two names."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 8)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.again = self.layers[0]
        self.norm = torch.nn.LayerNorm(8)
        self.rms = torch.nn.RMSNorm(8, eps=1e-6)
        self.named = Named(8, 8)
        self.scaled = Scaled(8, 8)
        self.act = torch.nn.GELU()
        self.wide = torch.nn.Linear(8, 8, dtype=torch.float64)
        self.plain = torch.nn.RMSNorm(8, elementwise_affine=False)
        self.attention = torch.nn.MultiheadAttention(8, 2)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in (*self.layers, self.again):
            x = self.norm(x + self.act(layer(x)))
        return self.scaled(self.named(self.rms(x)))


WRONG: Any = 3
IDS = torch.tensor([[0, 3, 6], [1, 2, 5]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def reasons(patch):
    return {(entry.path, entry.op): entry.reason for entry in patch.left}


def test_modules_are_swapped_in_place_and_keep_their_parameters(model):
    before = model(IDS)
    modules, parameters, keys = list(model.modules()), list(model.parameters()), list(model.state_dict())
    patch = kx.patch(model)
    assert {entry.path for entry in patch.swapped} == {"layers.0", "layers.1", "norm", "rms", "named", "act"}
    assert isinstance(model.layers[0], nn.Linear)
    assert isinstance(model.norm, nn.LayerNorm) and isinstance(model.act, nn.GELU)
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert keys == list(model.state_dict())
    torch.testing.assert_close(model(IDS), before, rtol=1e-5, atol=1e-5)  # five layers of 8 columns in fp32, 2^-24 each


def test_the_operators_run(model, monkeypatch):
    called = counted(monkeypatch, "linear", "layer_norm", "rms_norm", "gelu")
    with kx.patch(model):
        model(IDS)
    assert called == {"linear": 4, "layer_norm": 3, "rms_norm": 1, "gelu": 3}


def test_what_is_left_alone_has_a_reason(model):
    patch = kx.patch(model)
    assert reasons(patch) == {
        ("scaled", "linear"): "Scaled has a forward of its own",
        ("wide", "linear"): "weight: expected dtype one of fp32, fp16, bf16, got fp64",
        ("plain", "rms_norm"): "elementwise_affine: expected True (the operator multiplies by a weight), got False",
        ("attention.out_proj", "linear"): "torch.nn.MultiheadAttention reads its weights and never calls it",
    }
    assert patch.others == ["Embedding"]
    assert type(model.scaled) is Scaled and type(model.wide) is torch.nn.Linear


def test_a_forward_on_the_instance_is_left_alone(model):
    model.rms.forward = lambda x: x
    patch = kx.patch(model)
    assert reasons(patch)["rms", "rms_norm"] == "its forward is replaced on the instance, by a library or by hand"
    assert torch.equal(model.rms(IDS), IDS)


def test_a_subclass_without_a_forward_stays_one(model):
    kx.patch(model)
    assert isinstance(model.named, Named) and isinstance(model.named, nn.Linear)
    assert type(model.named).__name__ == "Named" and model.named.note == "mine"
    for made in (copy.deepcopy(model.named), pickle.loads(pickle.dumps(model.named))):
        assert type(made) is type(model.named) and torch.equal(made(torch.ones(8)), model.named(torch.ones(8)))


def test_hooks_flags_and_attributes_are_kept(model):
    seen = []
    model.rms.register_forward_hook(lambda module, args, out: seen.append("after"))
    model.rms.register_forward_pre_hook(lambda module, args: seen.append("before"))
    model.norm.weight.requires_grad_(False)
    model.norm.eval()
    model.norm.remark = 3
    with kx.patch(model):
        model(IDS)
        assert seen == ["before", "after"]
        assert not model.norm.training and model.rms.training and model.norm.remark == 3
        assert not model.norm.weight.requires_grad


def test_undo_gives_back_classes_and_bits(model):
    before, classes = model(IDS), [type(m) for m in model.modules()]
    patch = kx.patch(model)
    patch.undo()
    patch.undo()
    assert [type(m) for m in model.modules()] == classes
    assert torch.equal(model(IDS), before)


def test_the_end_of_a_with_takes_it_back_after_an_error_too(model):
    with pytest.raises(ZeroDivisionError), kx.patch(model):
        assert isinstance(model.act, nn.GELU)
        1 / 0  # noqa: B018
    assert type(model.act) is torch.nn.GELU


def test_undo_refuses_where_a_class_was_changed_since(model):
    patch = kx.patch(model)
    torch.nn.utils.parametrize.register_parametrization(model.layers[1], "weight", torch.nn.Identity())
    with pytest.raises(kx.KernelmuxError, match=r"layers\.1 is a ParametrizedLinear that was made since"):
        patch.undo()
    assert isinstance(model.layers[0], nn.Linear)
    torch.nn.utils.parametrize.remove_parametrizations(model.layers[1], "weight")
    patch.undo()
    assert type(model.layers[0]) is torch.nn.Linear


def test_a_parametrized_layer_keeps_its_parametrization(model):
    torch.nn.utils.parametrizations.weight_norm(model.layers[1])
    before = model(IDS)
    with kx.patch(model, "linear") as patch:
        assert "layers.1" in {entry.path for entry in patch.swapped}
        torch.testing.assert_close(model(IDS), before, rtol=1e-5, atol=1e-5)


def test_ops_limit_it(model):
    patch = kx.patch(model, ops=["rms_norm", "gelu"])
    assert {entry.path for entry in patch.swapped} == {"rms", "act"}
    assert {entry.path for entry in patch.left} == {"plain"} and patch.others == ["Embedding"]
    assert type(model.norm) is torch.nn.LayerNorm


def test_a_second_patch_adds_what_the_first_left_out(model):
    first = kx.patch(model, "rms_norm")
    second = kx.patch(model)
    assert reasons(second)["rms", "rms_norm"] == "it is one of kernelmux's already"
    assert isinstance(model.norm, nn.LayerNorm)
    second.undo()
    assert type(model.norm) is torch.nn.LayerNorm and isinstance(model.rms, nn.RMSNorm)
    first.undo()
    assert type(model.rms) is torch.nn.RMSNorm


def test_wrong_arguments_are_named(model):
    with pytest.raises(kx.UnknownName, match=r'unknown operator "rms_nrm" in patch\(\); .*did you mean "rms_norm"\?'):
        kx.patch(model, ops=["rms_nrm"])
    with pytest.raises(kx.UnknownName, match='unknown operator "transpose"'):
        kx.patch(model, ops="transpose")
    with pytest.raises(kx.ArgumentError, match=r"patch\(\): ops: expected an operator or several, got 3"):
        kx.patch(model, ops=WRONG)
    with pytest.raises(kx.ArgumentError, match=r"patch\(\): model: expected a torch.nn.Module, got 3"):
        kx.patch(WRONG)
    assert type(model.rms) is torch.nn.RMSNorm


def test_an_optimizer_made_before_goes_on_working(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kx.patch(model)
    before = model.layers[0].weight.detach().clone()
    model(IDS).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model.layers[0].weight, before)


def test_a_single_module_is_a_model_too():
    module = torch.nn.Linear(4, 4)
    assert str(kx.patch(module)) == "Linear: 1 module swapped\n  linear        1 Linear  (the model)"
    assert isinstance(module, nn.Linear)


def test_the_text_lists_everything_by_kind(model):
    assert str(kx.patch(model)).splitlines() == [
        "Model: 6 modules swapped",
        "  linear        2 Linear     layers.*",
        "  layer_norm    1 LayerNorm  norm",
        "  rms_norm      1 RMSNorm    rms",
        "  linear        1 Named      named",
        "  gelu          1 GELU       act",
        "left as they are:",
        "  linear        1 Scaled                           scaled: Scaled has a forward of its own",
        "  linear        1 Linear                           wide:"
        " weight: expected dtype one of fp32, fp16, bf16, got fp64",
        "  rms_norm      1 RMSNorm                          plain:"
        " elementwise_affine: expected True (the operator multiplies by a weight), got False",
        "  linear        1 NonDynamicallyQuantizableLinear  attention.out_proj:"
        " torch.nn.MultiheadAttention reads its weights and never calls it",
        "without a counterpart: Embedding",
    ]


def test_an_operator_that_is_named_and_swaps_nothing_is_an_error():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, elementwise_affine=False))
    with pytest.raises(kx.ArgumentError, match=r"got layer_norm, softmax: Sequential: (.|\n)*expected True"):
        kx.patch(model, ops=["linear", "layer_norm", "softmax"])
    assert type(model[0]) is torch.nn.Linear
    with kx.patch(model, ops=["linear", "softmax"], missing_ok=True) as patch:
        assert [entry.op for entry in patch.swapped] == ["linear"]
    with pytest.raises(kx.ArgumentError, match="got softmax: no module of the model has a counterpart"):
        kx.patch(model, ops="softmax")
