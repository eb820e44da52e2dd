"""`bind`: a call that is checked and resolved once, and then costs little more than its launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import forward_ad

from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch, fast_path, launch_replay
from kernelmux.registry.call.plan import CallPlan
from kernelmux.registry.choice import requests, warn_once
from kernelmux.registry.choice.decide import refuse
from kernelmux.registry.choice.decision import Decision
from kernelmux.registry.choice.requests import Names
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.interop import autocast, torch_ops
from kernelmux.registry.observe import gpu_failures
from kernelmux.registry.spec import binding
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.util import torch_modes


def bind(
    op: str,
    like: Sequence[torch.Tensor | None] | torch.Tensor,
    backend: Names | None = None,
    *,
    check: bool = True,
    **scalars: Any,
) -> BoundCall:
    """An operator for tensors like these, resolved once: `fast = kx.bind("softmax", like=(x,)); y = fast(x)`.

    like: the tensors of the operator, in its order; None for an optional one, which then stays None. scalars: fixed by
    this. Raises what the call would raise. The bound call keeps the variant that is chosen here, whatever `use()` or
    `set_default` say later, and returns what the public function returns. One that is not deterministic is refused where
    `torch.use_deterministic_algorithms(True)` was called since.

    Every call compares its tensors with `like`: shape, strides, dtype, device, alignment to 16 bytes, and whether a
    gradient is wanted; ArgumentError if they differ. That takes half a microsecond for one tensor, and a quarter for each
    further one. Where torch traces, the call is an operator of torch like any other. Autocast casts nothing here: what
    it would cast is an error.

    check: with False nothing is compared at all. You answer for it that all tensors are like these, and that nothing of
    torch (a trace, a transform, autocast) surrounds a call, but for torch.compile: a kernel takes other tensors for what
    was bound, and reads and writes beyond the end of shorter ones.
    """
    spec = catalog.spec(op)
    if not isinstance(check, bool):
        raise ArgumentError(f"bind: {op}: check: expected True or False, got {shown(check)}")
    values = _complete(spec, (like,) if isinstance(like, torch.Tensor) else like, scalars)
    if unusual(values):
        raise ArgumentError(
            f"bind: {op}: like: expected tensors in memory outside of a trace, got {_first_odd_tensor(spec, values)}"
        )
    if cast := _cast(spec, values):
        raise ArgumentError(
            f"bind: {op}: {cast}: bind it outside of autocast, with tensors of the dtype that it is to have"
        )
    plan, chosen = dispatch.resolve(spec, values, backend)
    if chosen.emulated:
        warn_once.warn_emulated(chosen.backend, 3)
    if not chosen.varies:  # it stays what it is, whatever the others of its ladder are
        plan = replace(plan, mode=None)
    return BoundCall(spec, values, plan, chosen.name, check)


class BoundCall:
    """An operator whose variant and scalars are fixed; called with its tensors, in their order. See `bind`.

    name: of the variant that runs, such as "cuda/rows". Each has a class of its own, whose `__call__` is the function that
    was written for it: no frame lies between.
    """

    __slots__ = ("_at", "_check", "_fixed", "_like", "_plan", "_spec", "name")

    def __new__(cls, *given: Any) -> BoundCall:
        return object.__new__(type(cls.__name__, (cls,), {"__slots__": (), "__module__": cls.__module__}))

    def __init__(self, spec: OpSpec, values: tuple[Any, ...], plan: CallPlan, name: str, check: bool) -> None:
        self.name, self._check = name, check
        self._spec, self._plan = spec, plan
        self._at = tuple(i for i, v in enumerate(values) if isinstance(v, torch.Tensor))
        self._like = tuple(TensorFacts.of(values[i]) for i in self._at)
        self._fixed = tuple(None if i in self._at else v for i, v in enumerate(values))
        for i, value in plan.scalars:
            self._fixed = (*self._fixed[:i], value, *self._fixed[i + 1 :])
        with torch_modes.plain(
            plan.device
        ):  # inside of autocast no call is like this one: torch's operators would cast
            type(self).__call__ = self._compiled([values[i] for i in self._at])  # type: ignore[method-assign]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """What the public function returns."""
        raise NotImplementedError  # in the class of each

    def __repr__(self) -> str:
        tensors = (f"{self._spec.inputs[i].name} {f}" for i, f in zip(self._at, self._like, strict=True))
        fixed = dict(zip((i.name for i in self._spec.inputs), self._fixed, strict=True))
        scalars = (f"{i.name}={fixed[i.name]!r}" for i in self._spec.scalars)
        unchecked = [] if self._check else ["unchecked"]
        return f"<{self._spec.name} bound to {self.name}: {', '.join([*tensors, *scalars, *unchecked])}>"

    def explain(self) -> Decision:
        """What this variant, and every other one, says of such a call; nothing is computed."""
        values = self._values(tuple(f.outline() for f in self._like))
        call = self._spec.bind(*values, device=self._plan.device)
        return dispatch.decide(call, requests.parse(self.name, "bind"), thorough=True)

    def _values(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """All arguments of the operator."""
        found = list(self._fixed)
        for i, x in zip(self._at, tensors, strict=True):
            found[i] = x
        return tuple(found)

    def _compiled(self, given: list[torch.Tensor]) -> Callable[..., Any]:
        """The call as source text: comparing in C++ and passing constants halves the time of loops over the tensors.

        Once there is a replay the text holds it, which saves a frame and taking each address twice.
        """
        spec, plan = self._spec, self._plan
        names = [spec.inputs[i].name for i in self._at]
        arguments = [i.name if n in self._at else f"_value_{i.name}" for n, i in enumerate(spec.inputs)]
        given_, returned = ", ".join(names), dispatch.returned(spec)
        scope: dict[str, Any] = {f"_value_{i.name}": v for i, v in zip(spec.inputs, self._fixed, strict=True)}
        scope |= {"_compiling": torch.compiler.is_dynamo_compiling, "_operator": torch_ops.operator(spec.name)}
        lines = [
            f"def {spec.name}(_bound, {given_}):",
            "    if _compiling():",
            f"        return _operator({', '.join(arguments)}, backend={self.name!r}){returned}",
        ]
        addresses: dict[int, str] = {}
        if self._check:
            addresses = {
                i: launch_replay.address(i) for i, f in zip(self._at, self._like, strict=True) if 0 not in f.shape
            }
            lines += [
                f"    if not ({' and '.join(self._conditions(names, given, addresses, scope))}):",
                f"        return _bound._rest(({given_},))",
            ]

        def written(text: launch_replay.Text | None = None) -> Callable[..., Any]:
            rest = fast_path.running(plan, arguments, scope, returned, text, addresses.values())
            return launch_replay.defined(spec.name, lines + rest, scope)

        def hold(text: launch_replay.Text) -> None:
            type(self).__call__ = written(text)  # type: ignore[method-assign]

        if isinstance(plan.fn, launch_replay.Replayed) and not (plan.copies or plan.emulation):
            plan.fn.then = hold
        return written()

    def _conditions(
        self, names: list[str], given: list[torch.Tensor], addresses: dict[int, str], scope: dict[str, Any]
    ) -> list[str]:
        """What holds for a call like the one that was bound, as source text; `_rest` looks closer where it does not.

        addresses: the names that addresses of tensors get, by position; none of a tensor without elements.
        """
        parts = fast_path.alike(names, given, scope)
        for i, name, like in zip(self._at, names, self._like, strict=True):
            at = addresses.get(i)
            parts += [f"{fast_path.LOWEST} < ({at} := {name}.data_ptr()) and {at} & 15 == {like.offset}"] if at else []
            parts += [f"{name}.is_pinned() is {like.pinned}"] if self._spec.hosted else []
        return [*parts, *fast_path.surroundings(given), *fast_path.determined(self._plan, scope)]

    def _rest(self, tensors: tuple[Any, ...]) -> Any:
        """A call that the quick comparison did not pass: an error, a trace, or one that differs in nothing that matters."""
        values = self._values(tensors)
        if not all(isinstance(x, torch.Tensor) for x in tensors) or not unusual(values):
            self._compare(tensors)
            self._determined()
            if cast := _cast(self._spec, values):
                raise ArgumentError(f"{self._spec.name}, bound: {cast}: call it outside of autocast, or do not bind it")
            self._plan.tick()
            try:
                with torch_modes.plain(self._plan.device):
                    found = self._plan.run(values)
            except Exception as error:
                gpu_failures.tell(error, self._plan.ran, values)
                raise
        else:
            found = dispatch.call(self._spec, values, self.name)
        if not isinstance(found, tuple) or self._spec.visible == len(self._spec.outputs):
            return found
        return found[0] if self._spec.visible == 1 else found[: self._spec.visible]

    def _determined(self) -> None:
        """Raise, or warn, where the bits of the variant may differ and torch asks for deterministic algorithms now."""
        if self._plan.mode is not None:
            decision = self.explain()
            warn_once.warn_varying(decision, decision.chosen or refuse(decision))

    def _compare(self, tensors: tuple[Any, ...]) -> None:
        for i, x, like in zip(self._at, tensors, self._like, strict=True):
            name = self._spec.inputs[i].name
            got = TensorFacts.of(x) if isinstance(x, torch.Tensor) and binding.strided(x) else shown(x)
            if isinstance(got, TensorFacts) and (problem := binding.unreadable(x)):
                raise ArgumentError(f"{self._spec.name}, bound: {name}: expected {like} in memory, got {problem}")
            if not isinstance(got, TensorFacts) or not like.allows(got):
                raise ArgumentError(
                    f"{self._spec.name}, bound: {name}: expected {like} as it was bound, got {got}: bind it anew, or call"
                    f" kernelmux.{self._spec.name}"
                )


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a choice depends on in a tensor. offset: of its address, in bytes, from the last multiple of 16.

    wanted: whether its gradient is. bits: whether it is a negative and a conjugate view.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    wanted: bool
    bits: tuple[bool, bool]
    pinned: bool

    @classmethod
    def of(cls, x: torch.Tensor) -> TensorFacts:
        """The facts of a tensor in memory."""
        offset = x.data_ptr() & 15 if x.numel() else 0
        wanted = x.requires_grad and torch.is_grad_enabled()
        bits = (x.is_neg(), x.is_conj())
        pinned = x.device.type == "cpu" and torch.cuda.is_available() and x.is_pinned()
        return cls(tuple(x.shape), x.stride(), x.dtype, x.device, offset, wanted, bits, pinned)

    def allows(self, other: TensorFacts) -> bool:
        """Whether what was resolved for this tensor is right for the other: strides of axes of length 1 say nothing."""
        same = (self.shape, self.dtype, self.device, self.bits, self.pinned)
        if same != (other.shape, other.dtype, other.device, other.bits, other.pinned):
            return False
        steps = zip(self.shape, self.strides, other.strides, strict=True)
        lies = 0 in self.shape or all(n == 1 or a == b for n, a, b in steps)
        return lies and other.offset in (0, self.offset) and self.wanted >= other.wanted

    def outline(self) -> torch.Tensor:
        """Such a tensor without memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")

    def __str__(self) -> str:
        notes = [f"strides {self.strides}"] if not self.outline().is_contiguous() else []
        notes += [f"{self.offset} bytes off a multiple of 16"] if self.offset else []
        notes += ["that requires a gradient"] if self.wanted else []
        notes += [name for name, bit in zip(("negative view", "conjugate view"), self.bits, strict=True) if bit]
        notes += ["pinned"] if self.pinned else []
        return " ".join([f"{SHORT.get(self.dtype, self.dtype)}{list(self.shape)}", *notes, f"on {self.device}"])


def unusual(values: tuple[Any, ...]) -> bool:
    """Whether torch must see the operator rather than its launch: a trace, a transform, a forward derivative."""
    return torch_modes.watched(values) or forward_ad._current_level >= 0


def _complete(spec: OpSpec, like: Sequence[Any], scalars: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments of the operator, those that are left out as the signature has them."""
    names = [t.name for t in spec.tensors]
    if not isinstance(like, Sequence) or isinstance(like, str) or len(like) > len(names):
        raise ArgumentError(
            f"bind: {spec.name}: like: expected its tensors in order, ({', '.join(names)}), got {shown(like)}"
        )
    if wrong := [name for name in names if name in scalars]:
        raise ArgumentError(f"bind: {spec.name}: {wrong[0]}: expected it in like, got it by name")
    return spec.given(**dict(zip(names, like, strict=False)), **scalars)


def _cast(spec: OpSpec, values: tuple[Any, ...]) -> str | None:
    """What autocast would do to these arguments, or None."""
    device = next((v.device.type for v in values if isinstance(v, torch.Tensor)), "")
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return None
    for item, old, new in zip(spec.inputs, values, autocast.cast(spec, values, device), strict=True):
        if old is not new:
            return f"autocast turns {item.name} from {SHORT[old.dtype]} to {SHORT[new.dtype]}"
    return None


def _first_odd_tensor(spec: OpSpec, values: tuple[Any, ...]) -> str:
    """The first tensor that is not plain memory."""
    odd = (
        f"{i.name} of {type(v).__name__} on {v.device}"
        for i, v in zip(spec.inputs, values, strict=True)
        if isinstance(v, torch.Tensor) and (v.is_meta or not torch_modes.has_memory(v))
    )
    return next(odd, "a trace")
