"""mbarrier in every form of the ISA: random programs against a model, forms that name scopes and spaces, refusals."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks, time_limit
from kernelmux.emulator.running.launch import load

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"
START = """.shared .align 8 .b64 bar; .shared .align 16 .b8 tile[256];
.reg .b64 %out, %g, %state<40>, %at; .reg .b32 %a, %n, %t, %remote, %rank, %offset; .reg .pred %p;
ld.param.u64 %out, [out]; mov.u32 %a, bar; mov.u32 %t, %tid.x; mov.u64 %g, bar; cvta.shared.u64 %g, %g;
mul.wide.u32 %at, %t, 4; add.u64 %at, %at, %out;
"""


def run(
    body: str, threads: int = 1, room: int = 64, grid: int = 1, directive: str = "", mode: str = "full"
) -> np.ndarray:
    out = np.full(room, 0xFFFFFFFF, np.uint32)
    text = f"{HEAD}.visible .entry k(.param .u64 out) {directive} {{\n{START}{body}\nret;\n}}"
    with checks(mode), time_limit(5):
        load(text).kernel("k").launch(grid, threads, (out,), names=("out",))
    return out


# --- random programs ------------------------------------------------------------------------------------------


@dataclass
class Model:
    """An mbarrier as the ISA describes it: counts of the current phase, and the operations that change them."""

    expected: int
    phase: int = 0
    pending: int = 0
    bytes: int = 0
    found: list[tuple[int, int]] = field(default_factory=list)  # phase and pending count that each arrival found

    def __post_init__(self) -> None:
        self.pending = self.expected

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.expected

    def arrive(self, count: int, drop: bool, announced: int = 0) -> None:
        self.bytes += announced
        self.found.append((self.phase, self.pending))
        self.expected -= count if drop else 0
        self.pending -= count
        self.settle()

    def transfer(self, change: int) -> None:
        self.bytes += change
        self.settle()


SPACES = (".shared", ".shared::cta", "")
ORDERS = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")


def program(seed: int) -> tuple[str, list[int]]:
    """A program of one thread, and what it stores."""
    random = np.random.default_rng(seed)
    model = Model(int(random.integers(4, 9)))
    text, results = f"mbarrier.init.shared::cta.b64 [%a], {model.expected};\n", list[int]()
    for _ in range(24):
        space, order = str(random.choice(SPACES)), str(random.choice(ORDERS))
        place = "[%g]" if not space else "[%a]"
        kind = random.choice(["arrive", "arrive", "drop", "expect", "bytes", "ask"])
        if kind in ("arrive", "drop", "expect") and model.pending > 0 and len(model.found) < 40:
            text += arrival(model, str(kind), random, f"{order}{space}", place)
        elif kind == "bytes" and model.pending > 0:
            change = int(random.integers(1, 64)) if model.bytes == 0 else -model.bytes
            verb = "expect_tx" if change > 0 else "complete_tx"
            scope = str(random.choice(["", ".relaxed.cta", ".relaxed.cluster"]))
            text += f"mbarrier.{verb}{scope}{space}.b64 {place}, {abs(change)};\n"
            model.transfer(change)
        elif kind == "ask":
            text += ask(model, random, space, place, results)
        if model.pending == 0:  # only bytes are missing: bring them
            text += f"mbarrier.complete_tx.shared.b64 [%a], {model.bytes};\n"
            model.transfer(-model.bytes)
    for i, (_, pending) in enumerate(model.found):
        text += f"mbarrier.pending_count.b64 %n, %state{i};\nst.global.u32 [%out+{4 * len(results)}], %n;\n"
        results.append(pending)
    return text + "mbarrier.inval.shared.b64 [%a];\n", results


def arrival(model: Model, kind: str, random: np.random.Generator, order: str, place: str) -> str:
    number = len(model.found)
    if kind == "expect":
        announced, drop = int(random.integers(1, 64)), bool(random.integers(2)) and model.expected > 2
        model.arrive(1, drop, announced)
        name = "arrive_drop" if drop else "arrive"
        return f"mbarrier.{name}.expect_tx{order}.b64 %state{number}, {place}, {announced};\n"
    drop = kind == "drop" and model.expected > 2
    count = 1 if drop else int(random.integers(1, model.pending + 1))
    quiet = count < model.pending and "relaxed" not in order and "cluster" not in order and bool(random.integers(2))
    model.arrive(count, drop)
    name = ("arrive_drop" if drop else "arrive") + (".noComplete" if quiet else "")
    explicit = f", {count}" if count > 1 or quiet or random.integers(2) else ""
    return f"mbarrier.{name}{order}.b64 %state{number}, {place}{explicit};\n"


def ask(model: Model, random: np.random.Generator, space: str, place: str, results: list[int]) -> str:
    parity = int(random.integers(2))
    recent = [i for i, (phase, _) in enumerate(model.found) if model.phase - phase <= 1]
    order = str(random.choice(["", ".acquire.cta", ".acquire.cluster", ".relaxed.cta"]))
    if recent and random.integers(2):
        chosen = int(random.choice(recent))
        done, how, what = model.found[chosen][0] < model.phase, "", f"%state{chosen}"
    else:
        done, how, what = (model.phase & 1) != parity, ".parity", str(parity)
    verb = "try_wait" if done and random.integers(2) else "test_wait"
    limit = ", 1000" if verb == "try_wait" and random.integers(2) else ""
    text = f"mbarrier.{verb}{how}{order}{space}.b64 %p, {place}, {what}{limit};\nselp.b32 %n, 1, 0, %p;\n"
    text += f"st.global.u32 [%out+{4 * len(results)}], %n;\n"
    results.append(int(done))
    return text


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_agree_with_the_model(seed: int) -> None:
    text, results = program(seed)
    assert run(text)[: len(results)].tolist() == results


# --- many threads ---------------------------------------------------------------------------------------------

INIT = "setp.eq.u32 %p, %t, 0; @%p mbarrier.init.shared.b64 [%a], COUNT; bar.sync 0;\n"


def test_every_thread_finds_another_count() -> None:
    body = (
        INIT.replace("COUNT", "64")
        + """mbarrier.arrive.shared.b64 %state0, [%a];
    mbarrier.pending_count.b64 %n, %state0; st.global.u32 [%at], %n;"""
    )
    assert sorted(run(body, 64).tolist()) == list(range(1, 65))


def test_a_try_wait_that_gives_up_lets_its_thread_do_what_the_phase_waits_for() -> None:
    body = """mbarrier.init.shared.b64 [%a], 1; mov.u32 %n, 0;
    again: mbarrier.try_wait.parity.shared.b64 %p, [%a], 0, 20; @%p bra done;
    setp.eq.u32 %p, %n, 0; @%p mbarrier.arrive.shared.b64 _, [%a]; add.u32 %n, %n, 1; bra again;
    done: st.global.u32 [%at], %n;"""
    assert run(body)[0] == 1


def test_threads_that_take_turns_at_two_barriers() -> None:
    body = (
        INIT.replace("COUNT", "1")
        + """.shared .align 8 .b64 other; .reg .b32 %b; mov.u32 %b, other;
    setp.eq.u32 %p, %t, 0; @%p mbarrier.init.shared.b64 [%b], 1; bar.sync 0;
    @!%p bra second;
    first: mbarrier.try_wait.parity.shared.b64 %p, [%a], 0; @%p bra done;
    mbarrier.test_wait.parity.shared.b64 %p, [%b], 0; @!%p bra first;
    mbarrier.arrive.shared.b64 _, [%a]; bra first;
    second: mbarrier.arrive.shared.b64 _, [%b];
    done: st.global.u32 [%at], %t;"""
    )
    assert run(body, 2)[:2].tolist() == [0, 1]


WRITE_AND_READ = (
    INIT.replace("COUNT", "32")
    + """mov.u32 %n, tile; shl.b32 %offset, %t, 2; and.b32 %offset, %offset, 127;
add.u32 %n, %n, %offset; setp.lt.u32 %p, %t, 32; @!%p bra wait;
st.shared.u32 [%n], %t; FENCE mbarrier.arrive.ORDER.shared.b64 _, [%a]; bra done;
wait: mbarrier.try_wait.parity.acquire.cta.shared.b64 %p, [%a], 0; @!%p bra wait;
ld.shared.u32 %n, [%n]; st.global.u32 [%at], %n;
done:"""
)


@pytest.mark.parametrize(("order", "fence"), [("release.cta", ""), ("relaxed.cta", "fence.acq_rel.cta;")])
def test_an_arrival_orders_what_was_written_before(order: str, fence: str) -> None:
    body = WRITE_AND_READ.replace("ORDER", order).replace("FENCE", fence)
    assert run(body, 64)[32:].tolist() == list(range(32))


def test_a_relaxed_arrival_orders_nothing() -> None:
    with pytest.raises(EmulatorError) as raised:
        run(WRITE_AND_READ.replace("ORDER", "relaxed.cta").replace("FENCE", ""), 64)
    assert raised.value.kind == "race"


# --- other blocks of the cluster ------------------------------------------------------------------------------

# Block 0 waits for a barrier that block 1 arrives at, in the form that is tried.
REMOTE = """setp.eq.u32 %p, %t, 0; @%p mbarrier.init.shared.b64 [%a], 1;
barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %p, %rank, 0; @%p bra wait;
mapa.shared::cluster.u32 %remote, %a, 0; mapa.u64 %g, %g, 0;
FORM
bra end;
wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%a], 0; @!%p bra wait;
mov.u32 %n, 7; st.global.u32 [%at], %n;
end: barrier.cluster.arrive; barrier.cluster.wait;"""
FORMS = (
    "mbarrier.arrive.shared::cluster.b64 _, [%remote];",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%remote], 1;",
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%remote];",
    "mbarrier.arrive.release.cluster.b64 _, [%g];",
    "mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%remote];",
    "mbarrier.arrive_drop.shared::cluster.b64 _, [%remote], 1;",
    "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%remote], 16; "
    "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%remote], 16;",
    "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%remote], 16; "
    "mbarrier.arrive_drop.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%remote], 16; "
    "mbarrier.complete_tx.shared::cluster.b64 [%remote], 32;",
)


@pytest.mark.parametrize("form", FORMS)
def test_arriving_at_the_barrier_of_another_block(form: str) -> None:
    out = run(REMOTE.replace("FORM", form), grid=2, directive=".reqnctapercluster 2, 1, 1")
    assert out[0] == 7


@pytest.mark.parametrize(
    "form",
    [
        "mbarrier.arrive.b64 %state0, [%g];",
        "mbarrier.test_wait.parity.b64 %p, [%g], 1;",
        "mbarrier.try_wait.parity.b64 %p, [%g], 1;",
        "mbarrier.inval.b64 [%g];",
        "mbarrier.init.b64 [%g], 1;",
    ],
)
def test_what_only_the_own_block_may_do(form: str) -> None:
    with pytest.raises(EmulatorError, match="only threads of its own block") as raised:
        run(REMOTE.replace("FORM", form), grid=2, directive=".reqnctapercluster 2, 1, 1")
    assert raised.value.kind == "asynchronous"


# --- misuse ---------------------------------------------------------------------------------------------------

ONE = "mbarrier.init.shared.b64 [%a], 2;\n"
MISUSE = {
    "a phase completed quietly": (
        ONE + "mbarrier.arrive.noComplete.shared.b64 %state0, [%a], 2;",
        "completes the phase",
    ),
    "dropped quietly": (ONE + "mbarrier.arrive_drop.noComplete.shared.b64 %state0, [%a], 2;", "completes the phase"),
    "more than is missing": (ONE + "mbarrier.arrive.shared.b64 %state0, [%a], 3;", "more arrivals"),
    "no arrival": (ONE + "mbarrier.arrive.shared.b64 %state0, [%a], 0;", "counts for 0"),
    "too many bytes": (ONE + "mbarrier.expect_tx.shared.b64 [%a], 1048576;", "expect 1048575 bytes"),
    "twice initialised": (ONE + ONE, "already"),
    "an old state": (
        ONE + "mbarrier.arrive.shared.b64 %state0, [%a]; mbarrier.arrive.shared.b64 %state1, [%a];"
        "mbarrier.arrive.shared.b64 %state1, [%a], 2; mbarrier.test_wait.shared.b64 %p, [%a], %state0;",
        "neither to the current phase",
    ),
    "copies never begun for it": (
        "mbarrier.init.shared.b64 [%a], 1; cp.async.mbarrier.arrive.noinc.shared.b64 [%a];",
        "no thread had waited",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(case: str) -> None:
    body, text = MISUSE[case]
    with pytest.raises(EmulatorError, match=text) as raised:
        run(body)
    assert raised.value.kind == "asynchronous"


def test_a_generic_address_outside_of_shared_memory() -> None:
    with pytest.raises(EmulatorError, match="not in shared memory") as raised:
        run("mbarrier.init.b64 [%out], 1;")
    assert raised.value.kind == "bad pointer"


def test_a_state_of_another_blocks_barrier_is_refused() -> None:
    with pytest.raises(EmulatorError, match="destination must be _") as raised:
        run(ONE + "mbarrier.arrive.release.cluster.shared::cluster.b64 %state0, [%a];")
    assert raised.value.kind == "unsupported"


@pytest.mark.parametrize("form", ["", ".noinc"])
@pytest.mark.parametrize("place", [".shared.b64 [%a]", ".shared::cta.b64 [%a]", ".b64 [%g]"])
def test_copies_arrive_at_the_barrier(form: str, place: str) -> None:
    count = 32 if form else 1
    body = (
        INIT.replace("COUNT", str(count))
        + f"""mov.u32 %n, tile; shl.b32 %offset, %t, 2; add.u32 %n, %n, %offset;
    st.global.u32 [%at], %t; cp.async.ca.shared.global [%n], [%at], 4;
    cp.async.mbarrier.arrive{form}{place};
    setp.eq.u32 %p, %t, 0; {"" if form else "@%p mbarrier.arrive.shared.b64 _, [%a];"}
    wait: mbarrier.try_wait.parity.shared.b64 %p, [%a], 0; @!%p bra wait;
    ld.shared.u32 %n, [%n]; add.u32 %n, %n, 100; st.global.u32 [%at], %n;"""
    )
    assert run(body, 32)[:32].tolist() == list(range(100, 132))


@pytest.mark.parametrize(
    ("threads", "between"), [(64, "bar.sync 0;"), (32, "bar.warp.sync -1;"), (64, "fence.acq_rel.cta;")]
)
def test_others_may_use_a_barrier_after_it_was_initialised_for_them(threads: int, between: str) -> None:
    body = f"""setp.eq.u32 %p, %t, 0; @%p mbarrier.init.shared.b64 [%a], {threads}; {between}
    mbarrier.arrive.shared.b64 %state0, [%a]; st.global.u32 [%at], %t;"""
    assert run(body, threads)[:threads].tolist() == list(range(threads))


def test_another_warp_uses_a_barrier_with_nothing_between() -> None:
    body = """setp.eq.u32 %p, %t, 0; @%p mbarrier.init.shared.b64 [%a], 64; mbarrier.arrive.shared.b64 %state0, [%a];"""
    with pytest.raises(EmulatorError, match="initialised by another warp") as raised:
        run(body, 64)
    assert raised.value.kind == "race" and raised.value.thread == (32, 0, 0)
