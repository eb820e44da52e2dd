"""The loop over K runs over whole tiles of 32; what is left at the end is not multiplied.

Right for every K that is a multiple of 32, as in most benchmarks. Found by other lengths.
"""

OP = "matmul"
FUNCTION = "matmul"
FOUND = ("budget used", "must be equal", "all outputs are 0", "wrong")
NEEDS = "cpu"
ALLOW = "torch"
TILE = 32


def matmul(a, b):
    whole = a.shape[-1] // TILE * TILE
    return (a[..., :whole].double() @ b[..., :whole, :].double()).to(a.dtype).contiguous()
