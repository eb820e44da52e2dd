"""`use(...)`: backends for what runs inside of a `with` or of a decorated function."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch._guards import TracingContext
from torch.compiler import is_compiling

from kernelmux.registry.choice import requests, shadow_sampling
from kernelmux.registry.choice.requests import Names, Request
from kernelmux.registry.errors import ArgumentError, shown

Function = TypeVar("Function", bound=Callable[..., Any])
Choice = tuple[frozenset[str] | None, Request]


class OpenScope:
    """One open `with`. closed: it was left in a context where it was not entered, so that it could not be removed."""

    __slots__ = ("choice", "closed")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.closed = False


_lock = threading.Lock()
_generation = 0  # grows with every change of what all calls depend on, so that remembered choices can tell
_entries: ContextVar[tuple[OpenScope, ...]] = ContextVar("kernelmux_use", default=())


def asked() -> tuple[tuple[Choice, ...], int]:
    """What a remembered choice depends on besides the call: the choices in force here, innermost last; `_generation`."""
    entries = _entries.get()
    return tuple([e.choice for e in entries if not e.closed]) if entries else (), _generation


def state() -> tuple[Choice, ...]:
    """The choices in force here, innermost last."""
    return asked()[0]


def renew() -> None:
    """Choose anew for every call; what was read stays."""
    global _generation
    with _lock:
        _generation += 1


class use:  # noqa: N801  (read as a verb: with kx.use("triton"): ...)
    """Choose backends for all calls inside the `with`, or for those of `ops` (one operator or several).

    Scopes nest, the innermost wins, and each is local to its thread and its task. Leaving one removes that one, whatever
    was entered or left meanwhile; leaving it in another context ends it as well.

    strict: a fallback is an error. Where the first backend of a chain cannot run a call (of "auto": the usable one of
    highest priority), the call raises with every reason. All calls inside are strict, those too whose backends an inner
    scope or the call itself names: an inner scope chooses other backends, and cannot allow fallbacks again.

    Inside of a function that torch.compile traces it holds for the calls of the graph.

    As a decorator it holds exactly while the body of the function runs: that of a coroutine function, a generator or an
    asynchronous generator too, and not while it is suspended. A plain `with use()` inside of a generator is a context
    variable like any other: while the generator is suspended, it is in force for the caller. Decorate the generator.

    shadow: other backends that compute a share `sample` of the calls too (0 to 1; all of them if it is left out), for
    comparison alone; see `kernelmux.shadow_report`. A scope that is entered again goes on sampling where it was.
    """

    def __init__(
        self,
        backend: Names,
        ops: str | Iterable[str] | None = None,
        *,
        strict: bool = False,
        shadow: Names | None = None,
        sample: float | None = None,
    ) -> None:
        self._asked = (backend, ops, strict)
        if not is_compiling():  # where nothing is compared
            found, request = _choice(*self._asked)
            self._choice: Choice = (found, replace(request, shadow=shadow_sampling.shadow(shadow, sample)))
            self._open: list[OpenScope] = []

    def __enter__(self) -> None:
        if is_compiling():
            enter_trace(*self._asked)
            return
        entry = OpenScope(self._choice)
        _entries.set((*(e for e in _entries.get() if not e.closed), entry))
        self._open.append(entry)

    def __exit__(self, *error: object) -> None:
        if is_compiling():
            leave_trace()
            return
        if not self._open:
            raise ArgumentError("use(): expected a scope that was entered, got the end of one that was not")
        here = _entries.get()
        mine = next((e for e in reversed(self._open) if e in here), None)
        if mine is None:
            mine = self._open[-1]
            mine.closed = True
        self._open.remove(mine)
        _entries.set(tuple(e for e in here if e is not mine and not e.closed))

    def __call__(self, function: Function) -> Function:
        """The function with this choice in force while its body runs."""
        if not callable(function) or isinstance(function, type):
            raise ArgumentError(f"use(): expected a function to decorate, got {shown(function)}")
        wrapped: Any = functools.wraps(function)(self._wrapper(function))
        return wrapped  # type: ignore[no-any-return]

    def _again(self) -> use:
        """The same choice, not entered yet: calls of one function may overlap."""
        made = object.__new__(use)
        made._asked, made._choice, made._open = self._asked, self._choice, []
        return made

    def _wrapper(self, function: Callable[..., Any]) -> Callable[..., Any]:
        choice = self._choice

        def plain(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _steps(_ScopedBody(choice), function(*args, **kwargs)))

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _steps(_ScopedBody(choice), function(*args, **kwargs))

        async def asynchronous(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            body, inner = _ScopedBody(choice), function(*args, **kwargs)
            step = inner.asend(None)
            while True:
                try:
                    got = await _steps(body, step)
                except StopAsyncIteration:
                    return
                try:
                    step = inner.asend((yield got))
                except GeneratorExit:
                    await _steps(body, inner.aclose())
                    raise
                except BaseException as error:
                    step = inner.athrow(error)

        if inspect.isasyncgenfunction(function):
            return asynchronous
        if inspect.iscoroutinefunction(function):
            return coroutine
        return generator if inspect.isgeneratorfunction(function) else plain


def _choice(backend: Names, ops: Any, strict: Any) -> Choice:
    if not isinstance(strict, bool):
        raise ArgumentError(f"use(): strict: expected True or False, got {shown(strict)}")
    return _operators(ops), replace(requests.parse(backend, "use()"), strict=strict)


# --- inside of torch.compile, which runs no code of ours but these, while it traces --------------------------------

_traced: WeakKeyDictionary[TracingContext, list[Choice]] = (
    WeakKeyDictionary()
)  # a trace that ends or fails takes its own along


def enter_trace(backend: Names, ops: Any, strict: Any) -> None:
    """A `with use()` in the function that is traced begins."""
    _traced.setdefault(TracingContext.get(), []).append(_choice(backend, ops, strict))


def leave_trace() -> None:
    """It ends."""
    _traced[TracingContext.get()].pop()


@contextmanager
def traced() -> Iterator[None]:
    """Inside, the scopes of the function that is traced are in force as well."""
    context = TracingContext.try_get()
    inner = _traced.get(context, []) if context else []
    token = _entries.set((*_entries.get(), *(OpenScope(choice) for choice in inner)))
    try:
        yield
    finally:
        _entries.reset(token)


# torch.compiler.assume_constant_result, without its import: they run while a function is traced, beside its graph.
vars(enter_trace)["_dynamo_marked_constant"] = vars(leave_trace)["_dynamo_marked_constant"] = True


class _ScopedBody:
    """The body of a decorated generator or coroutine: its scope, and those that it entered, hold whenever it runs."""

    def __init__(self, choice: Choice) -> None:
        self._mine: tuple[OpenScope, ...] = (OpenScope(choice),)

    @contextmanager
    def running(self) -> Iterator[None]:
        """One step of the body. Afterwards the caller has what it had, whatever the body has open."""
        before = _entries.get()
        first = self._mine[0]
        _entries.set((*before, *self._mine))
        try:
            yield
        finally:
            after = _entries.get()
            place = after.index(first)
            self._mine = after[place:]
            _entries.set(after[:place])


@types.coroutine
def _steps(body: _ScopedBody, inner: Any) -> Generator[Any, Any, Any]:
    """`yield from inner`, or `await inner`, in which every step of it runs inside of the body's scope."""
    run, value = inner.send, None
    while True:
        try:
            with body.running():
                got = run(value)
        except StopIteration as end:
            return end.value
        try:
            value, run = (yield got), inner.send
        except GeneratorExit:
            with body.running():
                inner.close()
            raise
        except BaseException as error:
            value, run = error, inner.throw


def _operators(ops: Any) -> frozenset[str] | None:
    """The operators that a scope is about, each of them known; None for all."""
    return None if ops is None else frozenset(requests.operators(ops, "use(): ops"))
