"""linear, broken."""

import torch
import torch.nn.functional as F

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("linear")


# basics: Linear layer, broken.

Pair = tuple[torch.Tensor, torch.Tensor]
Maybe = torch.Tensor | None
ACTIVATIONS = {"none": lambda z: z, "gelu": F.gelu, "silu": F.silu, "relu": torch.relu}
LONG = 1024  # a K that kernels divide among blocks
TILE = 16


def sums(x: torch.Tensor, weight: torch.Tensor, bias: Maybe) -> torch.Tensor:
    z = x.double() @ weight.double().mT
    return z if bias is None else z + bias.double()


def ended(z: torch.Tensor, activation: str, x: torch.Tensor) -> Pair:
    """y and what is saved, from the argument of the activation."""
    finite = z.clamp(min=-1000.0) if activation == "silu" else z  # torch's has NaN at -inf
    y = ACTIVATIONS[activation](finite).to(x.dtype)
    return y.contiguous(), saved(z, activation, x)


def saved(z: torch.Tensor, activation: str, x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0) if activation == "none" else z.to(x.dtype, copy=True).contiguous()


@mutant("nothing is wrong with it", family="basics")
def sound(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    return ended(sums(x, weight, bias), activation, x)


@mutant("adds the bias along the rows", family="basics", caught_by="accuracy")
def bias_of_rows(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    z = sums(x, weight, None)
    if bias is not None and len(bias):
        rows = torch.arange(z.shape[:-1].numel(), device=z.device) % len(bias)
        z = z + bias.double()[rows].view(*z.shape[:-1], 1)
    return ended(z, activation, x)


@mutant("adds the bias after the activation", family="basics", caught_by="accuracy")
def bias_last(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    z = sums(x, weight, None)
    y = ended(z, activation, x)[0].double()
    y = y if bias is None else y + bias.double()
    return y.to(x.dtype), saved(sums(x, weight, bias), activation, x)


@mutant("leaves the activation out in the last incomplete tile", family="basics", caught_by="accuracy")
def plain_tail(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    z = sums(x, weight, bias)
    y, kept = ended(z, activation, x)
    whole = z.shape[-1] // TILE * TILE
    y[..., whole:] = z[..., whole:].to(x.dtype)
    return y, kept


@mutant("leaves the bias out where K is split", family="basics", caught_by="accuracy")
def split_without_bias(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    return ended(sums(x, weight, bias if x.shape[-1] < LONG else None), activation, x)


@mutant("saves the result in place of the argument of the activation", family="basics", caught_by="accuracy")
def saved_late(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str) -> Pair:
    y, kept = ended(sums(x, weight, bias), activation, x)
    return y, y.clone() if kept.numel() else kept
