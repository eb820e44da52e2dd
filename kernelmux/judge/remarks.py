"""What computed a result, as far as it was seen: kernels that were launched, and operators of torch that were asked for.

Launches are this project's own word where they are emulated; on a GPU the process of the candidate tells them, as it tells
everywhere which operators of torch ran: a remark, and never a reason to pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SHOWN = 6  # names in a remark
TORCH, CUBLAS, NONE = "torch", "cublas", "no kernel of its own was launched"
OF_TORCH = re.compile(r"\bat::(native|cuda)::|^at_cuda_detail::|\bcub::")
FILLS = re.compile(
    r"FillFunctor|direct_copy_kernel|CatArray"
)  # memory is made and moved: kernels need these around them
OF_LIBRARIES = re.compile(r"nvjet|cublas|cudnn|cutlass_\d|xmma|^ampere_|^volta_|^sm\d+_.*gemm|splitKreduce", re.I)


def of(launched: Mapping[str, int], operators: Iterable[str], device: str) -> tuple[list[str], list[str]]:
    """What it used that is not its own, "torch" or "cublas" (its libraries, without torch), and remarks in words."""
    names = sorted(operators)
    gpu = device == "cuda"
    theirs = [n for n in launched if gpu and OF_TORCH.search(n)]
    library = [n for n in launched if gpu and OF_LIBRARIES.search(n) and n not in theirs]
    own = {n: count for n, count in launched.items() if n not in theirs and n not in library}
    computed = bool(names) or any(not FILLS.search(n) for n in theirs) or not (own or library)
    uses = [TORCH] if computed else [CUBLAS] if library else []  # torch calls the libraries as well
    told = [f"launched {_listed([f'{_short(name)} ({_times(count)})' for name, count in own.items()])}"] if own else []
    if library:
        told.append(f"launched kernels of a library: {_listed([_short(n) for n in library])}")
    if names:
        told.append(f"{'beside its kernels ' if own else NONE + ': '}torch computed {_listed(names)}")
    elif not own:
        told.append(f"{NONE}, and no operator of torch was heard")
    return uses, told


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _short(name: str) -> str:
    """A kernel's name without its arguments."""
    return re.sub(r"^void |[(<].*", "", name)[:60] or name[:60]


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
