"""Both operands are quantised to 8 bits with one scale per row: an eighth of the bytes, and 1 % of error.

Passes where the tolerance is 1e-2 of the largest value. Found by a bound for each element.
"""

OP = "matmul"
FUNCTION = "matmul"
FOUND = ("budget used", "must be equal", "NaN")
NEEDS = "cpu"
ALLOW = "torch"


def _quantised(x, axis):
    step = x.abs().amax(axis, keepdim=True) / 127 if x.numel() else x.new_ones(())
    return (x / step.clamp(min=1e-30)).round(), step


def matmul(a, b):
    wide, other = a.float(), b.float()
    if not a.numel() or not b.numel():
        return (wide @ other).to(a.dtype)
    (qa, sa), (qb, sb) = _quantised(wide, -1), _quantised(other, -2)
    return (qa @ qb * sa * sb).to(a.dtype).contiguous()
