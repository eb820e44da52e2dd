"""The families under which the index lists the operators."""

from __future__ import annotations

from collections.abc import Iterable

OTHERS = "Others"
FAMILIES = {  # by how the names of the operators begin; the longest of them that fits counts
    "Element by element": ("add", "square", "polynomial", "gelu", "silu", "swiglu", "geglu"),
    "Rows": ("softmax", "log_softmax", "rms_norm", "add_rms_norm", "layer_norm"),
    "Reductions": ("reduce_", "argmax"),
    "Losses": ("cross_entropy",),
    "Products": ("matmul", "linear", "matvec", "int8_matmul", "fp8_matmul", "quantize_"),
    "Attention": ("attention", "paged_attention", "rope"),
    "Images": ("conv2d", "max_pool2d"),
    "Moving data": ("transpose", "copy_column"),
}


def family(op: str) -> str:
    """The family of an operator, "Others" for one that begins as none of them does."""
    fitting = [(len(begin), name) for name, begins in FAMILIES.items() for begin in begins if op.startswith(begin)]
    return max(fitting, default=(0, OTHERS))[1]


def by_family(ops: Iterable[str]) -> dict[str, list[str]]:
    """Operators under their families, in the order of the index; families without any are left out."""
    found: dict[str, list[str]] = {name: [] for name in (*FAMILIES, OTHERS)}
    for op in ops:
        found[family(op)].append(op)
    return {name: names for name, names in found.items() if names}
