"""Processes that wait: when they start, and that each is taken once."""

from __future__ import annotations

from kernelmux.candidate.pool import WarmPool


def test_others_start_where_none_is_left_or_when_asked_for() -> None:
    pool = WarmPool(2)
    taken = []
    try:
        pool.fill()
        assert pool.waiting == 2
        taken.append(pool.take())
        assert pool.waiting == 1  # what was taken has the machine
        pool.fill()
        assert pool.waiting == 2
        taken += [pool.take(), pool.take()]
        assert pool.waiting == 2  # none was left
        assert len({worker.popen.pid for worker in taken}) == 3
    finally:
        pool.close()
        for worker in taken:
            worker.kill()
    assert pool.waiting == 0 and all(worker.popen.poll() is not None for worker in taken)
