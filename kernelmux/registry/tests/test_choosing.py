"""Who speaks first, of each two that speak; what strictness forbids, and to whom; what threads and processes inherit."""

import asyncio
import itertools
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence
from kernelmux.registry.choice.precedence import use
from kernelmux.registry.errors import ArgumentError, BackendUnavailable, UnknownName, UnsupportedError
from kernelmux.registry.tests import fakes
from kernelmux.registry.tests.fakes import run

pytestmark = pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")  # see test_fallbacks


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    fakes.install(monkeypatch)
    yield
    precedence.set_default("transpose", None)
    monkeypatch.undo()
    precedence.reread()


# --- precedence -------------------------------------------------------------------------------------------------


class Speakers:
    """The ways to choose a backend, from the first to the last."""

    def __init__(self, monkeypatch, folder):
        self.monkeypatch, self.path, self.file, self.argument = monkeypatch, folder / "choice.toml", "", None
        self.scopes: list[use] = []

    def call_argument(self, name):
        self.argument = name
        return "call argument"

    def scope(self, name):
        self.scopes.append(use(name))
        return "use()"

    def default(self, name):
        precedence.set_default("transpose", name)
        return "set_default('transpose')"

    def variable_of_the_operator(self, name):
        self.monkeypatch.setenv(f"{fakes.ASKED}_TRANSPOSE", name)
        return "KERNELMUX_BACKEND_TRANSPOSE"

    def variable(self, name):
        self.monkeypatch.setenv(fakes.ASKED, name)
        return "KERNELMUX_BACKEND"

    def rule(self, name):
        self.file += f'[[rules]]\nop = "transpose"\nwhere = "M == 8"\nbackend = "{name}"\n'
        return f"{self.path}, rule 1"

    def file_in_general(self, name):
        self.file = f'backend = "{name}"\n{self.file}'
        return f"{self.path}, backend"

    def decision(self):
        """What a call is told, when all of them have spoken."""
        self.path.write_text(self.file)
        self.monkeypatch.setenv("KERNELMUX_CONFIG", str(self.path))
        precedence.reread()
        return dispatch.explain("transpose", torch.zeros(8, 8), backend=self.argument)


ORDER = (
    "call_argument",
    "scope",
    "default",
    "variable_of_the_operator",
    "variable",
    "rule",
    "file_in_general",
)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(ORDER, 2)))
def test_of_each_two_that_speak_the_first_wins(monkeypatch, tmp_path, first, second):
    speakers = Speakers(monkeypatch, tmp_path)
    source = getattr(speakers, first)("ladder/slow")
    getattr(speakers, second)("plain")
    for scoped in speakers.scopes:
        scoped.__enter__()
    try:
        decision = speakers.decision()
        assert (decision.request.source, decision.chosen.name) == (source, "ladder/slow")
        assert run(backend=speakers.argument) == 2
    finally:
        for scoped in speakers.scopes:
            scoped.__exit__(None, None, None)


@pytest.mark.parametrize("alone", ORDER)
def test_whoever_speaks_alone_is_heard_instead_of_auto(monkeypatch, tmp_path, alone):
    speakers = Speakers(monkeypatch, tmp_path)
    assert (speakers.decision().request.source, speakers.decision().chosen.name) == ("auto", "ladder/fast")
    source = getattr(speakers, alone)("plain")
    if speakers.scopes:
        with speakers.scopes[0]:
            decision = speakers.decision()
    else:
        decision = speakers.decision()
    assert (decision.request.source, decision.chosen.name) == (source, "plain/only")


def test_a_scope_of_other_operators_is_silent_and_what_is_outside_of_it_speaks():
    precedence.set_default("transpose", "plain")
    with use("ladder/slow", ops=["softmax", "add"]):
        assert run() == 4


def test_a_choice_of_auto_is_a_choice_and_ends_the_search():
    precedence.set_default("transpose", "plain")
    with use("auto"):
        assert run() == 3
    assert run(backend="auto") == 3


# --- what falls through, and what does not ------------------------------------------------------------------------


def test_only_an_unknown_name_is_an_error_in_a_chain_unmet_conditions_and_missing_backends_fall_through():
    assert run(m=5, backend="absent,tiny,plain") == 4
    with pytest.raises(UnknownName, match=r'^unknown backend "plian" in call argument; did you mean "plain"\? known: '):
        run(m=4, backend="tiny,plian")
    with pytest.raises(UnknownName, match=r'^unknown variant of plain for transpose "onyl" in call argument; did you'):
        run(m=4, backend="tiny,plain/onyl")


@pytest.mark.parametrize(
    "error", [RuntimeError, UnsupportedError, BackendUnavailable, ArgumentError, KeyboardInterrupt]
)
@pytest.mark.parametrize("names", ["broken,plain", "auto"])
def test_an_exception_of_a_kernel_reaches_the_caller_as_it_is(monkeypatch, error, names):
    thrown = error("from inside")

    def broken(x):
        raise thrown

    made = fakes.backend("broken", 100), {"only": Implementation(broken, idea="raises")}
    monkeypatch.setitem(fakes.FAKES, "broken", made)
    with pytest.raises(error, match="from inside") as caught:
        run(backend=names)
    assert caught.value is thrown


# --- strict ---------------------------------------------------------------------------------------------------------


STRICT_CHAIN = """tiny cannot run this call, and use(strict=True) forbids a fallback
transpose: x fp32[5, 8] on cpu
  requested: tiny, ladder (from use(); strict by use(strict=True))
  chosen: none, as no fallback is allowed
     tiny/only                    no: M = 5, needs M <= 4
     ladder/slow                  yes
     ladder/fast                  yes
     absent                       no: no licence
     plain/only                   yes (not asked for)
  try: backend="plain/only\""""


def test_a_strict_chain_raises_where_its_first_cannot_run_the_call():
    with use("tiny,ladder", strict=True):
        assert run(m=4) == 1
        with pytest.raises(UnsupportedError) as caught:
            run(m=5)
    assert str(caught.value) == STRICT_CHAIN
    with use("tiny,ladder"):
        assert run(m=5) == 3


def test_a_strict_chain_whose_first_is_missing_says_so():
    with (
        use("absent,plain", strict=True),
        pytest.raises(BackendUnavailable, match=r"^absent cannot run this call, and"),
    ):
        run()


STRICT_AUTO = """tiny cannot run this call, and use(strict=True) forbids a fallback
transpose: x fp32[5, 8] on cpu
  requested: auto (from use(); strict by use(strict=True))
  chosen: none, as no fallback is allowed
     tiny/only                    no: M = 5, needs M <= 4
     ladder/slow                  yes
     ladder/fast                  yes
     plain/only                   yes
     absent                       no: no licence
  try: backend="plain/only\""""


def test_strict_auto_raises_where_the_usable_backend_of_highest_priority_cannot_run_the_call():
    with use("auto", strict=True):
        assert run(m=4) == 1  # absent has a higher priority, and cannot be used on this device
        with pytest.raises(UnsupportedError) as caught:
            run(m=5)
    assert str(caught.value) == STRICT_AUTO


def test_strictness_is_about_backends_a_lower_rung_of_one_ladder_is_no_fallback():
    with use("ladder,plain", strict=True):
        assert run(n=7) == 2


def test_all_that_happens_inside_of_a_strict_scope_is_strict():
    precedence.set_default("transpose", "tiny,plain")
    with use("auto", strict=True):
        for inner in (use("tiny,plain"), use("tiny,plain", strict=False)):
            with inner, pytest.raises(UnsupportedError, match="forbids a fallback"):
                run(m=5)
        with pytest.raises(UnsupportedError, match=r"from call argument; strict by use\(strict=True\)"):
            run(m=5, backend=["tiny", "plain"])
        assert run(m=5, backend="plain") == 4
    with use("plain"), use("auto", ops="softmax", strict=True):
        assert run(m=5, backend="tiny,plain") == 4  # strict about another operator
    assert run(m=5) == 4


def test_a_strict_scope_inside_of_another_ends_with_itself():
    with use("tiny,plain"):
        with use("tiny,plain", strict=True), pytest.raises(UnsupportedError):
            run(m=5)
        assert run(m=5) == 4


def test_the_same_kind_of_call_is_remembered_for_strict_and_other_scopes_apart():
    for _ in range(2):
        with use("tiny,plain"):
            assert run(m=5) == 4
        with use("tiny,plain", strict=True), pytest.raises(UnsupportedError):
            run(m=5)


def test_a_single_name_is_refused_in_the_same_words_in_a_strict_scope_and_says_both():
    with use("tiny", strict=True):
        text = str(dispatch.explain("transpose", torch.zeros(5, 8)))
        with pytest.raises(UnsupportedError, match=r"^no requested backend can run this call\n"):
            run(m=5)
    assert "requested: tiny (from use(); strict by use(strict=True))" in text
    assert "requested: tiny (from call argument; strict)" in str(
        dispatch.explain("transpose", torch.zeros(5, 8), backend="tiny")
    )


@pytest.mark.parametrize("value", [1, "yes", None])
def test_strict_is_true_or_false(value):
    with pytest.raises(ArgumentError, match=r"^use\(\): strict: expected True or False, got "):
        use("plain", strict=value)


# --- threads, tasks, generators, processes ----------------------------------------------------------------------------


def strict():
    return precedence.requested("transpose", None).strict


def test_strictness_is_local_to_the_thread():
    seen = []
    with use("auto", strict=True):
        thread = threading.Thread(target=lambda: seen.append((strict(), run(m=5))))
        thread.start()
        thread.join()
        assert strict()
    assert seen == [(False, 3.0)] and not strict()


def test_threads_of_a_context_that_is_copied_see_the_scope():
    async def main():
        with use("auto", strict=True):
            return await asyncio.to_thread(strict)

    assert asyncio.run(main())


def test_tasks_keep_the_scopes_of_where_they_were_made_and_do_not_see_one_another():
    async def task(name, is_strict):
        with use(name, strict=is_strict):
            await asyncio.sleep(0)
            return precedence.requested("transpose", None).names, strict()

    async def main():
        with use("plain"):
            found = await asyncio.gather(task("tiny", True), task("ladder", False))
            return found, precedence.requested("transpose", None).names, strict()

    assert asyncio.run(main()) == ([(("tiny",), True), (("ladder",), False)], ("plain",), False)


def test_a_decorated_generator_is_strict_while_it_runs_only():
    @use("auto", strict=True)
    def body():
        yield strict()
        yield strict()

    steps = body()
    assert (next(steps), strict(), next(steps)) == (True, False, True)


def test_a_scope_is_left_by_an_exception_and_a_default_is_seen_by_all_threads():
    with pytest.raises(UnsupportedError), use("tiny", strict=True):
        run(m=5)
    assert not strict()
    precedence.set_default("transpose", "plain")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(run()))
    thread.start()
    thread.join()
    assert seen == [4]


def test_a_spawned_process_inherits_environment_and_file_but_no_scope_and_no_default(monkeypatch, tmp_path):
    monkeypatch.undo()  # the child has the real backends
    path = tmp_path / "choice.toml"
    path.write_text('[[rules]]\nop = "softmax"\nbackend = ["cuda", "torch_ref"]\n')
    monkeypatch.setenv("KERNELMUX_CONFIG", str(path))
    monkeypatch.setenv("KERNELMUX_BACKEND_ADD", "triton,torch_ref")
    precedence.reread()
    precedence.set_default("transpose", "torch_ref")
    try:
        with (
            use("torch_ref/exact", strict=True),
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        ):
            told = {op: pool.submit(precedence.requested, op, None) for op in ("softmax", "add", "transpose")}
            found = {op: future.result() for op, future in told.items()}
    finally:
        precedence.set_default("transpose", None)
    assert found["softmax"] == precedence.Request(("cuda", "torch_ref"), f"{path}, rule 1")
    assert found["add"] == precedence.Request(("triton", "torch_ref"), "KERNELMUX_BACKEND_ADD")
    assert found["transpose"] == precedence.Request(("auto",), "auto")


def test_the_environment_is_read_again_when_asked(monkeypatch):
    assert run() == 3
    monkeypatch.setenv("KERNELMUX_BACKEND", "plain")
    assert run() == 3
    precedence.reread()
    assert run() == 4
