"""What a variant launches for the cases of its operator, told on a CPU as an H100 or H200 (SXM) would be told it.

Nothing is computed. Of kernels the PTX counts, with grid, block, cluster, shared memory and every argument; of torch's
operators their names and arguments. Comments, lines, names of kernels and where memory was allocated do not count.
This changes Triton and torch for the whole process, so `python -m kernelmux.conformance.verified.launches` has its own.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernelmux.candidate.dispatch_mode import DispatchMode
from kernelmux.conformance.verified import meaning
from kernelmux.conformance.verified.names import Names
from kernelmux.registry import catalog
from kernelmux.registry import dtypes as dtypes_
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.launch_keys import DECLARED, DIGITS, TIERS, UNMET, UNTOLD, digest, workload
from kernelmux.registry.cases import INPUTS, Case
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import OpSpec

CARD = SimpleNamespace(  # what an H100 and an H200 answer alike
    name="card",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 << 30,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
)
GPU = torch.device("cuda", 0)


class OnCard(torch.Tensor):
    """A tensor without memory that says it is on the GPU, for what is made of torch's operators."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


# --- a call ---------------------------------------------------------------------------------------------------------


class LaunchTracing(DispatchMode):
    """Writes down launches and torch's operators; those on tensors with memory do not run."""

    def __init__(self, fake: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake, self.lines = fake, list[str]()
        self._names: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # so that no address is used twice

    def name(self, x: torch.Tensor, wanted: str = "") -> str:
        """The memory of a tensor, numbered as it is met, with its size, and where in it the tensor begins."""
        storage = x.untyped_storage()
        if storage._cdata not in self._names:
            self._names[storage._cdata] = wanted or f"m{len(self._names)}:{storage.nbytes()}"
            self._kept.append(x)
        return f"{self._names[storage._cdata]}+{x.storage_offset() * x.element_size()}"

    def shown(self, value: Any, whole: bool = True) -> str:
        """An argument; whole: of a tensor also its form, which a kernel does not see."""
        if isinstance(value, torch.Tensor):
            form = f" {value.dtype} {tuple(value.shape)} {value.stride()}" if whole else ""
            return self.name(value) + form
        if isinstance(value, tuple | list):
            return f"[{', '.join(self.shown(v, whole) for v in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k}={self.shown(v, whole)}' for k, v in sorted(value.items()))}}}"
        if isinstance(value, torch.device):
            return "device"
        if hasattr(value, "encode") and hasattr(value, "tensor"):  # a tensor map
            return f"{self.shown(value.tensor, whole=False)} {value.encode(0).hex()}"
        if isinstance(value, np.ndarray):  # room that a compiler asks for
            return f"room {value.nbytes}"
        return f"{type(value).__name__} {value!r}"

    def launch(self, ptx: str, sizes: Sequence[Any], values: Sequence[Any]) -> None:
        """A kernel is launched."""
        self.lines.append(f"{ptx} {sizes} {self.shown(list(values), whole=False)}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aliases = [r.alias_info for r in func._schema.returns if r.alias_info]
        if not any(a.is_write for a in aliases) and (aliases or _allocates(func)):
            return func(*args, **kwargs)
        self.lines.append(f"{func} {self.shown(args)} {self.shown(kwargs)}")
        result = func(*args, **kwargs) if self.fake else _unrun(func, args, kwargs)
        for i, x in enumerate(tree_leaves(result)):
            if isinstance(x, torch.Tensor):
                self.name(x, f"r{len(self.lines)}.{i}")
        return result


def _allocates(func: Any) -> bool:
    name = str(func).partition(".")[2]
    return name.startswith(("empty", "new_empty", "lift_fresh", "detach", "alias"))


def _unrun(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator would return, with memory that nothing was written to."""
    written = [a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write]
    written += [kwargs[s.name] for s in func._schema.arguments if s.name in kwargs and s.alias_info]
    if written:
        return written[0] if len(func._schema.returns) == 1 else tuple(written) or None
    if not any(isinstance(x, torch.Tensor) for x in tree_leaves((args, kwargs))):  # zeros, full, arange
        kwargs = {**kwargs, "device": "meta"}
    try:
        made = func(*tree_map(_meta, args), **tree_map(_meta, kwargs))
    except Exception:  # what has no shapes without values
        return func(*args, **kwargs)
    return tree_map(_memory, made)


def _meta(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("meta")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x


def _memory(x: Any) -> Any:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if isinstance(x, torch.Tensor) else x


_told: list[LaunchTracing] = []  # the call that is being told, last


class Loaded:
    """In place of the emulator's module of a PTX text, which would have to be parsed: its kernels run nothing."""

    def __init__(self, ptx: str) -> None:
        self.ptx, self.module, self.name = ptx, self, ""

    def kernel(self, name: str) -> Loaded:
        found = Loaded(self.ptx)
        found.name = name
        return found

    @property
    def parameters(self) -> list[str]:
        return _parameters(self.ptx, self.name)

    def launch(
        self, grid: Any, block: Any, args: Sequence[Any], names: Any = (), shared: int = 0, cluster: Any = None
    ) -> None:
        sizes = [tuple(map(int, (n,) if isinstance(n, int) else n)) for n in (grid, block, cluster or (1, 1, 1))]
        if 0 not in sizes[0]:
            _told[-1].launch(normal(self.ptx, self.name), [*sizes, int(shared)], args)


@lru_cache(maxsize=4096)
def _parameters(ptx: str, name: str) -> list[str]:
    head = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", ptx)
    return re.findall(r"\.param\b", head[1]) if head else []


@lru_cache(maxsize=4096)
def normal(ptx: str, entry: str) -> str:
    """The digest of a PTX text without comments, line tables and names from the source."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", ptx, flags=re.DOTALL)
    text = re.sub(r"^\s*\.(loc|file)\b[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"\.section\s+\.debug\w*\s*\{.*?\n\s*\}", "", text, flags=re.DOTALL)
    defined = re.findall(r"^[^\n{]*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$%]+)", text, flags=re.MULTILINE)
    defined += re.findall(r"\.(?:global|shared|const)\s[^\n;=({]*?([A-Za-z_$][\w$]*)\s*(?:\[[^\n;]*)?(?:=|;)", text)
    for i, name in enumerate(dict.fromkeys([entry, *defined])):
        text = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?=_param_|[^\w$])", f"name{i}", text)
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:24]


# --- a variant ------------------------------------------------------------------------------------------------------


def stand_for_the_card() -> None:
    """From now on this process answers as the card does, and launches nothing."""
    warnings.simplefilter("ignore")
    vars(torch.cuda)["get_device_properties"] = lambda device=None: CARD
    vars(torch.cuda)["get_device_capability"] = lambda device=None: (CARD.major, CARD.minor)
    import_module("kernelmux.emulator").load_by(lru_cache(maxsize=4096)(Loaded))
    if find_spec("triton"):
        launch = import_module("kernelmux.backends.triton._launch.launch")
        vars(launch).update(processors=lambda device: CARD.multi_processor_count, overlaps=lambda device: True)


def items(spec: OpSpec, timed: Iterable[tuple[str, str]]) -> list[tuple[str, Case, tuple[torch.dtype, ...]]]:
    """What a variant is asked, with an id: the cases, and of `timed` workloads and dtypes those that have times.

    A case of tier smoke is asked in all its dtypes, another in one, which its text chooses: the cases have them in turn.
    """
    found = []
    for case in spec.cases:
        if case.tier in TIERS:
            dtypes = tuple(case.dtypes or spec.dtypes)
            turn = int(digest(case.text), 16) % len(dtypes)
            found.append((digest(case.text), case, dtypes if case.tier == TIERS[0] else dtypes[turn : turn + 1]))
    for text, dtype in timed:
        found.append((workload(text, dtype), spec.case(text), (dtypes_.parse(dtype),)))
    return found


def launch_trace(
    spec: OpSpec, backend: str, implementation: Implementation, case: Case, dtype: torch.dtype
) -> list[str] | None:
    """A call of a variant, line by line; None if it does not take it."""
    home = registered.backend(backend)
    fake = not home.emulates
    with torch.no_grad():
        tensors = spec.untouched(case, dtype, torch.device("meta" if fake else "cpu"))
        if fake:
            tensors = {name: torch.Tensor._make_subclass(OnCard, x) for name, x in tensors.items()}
        for x in tensors.values():
            if not fake and x.numel() <= 1 << 20:
                x.zero_()
        given: dict[str, Any] = {n: v for n, v in case.parsed[1].items() if n != INPUTS} | tensors
        given |= {"device": GPU, "capability": (CARD.major, CARD.minor)} if fake else {}
        call = spec.bind(**given)
        if implementation.reasons(call):
            return None
        with home.emulation(), LaunchTracing(fake) as log:
            _told.append(log)
            try:
                values: list[Any] = []
                for item in spec.inputs:
                    value = call.arguments[item.name]
                    if isinstance(value, torch.Tensor):
                        log.name(value, f"i{len(values)}")
                        if not registered.fits(value, implementation.layout.get(item.name, "any")):
                            value = value.contiguous()
                    values.append(value)
                result = implementation.fn(*values)
            finally:
                _told.pop()
    lines: list[str] = log.lines
    return [*lines, log.shown(result if isinstance(result, tuple) else (result,))]


def key(spec: OpSpec, backend: str, implementation: Implementation, case: Case, dtypes: Sequence[torch.dtype]) -> str:
    """The digest of a variant's calls for a case in these dtypes."""
    lines: list[str] = []
    for dtype in dtypes:
        try:
            lines += launch_trace(spec, backend, implementation, case, dtype) or [UNMET]
        except Exception as error:
            what = f"{spec.name}/{backend} {case.text} {SHORT[dtype]}: {type(error).__name__}: {error}"
            print(what[:400], file=sys.stderr, flush=True)
            return UNTOLD
    return UNMET if set(lines) == {UNMET} else digest("\n".join(lines))


def declared(spec: OpSpec, implementation: Implementation, names: Names | None = None) -> str:
    """What a variant declares of its results, on which its bounds and checks depend."""
    fields = ("arithmetic", "rounds", "deterministic", "layout")
    found = [getattr(implementation, name, ()) for name in fields]
    return meaning.digest(spec, [*found, sorted(getattr(implementation, "exempt", ()))], names)[:DIGITS]


def keys(op: str, backend: str, variant: str, timed: Iterable[tuple[str, str]] = ()) -> tuple[str, str]:
    """The ids of what a variant is asked, and its keys in that order, `DIGITS` each."""
    spec, one = catalog.spec(op), registered.variants(backend, op)[variant]
    asked = items(spec, timed)
    found = "".join(key(spec, backend, one, case, dtypes) for _, case, dtypes in asked)
    return DECLARED + "".join(item for item, *_ in asked), declared(spec, one) + found


def main() -> None:
    """Reads a question a line, `["softmax", "cuda", "online", [[workload, dtype], ...]]`, and answers it."""
    stand_for_the_card()
    for line in sys.stdin:
        print(json.dumps(keys(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
