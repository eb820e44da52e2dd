"""An object with `__array__`, `__dlpack__` and `__array_interface__`: it computes as soon as somebody converts it.

Graders that are kind about what they accept (`torch.as_tensor(result)`, `numpy.asarray(result)`) start the work
themselves, outside of the timed region. Refused by its type.
"""

import numpy

OP = "reduce_sum"
FUNCTION = "reduce_sum"
FOUND = "expected a torch.Tensor|expected .*[Tt]ensor"
NEEDS = "cpu"
ALLOW = "torch"


class ArrayWhenAsked:
    def __init__(self, x, axis, keepdim):
        self.asked, self.dtype, self.device = (x, axis, keepdim), x.dtype, x.device

    def _computed(self):
        x, axis, keepdim = self.asked
        return x.float().sum() if axis is None else x.float().sum(axis, keepdim)

    def __array__(self, dtype=None, copy=None):
        return numpy.asarray(self._computed())

    def __dlpack__(self, **more):
        return self._computed().to(self.dtype).__dlpack__()

    def __dlpack_device__(self):
        return self._computed().__dlpack_device__()


def reduce_sum(x, axis, keepdim):
    return ArrayWhenAsked(x, axis, keepdim)
