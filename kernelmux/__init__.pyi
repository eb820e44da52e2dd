"""The public face, from the specs: python -m kernelmux.registry.stubs"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from kernelmux import nn
from kernelmux.nn import patch
from kernelmux.registry.backend.lookup import backend_names
from kernelmux.registry.call.bound_call import BoundCall, bind
from kernelmux.registry.call.cuda_graphs import Graphed, graphed
from kernelmux.registry.call.dispatch import explain, install_torch_ops, which
from kernelmux.registry.call.shadow import shadow_report
from kernelmux.registry.choice.precedence import set_default, use
from kernelmux.registry.cli.support_matrix import support_matrix
from kernelmux.registry.errors import (
    ArgumentError,
    BackendUnavailable,
    CompileFailure,
    DeterminismWarning,
    EmulationWarning,
    FallbackWarning,
    KernelFailure,
    KernelmuxError,
    ShadowWarning,
    SpecError,
    TunedTableWarning,
    UnknownName,
    UnmeasuredWarning,
    UnsupportedError,
    VariableWarning,
)
from kernelmux.registry.observe.call_log import record
from kernelmux.registry.observe.counters import stats
from kernelmux.registry.observe.profiler_ranges import ranges

__version__: str
__all__ = [
    "ArgumentError",
    "BackendUnavailable",
    "BoundCall",
    "CompileFailure",
    "DeterminismWarning",
    "EmulationWarning",
    "FallbackWarning",
    "Graphed",
    "KernelFailure",
    "KernelmuxError",
    "ShadowWarning",
    "SpecError",
    "TunedTableWarning",
    "UnknownName",
    "UnmeasuredWarning",
    "UnsupportedError",
    "VariableWarning",
    "__version__",
    "add",
    "add_rms_norm",
    "add_rms_norm_backward",
    "argmax",
    "attention",
    "attention_backward",
    "backend_names",
    "bind",
    "conv2d",
    "conv2d_backward_input",
    "conv2d_backward_weight",
    "copy_column",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_with_gradient",
    "explain",
    "fp8_matmul",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "graphed",
    "install_torch_ops",
    "int8_matmul",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "matvec",
    "max_pool2d",
    "max_pool2d_backward",
    "nn",
    "paged_attention",
    "patch",
    "polynomial",
    "quantize_rowwise",
    "ranges",
    "record",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "set_default",
    "shadow_report",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "square",
    "stats",
    "support_matrix",
    "swiglu",
    "swiglu_backward",
    "transpose",
    "use",
    "which",
]

def add(x: Tensor, y: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-06, *, backend: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor]: ...
def add_rms_norm_backward(
    grad_y: Tensor,
    grad_total: Tensor,
    total: Tensor,
    weight: Tensor,
    eps: float = 1e-06,
    *,
    backend: str | Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]: ...
def argmax(
    x: Tensor, axis: int | None = None, keepdim: bool = False, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    precision: Literal["ieee", "tf32"] = "ieee",
    ahead: int | None = None,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    precision: Literal["ieee", "tf32"] = "ieee",
    ahead: int | None = None,
    *,
    backend: str | Sequence[str] | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def conv2d_backward_input(
    grad_out: Tensor,
    weight: Tensor,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    output_padding: int | tuple[int, int] = 0,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def conv2d_backward_weight(
    grad_out: Tensor,
    x: Tensor,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def copy_column(x: Tensor, column: int, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def cross_entropy_backward(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def cross_entropy_with_gradient(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    *,
    backend: str | Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]: ...
def fp8_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: Literal["bf16", "fp16", "fp32"] = "bf16",
    accumulation: Literal["full", "fast"] = "full",
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
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
def int8_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def layer_norm_backward(
    grad_out: Tensor, x: Tensor, weight: Tensor, eps: float = 1e-05, *, backend: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor, Tensor]: ...
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Literal["none", "gelu", "silu", "relu"] = "none",
    precision: Literal["ieee", "tf32"] = "ieee",
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def log_softmax(x: Tensor, axis: int = -1, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def log_softmax_backward(
    grad_out: Tensor, y: Tensor, axis: int = -1, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def matmul(
    a: Tensor, b: Tensor, precision: Literal["ieee", "tf32"] = "ieee", *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def matvec(
    weight: Tensor, x: Tensor, scale: Tensor | None = None, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def max_pool2d(
    x: Tensor,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def max_pool2d_backward(
    grad_out: Tensor,
    index: Tensor,
    size: int | tuple[int, int],
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    *,
    backend: str | Sequence[str] | None = None,
) -> Tensor: ...
def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    *,
    backend: str | Sequence[str] | None = None,
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
def quantize_rowwise(
    x: Tensor, format: Literal["int8", "e4m3", "e5m2"] = "int8", *, backend: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor]: ...
def reduce_max(
    x: Tensor, axis: int | None = None, keepdim: bool = False, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def reduce_min(
    x: Tensor, axis: int | None = None, keepdim: bool = False, *, backend: str | Sequence[str] | None = None
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
def rope(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def silu(x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def silu_backward(grad_out: Tensor, x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def softmax(x: Tensor, axis: int = -1, scale: float = 1.0, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def softmax_backward(
    grad_out: Tensor, y: Tensor, axis: int = -1, scale: float = 1.0, *, backend: str | Sequence[str] | None = None
) -> Tensor: ...
def square(x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def swiglu(a: Tensor, b: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
def swiglu_backward(
    grad_out: Tensor, a: Tensor, b: Tensor, *, backend: str | Sequence[str] | None = None
) -> tuple[Tensor, Tensor]: ...
def transpose(x: Tensor, *, backend: str | Sequence[str] | None = None) -> Tensor: ...
