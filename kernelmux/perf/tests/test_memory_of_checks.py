"""Large calls are drawn and checked in little memory, of which a reference with every score would need far more."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelmux.perf.timing import inputs, sampling
from kernelmux.perf.timing.verify import Oracle
from kernelmux.registry import catalog
from kernelmux.registry.backend import variants
from kernelmux.registry.spec import value_domains

Q, K = (6, 8, 96, 8), (6, 2, 96, 8)
SHAPES: dict[str, tuple[int, ...]] = {"grad_out": Q, "q": Q, "k": K, "v": K, "y": Q, "lse": Q[:3]}
SCORES = 6 * 8 * 96 * 96 * 8  # bytes of the scores of all heads in float64
PARTS = 12  # batches and heads of keys


class Peak(TorchDispatchMode):
    """Inside, `bytes` is the most that the tensors made there held at a time."""

    def __init__(self):
        super().__init__()
        self.alive = {}
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and not x.is_meta and x.device.type == "cpu":
                storage = x.untyped_storage()
                self.alive[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {at: (ref, size) for at, (ref, size) in self.alive.items() if not ref.expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.alive.values()))
        return found


def tensors(dtype):
    rng = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}
    return {name: x if name == "lse" else x.to(dtype) for name, x in drawn.items()}


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(sampling, "room", lambda call: sampling.LIVE / 8 * SCORES / PARTS)


@pytest.mark.parametrize("scalars", [{"causal": True, "window": 20}, {"window": 10, "ahead": 3}, {}], ids=str)
def test_computed_inputs_are_made_in_pieces(scalars, small_machine):
    spec = catalog.spec("attention_backward")
    with Peak() as whole:
        wanted = value_domains.lawful(spec, tensors(torch.float32), scalars)
    with Peak() as pieces:
        found = inputs.lawful(spec, tensors(torch.float32), scalars)
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert torch.allclose(found[name], x, rtol=1e-6, atol=1e-6), name
    assert whole.bytes > 2 * SCORES
    assert pieces.bytes < SCORES


@pytest.mark.parametrize("scalars", [{"causal": True, "window": 20}, {}], ids=str)
def test_a_check_of_large_attention_holds_a_few_heads(scalars, small_machine):
    spec = catalog.spec("attention_backward")
    call = spec.bind(**value_domains.lawful(spec, tensors(torch.float16), scalars), **scalars)
    implementation = variants("torch_ref", "attention_backward")["exact"]
    outputs = implementation.fn(*call.arguments.values())
    with Peak() as seen:
        checked = Oracle(call).check(outputs, implementation)
    assert checked.budget <= 1.0
    assert "axis B" in checked.sampled
    assert "axis G" in checked.sampled
    assert seen.bytes < 2 * SCORES


def test_one_wrong_element_of_a_head_that_is_kept_is_found(small_machine):
    spec = catalog.spec("attention_backward")
    call = spec.bind(**value_domains.lawful(spec, tensors(torch.float32), {}))
    implementation = variants("torch_ref", "attention_backward")["exact"]
    outputs = implementation.fn(*call.arguments.values())
    outputs[0][0, 0, 50, 3] += 1
    with pytest.raises(AssertionError, match="grad_q: wrong at"):
        Oracle(call).check(outputs, implementation)
