"""Verdicts on kernels of strangers: `kernelmux judge FILE:FUNCTION --op OP`, and `verdict` for programs."""

from kernelmux.judge.verdict import KernelVerdict, verdict

__all__ = ["KernelVerdict", "verdict"]
