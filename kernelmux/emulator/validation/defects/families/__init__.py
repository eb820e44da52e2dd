"""Families of defects: each module holds FAMILY, and DEFECTS over the kernels of the `.cu` file of the same stem."""
