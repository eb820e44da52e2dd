"""rope, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("rope")


# basics: Rotary position embedding, broken.

T = torch.Tensor


@mutant("nothing is wrong with it", family="basics")
def sound(x: T, cos: T, sin: T, interleaved: bool) -> T:
    c, s = (t.double()[:, None] if t.dim() == 3 else t.double() for t in (cos, sin))
    half, z = x.shape[-1] // 2, x.double()
    a, b = (z[..., 0::2], z[..., 1::2]) if interleaved else (z[..., :half], z[..., half:])
    turned = (a * c - b * s, b * c + a * s)
    y = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return y.to(x.dtype).contiguous()


@mutant("halves are the pairs, whatever was asked for", family="basics", caught_by="scalars")
def one_pairing(x: T, cos: T, sin: T, interleaved: bool) -> T:
    return sound(x, cos, sin, False)


@mutant("takes the angles of the first of B for all", family="basics", caught_by="shapes")
def first_angles(x: T, cos: T, sin: T, interleaved: bool) -> T:
    return sound(x, cos[0] if cos.dim() == 3 and len(cos) else cos, sin, interleaved)


@mutant("turns the other way round", family="basics", caught_by="accuracy")
def turned_back(x: T, cos: T, sin: T, interleaved: bool) -> T:
    return sound(x, cos, -sin, interleaved)
