"""The base of what listens to torch's operators here."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As torch's own, which imports torch's compiler at the first operation inside: a second and a half of a process."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
