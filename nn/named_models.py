"""Models of transformers by the name of their configuration, small and with random weights: nothing is downloaded."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import torch

from kernelmux.registry import terminal
from kernelmux.registry.errors import ArgumentError, unknown

NAMES = ("llama", "qwen3", "gemma", "gpt2", "bert", "hunyuan_v1_moe")
VOCABULARY = 256
JITTER = 0.1  # standard deviation of what is added to parameters that begin as one number, such as 1 or 0


def named_model(
    name: str, *, layers: int = 2, hidden: int = 64, vocabulary: int = VOCABULARY, seed: int = 0, device: str = "cpu"
) -> torch.nn.Module:
    """A model in fp32, on a device: a causal one, or a masked one of BERT's kind. Heads have 64 columns, or 16 if it is small.

    Weights are as large as keeps activations of one size, hidden ** -0.5. Norms and biases, which begin as 1 and 0, get
    noise, so that one that is left out is seen. UnknownName for a name that transformers does not have, ArgumentError for
    sizes that its configuration refuses, or without transformers.
    """
    if problem := terminal.missing(["transformers"]):
        raise ArgumentError(f"check-model: a model by name {problem}")
    transformers: Any = import_module("transformers")
    kinds = transformers.CONFIG_MAPPING
    if name not in kinds:
        raise unknown("model", name, list(kinds), "check-model")
    head = 64 if hidden % 64 == 0 and hidden >= 256 else 16
    if hidden % (2 * head):
        raise ArgumentError(f"check-model: --hidden: expected a multiple of {2 * head}, got {hidden}")
    heads = hidden // head
    sizes = dict(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=max(1, heads // 2), head_dim=head, num_experts=4, moe_topk=2,
        initializer_range=hidden**-0.5, max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    config_class = kinds[name]
    known = {*inspect.signature(config_class).parameters, *getattr(config_class, "attribute_map", ())}
    config = config_class(**{key: value for key, value in sizes.items() if key in known})
    torch.manual_seed(seed)
    causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    with torch.device(device):
        made: torch.nn.Module = auto.from_config(config)
    for parameter in made.parameters():
        if bool((parameter == parameter.flatten()[0]).all()):
            parameter.data += JITTER * torch.randn_like(parameter)
    return made
