"""mbarrier: phases, counts, states, transactions; misuse is an error with the line of the instruction."""

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load, nvrtc, time_limit

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

HEAD = """
__device__ unsigned offset_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned long long* bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(offset_of(bar)), "r"(count) : "memory");
}
__device__ void arrive(unsigned long long* bar, int count = 1) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" :: "r"(offset_of(bar)), "r"(count) : "memory");
}
__device__ bool test(unsigned long long* bar, int parity) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(offset_of(bar)), "r"(parity) : "memory");
  return done;
}
__device__ void wait(unsigned long long* bar, int parity) {
  asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again;}"
               :: "r"(offset_of(bar)), "r"(parity) : "memory");
}
"""


def run(body: str, threads: int = 64, room: int = 16) -> np.ndarray:
    """What the kernel writes to `y`; `bar` is a barrier in its shared memory."""
    source = f"""{HEAD}extern "C" __global__ void kernel(int* y) {{
  __shared__ unsigned long long bar;
  int t = threadIdx.x;
  {body}
}}"""
    y = torch.full((max(threads, room),), -1, dtype=torch.int32)
    kernel = load(compile_ptx(source, arch="sm_90a", filename="barrier.cu")).kernel("kernel")
    with checks("full"), time_limit(5):
        kernel.launch(1, threads, (y,), ("y",))
    return y.numpy()


READY = "if (t == 0) init(&bar, COUNT); __syncthreads();"


def test_phases_alternate() -> None:
    body = READY.replace("COUNT", "1") + "if (t == 0) for (int i = 0; i < 6; i++) {"
    body += "y[2 * i] = test(&bar, i & 1); arrive(&bar); y[2 * i + 1] = test(&bar, i & 1); }"
    assert run(body)[:12].tolist() == [0, 1] * 6


def test_a_phase_needs_all_arrivals() -> None:
    body = READY.replace("COUNT", "64") + "arrive(&bar); if (t < 32) { wait(&bar, 0); y[t] = t; }"
    assert run(body)[:32].tolist() == list(range(32))


def test_one_arrival_can_count_for_several() -> None:
    body = READY.replace("COUNT", "5")
    body += "if (t == 0) { arrive(&bar, 4); y[0] = test(&bar, 0); arrive(&bar); y[1] = test(&bar, 0); }"
    assert run(body)[:2].tolist() == [0, 1]


def test_waiting_for_a_state_instead_of_a_parity() -> None:
    body = READY.replace("COUNT", "64")
    body += """unsigned long long state; int done;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(offset_of(&bar)) : "memory");
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.shared.b64 p, [%1], %2; @!p bra again; selp.b32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(offset_of(&bar)), "l"(state) : "memory");
    y[t] = done;"""
    assert (run(body)[:64] == 1).all()


def test_leaving_for_good_lowers_the_count_of_later_phases() -> None:
    body = READY.replace("COUNT", "2")
    body += """if (t == 0) {
      asm volatile("mbarrier.arrive_drop.shared.b64 _, [%0];" :: "r"(offset_of(&bar)) : "memory");
      arrive(&bar);
      y[0] = test(&bar, 0);
      arrive(&bar);
      y[1] = test(&bar, 1);
    }"""
    assert run(body)[:2].tolist() == [1, 1]


def test_bytes_are_waited_for_like_arrivals() -> None:
    body = READY.replace("COUNT", "1")
    body += """if (t == 0) {
      asm volatile("mbarrier.expect_tx.relaxed.cta.shared.b64 [%0], 96;" :: "r"(offset_of(&bar)) : "memory");
      arrive(&bar);
      y[0] = test(&bar, 0);
      asm volatile("mbarrier.complete_tx.relaxed.cta.shared.b64 [%0], 96;" :: "r"(offset_of(&bar)) : "memory");
      y[1] = test(&bar, 0);
    }"""
    assert run(body)[:2].tolist() == [0, 1]


def test_data_written_before_an_arrival_are_ordered_by_the_wait() -> None:
    body = "__shared__ int tile[64];" + READY.replace("COUNT", "32")
    body += "if (t < 32) { tile[t] = t; arrive(&bar); } else { wait(&bar, 0); y[t] = tile[t - 32]; }"
    assert run(body)[32:64].tolist() == list(range(32))


DEFECTS = {
    "used before init": ("arrive(&bar);", "asynchronous", "not initialised"),
    "used after inval": (
        READY.replace("COUNT", "1")
        + 'if (t == 0) { asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(offset_of(&bar))); arrive(&bar); }',
        "asynchronous",
        "not initialised",
    ),
    "count of zero": ("if (t == 0) init(&bar, 0);", "asynchronous", "count outside"),
    "too many arrivals": (READY.replace("COUNT", "63") + "arrive(&bar);", "asynchronous", "more arrivals"),
    "too few arrivals": (READY.replace("COUNT", "65") + "arrive(&bar); wait(&bar, 0);", "deadlock", "64 threads"),
    "no arrivals": (READY.replace("COUNT", "64") + "arrive(&bar); wait(&bar, 0); wait(&bar, 1);", "deadlock", "try"),
    "misaligned": ("if (t == 0) init((unsigned long long*)((char*)&bar + 4), 1);", "misaligned", "8 bytes"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_misuse(defect: str) -> None:
    body, kind, text = DEFECTS[defect]
    with pytest.raises(EmulatorError, match=text) as raised:
        run(body)
    assert raised.value.kind == kind and (raised.value.file or "").endswith("barrier.cu")
