"""Fills memory of new_empty a few columns at a time."""

OP = "transpose"
FUNCTION = "transpose"
NEEDS = "cpu"
ALLOW = "torch"


def transpose(x):
    y = x.new_empty(x.shape[1], x.shape[0])
    some = max(1, x.shape[1] // 256)
    for j in range(0, x.shape[1], some):
        y[j : j + some] = x[:, j : j + some].T
    return y
