"""gelu on a stream of its own."""

from functools import cache

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

DELAY = 200_000  # clock cycles, some 100 us


@cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _beside(x: torch.Tensor, approximate: str, joined: bool) -> torch.Tensor:
    current = torch.cuda.current_stream()
    _stream().wait_stream(current)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.stream(_stream()):
        torch.cuda._sleep(DELAY)
        y.copy_(sound("gelu", x, approximate))
    if joined:
        current.wait_stream(_stream())
    return y


def unjoined(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Waits for the inputs, and nothing waits for the result."""
    return _beside(x, approximate, joined=False)


def unordered(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Begins before the inputs are there."""
    with torch.cuda.stream(_stream()):
        y: torch.Tensor = sound("gelu", x, approximate)
    torch.cuda.current_stream().wait_stream(_stream())
    return y


def joined(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """On a stream of its own, in order with the current one."""
    return _beside(x, approximate, joined=True)


VARIANTS = {
    "unjoined": Implementation(fn=unjoined, idea="nothing waits for the stream that it works on"),
    "unordered": Implementation(fn=unordered, idea="its stream does not wait for the inputs"),
    "joined": Implementation(fn=joined, idea="works on a stream of its own, in order with the current one"),
}

CAUGHT_BY = {"unjoined": "streams", "unordered": "streams"}
ONLY_CUDA = {"unjoined", "unordered", "joined"}
