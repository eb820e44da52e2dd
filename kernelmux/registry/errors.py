"""Every exception that kernelmux raises on purpose.

KernelmuxError
├── ArgumentError (ValueError)            the call is wrong for every backend: shape, dtype, device, scalar
├── UnsupportedError (NotImplementedError) the call is right, but none of the requested backends can run it
├── BackendUnavailable (RuntimeError)     the backend is known, but cannot work on this machine
├── KernelFailure (RuntimeError)          CUDA reported an error in a call; its own exception is the __cause__
│   └── CompileFailure                    a kernel does not compile for the card; that of the compiler is the __cause__
├── UnknownName (LookupError)             no op, backend or variant of that name
└── SpecError (TypeError)                 a spec or a registered implementation contradicts itself

DeterminismWarning (UserWarning)          said once per process, operator and variant: it runs, and its bits may differ
EmulationWarning (UserWarning)            said once per process and backend: its GPU kernels run on the emulator
FallbackWarning (UserWarning)             said once per process, operator and reason: a preferred backend was passed over,
                                          a kernel was refused by the card or its compiler, products are computed
                                          without tensor cores, or vmap runs an operator once per example
ShadowWarning (UserWarning)               a result and that of its shadow differ, or a shadow cannot run
UnmeasuredWarning (UserWarning)           said once per process and GPU: no times of it are known to "auto"
VariableWarning (UserWarning)             said once per process: nothing reads a variable that begins with KERNELMUX_

Any other exception raised inside an implementation is not wrapped: it reaches the caller as it is.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, MappingProxyType

SHOWN = 200  # characters of a value in an error
NOTHING: Mapping[str, str] = MappingProxyType({})


class KernelmuxError(Exception):
    """Base of all exceptions of this package."""


class ArgumentError(KernelmuxError, ValueError):
    """An argument that the spec of the operator does not allow."""


class UnsupportedError(KernelmuxError, NotImplementedError):
    """No requested backend can run a call that the spec allows; the text lists every reason."""


class BackendUnavailable(KernelmuxError, RuntimeError):
    """A backend that exists but lacks something on this machine (a package, a GPU, a compiler)."""


class KernelFailure(KernelmuxError, RuntimeError):
    """A call that failed on the GPU: the text names call, variant and likely cause, and the ways to the exact place."""


class CompileFailure(KernelFailure):
    """A kernel that its compiler refuses for the card of the call: the text names call, variant, card and what is wrong."""


class UnknownName(KernelmuxError, LookupError):
    """A name of an operator, backend or variant that is not registered."""


class SpecError(KernelmuxError, TypeError):
    """A spec, or an implementation registered for it, that is not well formed."""


class DeterminismWarning(UserWarning):
    """A variant that is not deterministic runs under torch.use_deterministic_algorithms(True, warn_only=True)."""


class EmulationWarning(UserWarning):
    """A backend for GPUs was asked for by name, and its kernels run on the emulator: correct but slow."""


class FallbackWarning(UserWarning):
    """A call ran, but not on the preferred backend or variant, without tensor cores, or under vmap once per example.

    In a patched module also: as before. The text gives the reason.
    """


class ShadowWarning(UserWarning):
    """A result, or that of the backend that runs along with it, is off by more than the bound of the spec allows."""


class TunedTableWarning(UserWarning):
    """A table of tuned configurations cannot be read and is ignored."""


class UnmeasuredWarning(UserWarning):
    """ "auto" goes by the priority of backends on a GPU without measured times; the text says how to measure them."""


class VariableWarning(UserWarning):
    """A variable of the environment that begins with KERNELMUX_ and that nothing reads."""


def described(error: Exception) -> str:
    """The text of an error; one that is not ours may be anything, and its type says what."""
    return str(error) if isinstance(error, KernelmuxError) else f"{type(error).__name__}: {error}"


def shown(value: object) -> str:
    """A value that a user passed, as an error shows it: cut off where it is long, whatever its repr() does."""
    try:
        text = repr(value)
    except Exception:  # ten thousand digits, or a class of the user's
        return f"<{type(value).__name__}>"
    return cut(text)


def cut(text: str) -> str:
    """A text of a user's as an error shows it: its beginning where it is long."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def unknown(
    kind: str, name: object, known: Iterable[str], where: str = "", meant: Mapping[str, str] = NOTHING
) -> UnknownName:
    """The error for a misspelt name: says where it came from, the nearest match, and what is known.

    meant: what other names stand for that are not like it, such as "gpu" for "cuda".
    """
    names = list(known)
    if not isinstance(name, str):
        return UnknownName(f"unknown {kind} {shown(name)}: expected a name among {', '.join(names) or 'none'}")
    place = f" in {where}" if where else ""
    told = f'unknown {kind} "{cut(name)}"{place}; {hint(name, names, meant)}known: {", ".join(names) or "none"}'
    return UnknownName(told)


def hint(name: str, names: Sequence[str], meant: Mapping[str, str] = NOTHING) -> str:
    """The question whether the nearest of the names was meant, or ""; meant: as for `unknown`."""
    near = nearest(name, names, filter(None, [meant.get(name.lower())]))
    return f'did you mean "{near}"? ' if near else ""


def nearest(name: str, names: Sequence[str], meant: Iterable[str] = ()) -> str | None:
    """The one of the names that was probably meant: the same in other letters, one of `meant`, or one that is like it."""
    alike = [known for known in names if known.lower() == name.lower()]
    return next(iter(alike or [*meant] or difflib.get_close_matches(name, names, n=1)), None)


def not_forward(op: str, name: str) -> UnsupportedError:
    """The error for an input with a forward derivative where only kernels may compute, which know none."""
    return UnsupportedError(
        f"{op}: {name} carries a forward derivative (jvp, jacfwd, hessian), which kernels do not compute:"
        f" pass its primal, take jacrev, or use a backend made of torch's operators, such as torch_ref"
    )


def not_in_fx(op: str, name: str) -> UnsupportedError:
    """The error for a stand-in of torch.fx.symbolic_trace in place of a tensor."""
    return UnsupportedError(
        f"{op}: {name}: expected a torch.Tensor, got a torch.fx.Proxy: torch.fx.symbolic_trace has no shapes and dtypes to"
        f" choose by: use torch.export or torch.compile, or call torch.ops.kernelmux.{op}, which it takes as it is"
    )


OWN = ("kernelmux.registry.", "kernelmux.nn.", "torch.")  # modules in which no user's line is


def depth() -> int:
    """How far up the line of the user is: past kernelmux.registry and kernelmux.nn, compiled functions, and torch."""
    depth, frame = 2, sys._getframe(2)
    while frame.f_back is not None and _inner(frame):
        depth, frame = depth + 1, frame.f_back
    return depth


def _inner(frame: FrameType) -> bool:
    home = str(frame.f_globals.get("__name__", ""))
    return (home.startswith(OWN) and ".tests." not in home) or "_call" in frame.f_globals
