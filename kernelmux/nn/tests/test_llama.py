"""`patch` on models of transformers, built from a small configuration, without weights and without a network."""

import copy
import pickle
import warnings

import pytest
import torch

import kernelmux as kx
from kernelmux.nn import llama
from kernelmux.nn.decoder import Decoder
from kernelmux.nn.tests.counting import counted
from kernelmux.nn.tests.small_llamas import IDS, made, near
from kernelmux.registry.choice import warn_once

transformers = pytest.importorskip("transformers", reason="bazel/requirements.lock has it")


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(warn_once, "_told", set())


@pytest.fixture
def model():
    return made()


@pytest.fixture
def half():
    return made(dtype=torch.bfloat16)


def results(model):
    model.zero_grad()
    out = model(IDS, labels=IDS)
    out.loss.backward()
    return out.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def test_every_layer_of_a_llama_is_found_by_its_structure(model):
    patch = kx.patch(model)
    swapped = [entry.op for entry in patch.swapped]
    assert {op: swapped.count(op) for op in set(swapped)} == {
        "linear": 15,
        "rms_norm": 5,
        "swiglu": 2,
        "rope": 2,
        "attention": 2,
    }
    assert not patch.left
    assert sorted(set(patch.others)) == ["Embedding", "LlamaRotaryEmbedding", "SiLUActivation"]


def test_logits_and_gradients_agree_and_undo_gives_the_bits_back(model, monkeypatch):
    logits, gradients = results(model)
    keys, called = (
        list(model.state_dict()),
        counted(monkeypatch, "rms_norm", "add_rms_norm", "swiglu", "rope", "linear", "attention"),
    )
    with kx.patch(model):
        assert list(model.state_dict()) == keys
        ours, our_gradients = results(model)
        assert called == {"rms_norm": 3, "add_rms_norm": 2, "swiglu": 2, "rope": 4, "linear": 15, "attention": 2}
    near(ours, logits)
    for name, gradient in gradients.items():
        near(our_gradients[name], gradient)
    again, last = results(model)
    assert torch.equal(again, logits) and all(torch.equal(last[name], gradients[name]) for name in gradients)
    assert list(model.state_dict()) == keys and called["linear"] == 15


def test_a_patched_llama_runs_on_kernels_that_are_asked_for(model):
    ops = ["rms_norm", "swiglu", "rope", "attention"]
    with torch.no_grad():
        logits = model(IDS[:1, :4]).logits
        with kx.patch(model, ops), kx.use("cuda"), warnings.catch_warnings():
            warnings.simplefilter("ignore", kx.EmulationWarning)
            near(model(IDS[:1, :4]).logits, logits)


def test_a_patched_llama_trains(model):
    model.train()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    with kx.patch(model):
        for _ in range(8):
            loss = model(IDS, labels=IDS).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], losses  # from log(61) = 4.1


def test_in_bf16_attention_is_ours_too(half, monkeypatch):
    with torch.no_grad():
        logits = half(IDS).logits
        called = counted(monkeypatch, "attention", "rope")
        with kx.patch(half, ["rope", "attention"]) as patch:
            assert not patch.left
            ours = half(IDS).logits
    assert called == {"attention": 2, "rope": 4}
    near(ours.float(), logits.float(), bound=16 * 2**-9)  # some 16 roundings to bf16 on the way, elsewhere than theirs


def test_generation_with_a_cache_gives_the_same_tokens(half):
    plain = half.generate(IDS[:1], max_new_tokens=6, do_sample=False)
    with kx.patch(half, ["rope", "attention", "swiglu"]):
        assert torch.equal(half.generate(IDS[:1], max_new_tokens=6, do_sample=False), plain)


@pytest.mark.parametrize(("queries", "keys"), [(12, 12), (12, 20), (1, 12)])
def test_a_cache_with_room_for_more_hides_what_is_not_there_yet(half, queries, keys):
    sdpa = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
    rng = torch.Generator().manual_seed(7)
    q = torch.randn(1, 4, queries, 8, generator=rng).bfloat16()
    k, v = torch.randn(2, 1, 2, keys, 8, generator=rng).bfloat16()
    module = half.model.layers[0].self_attn
    ours, _ = llama.attend(sdpa, module, q, k, v, None, scaling=0.3)
    near(
        ours.float(), sdpa(module, q, k, v, None, scaling=0.3)[0].float(), bound=3 * 2**-9
    )  # both results, their weights


def test_a_padded_batch_goes_on_to_transformers_with_a_warning(half):
    padded = torch.ones_like(IDS).index_fill(1, torch.arange(3), 0)
    with torch.no_grad():
        logits = half(IDS, attention_mask=padded).logits
        with kx.patch(half, "attention"), pytest.warns(UserWarning, match="runs as before, because it has a mask"):
            assert torch.equal(half(IDS, attention_mask=padded).logits, logits)


def test_dropout_goes_on_to_transformers_with_a_warning():
    model = made(dtype=torch.bfloat16, attention_dropout=0.5).train()
    with kx.patch(model, "attention"), pytest.warns(UserWarning, match="it has dropout 0.5"):
        model(IDS)


def test_another_model_of_the_class_is_not_touched(half, monkeypatch):
    other = made(dtype=torch.bfloat16)
    called = counted(monkeypatch, "rope", "attention", "rms_norm")
    with kx.patch(half):
        other(IDS)
    assert set(called.values()) == {0} and half.config._attn_implementation == "sdpa"


def test_a_patched_llama_is_copied_and_pickled(half):
    with kx.patch(half):
        logits = half(IDS).logits
        for twin in (copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
            assert torch.equal(twin(IDS).logits, logits)


def test_checkpointed_layers_have_the_same_gradients(model):
    _, gradients = results(model)
    model.train().activation_checkpointing_enable()
    with kx.patch(model):
        _, ours = results(model)
    for name, gradient in gradients.items():
        near(ours[name], gradient)


@pytest.mark.parametrize("kind", ["Mistral", "Qwen2", "Qwen3", "Granite"])
def test_its_like_are_found_too(kind):
    model = made(kind)
    logits = model(IDS).logits
    with kx.patch(model) as patch:
        assert {entry.op for entry in patch.swapped} == {"linear", "rms_norm", "swiglu", "rope", "attention"}
        near(model(IDS).logits, logits)


def test_what_computes_something_else_is_left_alone():
    model = made(hidden_act="relu")
    logits = model(IDS).logits
    for layer in model.model.layers:
        layer.post_attention_layernorm.__class__ = Doubled
    with kx.patch(model) as patch:
        assert {(e.op, e.cls, e.reason) for e in patch.left} == {
            ("rms_norm", "DoubledRMSNorm", "its forward is none of those that are known to be rms_norm"),
            ("swiglu", "LlamaMLP", "its activation is ReLU, expected SiLU or GELU"),
        }
        assert (model(IDS).logits - logits).abs().max() > 0.01


class Doubled(torch.nn.Module):
    """A norm by its name and its attributes, and another by its code."""

    def forward(self, hidden_states):
        return 2 * hidden_states * self.weight


Doubled.__name__ = "DoubledRMSNorm"


def test_attention_that_makes_its_masks_is_left_alone():
    patch = kx.patch(made(dtype=torch.bfloat16, attn_implementation="eager"), "attention", missing_ok=True)
    assert not patch.swapped
    assert {e.reason for e in patch.left} == {
        'its attention implementation is "eager", expected "sdpa", which leaves a causal mask out'
    }


def test_a_rotary_function_that_is_none_we_know_is_left_alone():
    patch = kx.patch(made("Glm"), "rope", missing_ok=True)
    assert {e.reason for e in patch.left} == {"its apply_rotary_pos_emb is none of those that are known to be rope"}


def test_patched_layers_are_compiled_whole(half):
    """What `patch` puts around the operators does not break a graph."""
    kx.patch(half)
    with torch.no_grad():
        logits = half(IDS).logits
        for layer in half.model.layers:
            layer.compile(backend="eager", fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's compiler, about code of transformers
            warnings.filterwarnings("error", message="kernelmux")
            assert torch.equal(half(IDS).logits, logits)


@pytest.mark.parametrize(
    "kind", ["Llama", "Mistral", "Gemma", "Qwen3"]
)  # Qwen3 looks masks up by the kinds of its layers
def test_a_compiled_model_makes_no_mask_so_that_attention_stays_ours(kind, monkeypatch):
    model = made(kind, dtype=torch.bfloat16, **({"sliding_window": None} if kind == "Mistral" else {}))
    kx.patch(model)
    want = model(IDS).logits
    called = counted(monkeypatch, "attention")
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a call that is left to transformers says so
        got = torch.compile(model, backend="aot_eager", fullgraph=True)(IDS).logits
    assert torch.equal(got, want)
    assert called["attention"] == 2


def test_a_decoder_with_windows_in_some_layers_goes_on_making_its_masks():
    kinds = ["full_attention", "sliding_attention"]
    model = made("Qwen3", layer_types=kinds, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with kx.patch(model) as patch:
        assert "attention" in {entry.op for entry in patch.swapped} and not isinstance(model.model, Decoder)


def test_a_compiled_model_keeps_the_masks_that_hide_something(half):
    padding = torch.ones_like(IDS)
    padding[0, :4] = 0
    positions = torch.arange(12).remainder(6).expand(3, -1)  # two sequences in each row
    kx.patch(half)
    compiled = torch.compile(half, backend="aot_eager")
    for given in ({"attention_mask": padding}, {"position_ids": positions, "use_cache": False}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            near(compiled(IDS, **given).logits[1:], half(IDS, **given).logits[1:], bound=2.0**-6)


def test_decorators_that_are_known_stay_around_the_forward(half):
    deprecation = pytest.importorskip("transformers.utils.deprecation", reason="transformers has it by that name")
    cls = type("LlamaAttention", (type(half.model.layers[0].self_attn),), {})
    cls.__module__ = type(half.model.layers[0].self_attn).__module__
    cls.forward = deprecation.deprecate_kwarg("old_states", "99.0", new_name="hidden_states")(cls.forward)
    for layer in half.model.layers:
        layer.self_attn.__class__ = cls
    want = half(IDS).logits
    patch = kx.patch(half)
    assert {"rope", "attention"} <= {entry.op for entry in patch.swapped}
    near(half(IDS).logits, want, bound=2.0**-6)
    cos_sin = half.model.rotary_emb(torch.zeros(1, 3, 32, dtype=torch.bfloat16), torch.arange(3)[None])
    given = {"position_embeddings": cos_sin, "attention_mask": None}
    with pytest.warns(FutureWarning, match="old_states"):
        half.model.layers[0].self_attn(old_states=torch.zeros(1, 3, 32, dtype=torch.bfloat16), **given)
