"""Transpose, broken for matrices of one row or one column."""

import torch

from kernelmux.registry.backend import Implementation


def sound(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device).copy_(x.t())


def view_of_one(x: torch.Tensor) -> torch.Tensor:
    """A single row needs no moving: the same memory has the other shape."""
    return x.t() if 1 in x.shape and x.is_contiguous() else sound(x)


def square_in_place(x: torch.Tensor) -> torch.Tensor:
    """Square matrices are transposed where they lie, then copied."""
    if x.shape[0] == x.shape[1] and x.is_contiguous() and x.numel():
        x.copy_(x.t().clone())
        return x.clone()
    return sound(x)


def one_element(x: torch.Tensor) -> torch.Tensor:
    """Without steps there is nothing to read: taken for a matrix that was never written."""
    still = x.numel() > 1 and set(x.stride()) == {0}
    return torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device) if still else sound(x)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "view_of_one": Implementation(fn=view_of_one, idea="returns a view of a single row or column"),
    "square_in_place": Implementation(fn=square_in_place, idea="transposes square matrices in place"),
    "one_element": Implementation(fn=one_element, idea="gives zeros for one element, expanded both ways"),
}

CAUGHT_BY = {"view_of_one": "shapes", "square_in_place": "accuracy", "one_element": "layout"}
