"""Models of transformers by the name of their configuration, small and with random weights: nothing is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, UnknownName, hint

NAMES = ("llama", "qwen3", "gemma", "gpt2", "bert", "hunyuan_v1_moe")
VOCABULARY = 256
NOTHING: Mapping[str, Any] = {}
JITTER = 0.1  # standard deviation of what is added to parameters that begin as one number, such as 1 or 0


def named_model(
    name: str,
    *,
    layers: int = 2,
    hidden: int = 64,
    vocabulary: int = VOCABULARY,
    seed: int = 0,
    device: str = "cpu",
    config: Mapping[str, Any] = NOTHING,
) -> torch.nn.Module:
    """A language model in fp32, on a device: causal, or masked as BERT is. Heads have 64 columns, of small models 16.

    Weights are as large as keeps activations of one size, hidden ** -0.5. Norms and biases, which begin as 1 and 0, get
    noise, so that one that is left out is seen. config: further values of the configuration. UnknownName for a name that
    transformers does not have, ArgumentError for values that its configuration refuses, or without transformers.
    """
    if problem := terminal.missing(["transformers"]):
        raise ArgumentError(f"model: {name} {problem}")
    transformers: Any = import_module("transformers")
    kinds = transformers.CONFIG_MAPPING
    if name not in kinds:
        near = hint(name, list(kinds))
        raise UnknownName(f'unknown model "{name}"; {near}known: {", ".join(NAMES)}, and others of transformers')
    head = 64 if hidden % 64 == 0 and hidden >= 256 else 16
    if hidden % (2 * head):
        raise ArgumentError(f"hidden: expected a multiple of {2 * head}, got {hidden}")
    heads = hidden // head
    sizes = dict(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=head,
        num_experts=4,
        moe_topk=2,
        initializer_range=hidden**-0.5,
        max_position_embeddings=8192,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config_class = kinds[name]
    known = {*inspect.signature(config_class).parameters, *getattr(config_class, "attribute_map", ())}
    masked = config_class in transformers.MODEL_FOR_MASKED_LM_MAPPING
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    transformers.logging.set_verbosity_error()  # advice on the tokens of a model with random weights
    torch.manual_seed(seed)
    try:
        configured = config_class(**{key: value for key, value in sizes.items() if key in known} | dict(config))
        with torch.device(device), torch.no_grad():
            made: torch.nn.Module = auto.from_config(configured).eval()
            made(torch.zeros(1, 2, dtype=torch.int64))
    except Exception as error:  # a configuration has rules of its own, and may want more than tokens
        reason = str(error).partition("\n")[0]
        raise ArgumentError(
            f"model: {name} cannot be made with these sizes: {type(error).__name__}: {reason}"
        ) from error
    for parameter in made.parameters():
        if bool((parameter == parameter.flatten()[0]).all()):
            parameter.data += JITTER * torch.randn_like(parameter)
    return made
