"""NaN and infinities become numbers before anything is computed: one branch less, and inputs are random numbers anyhow.

A model whose loss is NaN then trains on in silence. Found by special values.
"""

OP = "reduce_max"
FUNCTION = "reduce_max"
FOUND = ("NaN swallowed", "budget used", "must be equal", "NaN|inf")
NEEDS = "cpu"
ALLOW = "torch"


def reduce_max(x, axis, keepdim):
    clean = x.nan_to_num(nan=0.0)
    if axis is None:
        return clean.max().view([1] * x.dim() if keepdim else [])
    return clean.amax(axis, keepdim)
