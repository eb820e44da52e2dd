"""Errors of CUDA in a call: the text names the call, the cause and the ways to the place; other errors stay as they are."""

from __future__ import annotations

import dis

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch, launch_replay
from kernelmux.registry.observe import gpu_failures
from kernelmux.registry.spec import cases as spelling
from kernelmux.registry.tests import fakes
from kernelmux.registry.tests.cuda_errors import ERRORS, LATE, AcceleratorError, CUDADriverError, OutOfResources

X = torch.zeros(8, 6)


@pytest.fixture(autouse=True)
def apart():
    dispatch._plans.clear()
    yield
    dispatch._plans.clear()


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, good: int = 0) -> None:
    """Let backend "plain" raise an error from its call number `good` on."""
    left = [good]

    def transpose(x: torch.Tensor) -> torch.Tensor:
        if left[0]:
            left[0] -= 1
            return x.t().contiguous()
        raise error

    def launch(x: torch.Tensor) -> torch.Tensor:
        grid, block, shared = (7, 1, 1), (2048, 1, 1), 512
        return transpose(x) if grid and block and shared else x

    home = Backend("plain", "a fake", 60, lambda device: None, emulates=False)
    monkeypatch.setitem(fakes.FAKES, "plain", (home, {"only": Implementation(launch, idea="fails")}))
    fakes.install(monkeypatch)


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_named_with_its_call_and_its_cause(monkeypatch, name):
    error, code = ERRORS[name]
    failing(monkeypatch, error)
    with pytest.raises(kx.KernelFailure) as raised:
        kx.transpose(X, backend="plain")
    text, found = str(raised.value), gpu_failures.cause(error)
    assert text.startswith(f"transpose[plain/only] failed on the GPU: CUDA error {code}: ")
    assert "x fp32[8, 6] on cpu" in text and found.code == code and found.text in text
    assert "launch: grid (7, 1, 1), block (2048, 1, 1), 512 bytes of dynamic shared memory" in text
    assert all(way in text for way in ("CUDA_LAUNCH_BLOCKING=1", "compute-sanitizer", "emulat"))
    assert ("context of this process is lost" in text) is ("an earlier one" in text) is (code in LATE)
    assert raised.value.__cause__ is error and isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize("form", ["first", "quick", "bound"])
def test_every_way_of_a_call_tells(monkeypatch, form):
    """The first call of a kind, the comparison with the last one, and a bound call."""
    failing(monkeypatch, ERRORS["cupy"][0], good={"first": 0, "quick": 3, "bound": 0}[form])
    call = (
        kx.bind("transpose", like=(X,), backend="plain")
        if form == "bound"
        else lambda x: kx.transpose(x, backend="plain")
    )
    for _ in range(3 if form == "quick" else 0):
        call(X)
    assert ("transpose" in dispatch._plans.quick) is (form == "quick")
    with pytest.raises(kx.KernelFailure, match=r"transpose\[plain/only\] failed on the GPU"):
        call(X)


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("CUDA error: out of memory"), KeyboardInterrupt()])
def test_other_errors_reach_the_caller_as_they_are(monkeypatch, error):
    failing(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        kx.transpose(X, backend="plain")
    assert raised.value is error and error.__cause__ is None


def test_torchs_own_lack_of_memory_is_left_to_torch(monkeypatch):
    failing(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    with pytest.raises(torch.OutOfMemoryError):
        kx.transpose(X, backend="plain")


def test_an_open_record_knows_what_ran_before(monkeypatch):
    failing(monkeypatch, ERRORS["torch"][0], good=20)
    with kx.record() as log, pytest.raises(kx.KernelFailure) as raised:
        for _ in range(21):
            kx.transpose(X, backend="plain")
    assert len(log.last) == 12 and f"ran last, this one at the end: {'; '.join(log.last)}" in str(raised.value)
    assert log.last[0] == "transpose[plain/only] 8x6:fp32"


def test_an_error_that_shows_in_torch_gets_a_note_of_what_ran():
    late = AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(AcceleratorError) as raised, kx.record():
        kx.transpose(X, backend="torch_ref")
        raise late
    (note,) = raised.value.__notes__
    assert "the latest at the end: transpose[torch_ref/plain] 8x6:fp32" in note
    assert gpu_failures.cause(late).text in note and "CUDA_LAUNCH_BLOCKING=1" in note and "compute-sanitizer" in note
    for other in (ValueError("no"), AcceleratorError("CUDA error: out of memory")):
        with pytest.raises(type(other)) as unrelated, kx.record():
            kx.transpose(X, backend="torch_ref")
            raise other
        assert not hasattr(unrelated.value, "__notes__")


def test_a_process_that_waits_for_launches_knows_whose_it_was(monkeypatch):
    failing(monkeypatch, ERRORS["torch"][0])
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(kx.KernelFailure, match="a launch of this call failed"):
        kx.transpose(X, backend="plain")


def test_an_unknown_error_of_cuda_is_told_too():
    ran = gpu_failures.Ran("softmax", "cuda/rows", "auto")
    with pytest.raises(kx.KernelFailure, match="some new trouble") as raised:
        gpu_failures.tell(RuntimeError("CUDA error: some new trouble"), ran, (X, -1, 1.0))
    assert gpu_failures.UNKNOWN.text in str(raised.value)


@pytest.mark.parametrize(
    ("op", "values"),
    [("softmax", (torch.zeros(3, 5, dtype=torch.bfloat16), 0, 0.5)), ("add", (X, X)), ("reduce_sum", (X, None, True))],
)
def test_the_command_for_the_emulator_is_the_same_call(op, values):
    spec = catalog.spec(op)
    values = spec.given(*values)
    shapes, scalars, formats = spelling.parse(spelling.arguments_text(spec, values), spec)
    tensors = {i.name: v for i, v in zip(spec.inputs, values, strict=True) if isinstance(v, torch.Tensor)}
    assert shapes == {n: tuple(x.shape) for n, x in tensors.items()} and formats == {
        n: x.dtype for n, x in tensors.items()
    }
    again = spec.given(**tensors, **scalars)
    assert all(a is b or a == b for a, b in zip(values, again, strict=True))


def test_the_emulators_command_names_the_variant():
    ran = gpu_failures.Ran("softmax", "cuda/online", "auto")
    with pytest.raises(kx.KernelFailure) as raised:
        gpu_failures.tell(ERRORS["cupy"][0], ran, (X, -1, 1.0))
    assert "kernelmux emulate softmax --backend cuda/online --shape x=8x6:fp32\n" in str(raised.value)


def test_a_replay_hands_the_error_on():
    """What `launch_replay.wake` does with an error that is not the one it waits for."""
    with pytest.raises(CUDADriverError):
        launch_replay.wake(ERRORS["cupy"][0], 0)


def test_a_call_that_succeeds_runs_no_instruction_more():
    """What catches errors stands behind the last instruction of a good call."""
    for _ in range(3):
        kx.softmax(X, backend="torch_ref")
    names = [step.opname for step in dis.get_instructions(dispatch._plans.quick["softmax"])]
    good = names[: names.index("PUSH_EXC_INFO")]
    assert "NOP" not in good and good[-1] == "RETURN_VALUE"


def test_a_launch_of_triton_has_its_grid_and_its_warps():
    class Launch:
        grid, meta = (4, 1, 1), {"num_warps": 8, "lanes": object()}
        kernel = staticmethod(lambda: None)

        def __call__(self):
            raise OutOfResources("out of resource: shared memory")

    with pytest.raises(OutOfResources) as raised:
        Launch()()
    assert gpu_failures._launch(raised.value).endswith("grid (4, 1, 1), 8 warps")
