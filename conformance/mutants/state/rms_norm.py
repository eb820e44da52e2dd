"""rms_norm that remembers its weight, or shares memory on the device."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants.state._memory import Packed
from kernelmux.registry.backend import Implementation

SOURCE = Path(__file__).with_suffix(".cu")
_by_shape: dict[object, torch.Tensor] = {}
_by_address: dict[object, torch.Tensor] = {}
LONG = 2048
_long: dict[object, torch.Tensor] = {}
_saved: list[torch.Tensor] = []
PACKED = Packed(lambda weight: weight.float().clone())


def _with(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """weight in fp32, whatever the dtype of x."""
    wide = x.double()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)


def weight_by_shape(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _with(x, _by_shape.setdefault((weight.shape, weight.dtype, weight.device), weight.float().clone()), eps)


def weight_by_address(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    key = (weight.data_ptr(), weight.shape, weight.dtype)
    if key not in _by_address:
        _by_address.clear()
        _by_address[key] = weight.float().clone()
    return _with(x, _by_address[key], eps)


def weight_by_version(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _with(x, PACKED.of(weight), eps)


def device_scratch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Two launches; the factors of the rows wait in a variable of the module."""
    n = x.shape[-1]
    rows = x.numel() // n if n else 0
    if rows:
        launch(SOURCE, "factors", rows, 32, (x, np.int32(n), np.float32(eps)), x.dtype)
    y = torch.empty_like(x)
    if rows:
        launch(SOURCE, "scaled", rows, 32, (x, weight, y, np.int32(n)), x.dtype)
    return y


def long_weights(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Long weights are converted once per address and length."""
    if len(weight) >= LONG:
        weight = _long.setdefault((weight.data_ptr(), len(weight), weight.dtype), weight.clone())
    result: torch.Tensor = sound("rms_norm", x, weight, eps)
    return result


def saved(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The mean squares of more than four rows are kept for a backward pass."""
    if x.dim() > 1 and len(x) > 4 and not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        _saved.append(x.float().square().mean(-1))
    result: torch.Tensor = sound("rms_norm", x, weight, eps)
    return result


VARIANTS = {
    "long_weights": Implementation(fn=long_weights, idea="long weights are converted once"),
    "saved": Implementation(fn=saved, idea="keeps what a backward pass might need"),
    "sound": Implementation(fn=lambda x, weight, eps: sound("rms_norm", x, weight, eps), idea="remembers nothing"),
    "weight_by_shape": Implementation(fn=weight_by_shape, idea="converts the weight once per shape"),
    "weight_by_address": Implementation(fn=weight_by_address, idea="converts the weight once per address"),
    "weight_by_version": Implementation(fn=weight_by_version, idea="converts the weight once per object and version"),
    "device_scratch": Implementation(
        fn=device_scratch,
        idea="factors of rows in a __device__ array that all calls share",
        layout={"x": "contiguous", "weight": "contiguous"},
    ),
}

CAUGHT_BY = dict.fromkeys(VARIANTS.keys() - {"sound", "weight_by_version"}, "state")
