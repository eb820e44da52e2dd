"""Rare forms of votes, matches, barriers and isspacep, in kernels of one or two blocks."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.running.launch import load


def kernel(body: str, threads: int, **options: Any) -> np.ndarray:
    out = np.full(threads * 2, 0xFFFFFFFF, np.uint32)
    text = f""".version 8.8\n.target sm_90a\n.address_size 64\n.shared .align 4 .b32 word;
    .visible .entry k(.param .u64 out) {{
    .reg .b64 %out, %at, %g; .reg .b32 %t, %v, %n, %m; .reg .pred %p, %q; .reg .b64 %w;
    ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 4; add.u64 %at, %at, %out;
    {body} st.global.u32 [%at], %v; ret; }}"""
    with checks("full"):
        load(text).kernel("k").launch(options.pop("blocks", 1), threads, (out,), **options)
    return out[:threads]


VOTES = {"all": "all", "any": "any", "uni": "uni"}


@pytest.mark.parametrize("limit", [0, 5, 32])
@pytest.mark.parametrize("mode", VOTES)
@pytest.mark.parametrize("negated", ["", "!"])
def test_votes_of_negated_predicates(limit: int, mode: str, negated: str) -> None:
    got = kernel(f"setp.lt.u32 %p, %t, {limit}; vote.sync.{mode}.pred %q, {negated}%p, -1; selp.b32 %v, 1, 0, %q;", 32)
    chosen = [(i < limit) != bool(negated) for i in range(32)]
    want = {"all": all(chosen), "any": any(chosen), "uni": len(set(chosen)) == 1}[mode]
    assert (got == int(want)).all()


def test_a_ballot_of_a_part_of_the_warp() -> None:
    got = kernel(
        "setp.ge.u32 %p, %t, 16; mov.b32 %v, 0; @%p vote.sync.ballot.b32 %v, !%p, 0xFFFF0000;"
        "@!%p vote.sync.ballot.b32 %v, !%p, 0x0000FFFF;",
        32,
    )
    assert got.tolist() == [0xFFFF] * 16 + [0] * 16


@pytest.mark.parametrize("form", ["%v|%q", "_|%q", "%v"])
@pytest.mark.parametrize("kind", ["b32", "b64"])
@pytest.mark.parametrize("same", [True, False])
def test_match_all(form: str, kind: str, same: bool) -> None:
    value = "%w" if kind == "b64" else "%n"
    make = f"and.b32 %n, %t, {0 if same else 1}; cvt.u64.u32 %w, %n; shl.b64 %w, %w, 33; mov.b32 %v, 9;"
    read = "" if form == "%v" else "selp.b32 %v, 1, 0, %q;"
    got = kernel(f"{make} match.all.sync.{kind} {form}, {value}, -1; {read}", 32)
    assert (got == ((0xFFFFFFFF if form == "%v" else 1) if same else 0)).all()


def test_match_any_of_64_bits() -> None:
    make = "rem.u32 %n, %t, 3; cvt.u64.u32 %w, %n; shl.b64 %w, %w, 40;"
    got = kernel(make + "match.any.sync.b64 %v, %w, -1;", 32)
    assert got.tolist() == [sum(1 << j for j in range(32) if j % 3 == i % 3) for i in range(32)]


@pytest.mark.parametrize(
    ("barrier", "want"),
    [
        ("bar.red.popc.u32 %v, 0, %p;", 70),
        ("bar.red.popc.u32 %v, 3, 96, !%p;", 26),
        ("barrier.red.popc.u32 %v, 3, %p;", 70),
        ("barrier.cta.red.popc.aligned.u32 %v, %n, 96, %p;", 70),
        ("barrier.cta.red.and.pred %q, 1, %p; selp.b32 %v, 1, 0, %q;", 0),
        ("bar.cta.red.or.pred %q, 1, %m, !%p; selp.b32 %v, 1, 0, %q;", 1),
        ("bar.sync %n; mov.b32 %v, 4;", 4),
        ("barrier.sync %n, %m; mov.b32 %v, 4;", 4),
        ("barrier.cta.sync.aligned 15, 96; mov.b32 %v, 4;", 4),
        ("bar.cta.sync 0; mov.b32 %v, 4;", 4),
    ],
)
def test_barriers(barrier: str, want: int) -> None:
    got = kernel(f"setp.lt.u32 %p, %t, 70; mov.b32 %n, 2; mov.b32 %m, 96; {barrier}", 96)
    assert (got == want).all()


def test_arriving_and_waiting_with_barrier_cta() -> None:
    body = """setp.lt.u32 %p, %t, 32; mov.b32 %v, 0; @!%p bra wait; setp.eq.u32 %q, %t, 0; @%q st.shared.b32 [word], 6;
    barrier.cta.arrive.aligned 4, 64; bra end; wait: barrier.cta.sync.aligned 4, 64; ld.shared.b32 %v, [word]; end:"""
    assert kernel(body, 64).tolist() == [0] * 32 + [6] * 32


def test_warps_of_two_roles_meet_at_a_barrier_from_two_places() -> None:
    """`barrier` without .aligned allows that; `bar.sync`, which is __syncthreads(), is for one place."""
    body = """setp.lt.u32 %p, %t, 32; mov.b32 %v, 0; @!%p bra wait; setp.eq.u32 %q, %t, 0; @%q st.shared.b32 [word], 6;
    barrier.sync 0; bra end; wait: barrier.sync 0; ld.shared.b32 %v, [word]; end:"""
    assert kernel(body, 64).tolist() == [0] * 32 + [6] * 32
    with pytest.raises(EmulatorError, match="wait at different barriers") as raised:
        kernel(body.replace("barrier.sync", "bar.sync"), 64)
    assert raised.value.kind == "divergence"


@pytest.mark.parametrize(
    ("space", "want"),
    [("shared", [1, 0]), ("shared::cta", [1, 0]), ("shared::cluster", [1, 1]), ("global", [0, 0]), ("local", [0, 0])],
)
def test_spaces_of_addresses_in_other_blocks(space: str, want: list[int]) -> None:
    body = f"""mov.u64 %g, word; cvta.shared.u64 %g, %g; mapa.u64 %g, %g, 0; isspacep.{space} %p, %g; selp.b32 %v, 1, 0, %p;
    mov.u32 %n, %cluster_ctarank; mul.wide.u32 %at, %n, 4; add.u64 %at, %at, %out;"""
    assert _first(body) == want


def _first(body: str) -> list[int]:
    """What the first thread of each of two blocks of a cluster stores."""
    found: list[int] = kernel("setp.ne.u32 %q, %t, 0; @%q exit;" + body, 2, blocks=2, cluster=(2, 1, 1)).tolist()
    return found
