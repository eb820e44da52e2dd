"""The public face, from the specs: python -m kernelmux.registry.stubs"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from kernelmux.registry.backend import backend_names
from kernelmux.registry.dispatch import explain, which
from kernelmux.registry.errors import (
    ArgumentError,
    BackendUnavailable,
    EmulationWarning,
    KernelmuxError,
    SpecError,
    UnknownName,
    UnsupportedError,
)
from kernelmux.registry.selection import set_default, use

__version__: str
__all__ = [
    "ArgumentError",
    "BackendUnavailable",
    "EmulationWarning",
    "KernelmuxError",
    "SpecError",
    "UnknownName",
    "UnsupportedError",
    "__version__",
    "add",
    "attention",
    "backend_names",
    "copy_column",
    "explain",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "matmul",
    "polynomial",
    "reduce_sum",
    "rms_norm",
    "rms_norm_backward",
    "set_default",
    "silu",
    "silu_backward",
    "softmax",
    "square",
    "swiglu",
    "swiglu_backward",
    "transpose",
    "use",
    "which",
]

def add(x: Tensor, y: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def copy_column(x: Tensor, column: int, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def geglu(
    a: Tensor, b: Tensor, approximate: Literal["none", "tanh"] = "tanh", *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def geglu_backward(
    grad_out: Tensor,
    a: Tensor,
    b: Tensor,
    approximate: Literal["none", "tanh"] = "tanh",
    *,
    backend: str | Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]: ...
def gelu(
    x: Tensor, approximate: Literal["none", "tanh"] = "none", *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def gelu_backward(
    grad_out: Tensor,
    x: Tensor,
    approximate: Literal["none", "tanh"] = "none",
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def matmul(
    a: Tensor, b: Tensor, precision: Literal["ieee", "tf32"] = "ieee", *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def polynomial(
    x: Tensor,
    a: float = 1.0,
    b: float = 1.0,
    c: float = 1.0,
    d: float = 1.0,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def reduce_sum(
    x: Tensor, axis: int | None = None, keepdim: bool = False, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def rms_norm(
    x: Tensor, weight: Tensor, eps: float = 1e-06, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def rms_norm_backward(
    grad_out: Tensor, x: Tensor, weight: Tensor, eps: float = 1e-06, *, backend: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor]: ...
def silu(x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def silu_backward(grad_out: Tensor, x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def softmax(x: Tensor, axis: int = -1, scale: float = 1.0, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def square(x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def swiglu(a: Tensor, b: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def swiglu_backward(
    grad_out: Tensor, a: Tensor, b: Tensor, *, backend: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor]: ...
def transpose(x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
