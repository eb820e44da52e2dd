"""Matrix product with torch's flags."""

import torch

from kernelmux.registry.backend import Implementation


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


def flags_put_back(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Sets a flag for the time of the call."""
    flags = torch.backends.cudnn
    old, flags.benchmark = flags.benchmark, True
    try:
        return _product(a, b)
    finally:
        flags.benchmark = old


def flag_left(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return _product(a, b)


def reduced_sums_left(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return _product(a, b)


VARIANTS = {
    "flags_put_back": Implementation(fn=flags_put_back, idea="sets a flag and puts it back"),
    "flag_left": Implementation(fn=flag_left, idea="sets allow_tf32 for the call and leaves it"),
    "reduced_sums_left": Implementation(fn=reduced_sums_left, idea="turns off reduced sums for good"),
}

CAUGHT_BY = {"flag_left": "ambience", "reduced_sums_left": "ambience"}
