"""Products of matrices of 4-bit floats with a scale for every 16 of them, exactly, on a device that has none.

torch._scaled_mm computes these on Blackwell GPUs alone. References that call it are run here by their meaning: a number
is sign, two bits of exponent and one of mantissa (OCP MX specification 1.0); two of them lie in a byte, the first one in
the low half; the scales lie in blocks of 128 rows and 4 columns, as cuBLAS describes them.
"""

from __future__ import annotations

import torch

FLOAT4 = torch.float4_e2m1fn_x2
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GROUP = 16


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """The product of a [M, K] and b [K, N] in `out_dtype`, both packed along K and with scales in blocks."""
    left, right = numbers(a, scale_a), numbers(b.t(), scale_b)
    found = left @ right.t()
    if scale_result is not None:
        found = found * scale_result.double()
    return (found if bias is None else found + bias.double()).to(out_dtype or torch.bfloat16)


def numbers(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The scaled numbers in float64 [rows, K] of a packed matrix [rows, K / 2]."""
    halves = packed.contiguous().view(torch.uint8)
    nibbles = torch.stack([halves & 15, halves >> 4], -1).flatten(-2).long()
    table = torch.tensor([*NUMBERS, *(-x for x in NUMBERS)], dtype=torch.float64, device=packed.device)
    rows, columns = nibbles.shape
    plain = unblocked(scales.double(), rows, columns // GROUP)
    return table[nibbles] * plain.repeat_interleave(GROUP, 1)


def unblocked(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales [rows, columns] from blocks of 128 x 4, in which four groups of 32 rows lie beside each other."""
    down, across = -(-rows // 128), -(-columns // 4)
    blocks = scales.reshape(down * across, 32, 4, 4).transpose(1, 2).reshape(down, across, 128, 4)
    return blocks.permute(0, 2, 1, 3).reshape(down * 128, across * 4)[:rows, :columns]
