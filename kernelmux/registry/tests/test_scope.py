"""`use()`: as a context manager and as a decorator, left in any order and in any context."""

import asyncio
import contextvars
import threading

import pytest
import torch

from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence, requests, scope
from kernelmux.registry.choice.scope import use
from kernelmux.registry.errors import ArgumentError, UnknownName


def now(op="softmax"):
    """Which backends a call would ask for."""
    return ",".join(precedence.requested(op, None).names)


@pytest.fixture(autouse=True)
def nothing_stays():
    requests.environment.cache_clear()
    yield
    assert scope.state() == ()


def test_the_innermost_wins_and_leaving_restores():
    with use("cuda"):
        with use("triton"):
            assert now() == "triton"
        assert now() == "cuda"
    assert now() == "auto"


def test_scopes_may_be_left_out_of_order():
    first, second = use("cuda"), use("triton")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert now() == "triton"
    second.__exit__(None, None, None)
    assert now() == "auto"


def test_a_scope_can_be_entered_again_and_within_itself():
    again = use("cuda")
    with again, again:
        assert now() == "cuda"
    with again:
        assert now() == "cuda"


def test_leaving_in_another_context_ends_the_scope():
    here, other = use("cuda"), contextvars.copy_context()
    here.__enter__()
    other.run(here.__exit__, None, None, None)
    assert now() == "cuda" or scope.state() == ()
    if scope.state():
        pytest.fail("the scope is still in force where it was entered")


def test_a_generator_that_is_closed_elsewhere_leaves_nothing():
    def body():
        with use("cuda"):
            yield now()

    first, second = body(), body()
    assert (next(first), next(second)) == ("cuda", "cuda")
    assert now() == "cuda"  # a plain `with` in a generator: a context variable, in force for the caller
    first.close()
    thread = threading.Thread(target=second.close)
    thread.start()
    thread.join()
    assert now() == "auto"


def test_a_decorated_generator_is_in_scope_while_it_runs_and_not_while_it_is_suspended():
    @use("cuda")
    def body():
        got = yield now()
        with use("triton"):
            yield now(), got
        try:
            yield now()
        except KeyError:
            yield now()
        return now()

    steps = body()
    assert next(steps) == "cuda" and now() == "auto"
    assert steps.send(7) == ("triton", 7)
    with use("torch_ref"):
        assert next(steps) == "cuda"
        assert steps.throw(KeyError()) == "cuda" and now() == "torch_ref"
        with pytest.raises(StopIteration) as end:
            next(steps)
    assert end.value.value == "cuda"


def test_what_the_body_entered_stays_within_the_decoration():
    @use("cuda")
    def body():
        with use("triton"):
            yield now()
            yield now()

    steps = body()
    assert [next(steps), next(steps)] == ["triton", "triton"]
    steps.close()


def test_closing_a_decorated_generator_runs_its_end_in_scope():
    seen = []

    @use("cuda")
    def body():
        try:
            yield
        finally:
            seen.append(now())

    steps = body()
    next(steps)
    steps.close()
    assert seen == ["cuda"]


def test_decorated_coroutines_and_asynchronous_generators():
    seen = []

    @use("cuda")
    async def one():
        before = now()
        await asyncio.sleep(0)
        return before, now()

    @use("triton")
    async def many():
        try:
            while True:
                await asyncio.sleep(0)
                seen.append((yield now()))
        finally:
            seen.append(now())

    async def main():
        assert await one() == ("cuda", "cuda") and now() == "auto"
        assert list(await asyncio.gather(one(), one())) == [("cuda", "cuda")] * 2
        steps = many()
        assert await steps.asend(None) == "triton" and now() == "auto"
        assert await steps.asend("sent") == "triton"
        await steps.aclose()
        assert now() == "auto"

    asyncio.run(main())
    assert seen == ["sent", "triton"]


def test_a_coroutine_driven_by_hand_is_out_of_scope_while_it_waits():
    @use("cuda")
    async def one():
        await asyncio.sleep(0)
        return now()

    steps = one()
    steps.send(None)
    assert now() == "auto"
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert end.value.value == "cuda"


def test_a_decorated_function_keeps_its_name_and_may_call_itself():
    @use("cuda")
    def body(depth):
        """What it does."""
        return now() if depth == 0 else body(depth - 1)

    assert body(3) == "cuda" and body.__name__ == "body" and body.__doc__ == "What it does."


@pytest.mark.parametrize("ops", ["softmax", ["softmax"], ("softmax", "add"), iter(["softmax"]), {"softmax": 1}.keys()])
def test_operators_are_one_name_or_any_iterable(ops):
    with use("cuda", ops=ops):
        assert now() == "cuda" and now("gelu") == "auto"


@pytest.mark.parametrize(
    "names", [None, 5, True, {}, [["cuda"]], [], "", b"cuda", {"cuda", "triton"}, ["cuda", 1], 0.5]
)
def test_what_is_no_name_is_refused_in_every_place(names):
    refused = pytest.raises(ArgumentError, match="backend: expected a name or a list of names, got")
    with refused:
        use(names)
    if names is None:
        return
    with refused:
        precedence.set_default("softmax", names)
    for ask in (dispatch.function("softmax"), lambda *a, **k: dispatch.explain("softmax", *a, **k)):
        with refused:
            ask(torch.zeros(3), backend=names)


@pytest.mark.parametrize(
    ("ops", "error"),
    [("softmx", UnknownName), (5, ArgumentError), ([["add"]], UnknownName), (torch.zeros(2, 2), UnknownName)],
)
def test_operators_must_be_known(ops, error):
    with pytest.raises(error):
        use("cuda", ops=ops)


def test_a_scope_ends_once():
    scope = use("cuda")
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"use\(\): expected a scope that was entered"):
            scope.__exit__(None, None, None)
        with scope:
            assert now() == "cuda"


def test_only_functions_can_be_decorated():
    with pytest.raises(ArgumentError, match=r"use\(\): expected a function to decorate, got 5"):
        use("cuda")(5)  # type: ignore[type-var]
