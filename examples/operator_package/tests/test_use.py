"""The operators of this package are public functions of kernelmux, and everything that its own ones are."""

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import repro_bundle
from kernelmux.registry.choice import precedence

BACKENDS = ("torch_ref", "triton", "cuda")
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator", "ignore:TRITON_DEFAULT_FP_FUSION")


@pytest.fixture
def x() -> torch.Tensor:
    return 3 * torch.randn(4, 37, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Sets a variable of kernelmux, which reads them once."""

    def set_to(variable: str, value: str) -> None:
        monkeypatch.setenv(variable, value)
        precedence.reread()

    yield set_to
    monkeypatch.undo()
    precedence.reread()


def test_it_is_a_public_function() -> None:
    assert "hardswish" in dir(kx) and "hardswish" in kx.__all__
    assert str(inspect.signature(kx.hardswish)) == "(x, *, backend=None)"
    assert (kx.hardswish.__doc__ or "").startswith("Hard swish.")
    with pytest.raises(TypeError, match="did you mean"):
        kx.hardswish(torch.zeros(3), backed="triton")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_computes_it_and_its_gradient(backend: str, x: torch.Tensor) -> None:
    x.requires_grad_()
    wanted = torch.nn.functional.hardswish(x)
    found = kx.hardswish(x, backend=backend)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x) for y in (found, wanted)))


def test_who_runs_it(x: torch.Tensor) -> None:
    assert kx.which("hardswish", x, backend="cuda") == "cuda/vectorized"
    assert "chosen: triton/blocked" in str(kx.explain("hardswish", x, backend="triton"))
    able = {(e.backend, e.variant) for e in kx.support_matrix("sm_90", "hardswish").entries if e.able}
    assert able == {("torch_ref", "plain"), ("triton", "blocked"), ("cuda", "vectorized")}
    torch.testing.assert_close(kx.bind("hardswish", x, "triton")(x), torch.nn.functional.hardswish(x))


def test_a_variable_and_a_file_choose_its_backend(
    asked: Callable[[str, str], None], x: torch.Tensor, tmp_path: Path
) -> None:
    asked("KERNELMUX_BACKEND_HARDSWISH", "triton")
    assert kx.which("hardswish", x) == "triton/blocked"
    (tmp_path / "rules.toml").write_text(
        '[[rules]]\nop = "hardswish"\nwhere = "N > 9"\nbackend = "cuda"\n'
        '[[rules]]\nop = "softmax"\nbackend = "triton/our_ops.short"\n'
    )
    asked("KERNELMUX_BACKEND_HARDSWISH", "")
    asked("KERNELMUX_CONFIG", str(tmp_path / "rules.toml"))
    assert kx.which("hardswish", x) == "cuda/vectorized" and kx.which("softmax", x) == "triton/our_ops.short"


def test_a_further_variant_runs_when_it_is_named_and_never_by_itself(x: torch.Tensor) -> None:
    assert next(iter(registered.variants("triton", "softmax"))) == "our_ops.short"
    assert kx.which("softmax", x, backend="triton") == "triton/resident"
    with kx.use("triton/our_ops.short", ops="softmax"):
        torch.testing.assert_close(kx.softmax(x, axis=0), torch.softmax(x, 0))
        assert "N = 5000, needs N <= 4096" in str(kx.explain("softmax", x.new_zeros(2, 5000)))


def test_torch_has_it_as_an_operator(x: torch.Tensor) -> None:
    wanted = torch.nn.functional.hardswish(x)
    torch.testing.assert_close(torch.ops.kernelmux.hardswish(x), wanted)
    assert kx.hardswish(x.to("meta")).shape == x.shape
    torch.testing.assert_close(torch.vmap(kx.hardswish)(x), wanted)
    compiled = torch.compile(lambda x: kx.hardswish(x, backend="triton") + 1, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), wanted + 1)
    torch.library.opcheck(torch.ops.kernelmux.hardswish.default, (x.requires_grad_(),))
    with torch.autocast("cpu", torch.bfloat16):
        assert kx.hardswish(x).dtype == torch.float32  # of one tensor autocast says nothing


def test_its_calls_are_recorded_shadowed_and_kept(x: torch.Tensor, tmp_path: Path) -> None:
    with kx.record() as log:
        kx.hardswish(x)
    assert "hardswish" in str(log) and "hardswish" in str(kx.stats())
    with kx.use("triton", shadow="torch_ref"):
        kx.hardswish(x)
    assert [(row.op, row.agreed) for row in kx.shadow_report().rows if row.op == "hardswish"] == [("hardswish", 1)]
    call = catalog.spec("hardswish").bind(x)
    assert all(repro_bundle.source(name, "hardswish") != "unknown" for name in BACKENDS)
    assert repro_bundle._about(call, [])["call"]["spec"] == call.spec.hash


def test_its_spec_is_pickled_by_name_and_has_a_hash_of_its_own() -> None:
    spec = catalog.spec("hardswish")
    assert pickle.loads(pickle.dumps(spec)) is spec
    hashes = {
        spec.hash,
        catalog.spec("hardswish_backward").hash,
        *(registered.source_hash(n, spec.name) for n in BACKENDS),
    }
    assert len(hashes) == 5
    assert registered.source_hash("triton", "softmax", "our_ops.short") != registered.source_hash("triton", "softmax")
