"""`check_model`: healthy models pass, a planted fault is named, routers that differ are no fault."""

import json
import math
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.nn import check_command, modes
from kernelmux.nn.checking import check_model
from kernelmux.nn.verdicts import Scale, error
from kernelmux.registry.cli import main

NAMES = ("llama", "qwen3", "gemma", "gpt2", "bert", "hunyuan_v1_moe")
WRONG: Any = 3
rms_norm, linear, attention = kx.rms_norm, kx.linear, kx.attention


def named(name, dtype=torch.float32, seed=0, **options):
    pytest.importorskip("transformers", reason="bazel/requirements.lock has it")
    from kernelmux.nn.named_models import named_model

    return named_model(name, seed=seed, hidden=32, vocabulary=61, **options).to(dtype)


def tokens(batch=2, length=24, seed=0):
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def checked(model, ids=None, **options):
    ids = tokens() if ids is None else ids
    return check_model(model, ids, labels=ids, **options)


class Gated(torch.nn.Module):
    """A block without transformers: a norm, a layer with a bias, and tokens that take one of two ways."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.gate = torch.nn.Linear(16, 2)
        self.ways = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        torch.nn.init.normal_(self.norm.bias)

    def forward(self, x):
        x = self.norm(x)
        weight, way = self.gate(x).softmax(-1).max(-1, keepdim=True)[0], self.gate(x).argmax(-1, keepdim=True)
        return x + weight * torch.where(way == 0, self.ways[0](x), self.ways[1](x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", NAMES)
def test_healthy_models_have_no_layer_that_is_off(name, dtype):
    for seed in range(3):
        report = checked(named(name, dtype, seed), tokens(seed=seed), seed=seed)
        assert report.ok, f"seed {seed}: {report}"
        assert report.verdict.startswith("no layer is off")
        assert report.tokens is not None and report.tokens.plain_patched > 0.8


def test_the_model_stays_as_it_is_and_gets_no_gradients():
    model = named("llama").train()
    before, cache = {name: p.clone() for name, p in model.named_parameters()}, model.config.use_cache
    classes = [type(module) for module in model.modules()]
    checked(model)
    assert classes == [type(module) for module in model.modules()] and model.training
    assert model.config.use_cache == cache and torch.get_default_dtype() is torch.float32
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_the_rows_are_what_was_swapped_and_the_layers_around():
    report = checked(named("llama"))
    rows = {layer.path: layer.ops for layer in report.layers}
    assert rows["model.layers.1"] == () and rows["model.layers.1.self_attn"] == ("rope", "attention")
    assert rows["model.layers.0.mlp"] == ("swiglu",) and rows["lm_head"] == ("linear",) and list(rows)[-1] == ""
    assert len(rows) == report.swapped + 3 and not report.uncalled


def only_last(op):
    """The last norm of a llama of one layer is the one with a marked weight."""
    return lambda x, weight, eps: op(x, weight, eps) if weight.flatten()[0] == 7 else rms_norm(x, weight, eps)


class LacksATerm(torch.autograd.Function):
    """rms_norm whose gradient leaves out that the root mean square depends on x."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        return rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx, g):
        x, weight = (y.double() for y in ctx.saved_tensors)
        scale = x.square().mean(-1, keepdim=True).rsqrt()
        return (g * weight * scale).to(g.dtype), (g * x * scale).flatten(0, -2).sum(0).to(g.dtype), None


# In bf16 an eps of 1e-3 beside squares of 1 is within the roundings; that one is for fp32.
FAULTS = [
    ("fp32", "rms_norm", only_last(lambda x, w, eps: rms_norm(x, w, 100 * eps)), "forward"),
    ("fp32", "rms_norm", only_last(lambda x, w, eps: LacksATerm.apply(x, w, eps)), "backward"),
    ("bf16", "rms_norm", only_last(lambda x, w, eps: LacksATerm.apply(x, w, eps)), "backward"),
    ("bf16", "rms_norm", only_last(lambda x, w, eps: rms_norm(x, w, eps).detach() + 0 * x), "backward"),
]


@pytest.mark.parametrize(("dtype", "op", "fault", "way"), FAULTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_norm_that_is_wrong_in_one_layer_is_named(monkeypatch, dtype, op, fault, way, seed):
    model = named("llama", seed=seed).to(torch.float32 if dtype == "fp32" else torch.bfloat16)
    model.model.layers[1].post_attention_layernorm.weight.data[0] = 7
    monkeypatch.setattr(kx, op, fault)
    report = checked(model, seed=seed)
    assert report.first_off.path == "model.layers.1.post_attention_layernorm", report
    assert way in report.first_off.verdict and not report.ok
    assert "model.layers.1.post_attention_layernorm is the first layer that is off: LlamaRMSNorm" in report.verdict
    assert {layer.path for layer in report.layers if layer.off} <= {"", "model.layers.1", report.first_off.path}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_bias_that_is_dropped_is_named(monkeypatch, dtype):
    monkeypatch.setattr(kx, "linear", lambda x, w, b=None, **o: linear(x, w, None if w.shape[0] == 64 else b, **o))
    report = checked(named("bert", dtype))
    assert report.first_off.path == "bert.encoder.layer.0.intermediate.dense"
    assert "forward (output)" in report.first_off.verdict and "gradient of bias" in report.first_off.verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_window_that_is_off_by_one_is_named_though_it_touches_a_single_row(monkeypatch, dtype):
    def short(q, k, v, causal, **options):
        return attention(q, k, v, causal, window=q.shape[2] - 1, **options)

    monkeypatch.setattr(kx, "attention", short)
    report = checked(named("llama", dtype))
    assert report.first_off.path == "model.layers.0.self_attn"


def test_a_fault_outside_of_all_layers_is_one_of_the_model_as_a_whole(monkeypatch):
    from kernelmux.nn.decoder import Decoder

    forward = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda self, input_ids, **o: forward(self, input_ids.flip(1), **o))
    report = checked(named("llama"))
    assert report.first_off.path == "" and "the model as a whole is off, and none of its layers" in report.verdict


def test_a_choice_that_differs_is_no_fault_and_is_held():
    report = checked(named("hunyuan_v1_moe", torch.bfloat16), tokens(8, 64))
    assert {found.path for found in report.routing} == {f"model.layers.{i}.mlp.gate" for i in range(2)}
    assert all(found.choices == 512 for found in report.routing)
    assert report.ok, report
    assert sum(found.free for found in report.routing) > 0  # of 1024 some choices are closer than bf16 tells apart
    assert report.apart and report.apart[0].free > 1.2 * report.apart[0].held
    assert "routing differs, which is a jump and no error" in str(report)


def test_choices_of_another_run_are_taken_with_their_values_and_gradients():
    x, y = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]), torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    with modes.Choices(lambda: "here") as first:
        x.topk(1), x.argmax(-1), torch.topk(x, 2, dim=0)
    y.requires_grad_()
    with modes.Choices(lambda: "here", first) as second:
        values, indices = y.topk(1)
        values.sum().backward()
        assert torch.equal(y.argmax(-1), torch.tensor([2, 0])) and torch.equal(indices, torch.tensor([[2], [0]]))
    assert torch.equal(values, torch.tensor([[1.0], [3.0]]))
    assert y.grad is not None and torch.equal(y.grad, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    assert modes.differing(first, second) == {"here": 2}


def test_a_gradient_that_is_zero_but_for_rounding_is_told_and_no_fault():
    """The weight of the one expert is divided by itself, so the router has no gradient."""
    for dtype in (torch.float32, torch.bfloat16):
        report = checked(named("hunyuan_v1_moe", dtype, config={"moe_topk": 1}))
        assert report.rounding == tuple(f"model.layers.{i}.mlp.gate.wg.weight" for i in range(2))
        assert report.ok and "gradients that are rounding and nothing else" in str(report)


def test_a_module_without_transformers_and_without_a_loss():
    torch.manual_seed(0)
    report = check_model(Gated(), torch.randn(3, 5, 16))
    assert report.ok and [layer.path for layer in report.layers] == ["norm", "gate", "ways.0", "ways.1", ""]
    assert report.tokens is None and [found.path for found in report.routing] == [""]


def test_a_model_without_parameters_and_without_gradients():
    report = check_model(torch.nn.Sequential(torch.nn.GELU(), torch.nn.Softmax(-1)), torch.randn(3, 8))
    assert report.ok and report.dtype == "fp32" and all(layer.backward is None for layer in report.layers)


def test_a_frozen_model_is_compared_forward():
    report = checked(named("llama").requires_grad_(False))
    assert report.ok and all(layer.backward is None for layer in report.layers) and "-" in str(report)


def test_a_swapped_module_that_does_not_run_is_listed():
    model = Gated()
    model.unused = torch.nn.Linear(2, 2)
    report = check_model(model, torch.randn(3, 16))
    assert report.uncalled == ("unused",) and "swapped, and not called: unused" in str(report)


def test_many_layers_share_rows_unless_every_one_is_asked_for():
    report = checked(named("llama", layers=4))
    assert "model.layers.*.mlp.up_proj (worst of 4)" in str(report)
    assert "model.layers.3.mlp.up_proj" in report.text(every_row=True)


def test_wrong_arguments_are_named():
    with pytest.raises(kx.ArgumentError, match=r"check_model\(\): model: expected a torch.nn.Module, got 3"):
        check_model(WRONG)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    kx.patch(model)
    with pytest.raises(kx.ArgumentError, match="without kernelmux's modules, got one with 0: undo its patch first"):
        check_model(model, torch.ones(1, 2))
    with pytest.raises(kx.ArgumentError, match="use_cache: expected a call without a cache, got True"):
        check_model(torch.nn.Linear(2, 2), torch.ones(1, 2), use_cache=True)
    with pytest.raises(kx.ArgumentError, match=r"expected one that patch\(\) can swap modules of, got Tanh"):
        check_model(torch.nn.Tanh(), torch.ones(1, 2))


def test_an_error_is_allowed_what_plain_or_any_order_rounds():
    exact = torch.randn(1000, dtype=torch.float64)
    noise, scale = torch.randn(1000, dtype=torch.float64), Scale(2.0**-8, 64)

    def excess(plain, patched, scale=scale):
        return error("output", exact, exact + plain * noise, exact + patched * noise.flip(0), scale).excess

    assert excess(0.0, 2.0**-8) < 1 < excess(0.0, 5 * 2.0**-8)
    assert excess(0.1, 0.35) < 1 < excess(0.1, 0.45)
    one = exact.clone()
    one[17] += 0.2  # 0.6 % of the mean square, within 4 units, and a fifth of a large element
    assert error("output", exact, exact, one, scale).excess > 1
    assert error("output", exact, exact, one[:-1], scale).excess == math.inf
    one[3] = math.nan
    assert error("output", exact, exact, one, scale).off
    assert not error("output", exact.fill_(math.nan), one, one, scale).off


def test_float64_is_float64_inside_too():
    with modes.Float64():
        x = torch.ones(2, dtype=torch.float64)
        found = [
            x.float(),
            x.to(torch.bfloat16),
            torch.softmax(x, 0, dtype=torch.float32),
            torch.zeros(2),
            x.half() @ x,
        ]
        with modes.Float64():
            pass
        assert {y.dtype for y in [*found, torch.ones(1)]} == {torch.float64}
    assert torch.ones(1).dtype is torch.float32


def run(capsys, *words):
    code = main.main(["check-model", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_tables_and_writes_json(capsys, tmp_path):
    pytest.importorskip("transformers", reason="bazel/requirements.lock has it")
    words = ("--layers", "1", "--hidden", "32", "--length", "8", "--dtype", "bf16", "--backend", "torch_ref")
    code, out, _ = run(capsys, "qwen3", *words, "--ops", "rms_norm", "--json", str(tmp_path / "found.json"))
    assert code == 0 and out.splitlines()[-1].startswith("no layer is off") and "best token of 16 places" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert (
        found["ok"]
        and found["dtype"] == "bf16"
        and {tuple(row["ops"]) for row in found["layers"]} == {(), ("rms_norm",)}
    )


def test_the_command_takes_a_model_of_ones_own_and_fails_if_it_is_off(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def made(): return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.ones(2, 8)\n"
        "def by_name(): return torch.nn.Linear(8, 8), {'input': torch.ones(2, 8)}\n"
        "def nothing(): return 3\n"
    )
    file = str(tmp_path / "mine.py")
    assert run(capsys, f"{file}:made", "--dtype", "bf16")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "mine:by_name")[0] == 0
    assert "expected to return a model and its inputs, got 3" in run(capsys, f"{file}:nothing")[2]
    assert "--layers: expected only with a model by name" in run(capsys, f"{file}:made", "--layers", "3")[2]
    monkeypatch.setattr(kx, "gelu", lambda x, approximate="none": torch.relu(x))
    code, out, _ = run(capsys, f"{file}:made")
    assert code == 1 and out.splitlines()[-1].startswith("1 is the first layer that is off: GELU (on gelu)")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("lama",), 'unknown model "lama"; did you mean "llama"?'),
        (("llama", "--hidden", "33"), "hidden: expected a multiple of 32, got 33"),
        (("llama", "--config", "x"), "--config: expected NAME=VALUE, got 'x'"),
        (("t5",), "model: t5 cannot be made with these sizes: ValueError"),
        (("llama", "--backend", "cudda"), 'did you mean "cuda"?'),
        (("nowhere.py:made",), "nowhere.py cannot be imported: FileNotFoundError: there is no such file"),
        (("json:made",), "expected a function 'made' in json, got none"),
        (("llama", "--json", "nowhere/found.json"), "--json: nowhere/found.json: the folder nowhere does not exist"),
    ],
)
def test_mistakes_take_one_line(capsys, words, text):
    pytest.importorskip("transformers", reason="bazel/requirements.lock has it")
    code, _, err = run(capsys, *words)
    assert code == 2 and text in err and len(err.splitlines()) == 1


def test_help_lists_the_tried_models():
    assert ", ".join(NAMES) in check_command.parser().format_help()
