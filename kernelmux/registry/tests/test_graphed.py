"""`graphed`: what is checked, copied and replayed, on a stand-in for CUDA graphs; and on a GPU where there is one."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernelmux as kx
from kernelmux.registry.call import cuda_graphs as module
from kernelmux.registry.errors import ArgumentError

GPU = torch.cuda.is_available()


class Recording(TorchDispatchMode):
    """Keeps every operator that runs, with its arguments and results."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, result))
        return result


class Graph:
    """Replays what was recorded into the same memory, as a CUDA graph does."""

    def __init__(self):
        self.steps = []
        self.replays = 0

    def replay(self):
        self.replays += 1
        with torch.inference_mode():
            for func, args, kwargs, result in self.steps:
                again = func(*args, **kwargs)
                if isinstance(result, torch.Tensor) and result.data_ptr() != again.data_ptr():
                    result.copy_(again)


class Stream:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"{self.name} is done")


class Cuda:
    """The part of torch.cuda that `graphed` uses."""

    CUDAGraph = Graph

    def __init__(self):
        self.log: list[str] = []
        self.current = Stream(self.log, "main")
        self.capturing = self.available = False

    def is_available(self):
        return self.available

    def is_current_stream_capturing(self):
        return self.capturing

    def Stream(self):  # noqa: N802  (torch's name)
        return Stream(self.log, "side")

    def current_stream(self):
        return self.current

    def device(self, device):
        return nullcontext()

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph, stream, capture_error_mode):
        self.log.append(f"capture on {stream.name}, {capture_error_mode}")
        with self.stream(stream), Recording(graph.steps):
            yield


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(module, "cuda", made)
    monkeypatch.setattr(module, "DEVICE", "cpu")
    return made


def test_a_replay_computes_with_the_arguments_of_the_call(cuda):
    calls = []

    def double(x, more):
        calls.append(1)
        return {"sum": x + more["y"], "twice": x * 2}

    first = (torch.ones(3), {"y": torch.ones(3)})
    fast = kx.graphed(double, *first)
    assert len(calls) == module.WARMUP + 1
    for value in (2.0, 5.0):
        found = fast(torch.full((3,), value), {"y": torch.arange(3.0)})
        assert torch.equal(found["sum"], value + torch.arange(3.0)) and found["twice"].eq(2 * value).all()
    assert len(calls) == module.WARMUP + 1 and fast.graph.replays == 2
    assert first[0].eq(1).all() and repr(fast) == "<double in a CUDA graph: fp32[3] on cpu, fp32[3] on cpu>"


def test_outputs_belong_to_the_graph_unless_they_are_cloned(cuda):
    fast = kx.graphed(lambda x: x + 1, torch.zeros(2))
    first = fast(torch.zeros(2))
    assert fast(torch.ones(2)) is first and first.eq(2).all()
    fast = kx.graphed(lambda x: (x + 1, 7), torch.zeros(2), clone=True)
    first, constant = fast(torch.zeros(2))
    fast(torch.ones(2))
    assert first.eq(1).all() and constant == 7


def test_the_graph_works_on_copies_of_its_arguments(cuda):
    x = torch.zeros(4)
    fast = kx.graphed(lambda x: x.add_(1), x)
    assert fast(x).eq(1).all() and x.eq(0).all()


def test_an_argument_that_is_the_graphs_own_is_not_copied(cuda):
    fast = kx.graphed(lambda x: x * 2, torch.zeros(2))
    fast.inputs[0].fill_(3)
    assert fast(fast.inputs[0]).eq(6).all()
    assert fast(fast.outputs).eq(12).all()  # an output as the next input


def test_what_is_captured_in_inference_mode_runs_outside_of_it(cuda):
    with torch.inference_mode():
        fast = kx.graphed(lambda x: x * 2, torch.zeros(2))
    assert fast(torch.ones(2)).eq(2).all()


def test_strides_of_an_argument_may_differ(cuda):
    fast = kx.graphed(lambda x: x * 2, torch.zeros(2, 3))
    x = torch.arange(6.0).reshape(3, 2).t()
    assert torch.equal(fast(x), x * 2)
    assert torch.equal(fast(torch.ones(1, 3).expand(2, 3)), torch.full((2, 3), 2.0))


def test_the_order_of_streams(cuda):
    fast = kx.graphed(lambda x: x * 2, torch.zeros(2))
    assert cuda.log == [
        "side waits for main",
        "side is done",
        "capture on side, thread_local",
        "main waits for side",
    ]
    cuda.log.clear()
    fast(torch.zeros(2))
    assert cuda.log == []
    cuda.current = Stream(cuda.log, "other")
    fast(torch.zeros(2))
    fast(torch.zeros(2))
    assert cuda.log == ["other waits for main"]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            lambda: torch.zeros(2, 4),
            r"args\[0\]: expected fp32\[2, 3\] on cpu, got fp32\[2, 4\] on cpu: capture it anew",
        ),
        (lambda: torch.zeros(2, 3).double(), r"expected fp32\[2, 3\] on cpu, got fp64\[2, 3\] on cpu"),
        (lambda: torch.zeros(2, 3, device="meta"), r"expected fp32\[2, 3\] on cpu, got fp32\[2, 3\] on meta"),
        (lambda: 5, r"args\[0\]: expected fp32\[2, 3\] on cpu, got 5"),
        (
            lambda: torch.zeros(2, 3, requires_grad=True),
            r"args\[0\]: expected a tensor without a gradient.*its detach\(\)",
        ),
        (lambda: [torch.zeros(2, 3)], "expected arguments of the form"),
    ],
)
def test_other_arguments_are_refused(cuda, other, text):
    fast = kx.graphed(lambda x, scale: x * scale, torch.zeros(2, 3), 2.0)
    with pytest.raises(ArgumentError, match=text):
        fast(other(), 2.0)
    with pytest.raises(ArgumentError, match="expected arguments of the form"):
        fast(torch.zeros(2, 3))
    assert fast.graph.replays == 0


def test_what_is_no_tensor_is_a_constant(cuda):
    fast = kx.graphed(lambda x, how: x * how["scale"], torch.ones(2), {"scale": 2.0})
    assert fast(torch.ones(2), {"scale": 2.0}).eq(2).all()
    with pytest.raises(ArgumentError, match=r"args\[1\]\['scale'\]: expected 2.0, a constant of the graph, got 3.0"):
        fast(torch.ones(2), {"scale": 3.0})


def test_what_cannot_be_captured_is_refused_before_anything_runs(cuda):
    def never(*args):
        raise AssertionError("it ran")

    with pytest.raises(ArgumentError, match=r"never: args\[0\]: expected a tensor without a gradient"):
        kx.graphed(never, torch.zeros(2, requires_grad=True))
    with pytest.raises(ArgumentError, match="expected tensors of one GPU, got no tensor"):
        kx.graphed(never, 5)
    with torch.autocast("cpu"), pytest.raises(ArgumentError, match="cache_enabled=False"):
        kx.graphed(never, torch.zeros(2))
    cuda.available = cuda.capturing = True
    with pytest.raises(ArgumentError, match="outside of the capture of another graph"):
        kx.graphed(never, torch.zeros(2))


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentError, match=r"graphed: fn: expected a function and then its arguments, got Tensor"):
        kx.graphed(torch.zeros(3, 4), abs)  # type: ignore[arg-type]


def test_a_tensor_on_the_cpu_is_refused():
    lack = "" if GPU else "; this machine has none"
    with pytest.raises(
        ArgumentError, match=rf"graphed abs: args\[0\]: expected a tensor on a GPU{lack}, got Tensor fp32"
    ):
        kx.graphed(torch.abs, torch.zeros(2))


def test_outputs_with_a_gradient_are_refused_and_a_whole_training_step_is_not(cuda):
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"expected outputs without a gradient.*torch.no_grad\(\)"):
        kx.graphed(lambda x: x * weight, torch.ones(2))
    with torch.no_grad():
        assert kx.graphed(lambda x: x * weight, torch.ones(2))(torch.full((2,), 3.0)).eq(3).all()

    def step(x):
        (gradient,) = torch.autograd.grad((x * weight).sum(), weight)
        return gradient

    assert kx.graphed(step, torch.ones(2))(torch.full((2,), 3.0)).eq(3).all()


def test_an_error_of_the_function_reaches_the_caller(cuda):
    with pytest.raises(ZeroDivisionError):
        kx.graphed(lambda x: x / (1 // 0), torch.ones(2))


gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("backend", ["torch_ref", "triton", "cuda"])
def test_a_graph_of_operators_gives_the_bits_of_the_calls(backend):
    weight = torch.rand(512, device="cuda")

    def block(x):
        return kx.softmax(kx.rms_norm(x, weight, backend=backend), backend=backend)

    fast = kx.graphed(block, torch.randn(64, 512, device="cuda"))
    for seed in range(3):
        x = torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        assert torch.equal(fast(x), block(x))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        assert torch.equal(fast(x), block(x))
    with pytest.raises(ArgumentError, match="capture it anew"):
        fast(x[:32])


@pytest.mark.gpu
@gpu
def test_random_numbers_differ_from_replay_to_replay():
    fast = kx.graphed(lambda x: torch.rand_like(x), torch.zeros(64, device="cuda"), clone=True)
    x = torch.zeros(64, device="cuda")
    assert not torch.equal(fast(x), fast(x))
    torch.cuda.manual_seed(3)
    first = fast(x)
    torch.cuda.manual_seed(3)
    assert torch.equal(first, fast(x))


@pytest.mark.gpu
@gpu
def test_a_shadow_is_silent_in_a_capture():
    kx.shadow_report(reset=True)
    x = torch.randn(8, 64, device="cuda")
    with kx.use("cuda", shadow="torch_ref"):
        fast = kx.graphed(lambda x: kx.softmax(x), x)
    assert torch.equal(fast(x), kx.softmax(x, backend="cuda"))
    (row,) = kx.shadow_report().rows
    assert (row.agreed, row.skipped) == (module.WARMUP, 1) and "capture of a CUDA graph" in row.last
