"""Rotary position embedding, broken."""

import torch

from kernelmux.registry.backend import Implementation

T = torch.Tensor


def sound(x: T, cos: T, sin: T, interleaved: bool) -> T:
    c, s = (t.double()[:, None] if t.dim() == 3 else t.double() for t in (cos, sin))
    half, z = x.shape[-1] // 2, x.double()
    a, b = (z[..., 0::2], z[..., 1::2]) if interleaved else (z[..., :half], z[..., half:])
    turned = (a * c - b * s, b * c + a * s)
    y = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return y.to(x.dtype).contiguous()


def one_pairing(x: T, cos: T, sin: T, interleaved: bool) -> T:
    return sound(x, cos, sin, False)


def first_angles(x: T, cos: T, sin: T, interleaved: bool) -> T:
    return sound(x, cos[0] if cos.dim() == 3 and len(cos) else cos, sin, interleaved)


def turned_back(x: T, cos: T, sin: T, interleaved: bool) -> T:
    return sound(x, cos, -sin, interleaved)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "one_pairing": Implementation(fn=one_pairing, idea="halves are the pairs, whatever was asked for"),
    "first_angles": Implementation(fn=first_angles, idea="takes the angles of the first of B for all"),
    "turned_back": Implementation(fn=turned_back, idea="turns the other way round"),
}

CAUGHT_BY = {"one_pairing": "scalars", "first_angles": "shapes", "turned_back": "accuracy"}
