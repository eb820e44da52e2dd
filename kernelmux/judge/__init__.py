"""Verdicts on kernels of strangers: `kernelmux judge FILE:FUNCTION --op OP`, and `verdict` for programs."""

from kernelmux.judge.verdict import Verdict, verdict

__all__ = ["Verdict", "verdict"]
