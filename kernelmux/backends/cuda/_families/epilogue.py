"""What becomes of the sums of a product before they are rounded: a bias, an activation. The kernels' side: epilogue.cuh."""

from typing import NamedTuple

import torch

ACTIVATIONS = {"gelu": "GeluErf", "silu": "Silu", "relu": "Relu"}


class EpilogueKind(NamedTuple):
    """What of an epilogue a kernel is compiled for: whether there is a bias, and which activation."""

    bias: bool = False
    activation: str = "none"

    @property
    def macros(self) -> dict[str, object]:
        """The options of a kernel; none for the sums as they are."""
        found: dict[str, object] = {"BIAS": 1} if self.bias else {}
        return found if self.activation == "none" else {**found, "ACTIVATION": ACTIVATIONS[self.activation]}

    @property
    def tensors(self) -> str:
        """The parameters of a kernel for its results, as its signature has them."""
        return "c* bias* z*" if self.macros else "c*"


class Epilogue(NamedTuple):
    """An ending with the arguments of a kernel behind c: none, or bias [N] and z [M, N], None where it needs them not."""

    ending: EpilogueKind = EpilogueKind()
    tensors: tuple[torch.Tensor | None, ...] = ()


PLAIN = Epilogue()
