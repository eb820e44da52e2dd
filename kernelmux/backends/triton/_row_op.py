"""`_rows/row_op.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.triton._rows.row_op import RowLaunch, RowOp, launch_of, rows

__all__ = [
    "RowLaunch",
    "RowOp",
    "launch_of",
    "rows",
]
