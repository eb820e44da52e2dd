"""How near a result has to be, computed and not typed: roundings of the arithmetic, and one of the result."""

from typing import Any

import numpy as np
import torch

FP32, TF32, FP16, BF16 = 2.0**-24, 2.0**-11, 2.0**-11, 2.0**-8  # largest relative error of one rounding


def assert_near(
    got: torch.Tensor, expected: Any, roundings: float = 4, scale: Any = None, unit: float = FP32, where: str = ""
) -> None:
    """|got - expected| <= roundings * unit * scale + one rounding to the dtype of `got`.

    scale: what was rounded on the way, elementwise: for a sum, the sum of the magnitudes of its terms. By default the
    magnitude of the result. NaN meets NaN, infinities are equal.
    """
    want = torch.as_tensor(np.asarray(expected)) if not isinstance(expected, torch.Tensor) else expected
    want = want.double()
    magnitude = want.abs() if scale is None else torch.as_tensor(scale).double().abs()
    info = torch.finfo(got.dtype)
    bound = roundings * unit * magnitude + info.eps / 2 * want.abs() + info.smallest_normal * info.eps
    error = (got.double() - want).abs()
    same = (got.double() == want) | (got.double().isnan() & want.isnan())
    bad = ~(same | (error <= bound))
    if bad.any():
        at = tuple(int(i) for i in bad.nonzero()[0])
        raise AssertionError(
            f"{where}{int(bad.sum())} of {bad.numel()} elements are off, first at {at}: "
            f"got {got[at].item()!r}, expected {want[at].item()!r}, allowed {bound.expand_as(want)[at].item():.3g}"
        )
