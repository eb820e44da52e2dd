"""Layers of a patched decoder: what they do together, and when each of their parts is called by itself."""

import copy

import pytest
import torch

import kernelmux as kx
from kernelmux.nn import decoder_layer, heads
from kernelmux.nn.tests.counting import counted
from kernelmux.nn.tests.small_llamas import BOUND, IDS, made, near

transformers = pytest.importorskip("transformers", reason="bazel/requirements.lock has it")
WITHOUT = {f"model.layers.{i}.self_attn.k_proj.bias" for i in range(2)}  # its gradient is zero but for rounding
MANY = IDS.repeat(2, 1)  # 72 tokens; queries, keys and values have 64 columns


def after(model, ids):
    """The logits of a batch, and all gradients."""
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    return out.logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def pair():
    """A plain model, and a patched copy."""
    plain = made()
    ours = copy.deepcopy(plain)
    kx.patch(ours)
    return plain, ours


def agree(plain, ours, ids=MANY):
    for theirs, found in zip(after(plain, ids), after(ours, ids), strict=True):
        if isinstance(theirs, dict):
            assert theirs.keys() == found.keys()
            for name in theirs.keys() - WITHOUT:
                near(found[name], theirs[name])
        else:
            near(found, theirs)


def test_with_many_rows_queries_keys_and_values_are_one_product(pair, monkeypatch):
    called = counted(monkeypatch, "linear")
    agree(*pair)
    assert called["linear"] == 2 * 5 + 1
    after(pair[1], IDS)  # 36 tokens
    assert called["linear"] == 11 + 15
    with torch.no_grad():
        pair[1](MANY)
    assert called["linear"] == 11 + 15 + 15


def test_a_gradient_is_one_of_its_own(pair):
    attention = pair[1].model.layers[0].self_attn
    after(pair[1], MANY)
    attention.q_proj.weight.grad.zero_()
    assert attention.k_proj.weight.grad.count_nonzero() and attention.k_proj.weight.grad.is_contiguous()


@pytest.mark.parametrize("name", heads.NAMES)
def test_a_layer_with_a_hook_is_called(pair, name):
    plain, ours = pair
    seen = []
    getattr(ours.model.layers[1].self_attn, name).register_forward_hook(lambda *_: seen.append(name))
    agree(plain, ours)
    assert seen == [name]


@pytest.mark.parametrize("name", decoder_layer.NORMS)
def test_a_norm_with_a_hook_is_called_and_its_output_may_change(pair, name):
    plain, ours = pair
    for model in pair:
        getattr(model.model.layers[0], name).register_forward_hook(lambda module, inputs, y: 2 * y)
        getattr(model.model.layers[1], name).register_full_backward_hook(lambda module, grads, _: (3 * grads[0],))
    agree(plain, ours)


@pytest.mark.parametrize("name", ["self_attn.k_proj", "input_layernorm", "post_attention_layernorm"])
def test_a_forward_that_a_library_puts_on_an_instance_is_called(pair, name):
    for model in pair:
        module = model.model.layers[0].get_submodule(name)
        module.forward = lambda x, forward=module.forward: 2 * forward(x)
    agree(*pair)


def test_a_hook_for_all_modules_is_called_for_each(pair):
    ours, seen = pair[1], []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        after(ours, MANY)
    finally:
        handle.remove()
    assert seen.count("Linear") == 15 and seen.count("LlamaRMSNorm") == 5


def test_a_layer_in_the_place_of_one_is_called(pair):
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    for model in pair:
        attention = model.model.layers[0].self_attn
        other = Doubled(32, 16, bias=False)
        other.load_state_dict(attention.k_proj.state_dict())
        attention.k_proj = other
    agree(*pair)


@pytest.mark.parametrize(
    "frozen", ["q_proj", "input_layernorm", "layers.0.", "embed_tokens", "post_attention_layernorm"]
)
def test_frozen_parameters_get_no_gradient(pair, frozen):
    for model in pair:
        for name, p in model.named_parameters():
            p.requires_grad_(frozen not in name)
    agree(*pair)


def test_biases_are_added(monkeypatch):
    plain = made(attention_bias=True)
    for name, p in plain.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(p, std=0.1)
    ours = copy.deepcopy(plain)
    kx.patch(ours)
    called = counted(monkeypatch, "linear")
    agree(plain, ours)
    assert called["linear"] == 15


def test_a_second_derivative_passes(pair):
    found = []
    pair[0].config._attn_implementation = "eager"  # the one of torch has no second derivative
    for model in pair:
        loss = model(MANY, labels=MANY).loss
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(g.square().sum() for g in first).backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, theirs in found[0].items():
        near(found[1][name], theirs, 16 * BOUND)


def test_torch_func_sees_a_patched_model(pair):
    found = []
    for model in pair:
        state = {name: p.detach() for name, p in model.named_parameters()}

        def loss(values, model=model):
            return torch.func.functional_call(model, values, (MANY,), {"labels": MANY}).loss

        found.append(torch.func.grad(loss)(state))
    for name, theirs in found[0].items():
        near(found[1][name], theirs)


def test_a_layer_is_made_again_where_it_was_not_kept(pair):
    plain, ours = pair
    enable = getattr(ours, "activation_checkpointing_enable", None) or ours.gradient_checkpointing_enable
    ours.train()
    enable()
    agree(plain.train(), ours)


def test_under_autocast_the_sum_stays_in_fp32(pair):
    found = []
    for model in pair:
        with torch.autocast("cpu", torch.bfloat16):
            found.append(after(model, MANY))
    near(found[1][0], found[0][0], 0.05)
    for name, theirs in found[0][1].items():
        near(found[1][1][name], theirs, 0.1)


@pytest.mark.parametrize("of", [(2, 0), (0, 3), (2, 3)])
def test_one_gradient_of_the_two_is_enough(pair, of):
    norm, x = pair[1].model.layers[0].input_layernorm, torch.randn(2, 3, 32, requires_grad=True)
    found: list[torch.Tensor] = []
    for outputs in (decoder_layer.beside(x, norm), (kx.rms_norm(x, norm.weight, norm.variance_epsilon), x)):
        wanted = [torch.full_like(x, factor) if factor else None for factor in of]
        kept = [(y, g) for y, g in zip(outputs, wanted, strict=True) if g is not None]
        found += torch.autograd.grad([y for y, _ in kept], [x], [g for _, g in kept])
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore::kernelmux.EmulationWarning")
def test_the_backward_runs_on_the_backend_of_the_forward(pair):
    plain, ours = pair
    with kx.use("cuda"):
        loss = ours(MANY, labels=MANY).loss
    loss.backward()
    theirs = after(plain, MANY)[1]
    for name, p in ours.named_parameters():
        near(p.grad, theirs[name])
