"""Operators that need a whole row, such as norms and softmax: walks over rows, their tiles, their gradients.

Operators of other packages import `rows` by the name of this folder.
"""

from kernelmux.backends.triton._rows.rows import clamp, next_power, rounded_product, row_offsets, walk

__all__ = ["clamp", "next_power", "rounded_product", "row_offsets", "walk"]
