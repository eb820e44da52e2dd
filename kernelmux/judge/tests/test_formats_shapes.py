"""Tasks of the shapes that published ones have, written here: lengths, references, operators that need some care."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.utils import _pytree as pytree

from kernelmux.judge import formats
from kernelmux.judge.formats import block_scaled, candidate_side, judging, modes, reduced_sizes
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.projects import backendbench, operator_samples
from kernelmux.judge.tests.task_files import answers, imports_undone, only, solved, written


@pytest.fixture(autouse=True)
def _imports_undone():
    with imports_undone():
        yield


# --- references ---------------------------------------------------------------------------------------------------


def test_sizes_stay_sizes_where_cuda_means_the_cpu():
    with modes.placed(torch.device("cpu")):
        drawn = torch.distributions.Cauchy(0, 2).sample((3, 5)).to("cuda")  # by x.new(torch.Size([3, 5]))
    assert drawn.shape == (3, 5)
    with modes.exactly():
        assert torch.zeros(1).new(torch.Size([2, 3])).shape == (2, 3)


def test_bytes_are_read_as_numbers_in_float64_too():
    x = torch.tensor([[1.5, -2.0], [3.25, 4.0]])
    packed = x.view(torch.uint8)
    with modes.exactly():
        read = packed.view(torch.float32)
        assert read.dtype == torch.float64 and torch.equal(read, x.double())
        assert packed.view(torch.int32).dtype == torch.int32


INDEXED = """
import torch

def inputs(seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(3, 4, generator=rng), torch.randint(0, 3, (5,), generator=rng), torch.empty(5, dtype=torch.int64)

def reference(x, rows, out):
    assert int(rows.max()) < 3, "what a kernel would not survive"
    return x.sum() * rows
"""


def test_whether_indices_are_read_is_asked_with_lawful_ones(tmp_path, monkeypatch):
    trial = formats.problem(only("python", written(tmp_path, t_py=INDEXED))).trial(1)
    asked: list[int] = []

    def evaluate(self, leaves=None, exactly=False):
        asked.append(int((leaves or self.leaves)[1].abs().max()))
        return self._called(leaves or self.leaves, exactly)

    monkeypatch.setattr(type(trial), "evaluate", evaluate)
    assert trial.ignored() == [False, False, True]
    assert max(asked) < 3


def test_what_makes_too_many_calls_is_ended():
    with pytest.raises(modes.TooManyCalls), modes.FewCalls(5):
        for _ in range(6):
            torch.ones(2).neg_()
    with modes.FewCalls(12):
        for _ in range(6):
            torch.ones(2).neg_()


def test_nothing_has_memory_on_the_meta_device_whatever_the_text_says():
    with modes.on_meta():
        rng = torch.Generator(device="cuda").manual_seed(1)
        x = torch.randn((1 << 20, 1 << 20), device=torch.device("cpu"), generator=rng)
        y = torch.distributions.Normal(0.0, 1.0).sample((1 << 20, 1 << 20)).to("cuda").cpu()
    assert x.device.type == y.device.type == "meta"
    with pytest.raises(ValueError, match="constraint"):
        torch.distributions.Normal(0.0, -1.0)  # parameters are looked at again


# --- sizes --------------------------------------------------------------------------------------------------------

LAYERS = """
import torch

class Model(torch.nn.Module):
    def __init__(self, inputs, sizes, groups):
        super().__init__()
        widths = [inputs, *sizes]
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])])
        self.norm = torch.nn.GroupNorm(groups, sizes[-1])

    def forward(self, x):
        return self.norm(self.layers(x))

inputs = 64
sizes = [4096, 4096]
num_groups = 16

def get_inputs():
    return [torch.rand(3, inputs)]

def get_init_inputs():
    return [inputs, sizes, num_groups]
"""


def test_kernelbench_lists_of_sizes_are_reduced(tmp_path):
    task = only("kernelbench", written(tmp_path, a__1_Layers_py=LAYERS) / "a")
    trial = formats.problem(task).trial(0, limit=1 << 20)
    assert "sizes [4096, 4096] -> [256, 256]" in trial.note and trial.size <= 1 << 20
    least = formats.problem(task).trial(0, limit=1 << 14)
    assert "sizes [4096, 4096] -> [64, 64]" in least.note
    assert least.evaluate()[0].abs().max() > 0


STATEFUL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.state = torch.ones(batch_size, width)

    def forward(self, x):
        return torch.cat((x, self.state), 1).cumsum(1)

batch_size = 4096
width = 8

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width]
"""


def test_kernelbench_sizes_of_a_solutions_file_are_reduced_with_those_of_the_reference(tmp_path):
    folder = written(
        tmp_path, a__1_State_py=STATEFUL, b__1_State_py=STATEFUL.replace("class Model(", "class ModelNew(")
    )
    task = only("kernelbench", folder / "a")
    trial = formats.problem(task).trial(0, limit=1 << 14)
    assert "batch_size 4096 ->" in trial.note
    right = expected.of(trial, 0)
    assert right.wrong(answers(trial, solved(task, folder / "b"), tmp_path / "run")) == ""


HELD = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = self.layer = torch.nn.Linear(8, 8)
        self.function = lambda x: layer(x) * 2

    def forward(self, x):
        return self.function(x)

def get_inputs():
    return [torch.rand(3, 8)]

def get_init_inputs():
    return []
"""


def test_kernelbench_functions_that_hold_a_layer_compute_with_its_copy(tmp_path):
    trial = formats.problem(only("kernelbench", written(tmp_path, a__1_Held_py=HELD) / "a")).trial(0)
    (exact,) = trial.evaluate(exactly=True)
    assert exact.dtype == torch.float64
    zeros = [x if x is trial.args[0] else torch.zeros_like(x) for x in trial.leaves]
    assert bool((trial.evaluate(zeros)[0] == 0).all()) and bool((exact != 0).all())


def test_a_batch_keeps_two():
    module = SimpleNamespace(batch_size=24, width=8)
    assert reduced_sizes.fitting(module, lambda: float(module.batch_size), 1) == "batch_size 24 -> 2"  # type: ignore[arg-type]


def test_groups_are_halved_with_what_they_divide():
    module = SimpleNamespace(hidden=8192, num_groups=512, kernel=3)
    note = reduced_sizes.fitting(module, lambda: float(module.hidden), 300)  # type: ignore[arg-type]
    assert note == "hidden 8192 -> 256, num_groups 512 -> 16" and module.kernel == 3
    alone = SimpleNamespace(hidden=64, num_groups=32)
    cost = lambda: float(alone.hidden) if alone.num_groups == 32 else None  # noqa: E731
    assert reduced_sizes.fitting(alone, cost, 32) == "hidden 64 -> 32"  # type: ignore[arg-type]


GPU_MODE = {
    "t__task_yml": "files:\n- {name: submission.py, source: '@SUBMISSION@'}\n- {name: reference.py, source: reference.py}\n"
    "tests:\n- {n: 32768, k: 32, seed: 1}\n",
    "t__reference_py": """
import torch

def generate_input(n, k, seed):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rng = torch.Generator(device=device).manual_seed(seed)
    square = torch.randn((1, n, n), device=device, generator=rng)
    return (square @ square.mT)[0, :, :k].contiguous()

def ref_kernel(data):
    return data @ data.T
""",
}


def test_gpu_mode_sizes_are_found_without_memory_and_with_what_the_reference_makes(tmp_path):
    trial = formats.problem(only("gpu_mode", written(tmp_path, **GPU_MODE))).trial(0, limit=1 << 18)
    (x,) = trial.args
    assert "n 32768 ->" in trial.note
    assert x.shape[0] ** 2 * 4 <= 1 << 18  # the result, which is larger than the input


CUMULATED = {
    "t__task_yml": GPU_MODE["t__task_yml"].replace("n: 32768, k: 32", "n: 300"),
    "t__reference_py": """
import torch

def generate_input(n, seed):
    rng = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(n, device="cuda", generator=rng), torch.empty(n, device="cuda")

def ref_kernel(data):
    return torch.cumsum(data[0].to(torch.float64), 0)
""",
}


def test_gpu_mode_takes_a_result_in_the_references_dtype_or_that_of_its_memory(tmp_path):
    trial = formats.problem(only("gpu_mode", written(tmp_path, **CUMULATED))).trial(0)
    right, y = expected.of(trial, 0), torch.cumsum(trial.args[0][0].double(), 0)
    assert right.wrong((y,)) == "" and right.wrong((y.float(),)) == ""
    assert "off" in right.wrong((y * 1.001,)) and "dtype" in right.wrong((y.half(),))


SCALED = """
import torch

def custom_kernel(data):
    a, b, scale_a, scale_b = data
    return torch._scaled_mm(a, b.t(), scale_a.cuda(), scale_b.cuda(), bias=None, out_dtype=torch.float16)
"""


def test_a_solution_may_multiply_4_bit_floats_on_a_cpu(tmp_path):
    bits = [torch.randint(0, 256, (128, 32), dtype=torch.uint8).view(torch.float4_e2m1fn_x2) for _ in range(2)]
    scales = [torch.rand(128 * 4).to(torch.float8_e4m3fn) for _ in range(2)]
    solution = formats.Solution(tmp_path, "custom_kernel", {"submission.py": SCALED})
    text = judging._served(solution, "cpu")
    served: dict[str, object] = {"__file__": str(tmp_path / "served.py"), "__name__": "served"}
    exec(compile(text, "served.py", "exec"), served)
    leaves: list[torch.Tensor] = []
    told = {"args": candidate_side.spelled(((*bits, *scales),), leaves), "kwargs": candidate_side.spelled({}, leaves)}
    told["sizes"] = told["kwargs"]
    got = served["call"](json.dumps(told), *leaves)
    right = block_scaled.numbers(bits[0], scales[0]) @ block_scaled.numbers(bits[1], scales[1]).T
    assert torch.equal(got, right.to(torch.float16))


# --- BackendBench -------------------------------------------------------------------------------------------------


def operator_of(name: str, op, *inputs, aliases=(), grad=False):
    """A test of an operator as torch's own tests describe one."""
    samples = [SimpleNamespace(input=x, args=(), kwargs={}) for x in inputs]

    def sample_inputs(device, dtype, requires_grad=False, **more):
        if requires_grad:
            return [SimpleNamespace(input=s.input.clone().requires_grad_(), args=(), kwargs={}) for s in samples]
        return samples

    return SimpleNamespace(
        name=name,
        op=op,
        aliases=[SimpleNamespace(name=a) for a in aliases],
        supports_autograd=grad,
        supported_dtypes=lambda device: {pytree.tree_leaves(inputs)[0].dtype},
        sample_inputs=sample_inputs,
    )


def test_operators_are_found_in_tests_alone_by_name_and_within_others():
    x = torch.rand(3, 4)
    found = operator_samples.gathered(
        [
            operator_of("special.erf", torch.special.erf, x, torch.rand(0), torch.rand(1), aliases=("erf",)),
            operator_of("softmax_of_tanh", lambda x: torch.softmax(x.tanh(), 1), x, grad=True),
            operator_of("bitwise_not", torch.bitwise_not, torch.arange(4)),
        ],
        [operator_of("_foreach_exp", None, [x, x])],
    )
    assert len(found["aten.erf.default"]) == len(found["aten.special_erf.default"]) == 1  # one number tells nothing
    assert "aten.tanh.default" in found and "aten._softmax_backward_data.default" in found
    assert found["aten.bitwise_not.default"][0][0][0].dtype == torch.int64
    assert [len(one) for one in found["aten._foreach_exp.default"][0][0][0]] == [3, 3]
    (args, kwargs), *_ = found["aten._softmax_backward_data.default"]
    torch.ops.aten._softmax_backward_data(*args, **kwargs)


def test_arguments_of_an_operator_are_others_for_each_seed_and_keep_their_domain():
    x, whole = torch.rand(40) + 1, torch.arange(40)
    (a, k), _ = operator_samples.anew(((x, whole), {}), 1)
    (b, _), _ = operator_samples.anew(((x, whole), {}), 2)
    assert torch.equal(k, whole)  # may be indices
    assert bool((a >= x.min()).all()) and bool((a <= x.max()).all())
    assert abs(float(a.sum() - b.sum())) > 1e-3  # a sum of all would be the same in another order
    (c,), _ = operator_samples.anew(((whole,), {}), 1)
    assert not torch.equal(c, whole) and bool(torch.isin(c, whole).all())
    square = torch.rand(5, 5)
    (s,), _ = operator_samples.anew(((square @ square.T + torch.eye(5),), {}), 3)
    assert torch.allclose(s, s.T) and bool((torch.linalg.eigvalsh(s) > 0).all())
    few = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0])
    (f,), _ = operator_samples.anew(((few,), {}), 1)
    assert bool(torch.isin(f, few).all())  # equal numbers may be what is counted
    (o,), _ = operator_samples.anew(((whole,), {}), 1, same=True)
    assert torch.equal(o.sort().values, whole) and not torch.equal(o, whole)


SPARSE = torch.eye(5) + torch.rand(5, 5).triu(3)
OPERATORS = {  # whose results have sizes that depend on values, whose scalars tell a sum, with sparse arguments and results
    "unique_consecutive": (lambda x: torch.unique_consecutive(x), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0] * 5)),
    "unique_dim": (
        lambda x: torch.unique(x, dim=0, return_counts=True),
        torch.tensor([[1.0], [1], [0], [2], [0], [2]]),
    ),
    "repeat_interleave__Tensor": (lambda x: torch.repeat_interleave(x, output_size=6), torch.arange(4)),
    "sparse_sampled_addmm": (lambda x: torch.sparse.sampled_addmm(x.to_sparse_csr(), x, x), SPARSE),
    "_to_sparse": (lambda x: x.to_sparse(), SPARSE),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_other_results_are_judged(name, tmp_path, monkeypatch):
    found = operator_samples.gathered([operator_of(name, *OPERATORS[name])])
    monkeypatch.setattr(operator_samples, "samples", lambda: found)
    home, operator = tmp_path / "o" / name, name.replace("__", ".", 1) if name[0] != "_" else name
    home.mkdir(parents=True)
    body = f"def {name}_kernel_impl(*args, **named):\n    return torch.ops.aten.{operator}(*args, **named)\n"
    (home / f"{name}_implementation_v1.py").write_text("import torch\n\n" + body)
    task = only("backendbench", tmp_path / "o")
    trials = [formats.problem(task).trial(seed) for seed in (1, 2)]
    right = [expected.of(trial, 1) for trial in trials]
    assert expected.vacuous(right) == ""
    got = answers(trials[0], solved(task, tmp_path / "o"), tmp_path / "run")
    assert right[0].wrong(got) == ""
    assert right[0].wrong(tuple(y * 2 for y in got)) and right[0].wrong(tuple(y[:-1] for y in got))


@pytest.mark.parametrize(
    "name, args",
    [
        ("isinf", (torch.rand(6, 7),)),
        ("logical_or", (torch.rand(6, 7), torch.rand(6, 7))),
        ("le.Scalar", (torch.rand(6, 7), 3.0)),
        ("fft_fft", (torch.randn(6, 7, dtype=torch.complex64),)),
    ],
)
def test_questions_of_truth_and_complex_results_tell_something(name, args, tmp_path, monkeypatch):
    samples: dict[str, object] = {str(backendbench.operator(name)): [(args, {})]}
    monkeypatch.setattr(operator_samples, "samples", lambda: samples)
    folder = name.replace(".", "__") if "." in name else f"{name}__default"
    (tmp_path / folder).mkdir()
    trials = [formats.problem(only("backendbench", tmp_path)).trial(seed) for seed in (1, 2)]
    found = [expected.of(trial, 1) for trial in trials]
    assert not expected.vacuous(found) and not found[0].wrong(trials[0].evaluate())
    assert found[0].wrong(trials[1].evaluate())
    if args[0].is_complex():
        off = trials[0].evaluate()[0]
        assert found[0].wrong((torch.view_as_real(off),)) and found[0].wrong((off * (1 + 1e-3j),))


def test_backendbench_operator_without_trace_is_judged_by_a_sample(tmp_path, monkeypatch):
    found = operator_samples.gathered([operator_of("cumsum", lambda x: torch.cumsum(x, 1), torch.rand(6, 7))])
    monkeypatch.setattr(operator_samples, "samples", lambda: found)
    kernel = "import torch\n\ndef cumsum_kernel_impl(x, dim, *, dtype=None):\n    return torch.cumsum(x, dim)\n"
    home = tmp_path / "o" / "cumsum"
    home.mkdir(parents=True)
    (home / "cumsum_implementation_v1.py").write_text(kernel)
    task = only("backendbench", tmp_path / "o")
    trial = formats.problem(task).trial(2)
    right, got = expected.of(trial, 2), answers(trial, solved(task, tmp_path / "o"), tmp_path / "run")
    assert right.wrong(got) == "" and "off" in right.wrong((got[0] * 1.01,))
    assert backendbench.BackendBench(task).cases == 1
