"""`patch` on GPT-2, BERT and Gemma, built from small configurations, without weights and without a network."""

import copy
import functools
import pickle
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.nn import gpt
from kernelmux.nn.tests.counting import counted

transformers = pytest.importorskip("transformers", reason="bazel/requirements.lock has it")
activations = pytest.importorskip("transformers.activations", reason="as above")
modeling_llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="as above")
Conv1D: Any = pytest.importorskip("transformers.pytorch_utils", reason="as above").Conv1D

SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
HEADS = dict(num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
GPT2 = dict(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
IDS = torch.randint(3, 61, (3, 12), generator=torch.Generator().manual_seed(5))
# As in test_llama: some eight sums of at most 128 products in each of two layers; in bf16 some 16 roundings elsewhere.
BOUNDS = {torch.float32: 2 * 8 * 128**0.5 * 2.0**-24, torch.bfloat16: 16 * 2.0**-9}
MODELS = {
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", SIZES | HEADS),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "BERT": ("BertForMaskedLM", "BertConfig", SIZES),
}
SWAPPED = {
    "Gemma": {"linear": 15, "rms_norm": 5, "geglu": 2, "gelu": 2, "rope": 2, "attention": 2},
    "GPT-2": {"linear": 9, "layer_norm": 5, "gelu": 2},
    "BERT": {"linear": 14, "layer_norm": 6, "gelu": 3},
}
CALLED = {  # in one forward; the activation of a gated layer is part of geglu
    "Gemma": {"linear": 15, "rms_norm": 5, "geglu": 2, "gelu": 0, "rope": 4, "attention": 2},
    "GPT-2": SWAPPED["GPT-2"],
    "BERT": SWAPPED["BERT"],
}


def made(name, dtype=torch.float32, **options):
    torch.manual_seed(0)
    model, config, sizes = MODELS[name]
    found = getattr(transformers, model)(getattr(transformers, config)(**sizes | options))
    with torch.no_grad():
        for p in found.parameters():  # norms and biases too, which begin as ones and zeros
            p += 0.02 * torch.randn_like(p)
    return found.to(dtype).eval()


def near(ours, theirs, bound):
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


def results(model):
    model.zero_grad()
    out = model(IDS, labels=IDS)
    out.loss.backward()
    return out.logits.detach().float(), {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_agree(name, dtype, monkeypatch):
    model = made(name, dtype)
    logits, gradients = results(model)
    expected, calls = dict(SWAPPED[name]), dict(CALLED[name])
    if name == "Gemma" and dtype != torch.float32:
        del expected["rms_norm"], calls["rms_norm"]
    called = counted(monkeypatch, *calls)
    with kx.patch(model) as patch:
        ops = [entry.op for entry in patch.swapped]
        assert {op: ops.count(op) for op in ops} == expected
        ours, our_gradients = results(model)
    assert called == calls
    near(ours, logits, BOUNDS[dtype])
    assert our_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        near(our_gradients[parameter], gradient, 4 * BOUNDS[dtype])  # each is a sum over all tokens as well
    assert torch.equal(results(model)[0], logits)


def test_gemmas_norm_is_left_where_its_weight_plus_1_would_be_rounded():
    patch = kx.patch(made("Gemma", torch.bfloat16))
    assert {entry.reason for entry in patch.left} == {
        "in 16 bits the operator would round its weight plus 1, which transformers does not"
    }


@pytest.mark.filterwarnings("ignore")
def test_gemma_in_other_dtypes_after_the_patch_runs_as_it_did():
    model = made("Gemma")
    kx.patch(model)
    for dtype in (torch.bfloat16, torch.float64):
        ours = model.to(dtype)(IDS).logits.float()
        near(ours, made("Gemma", dtype)(IDS).logits.float(), BOUNDS[torch.bfloat16])


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_python"])
def test_a_gated_layer_takes_its_formula_from_its_activation(act, monkeypatch):
    torch.manual_seed(0)
    layer = modeling_llama.LlamaMLP(transformers.LlamaConfig(**SIZES, hidden_act=act))
    x = torch.randn(2, 32)
    want, asked = layer(x), []
    geglu = kx.geglu

    def noted(a, b, approximate):
        asked.append(approximate)
        return geglu(a, b, approximate)

    monkeypatch.setattr(kx, "geglu", noted)
    for first in (None, "gelu"):  # the activation may have been swapped before
        found = copy.deepcopy(layer)
        if first and act != "gelu_python":
            kx.patch(found, first)
        kx.patch(found)
        torch.testing.assert_close(found(x), want, rtol=1e-5, atol=1e-5)
    assert asked == 2 * {"gelu": ["none"], "gelu_python": []}.get(act, ["tanh"])


def test_which_gelu_a_module_is_follows_from_its_code():
    functional = torch.nn.functional
    other = activations.GELUActivation()
    other.act = functools.partial(functional.gelu, approximate="tanh")
    strange = activations.GELUActivation()
    strange.act = functional.silu
    found = [
        gpt.formula(module)
        for module in (
            activations.GELUActivation(),
            activations.GELUTanh(),
            activations.NewGELUActivation(),
            torch.nn.GELU("tanh"),
            other,
            strange,
            activations.FastGELUActivation(),
            activations.QuickGELUActivation(),
            activations.GELUActivation(use_gelu_python=True),
            torch.nn.SiLU(),
            torch.nn.Linear(2, 2),
        )
    ]
    assert found == ["none", "tanh", "tanh", "tanh", "tanh", *6 * [None]]


@pytest.mark.parametrize("backend", ["torch_ref", "triton"])
@pytest.mark.filterwarnings("ignore:.*on the emulator")
def test_a_conv1d_reads_its_weight_in_place(backend, monkeypatch):
    module, x = Conv1D(24, 16), torch.randn(2, 3, 16)
    want = module(x)
    kx.patch(module)
    with kx.use(backend), kx.record() as log:
        torch.testing.assert_close(module(x), want, rtol=1e-5, atol=1e-5)
    assert [(entry.variant.split("/")[0], entry.copies) for entry in log.entries] == [(backend, 0)]


def test_swapped_modules_of_gpt2_are_copied_and_pickled():
    model = made("GPT-2")
    kx.patch(model)
    logits = model(IDS).logits
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(IDS).logits, logits)


@pytest.mark.parametrize("name", ["GPT-2", "BERT"])
def test_a_patched_model_is_compiled_as_it_was(name):
    model = made(name, torch.bfloat16)
    kx.patch(model)
    want = model(IDS).logits
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(IDS).logits, want)
