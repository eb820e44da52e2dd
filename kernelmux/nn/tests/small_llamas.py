"""Decoders of transformers that are small enough for a test, and how near a patched one comes to the plain one."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="bazel/requirements.lock has it")

SIZES = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    pad_token_id=0,
)
IDS = torch.randint(1, 61, (3, 12), generator=torch.Generator().manual_seed(5))
UNIT = 2.0**-24
# Of a logit or a gradient: two layers, each with some eight sums of at most 56 products, each of which may round that
# often in another order than transformers does. Errors of this kind add up like the square root of their number.
BOUND = 2 * 8 * 56**0.5 * UNIT


def made(kind="Llama", dtype=torch.float32, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | options)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()


def near(ours, theirs, bound=BOUND):
    """Within the bound, relative to the largest number: of those, sums in other orders may cancel down to small ones."""
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()
