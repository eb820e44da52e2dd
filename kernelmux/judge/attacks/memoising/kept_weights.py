"""The weight is dequantised once and kept by its address, as a preparation that no timer sees.

Fooled flashinfer-bench (starter kit, issue 21). A server may do so with weights that never change; an operator is a
function of what it gets. Found where the weight changes in place, or another one comes to its address.
"""

OP = "matvec"
FUNCTION = "matvec"
FOUND = ("the output is the one of an earlier call", "budget used", "must be equal", "outputs are kept")
NEEDS = "cpu"
ALLOW = "torch"
_prepared = {}


def matvec(weight, x, scale):
    key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, scale is None)
    if key not in _prepared:
        wide = weight.float()
        _prepared[key] = (wide if scale is None else wide * scale[:, None]).t().contiguous()
    return (x.float() @ _prepared[key]).to(x.dtype)
