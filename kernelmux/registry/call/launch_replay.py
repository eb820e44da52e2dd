"""Replays: an implementation that only allocates and launches is watched once; further calls of its kind only do that.

Between the arguments of a call and its launches lies Python that depends on nothing but what calls of one kind have in
common: shapes, strides, dtypes, alignment, scalars. It costs more than the launch itself. `Replayed` runs the first call
of a kind as it is, watches the second, and writes a function for all others: allocate, take addresses, launch.

A backend's launch seam says what it launches (`launched`), and with which tensors; a torch dispatch mode sees every
other operation. An implementation that does anything else but allocate, view, copy, and fill with zeros (a sum, a value
read back), whose launches use memory of unknown origin, or that returns an argument, is never replayed. The roles of inputs
that are one object, or start at one address, could not be told apart: the call that is watched gets copies of them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmux.registry.call.first_call import ALLOCATING, together
from kernelmux.registry.util.memory_format import told_apart

_C: Any = torch._C
_Mode: Any = TorchDispatchMode
_aten = torch.ops.aten
ZEROS = (_aten.new_zeros.default, _aten.zeros.default, _aten.zeros_like.default)
MADE_ANEW = (_aten.clone.default, _aten.contiguous.default, _aten.reshape.default)  # or, the last two, a view
_device, _raw_stream = getattr(_C, "_cuda_getDevice", None), getattr(_C, "_cuda_getCurrentRawStream", None)
_modes = _C._len_torch_dispatch_stack

Sizes = tuple[int, ...]
Launcher = Callable[..., Any]  # of the raw stream, then what the launch was noted with: addresses for tensors
TORCH: tuple[Launcher, ...] = (torch.Tensor.zero_, torch.Tensor.copy_)  # of tensors, on the stream that is current
_local = threading.local()


class TensorArgument(NamedTuple):
    """What a launch takes for a tensor: `of(address)`, or `of(tensor)` if it wants the tensor itself."""

    tensor: torch.Tensor
    of: Callable[[Any], Any]
    whole: bool = False


def watching() -> bool:
    """Whether launches are to be noted."""
    return getattr(_local, "watch", None) is not None


def launched(launcher: Launcher, args: Sequence[Any], hooks: Any = None) -> None:
    """Notes a launch that has just been made, as `launcher(stream, *args)`.

    args: tensors, which a replay gives as addresses; `TensorArgument`, or what was noted by `stands_for`; constants. hooks:
    an object whose `calls`, if there are any, want to see launches: then nothing is replayed.
    """
    watch = _local.watch
    watch.steps.append((launcher, tuple(watch.stand_ins.get(id(x), x) for x in args), hooks))


def stands_for(value: Any, tensor: torch.Tensor, of: Callable[[int], Any]) -> None:
    """Notes that a launch which takes `value` takes `of(address)` of a tensor."""
    if watching():
        _local.watch.stands_for(value, TensorArgument(tensor, of))


class LaunchRecorder(_Mode):  # type: ignore[misc]
    """What an implementation does during one call: allocations, views of them and of its arguments, launches."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        super().__init__()
        self.steps: list[tuple[Launcher, tuple[Any, ...], Any]] = []
        self.stand_ins: dict[int, TensorArgument] = {}
        self.made: list[torch.Tensor] = []
        self.problem = ""
        self._origins = {id(x): (f"_a{i}", x) for i, x in enumerate(values) if isinstance(x, torch.Tensor)}
        self._seen: list[Any] = []  # kept, so that no other object gets the id of one of them

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would import its compiler only to turn it off here, which takes seconds and sets variables."""
        return False

    def __enter__(self) -> LaunchRecorder:
        _local.watch = self
        super().__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        _local.watch = None
        super().__exit__(*details)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATING or func in ZEROS:
            self._origins[id(result)] = (f"_t{len(self.made)}", result)
            self.made.append(result)
            self.steps += [(torch.Tensor.zero_, (result,), None)] if func in ZEROS else []
        elif func is _aten.copy_.default and not kwargs and len(args) == 2:
            self._seen += args
            self.steps.append((torch.Tensor.copy_, tuple(args), None))
        elif func in MADE_ANEW and not _of(x := args[0], [result]):
            self._seen += (x, result)
            self._copy(x, result if result.shape == x.shape else result.view(x.shape), result)
        elif (func.is_view or func is _aten._unsafe_view.default) and _of(
            args[0], views := [result] if isinstance(result, torch.Tensor) else result
        ):
            self._seen += views
            if origin := self._origins.get(id(args[0])):
                self._origins |= {id(view): origin for view in views}
        else:
            self.problem = self.problem or f"it calls {func}"
        return result

    def _copy(self, x: torch.Tensor, copy: torch.Tensor, result: torch.Tensor) -> None:
        """Notes a copy of x as an allocation and `copy_`. result: the copy, perhaps in another shape."""
        origin = (f"_t{len(self.made)}", copy)
        self._origins |= {id(copy): origin, id(result): origin}
        self.made.append(copy)
        self.steps.append((torch.Tensor.copy_, (copy, x), None))

    def stands_for(self, value: Any, made: TensorArgument) -> None:
        """What a launch takes in place of `value`, which is kept as other views are."""
        self.stand_ins[id(value)] = made
        self._seen.append(value)

    def origin(self, x: torch.Tensor) -> tuple[str, torch.Tensor]:
        """The variable of the argument or allocation that a tensor is, or is a view of; LookupError for others."""
        return self._origins[id(x)]


def _of(x: torch.Tensor, views: list[torch.Tensor]) -> bool:  # `reshape`, seen as a whole, may copy
    return all(view.untyped_storage()._cdata == x.untyped_storage()._cdata for view in views)


def _dense(x: torch.Tensor) -> bool:
    """Whether a tensor is all of the memory that it spans, and has each element once."""
    strides = x.stride()
    return x.permute(sorted(range(x.dim()), key=lambda axis: -strides[axis])).is_contiguous()


class Replayed:
    """An implementation on one kind of call: see above. Called with the arguments of the implementation."""

    __slots__ = ("_left", "fn", "problem", "replay", "run", "then")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.replay, self.problem = fn, self.plainly, ""
        self.run: Callable[..., Any] = self._first  # what runs a call: `replay` as soon as that is decided
        self.then: Callable[[Text], None] | None = None  # gets the text of the replay, for a function that holds it
        self._left = 2  # calls until one is watched: a shape that comes once is not worth a function of its own

    def __call__(self, *values: Any) -> Any:
        """The result; the second call that can be watched decides whether there is a replay (`problem`: why not)."""
        return self.run(*values)

    def _first(self, *values: Any) -> Any:
        if self._left <= 0 or watching():
            return self.replay(*values)
        apart = told_apart(values) if self._left == 1 else values
        if apart is None:
            return self.plainly(*values)
        self._left -= 1
        if self._left != 0:  # below it are calls of other threads
            return self._tried(together(self.fn), values)
        try:
            with LaunchRecorder(apart) as watch:
                result = self.plainly(*apart)
            text = _text(self.plainly, apart, watch, result)
            self.replay = text.function()
            if self.then:
                self.then(text)
                self.then = None
        except _Unfit as error:
            self.problem = str(error)
        finally:
            self.run = self.replay
        return result

    def plainly(self, *values: Any) -> Any:
        """The implementation itself, in a thread that may be new."""
        return self._tried(self.fn, values)

    def _tried(self, fn: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        try:
            return fn(*values)
        except Exception as error:
            wake(error, _index(values))
            return fn(*values)


_NO_CONTEXT = ("INVALID_CONTEXT", "error 201")  # a launch by CuPy; the driver's own entry, which encodes a tensor map


def wake(error: Exception, index: int) -> None:
    """Give this thread the context of GPU `index` if a launch failed for lack of it; raise any other error again.

    A thread of autograd, or of a user, has none before torch asks the CUDA runtime for something. Memory that the
    allocator has at hand is no reason to ask, and a launch by the driver needs the context.
    """
    if not any(text in str(error) for text in _NO_CONTEXT):
        raise error
    torch.cuda.mem_get_info(index)


def _index(values: tuple[Any, ...]) -> int:
    """The GPU of a call; a tensor beside those on it may be in host memory."""
    return max(x.get_device() for x in values if isinstance(x, torch.Tensor))


def _seen(device: torch.device, shape: Sizes, strides: Sizes, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without values, by an operator of torch."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _unseen(device: torch.device) -> Callable[[Sizes, Sizes, torch.dtype], torch.Tensor]:
    """`_seen` for the current device of this type past torch's dispatcher, as compiled graphs of torch have it.

    On the host of an H200 1.1 us, where torch.empty_like takes 1.7 and torch.empty_strided 2.0.
    """
    made: Callable[[Sizes, Sizes, torch.dtype], torch.Tensor] = getattr(
        _C._dynamo.guards, f"_empty_strided_{device.type}"
    )
    return made


class _Unfit(Exception):
    """Why a call cannot be replayed."""


class Text(NamedTuple):
    """A replay as source text: what forbids it, what it does, what it returns; scope: what its names stand for.

    Arguments are `_a0`, `_a1`, ...; addresses: the lines that take them, by the names that they give (`address`).
    """

    guards: tuple[str, ...]
    allocations: tuple[str, ...]
    addresses: dict[str, str]
    launches: tuple[str, ...]
    returned: str
    arity: int
    scope: dict[str, Any]

    def function(self) -> Callable[..., Any]:
        """The replay by itself; a dispatch mode, such as one that counts memory, sees its allocations."""
        arguments = [f"_a{i}" for i in range(self.arity)]
        seen = "    _new = _seen_new if _modes() else _unseen_new"
        lines = [f"def replay({', '.join(arguments)}):", seen, *self.lines(arguments)]
        return defined("replay", lines, self.scope | {"_modes": _modes, "_unseen_new": self.scope["_new"]})

    def lines(self, arguments: Sequence[str], taken: Collection[str] = (), part: str = "") -> list[str]:
        """The body of a function with these arguments, which no dispatch mode watches.

        taken: addresses that it has; part: of what is returned, "[0]".
        """
        plainly = f"return _plainly({', '.join(arguments)}){part}"
        taking = [line for name, line in self.addresses.items() if name not in taken]
        body = [*self.allocations, *taking, "_stream = _raw_stream(_index)", *self.launches]
        return [
            f"    if {' or '.join(['_device() != _index', *self.guards])}:",
            f"        {plainly}",
            "    try:",
            *(f"        {_ARGUMENT.sub(lambda found: arguments[int(found[1])], line)}" for line in body),
            f"        return {self.returned}{part}",
            "    except Exception as _error:",
            "        _wake(_error, _index)",
            f"        {plainly}",
        ]


_ARGUMENT = re.compile(r"\b_a(\d+)\b")


def address(i: int) -> str:
    """The name of the address of argument i in a `Text`."""
    return f"_p_a{i}"


def _text(plainly: Callable[..., Any], values: tuple[Any, ...], watch: LaunchRecorder, result: Any) -> Text:
    """What repeats a call that was watched; `_Unfit` if that may not be all that the implementation does."""
    if watch.problem or not watch.steps:
        raise _Unfit(watch.problem or "it launches nothing")
    writer = _ReplayWriter(values, watch)
    results = [writer.result(x) for x in (result if isinstance(result, tuple) else (result,))]
    launches = tuple(writer.launch(n, *step) for n, step in enumerate(watch.steps))
    returned = f"({', '.join(results)},)" if isinstance(result, tuple) else results[0]
    scope = {
        "_plainly": plainly,
        "_index": _index(values),
        "_device": _device,
        "_wake": wake,
        "_raw_stream": _raw_stream,
    }
    allocations, guards = tuple(writer.allocations()), tuple(writer.guards)
    return Text(guards, allocations, writer.addresses, launches, returned, len(values), scope | writer.scope)


def defined(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """The function of that name that the lines define in a scope."""
    exec(_code("\n".join(lines)), scope)
    made: Callable[..., Any] = scope[name]
    return made


@lru_cache(maxsize=2048)
def _code(text: str) -> CodeType:
    """Kinds of calls that differ in their constants alone have one text."""
    return compile(text, "<call>", "exec")


class _ReplayWriter:
    """The parts of a replay as source text, and in `scope` what its names stand for."""

    def __init__(self, values: tuple[Any, ...], watch: LaunchRecorder) -> None:
        self.watch = watch
        self.device = max((x for x in values if isinstance(x, torch.Tensor)), key=torch.Tensor.get_device).device
        self.scope: dict[str, Any] = {"_new": _unseen(self.device), "_seen_new": partial(_seen, self.device)}
        self.guards: list[str] = []
        self.addresses: dict[str, str] = {}
        self._forms: dict[str, tuple[Any, ...]] = {}  # sizes and strides of allocations that are returned as views

    def launch(self, n: int, launcher: Launcher, args: tuple[Any, ...], hooks: Any) -> str:
        self.scope[f"_launch{n}"] = launcher
        if launcher in TORCH:
            return f"_launch{n}({', '.join(map(self._tensor, args))})"
        if hooks is not None:
            guard = self._constant("_hooks", hooks)
            self.guards += [f"{guard}.calls"] if f"{guard}.calls" not in self.guards else []
        return f"_launch{n}({', '.join(['_stream', *map(self._argument, args)])})"

    def result(self, x: torch.Tensor) -> str:
        """A tensor that is returned: an allocation, whole, if need be in another shape or order of axes."""
        name, made = self._of(x)
        if name.startswith("_a"):
            raise _Unfit("it returns an argument or a view of one")
        form, whole = (tuple(x.shape), x.stride()), (tuple(made.shape), made.stride())
        same = form == whole or (x.numel() == made.numel() and x.dtype == made.dtype and _dense(x) and _dense(made))
        if not same or x.data_ptr() != made.data_ptr() or self._forms.setdefault(name, form) != form:
            raise _Unfit("it returns a part of what it allocates")
        return name

    def allocations(self) -> list[str]:
        """Allocations in the order in which they were made."""
        lines = []
        for n, made in enumerate(self.watch.made):
            shape, strides = self._forms.get(f"_t{n}", (tuple(made.shape), made.stride()))
            if made.device != self.device:
                raise _Unfit(f"it allocates on {made.device}")
            form = (("_shape", shape), ("_strides", strides), ("_dtype", made.dtype))
            lines.append(f"_t{n} = _new({', '.join(self._constant(*part) for part in form)})")
        return lines

    def _tensor(self, x: torch.Tensor) -> str:
        """A tensor that an operator of torch takes: an argument, an allocation, or a view of one."""
        name, base = self._of(x)
        form = self._forms.get(name, (tuple(base.shape), base.stride()))
        if (tuple(x.shape), x.stride(), x.data_ptr(), x.dtype) == (*form, base.data_ptr(), base.dtype):
            return name
        if x.dtype != base.dtype or x.is_conj() or x.is_neg():
            raise _Unfit("an operator of torch takes a view of another dtype")
        self.scope["_strided"] = torch.as_strided
        like = f"{self._constant('_shape', tuple(x.shape))}, {self._constant('_strides', x.stride())}"
        return f"_strided({name}, {like}, {name}.storage_offset() + {x.storage_offset() - base.storage_offset()})"

    def _argument(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._address(value)
        if not isinstance(value, TensorArgument):
            return self._constant("_c", value)
        of = self._constant("_of", value.of)
        if not value.whole:
            return f"{of}({self._address(value.tensor)})"
        name, base = self._of(value.tensor)
        if value.tensor.data_ptr() != base.data_ptr():
            raise _Unfit("a launch takes a tensor that starts inside of another")
        return f"{of}({name})"

    def _address(self, x: torch.Tensor) -> str:
        name, base = self._of(x)
        self.addresses[f"_p{name}"] = f"_p{name} = {name}.data_ptr()"
        offset = x.data_ptr() - base.data_ptr()
        return f"_p{name} + {offset}" if offset else f"_p{name}"

    def _of(self, x: torch.Tensor) -> tuple[str, torch.Tensor]:
        try:
            return self.watch.origin(x)
        except LookupError:
            raise _Unfit("it uses memory that is neither an argument nor allocated by the call") from None

    def _constant(self, kind: str, value: Any) -> str:
        name = next((n for n, v in self.scope.items() if v is value and n.startswith(kind)), f"{kind}{len(self.scope)}")
        self.scope[name] = value
        return name
