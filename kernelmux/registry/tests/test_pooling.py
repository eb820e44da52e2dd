"""max_pool2d beside torch's, its gradient, and results that lie in memory as channels-last images do."""

import pytest
import torch
import torch.nn.functional as F

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.interop import autograd
from kernelmux.registry.spec import value_domains

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
LAST, PLAIN = torch.channels_last, torch.contiguous_format
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
IMAGES = torch.randn(2, 8, 7, 9, generator=torch.Generator().manual_seed(0))
OPTIONS = (3, (2, 1), (1, 0))


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize("form", [PLAIN, LAST])
def test_results_and_gradients_are_torchs_and_lie_as_the_images_do(backend: str, form: torch.memory_format) -> None:
    x = IMAGES.clone(memory_format=form).requires_grad_()
    y = kx.max_pool2d(x, *OPTIONS, backend=backend)
    theirs = F.max_pool2d(x, *OPTIONS)
    assert torch.equal(y, theirs) and y.is_contiguous(memory_format=form)
    g = torch.randn_like(theirs)
    ours, want = (torch.autograd.grad(out, x, g)[0] for out in (y, theirs))
    torch.testing.assert_close(ours, want)
    assert ours.is_contiguous(memory_format=form)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_the_index_is_torchs_also_of_nan_and_of_equals(backend: str) -> None:
    x = torch.randint(-2, 2, (1, 3, 6, 8), generator=torch.Generator().manual_seed(1)).float()
    x = torch.where(x == -2, torch.nan, x)
    y, index = dispatch.outputs("max_pool2d", x, 3, 1, 1, backend=backend)
    want, at = F.max_pool2d(x, 3, 1, 1, return_indices=True)
    assert torch.equal(index.long(), at) and torch.equal(y.isnan(), want.isnan())


def test_the_images_are_not_kept_for_the_gradient() -> None:
    assert autograd.kept("max_pool2d", ("x",)) == (("index",), ("x",))


@pytest.mark.parametrize("form", [PLAIN, LAST])
@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS[-1:]])
def test_a_compiled_call_lies_as_the_eager_one(backend: str, form: torch.memory_format) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return kx.max_pool2d(x * 2, 3, 2, 1, backend=backend)

    x = IMAGES.clone(memory_format=form).requires_grad_()
    torch._dynamo.reset()
    found = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(found, model(x)) and found.stride() == model(x).stride()
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, model(x))]
    torch.testing.assert_close(*grads)
    torch._dynamo.reset()


def test_shapes_without_memory_lie_alike() -> None:
    y = kx.max_pool2d(IMAGES.to("meta").contiguous(memory_format=LAST), 2)
    assert y.shape == (2, 8, 3, 4) and y.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((2, 0), r"stride: expected 1 <= stride <= 1048576, got 0"),
        ((2, 1, 2), r"expected a padding of at most half the kernel, got kernel = \(2, 2\), padding = \(2, 2\)"),
        ((8,), r"expected a window at least: OH >= 1 and OW >= 1, got .*OH = 0"),
        (((2, 2, 2),), r"kernel: expected int, or 2 of them, got \(2, 2, 2\)"),
    ],
)
def test_windows_that_there_are_not_are_refused(options: tuple[object, ...], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^max_pool2d: {text}"):
        kx.max_pool2d(IMAGES, *options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("form", [PLAIN, LAST])
def test_an_index_outside_of_its_window_adds_nothing(backend: str, form: torch.memory_format) -> None:
    x = IMAGES.clone(memory_format=form)
    y, index = dispatch.outputs("max_pool2d", x, *OPTIONS, backend="torch_ref")
    stray = index.clone()
    for place, value in enumerate((-1, 2**31 - 1, -(2**31), 62, 63)):
        stray[0, place, 0, 0] = value
    kept = torch.where(stray == index, 1.0, 0.0).contiguous(memory_format=form)
    found, want = (
        kx.max_pool2d_backward(g, i, (7, 9), *OPTIONS, backend=b)
        for g, i, b in ((torch.ones_like(y), stray, backend), (kept, index, "torch_ref"))
    )
    assert torch.equal(found, want)


@pytest.mark.parametrize("form", [PLAIN, LAST])
def test_a_saved_index_that_the_suites_draw_lies_as_the_gradient_does(form: torch.memory_format) -> None:
    """Else a call of channels-last tensors would be timed with an index that is not."""
    spec = catalog.spec("max_pool2d_backward")
    case = spec.case(f"grad_out=2x8x3x4 index=2x8x3x4 size=6x8 kernel=2{' channels-last' if form == LAST else ''}")
    drawn = {name: case.laid(name, torch.zeros(shape)) for name, shape in case.shapes.items()}
    made = value_domains.lawful(spec, {**drawn, "index": drawn["index"].int()}, case.scalars)["index"]
    assert made.is_contiguous(memory_format=form) and len(made.unique()) > 1
