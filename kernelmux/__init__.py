"""kernelmux: one operator spec, many GPU kernels.

    import kernelmux as kx
    y = kx.softmax(x)                        # whichever backend is chosen
    y = kx.softmax(x, backend="cuda")        # this one, or an error that says why not
    with kx.use("triton"): ...               # a scope
    kx.which("softmax", x); print(kx.explain("softmax", x))
    kx.nn.RMSNorm(4096); kx.patch(model)     # modules for a model; those of a model that exists

Every operator of `kernelmux.registry.ops` is a function here. Importing this module imports neither torch nor a backend;
where torch is there already, its `torch.ops.kernelmux` gets the operators.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

__version__ = "0.1.0"

_API = {
    "use": "choice.precedence",
    "set_default": "choice.precedence",
    "which": "call.dispatch",
    "explain": "call.dispatch",
    "bind": "call.bound_call",
    "BoundCall": "call.bound_call",
    "graphed": "call.cuda_graphs",
    "Graphed": "call.cuda_graphs",
    "shadow_report": "call.shadow",
    "backend_names": "backend.lookup",
    "install_torch_ops": "call.dispatch",
    "ranges": "observe.profiler_ranges",
    "record": "observe.call_log",
    "stats": "observe.counters",
    "support_matrix": "cli.support_matrix",
    "ArgumentError": "errors",
    "BackendUnavailable": "errors",
    "CompileFailure": "errors",
    "DeterminismWarning": "errors",
    "EmulationWarning": "errors",
    "FallbackWarning": "errors",
    "KernelFailure": "errors",
    "KernelmuxError": "errors",
    "ShadowWarning": "errors",
    "SpecError": "errors",
    "TunedTableWarning": "errors",
    "UnknownName": "errors",
    "UnmeasuredWarning": "errors",
    "UnsupportedError": "errors",
    "VariableWarning": "errors",
}

_NN = ("nn", "patch")  # the package kernelmux.nn, and what is public of it


def __getattr__(name: str) -> Any:
    value: Any
    if name in _API:
        value = getattr(importlib.import_module(f"kernelmux.registry.{_API[name]}"), name)
    elif name in _NN:
        nn = importlib.import_module("kernelmux.nn")
        value = nn if name == "nn" else getattr(nn, name)
    elif name == "__all__":
        value = _names()
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        from kernelmux.registry import catalog
        from kernelmux.registry.call import dispatch

        if name not in catalog.names():
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; operators: {', '.join(catalog.names())}",
                name=name,
                obj=sys.modules[__name__],  # by which Python says "did you mean"
            )
        value = catalog.refusing(name) if catalog.problem(name) else dispatch.function(name)
    globals()[name] = value
    return value


def _names() -> list[str]:
    """What this module offers; `__init__.pyi`, written by `kernelmux.registry.stubs`, has the types."""
    from kernelmux.registry import catalog

    return sorted({*_API, *_NN, *catalog.names(), "__version__"})


def __dir__() -> list[str]:
    return sorted({*_names(), *(name for name in globals() if name.startswith("__"))})


def _run(*call: Any) -> Any:
    """What an operator of torch runs: `dispatch.call`, which is imported for the first one and then takes its place."""
    return importlib.import_module("kernelmux.registry.call.dispatch").call(*call)


if "torch" in sys.modules and importlib.util.find_spec("kernelmux.registry"):  # the emulator can stand alone
    _torch_ops = importlib.import_module("kernelmux.registry.interop.torch_ops")
    _torch_ops.runs = _run
    _torch_ops.install_torch_ops()
