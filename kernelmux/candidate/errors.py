"""What is raised for a call of a candidate that gave no result."""

from __future__ import annotations

import torch


class CandidateError(RuntimeError):
    """A call of a candidate that gave no result: what it raised, or how its process ended. cause: the same in short."""

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text.partition("\n")[0].partition("; it printed")[0]


class CandidateOutOfMemory(CandidateError, torch.OutOfMemoryError):
    """The GPU had too little memory left for what a candidate took, by its own word."""
