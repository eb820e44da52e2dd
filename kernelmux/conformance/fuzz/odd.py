"""Tensors and scalars that a user may pass and no case has: views, subclasses, what has no memory, what is no number."""

from __future__ import annotations

import decimal
import enum
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-6,
    -3.25,
    30.0,
    1e5,
    1e-46,
    -1e-40,
    1e30,
    3e38,
    1e39,
    float("nan"),
    float("inf"),
    -1e-9,
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    2**40,
    10**400,
    "none",
    "tanh",
    "tf32",
    "",
    b"x",
    [],
    [0],
    {},
    (),
    object(),
    np.float32(0.5),
    np.float64(2.0),
    np.int64(1),
    np.bool_(True),
    np.zeros(2),
    Fraction(1, 2),
    1j,
    torch.ones(()),
    torch.Size([1]),
    torch.float32,
    int,
    lambda: None,
)


class Loud:
    """Raises whatever is asked of it."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")

    def __hash__(self) -> int:
        raise ValueError("hash")

    def __repr__(self) -> str:
        raise ValueError("repr")


class Small(enum.IntEnum):
    """A number with a name."""

    ONE = 1


class Whole(int):
    """A class of the user's, of numbers."""


class Word(str):
    """A class of the user's, of texts."""

    __slots__ = ()


class Within(list[Any]):
    """A list that holds itself."""

    def __init__(self) -> None:
        super().__init__([self])


class IterableName:
    """The name of a backend, handed out one by one."""

    def __iter__(self) -> Iterator[str]:
        return iter(["torch_ref"])


WILD_SCALARS: tuple[Any, ...] = (
    -(2**31),
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    -(10**400),
    float("nan"),
    float("inf"),
    float("-inf"),
    1e308,
    5e-324,
    decimal.Decimal("0.5"),
    Small.ONE,
    Whole(1),
    Word("none"),
    "\x00",
    "ß" * 1000,
    "a\nb",
    range(2),
    {1},
    IterableName(),
    np.float16(0.5),
    np.float64("nan"),
    np.uint64(2**63),
    np.array(1),
    np.array([1, 2]),
    np.str_("none"),
    torch.tensor(2),
    torch.tensor([1, 2]),
    torch.tensor(True),
    torch.zeros(0),
    torch.ones((), device="meta"),
    torch.device("cpu"),
    [[1, 2]],
    (1, "a"),
    (None, None),
    (1.5, True),
    [1] * 5,
    (2**63, 1),
    Within(),
    Exception("x"),
    ...,
    NotImplemented,
    Loud,
)


class Named(torch.Tensor):
    """A subclass without ways of its own."""


class Wrapped(torch.Tensor):
    """A user's tensor: its operators are those of the tensor inside."""

    held: torch.Tensor

    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.held = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Wrapped {list(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        given = [a.held if isinstance(a, Wrapped) else a for a in args]
        made = func(*given, **(kwargs or {}))
        wrap = isinstance(made, torch.Tensor) and type(made) is torch.Tensor
        return cls(made) if wrap else tuple(map(cls, made)) if isinstance(made, tuple) else made


class Refusing(Wrapped):
    """One that takes no operator at all."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return NotImplemented


Form = Callable[[torch.Tensor], Any]


def _freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def _masked(x: torch.Tensor) -> Any:
    """With elements: torch's softmax of a MaskedTensor without any ends the process."""
    return torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool)) if x.numel() else None


def _overlapping(x: torch.Tensor) -> torch.Tensor:
    """Rows that begin one element behind one another."""
    room = torch.cat([x.flatten()] * 2) if x.numel() else x.flatten()
    return room.as_strided(x.shape, [1] * x.dim()) if x.dim() else x


def _vast(x: torch.Tensor, device: str) -> torch.Tensor:
    """The same number of axes, the first so long that no memory holds it."""
    one = torch.zeros((1,) * x.dim(), dtype=x.dtype, device=device)
    return one.expand(2**40, *x.shape[1:]) if x.dim() else one


def _many(x: torch.Tensor) -> torch.Tensor:
    return x.reshape((1,) * (64 - x.dim()) + tuple(x.shape))


# Tensors that a call has to take like any other.
ALIKE: Mapping[str, Form] = {
    "plain": lambda x: x,
    "steps": lambda x: torch.cat([x, x], -1)[..., ::2] if x.dim() else x,
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x,
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() and x.shape[0] else x,
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if x.numel() else x,
    "negative": lambda x: torch._neg_view(-x),
    "imaginary": lambda x: torch.complex(x, -x).conj().imag if x.dtype == torch.float32 else x,
    "parameter": lambda x: torch.nn.Parameter(x.clone()) if x.is_floating_point() else x,
    "gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
    "subclass": lambda x: x.clone().as_subclass(Named),
}
# What no call takes.
STRANGE: Mapping[str, Form] = {
    "numpy": lambda x: np.zeros(tuple(x.shape)),
    "list": lambda x: [1.0, 2.0],
    "none": lambda x: None,
    "loud": lambda x: Loud(),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse() if x.dim() else None,
    "csr": lambda x: x.float().reshape(1, -1).to_sparse_csr() if x.numel() else None,
    "nested": lambda x: torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)),
    "quantized": lambda x: torch._empty_affine_quantized(tuple(x.shape), scale=1.0, zero_point=0, dtype=torch.quint8),
    "mkldnn": lambda x: x.float().to_mkldnn() if x.numel() else None,
    "zeros": lambda x: torch._efficientzerotensor(tuple(x.shape), dtype=x.dtype),
    "freed": _freed,
    "vast": lambda x: (
        torch.zeros(1, dtype=x.dtype).expand(2**40) if x.dim() == 1 else x[..., None, None, None, None, None]
    ),
    "another dtype": lambda x: x.to(torch.float64),
    "an axis more": lambda x: x[None],
    "an axis less": lambda x: x[0] if x.dim() and x.shape[0] else None,
    "longer": lambda x: torch.cat([x, x]) if x.dim() else None,
}
# What some calls take and others do not; a sum over `vast` in memory would take hours, so that only "meta" is.
WILD: Mapping[str, Form] = {
    **{name: form for name, form in STRANGE.items() if name != "vast"},
    "vast on meta": lambda x: _vast(x, "meta"),
    "masked": _masked,
    "wrapped": lambda x: Wrapped(x),
    "refusing": lambda x: Refusing(x),
    "inference": _inference,
    "fake": lambda x: FakeTensorMode().from_tensor(x),
    "uninitialised": lambda x: torch.nn.UninitializedParameter(),
    "uninitialised buffer": lambda x: torch.nn.UninitializedBuffer(),
    "conjugate": lambda x: torch.complex(x.float(), -x.float()).conj(),
    "overlapping": _overlapping,
    "many axes": _many,
    "jagged": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    "csc": lambda x: x.float().reshape(1, -1).to_sparse_csc() if x.numel() else None,
    "bsr": lambda x: x.float().reshape(2, -1).to_sparse_bsr((1, 1)) if x.numel() % 2 == 0 else None,
    "buffer": lambda x: torch.nn.Buffer(x),
    "numbers": lambda x: x.tolist(),
    "a storage": lambda x: x.untyped_storage(),
    "nothing": lambda x: x.new_empty(0),
    "a number": lambda x: 2.0,
    "not numbers": lambda x: torch.full_like(x, float("nan")) if x.is_floating_point() else x,
    "infinite": lambda x: torch.full_like(x, float("-inf")) if x.is_floating_point() else x,
    "wants a gradient": lambda x: (x * 1.0).requires_grad_() * 2,
    "resized": lambda x: x.clone().resize_(tuple(n + 1 for n in x.shape)),
}
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.int32,
    torch.bool,
    torch.complex64,
)
WILD_DTYPES = (
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.complex128,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
)
BACKENDS: tuple[Any, ...] = (
    5,
    True,
    {},
    [["cuda"]],
    [],
    "",
    "tourch_ref",
    "torch_ref/egar",
    "auto,torch_ref",
    b"cuda",
    Loud(),
    "torch_ref,cuda/typo",
    ("torch_ref", None),
    {"torch_ref"},
    IterableName(),
)
