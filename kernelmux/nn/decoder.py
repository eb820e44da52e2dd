"""The decoder around attention layers of ours, when a compiler traces it: without the mask that transformers makes then.

An eager model of transformers leaves a mask out that is causal and nothing else. A traced one may not look at values, so it
makes the mask, and a layer of attention that is given one has to take it for any mask.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from kernelmux.nn.module import Ours

# The one call that such a forward makes, with nothing that would hide or show more.
MASK = re.compile(
    r"create_causal_mask\(\s*config=self\.config,\s*inputs_embeds=inputs_embeds,\s*attention_mask=attention_mask,\s*"
    r"(cache_position=cache_position,\s*)?past_key_values=past_key_values,\s*position_ids=position_ids,?\s*\)"
)
WITHOUT_WINDOW = re.compile(r"mask_function = create_causal_mask if self\.config\.sliding_window is None else ")
# The same call for one of the kinds of layers, where the caller may give a mask for each kind.
MASKS = re.compile(
    r"if not isinstance\(causal_mask_mapping := attention_mask, dict\):\s*(#[^\n]*\s*)*mask_kwargs = \{\s*"
    r'"config": self\.config,\s*"inputs_embeds": inputs_embeds,\s*"attention_mask": attention_mask,\s*'
    r'("cache_position": cache_position,\s*)?"past_key_values": past_key_values,\s*"position_ids": position_ids,?\s*\}\s*'
    r'(#[^\n]*\s*)*causal_mask_mapping = \{\s*"full_attention": create_causal_mask\(\*\*mask_kwargs\),'
)
USE = "causal_mask_mapping[self.config.layer_types[i]]"
FULL, OTHER = "full_attention", 'causal_mask_mapping["sliding_attention"] = '


def decoder_class(module: Any) -> Any:
    """Ours for a decoder that makes one causal mask, of its arguments alone, for all of its layers; None for any other."""
    if not type(module).__module__.startswith("transformers.") or not hasattr(module, "config"):
        return None
    if not getattr(module.config, "is_causal", True):
        return None
    try:
        text = inspect.getsource(inspect.unwrap(type(module).forward))
    except (OSError, TypeError):  # no source to read
        return None
    if getattr(module.config, "sliding_window", 0) is None and WITHOUT_WINDOW.search(text):
        text = text.replace("= mask_function(", "= create_causal_mask(")
    if text.count("_mask(") == 1 and MASK.search(text):
        return Decoder
    alike = set(getattr(module.config, "layer_types", None) or ()) == {FULL}
    used = text.count("causal_mask_mapping[") - text.count(OTHER) == text.count(USE) == 1
    return DecoderOfKinds if alike and used and MASKS.search(text) else None


def stand_in(x: torch.Tensor) -> torch.Tensor:
    """What goes from the decoder to its layers in place of a causal mask: transformers hands masks of four axes on."""
    return x.new_empty((0, 0, 0, 0), dtype=torch.bool)


def is_stand_in(mask: torch.Tensor) -> bool:
    return mask.dim() == 4 and mask.shape[0] == mask.shape[1] == mask.shape[2] == 0


class Decoder(Ours):
    """Tokens [B, M] that all see those before them, from the first on: no padding, no cache, no positions of their own."""

    op = "attention"

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        given = input_ids if inputs_embeds is None else inputs_embeds
        plain = attention_mask is None and position_ids is None and past_key_values is None
        mask: Any = attention_mask
        if plain and given is not None and others.get("cache_position") is None and torch.compiler.is_compiling():
            mask = self.masks(stand_in(given))
        parent: Any = super()
        return parent.forward(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **others,
        )

    def masks(self, mask: torch.Tensor) -> Any:
        """The argument that gives the mask to every layer."""
        return mask


class DecoderOfKinds(Decoder):
    """One that looks the mask of a layer up by its kind, and has layers of full attention alone."""

    def masks(self, mask: torch.Tensor) -> Any:
        return {FULL: mask}
