"""rms_norm, broken."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._memory import DerivedTensor
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("rms_norm")


# basics: Root-mean-square normalisation, broken.


@mutant("nothing is wrong with it", family="basics", name="sound")
def basics_sound(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


@mutant("subtracts the mean, as layer_norm does", family="basics", caught_by="accuracy")
def centred(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt(z.var(-1, correction=0, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


@mutant("adds eps after the square root", family="basics", caught_by="accuracy")
def eps_outside(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / (torch.sqrt((z * z).mean(-1, keepdim=True)) + eps) * weight.double()).to(x.dtype).contiguous()


@mutant("rounds before the weight and after it", family="basics", caught_by="accuracy")
def two_roundings(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rounds to the storage dtype before the weight; fp32 through bf16."""
    low = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    one = torch.ones_like(weight, dtype=torch.float64)
    return (basics_sound(x.double(), one, eps).to(low) * weight.to(low)).to(x.dtype)


@mutant("is one percent too large", family="basics", caught_by="parity")
def one_percent(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return basics_sound(x, weight, eps) * 1.01


# shapes: Root-mean-square normalisation, broken for rows that lie at two pitches.

LAYOUT = {"x": "last", "weight": "contiguous"}
SOURCE = Path(__file__).with_name("rms_norm_shapes.cu")
BLOCK = 64


@mutant("one pitch stands for all rows", family="shapes", caught_by="layout", layout=LAYOUT)
def one_pitch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows of any pitch are read in place; the pitch of the last two axes stands for all."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.shape[-1]
    if out.numel() == 0:
        return out
    rows = out.numel() // n
    pitch = x.stride(-2) if x.dim() > 1 and x.shape[-2] > 1 else n
    if pitch < n:
        x, pitch = x.contiguous(), n
    args = (x, weight, out, np.float32(eps), np.int32(rows), np.int32(n), np.int64(pitch))
    launch(SOURCE, "rms_norm_one_pitch", -(-rows // BLOCK), BLOCK, args, x.dtype)
    return out


# properties: Root-mean-square normalisation whose rows know of one another.


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float, short: bool) -> torch.Tensor:
    """Both forms are as right; roundings tell them apart."""
    z = x.float()
    square = (z * z).mean(-1, keepdim=True) + eps
    normalised = z * (1 / torch.sqrt(square)) if short else z / torch.sqrt(square)
    return (normalised * weight.float()).to(x.dtype).contiguous()


@mutant("every row is multiplied by the reciprocal of its root", family="properties", name="sound")
def properties_sound(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _norm(x, weight, eps, short=True)


@mutant("divides by the root if there are no more than two rows", family="properties", caught_by="properties")
def by_count(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _norm(x, weight, eps, short=x.numel() > 2 * x.shape[-1])


# scalars: Root-mean-square normalisation, broken for some eps.

SCALARS_LAYOUT = {"x": "contiguous", "weight": "contiguous"}
SCALARS_SOURCE = Path(__file__).with_name("rms_norm_scalars.cu")


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


@mutant("takes the root before it divides: as right as any", family="scalars")
def by_vector_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The root before the quotient: x / sqrt(norm(x)^2 / N + eps), all in fp32."""
    z = x.float()
    norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True) / max(x.shape[-1], 1) ** 0.5
    return (z / torch.sqrt(norm * norm + eps) * weight.float()).to(x.dtype).contiguous()


@mutant("an eps of 0 counts as none given", family="scalars", caught_by="scalars")
def zero_is_default(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms_norm(x, weight, eps or 1e-6)


@mutant("an eps below 1e-6 is raised to it", family="scalars", caught_by="scalars")
def never_below(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms_norm(x, weight, max(eps, 1e-6))


@mutant("eps has eight bits", family="scalars", caught_by="scalars")
def rounded_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """eps arrives as a bf16 number, which shows where it is not far below the mean square, and no power of two."""
    return _rms_norm(x, weight, torch.tensor(eps, dtype=torch.bfloat16).item())


@mutant("the kernel has an eps of its own", family="scalars", caught_by="scalars", layout=SCALARS_LAYOUT)
def fixed_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.shape[-1]
    if out.numel():
        rows = out.numel() // n
        args = (x, weight, out, np.float32(eps), np.int32(rows), np.int32(n))
        launch(SCALARS_SOURCE, "rms_norm_fixed_eps", -(-rows // BLOCK), BLOCK, args, x.dtype)
    return out


@mutant("an eps of 0 counts as none given, for a vector", family="scalars", caught_by="scalars")
def vectors_have_eps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The path for a single vector has its own way to read the arguments."""
    return _rms_norm(x, weight, (eps or 1e-6) if x.dim() == 1 else eps)


# bits: Root-mean-square normalisation, broken where zeros meet NaN.


@mutant("leaves out rows of zeros", family="bits", caught_by="special_values")
def skipped_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A row of zeros gives zeros, so nothing is computed for it: not even with a weight that is NaN."""
    z = x.double()
    out = z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight.double()
    empty = (x == 0).all(-1, keepdim=True) & (eps > 0)
    return torch.where(empty, 0.0, out).to(x.dtype).contiguous()


# order: rms_norm of rows that several blocks share.

ORDER_SOURCE = Path(__file__).with_name("sums.cu")
ORDER_BLOCK = 256


@mutant("long rows are summed by atomics", family="order", caught_by="repeatability", layout={"x": "contiguous"})
def squares_by_atomics(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    n = x.shape[-1]
    rows = x.reshape(-1, n) if x.numel() else x.new_empty(0, max(n, 1))
    total = torch.zeros(len(rows), device=x.device, dtype=torch.float32)
    for start in range(0, len(rows), 65535):
        piece = rows[start : start + 65535]
        grid = (-(-n // ORDER_BLOCK), len(piece))
        launch(ORDER_SOURCE, "squares_atomics", grid, ORDER_BLOCK, (piece, total[start:], np.int32(n)), x.dtype)
    factor = torch.rsqrt(total.double() / max(n, 1) + eps).view(*x.shape[:-1], 1) if x.numel() else 1
    return torch.empty_like(x).copy_(x.double() * factor * weight.double())


# extent: rms_norm in Triton, with the offset of a row in 32 bits.


def _extent_rms_norm(wide: bool) -> Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]:
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        from kernelmux.conformance.mutants import _kernels

        y, n = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.shape[-1]
        if x.numel():
            _triton.launch(_kernels.rms_norm_rows, x.numel() // n, y, x, weight, n, eps, BLOCK=128, WIDE=wide)
        return y

    return rms_norm


PACKED = {"x": "contiguous", "weight": "contiguous"}


mutant("program_id * n in 32 bits", family="extent", caught_by="offsets", name="int_rows", layout=PACKED)(
    _extent_rms_norm(False)
)
mutant("program_id in 64 bits", family="extent", name="wide_rows", layout=PACKED)(_extent_rms_norm(True))


# ambience: Root-mean-square normalisation that leaves the process changed.


@mutant("turns gradients off and leaves them so", family="ambience", caught_by="ambience")
def gradients_left_off(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    torch.set_grad_enabled(False)
    return _rms_norm(x, weight, eps)


@mutant("sets the default dtype to the one it counts on", family="ambience", caught_by="ambience")
def usual_dtype_left(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    torch.set_default_dtype(torch.float32)
    return _rms_norm(x, weight, eps)


# state: rms_norm that remembers its weight, or shares memory on the device.

STATE_SOURCE = Path(__file__).with_name("rms_norm_state.cu")
_by_shape: dict[object, torch.Tensor] = {}
_by_address: dict[object, torch.Tensor] = {}
LONG = 2048
_long: dict[object, torch.Tensor] = {}
_saved: list[torch.Tensor] = []
STATE_PACKED = DerivedTensor(lambda weight: weight.float().clone())


def _with(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """weight in fp32, whatever the dtype of x."""
    wide = x.double()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)


@mutant("long weights are converted once", family="state", caught_by="state")
def long_weights(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Long weights are converted once per address and length."""
    if len(weight) >= LONG:
        weight = _long.setdefault((weight.data_ptr(), len(weight), weight.dtype), weight.clone())
    result: torch.Tensor = sound("rms_norm", x, weight, eps)
    return result


@mutant("keeps what a backward pass might need", family="state", caught_by="state")
def saved(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The mean squares of more than four rows are kept for a backward pass."""
    if x.dim() > 1 and len(x) > 4 and not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        _saved.append(x.float().square().mean(-1))
    result: torch.Tensor = sound("rms_norm", x, weight, eps)
    return result


mutant("remembers nothing", family="state", name="sound")(lambda x, weight, eps: sound("rms_norm", x, weight, eps))


@mutant("converts the weight once per shape", family="state", caught_by="state")
def weight_by_shape(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _with(x, _by_shape.setdefault((weight.shape, weight.dtype, weight.device), weight.float().clone()), eps)


@mutant("converts the weight once per address", family="state", caught_by="state")
def weight_by_address(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    key = (weight.data_ptr(), weight.shape, weight.dtype)
    if key not in _by_address:
        _by_address.clear()
        _by_address[key] = weight.float().clone()
    return _with(x, _by_address[key], eps)


@mutant("converts the weight once per object and version", family="state", caught_by="state")
def weight_by_version(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _with(x, STATE_PACKED.of(weight), eps)


@mutant(
    "factors of rows in a __device__ array that all calls share",
    family="state",
    caught_by="state",
    layout={"x": "contiguous", "weight": "contiguous"},
)
def device_scratch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Two launches; the factors of the rows wait in a variable of the module."""
    n = x.shape[-1]
    rows = x.numel() // n if n else 0
    if rows:
        launch(STATE_SOURCE, "factors", rows, 32, (x, np.int32(n), np.float32(eps)), x.dtype)
    y = torch.empty_like(x)
    if rows:
        launch(STATE_SOURCE, "scaled", rows, 32, (x, weight, y, np.int32(n)), x.dtype)
    return y
