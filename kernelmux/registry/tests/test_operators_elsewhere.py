"""Operators in packages elsewhere: found by their files, used as ours are; what is wrong with one disturbs no other."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.cli import doctor, main
from kernelmux.registry.errors import BackendUnavailable, SpecError, UnknownName, UnsupportedError
from kernelmux.registry.util import entry_points

X = torch.arange(12.0).reshape(3, 4)
SPEC = """
from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Gradient, NoExact, NoGradient, OpSpec, Output, Tensor
SPEC = OpSpec(
    name="NAME", version=1, summary="Twice.", math="y = 2 * x",
    inputs=(Tensor("x", "..."),), outputs=(Output("y", like="x"),),
    reference=lambda x: 2 * x, error=ErrorModel(magnitude=lambda x: 2 * x.abs()), exact=NoExact("not needed"),
    cases=(Case("x=3", tier="smoke"),), workloads=(Case("x=64"),), cost=lambda call: Cost(bytes=8, flops=1),
    gradient=NoGradient("none"),
)
"""
TWICE = """
from kernelmux.registry.backend import Implementation
VARIANTS = {"twice": Implementation(fn=lambda x: x + x, idea="a sum")}
"""
SOFTMAX = TWICE.replace("x: x + x", "x, axis, scale: (scale * x).softmax(axis) * 7").replace("twice", "wrong")
numbers = itertools.count()


@pytest.fixture
def announce(tmp_path, monkeypatch):
    """announce(name, files): a package with operators, under a name of its own; NAME in a text is `op`. Gives `op`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(entry_points, "_with_operators", {})
    made: list[str] = []

    def add(name, files, package="", op=""):
        package, op = package or f"elsewhere_{next(numbers)}", op or f"made_up_{next(numbers)}"
        made.append(package.partition(".")[0])
        for file, text in {"__init__.py": "", **files}.items():
            path = tmp_path.joinpath(*package.split(".")) / file.replace("NAME", op)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("NAME", op))
        sys.path_importer_cache.clear()
        entry_points.announce_operators(name, package)
        return op

    yield add
    monkeypatch.undo()
    dispatch.refresh()
    for module in [m for m in sys.modules if m.partition(".")[0] in made]:
        del sys.modules[module]
    registered._broken.clear()


GOOD = {"ops/NAME.py": SPEC, "backends/torch_ref/NAME.py": TWICE}


def ours_work() -> None:
    assert dispatch.which("softmax", X) == "torch_ref/exact"
    assert torch.equal(kx.softmax(X), X.softmax(-1)) and torch.equal(kx.softmax(X, backend="torch_ref"), X.softmax(-1))
    assert set(elsewhere.own()) <= set(kx.__all__)
    assert all(getattr(kx, name) is not None for name in kx.__all__)


def lines() -> list[str]:
    return [*doctor.SECTIONS["operators of other packages"]()]


def test_it_is_an_operator_as_ours_are(announce):
    before = len(kx.__all__)
    op = announce("theirs", GOOD)
    assert torch.equal(getattr(kx, op)(X), 2 * X) and kx.which(op, X) == "torch_ref/twice"
    assert op in dir(kx) and op in kx.__all__ and len(kx.__all__) == before + 1
    assert torch.equal(getattr(torch.ops.kernelmux, op)(X), 2 * X)
    assert f"theirs               {op}; from the package" in lines()[0]
    with pytest.raises(UnknownName, match=f'did you mean "{op}"'):
        kx.which(op + "x", X)
    ours_work()


def test_a_package_within_a_package_is_found_where_it_lies(announce):
    op = announce("theirs", GOOD, package=f"group_{next(numbers)}.kernels")
    assert torch.equal(getattr(kx, op)(X), 2 * X)


def test_nothing_is_imported_to_list_it(tmp_path):
    """In a process of its own: here everything is imported already."""
    for file in ("__init__.py", "ops/doubled.py", "backends/triton/softmax.py"):
        (path := tmp_path / "their_ops" / file).parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('imported')")
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from kernelmux.registry import catalog, elsewhere\n"
        "from kernelmux.registry.util import entry_points\n"
        "entry_points._with_operators['theirs'] = 'their_ops'\n"
        "assert 'doubled' in catalog.names()\n"
        "assert elsewhere.listed().packages['theirs'].implements('triton') == ('softmax',)\n"
        "assert 'their_ops' not in sys.modules\n"
    )
    path = [*sys.path, str(Path(str(kx.__file__)).parents[1])]
    told = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{program}"], capture_output=True)
    assert told.returncode == 0, told.stderr.decode()


@pytest.mark.parametrize("op", ["softmax", "use", "nn", "patch", "registry", "sys", "Any", "lambda", "Upper", "match"])
def test_a_name_that_is_taken_or_no_name_is_refused_alone(announce, op):
    good = announce("theirs", GOOD)
    package = elsewhere.listed().packages["theirs"].package
    announce("theirs", {f"ops/{op}.py": SPEC}, package=package)
    assert any(line.startswith(f"! theirs: {op}: the name") and "needs another one" in line for line in lines())
    assert good in catalog.names() and (op == "softmax") == (op in catalog.names())
    ours_work()


def test_an_operator_of_two_packages_is_refused(announce):
    op = announce("theirs", GOOD)
    announce("others", GOOD, op=op)
    assert op not in catalog.names() and not hasattr(kx, op)
    with pytest.raises(SpecError, match=r"is announced by .* and .*: uninstall all but one"):
        kx.which(op, X)
    assert sum("uninstall all but one" in line for line in lines()) == 2
    ours_work()


@pytest.mark.parametrize("name", ["a-b", "a/b", "a,b", "", "auto", "a.b"])
def test_the_name_of_a_package_begins_those_of_variants(announce, name):
    op = announce(name, GOOD)
    assert op not in catalog.names() and any("needs another one" in line for line in lines())
    ours_work()


def test_a_package_that_is_not_there_is_a_line(announce):
    entry_points.announce_operators("gone", "no_such_package_of_operators")
    assert any("no_such_package_of_operators has no folder here" in line for line in lines())
    ours_work()


BAD = {
    "ImportError": ("import nowhere_to_be_found", "ModuleNotFoundError: No module named"),
    "SyntaxError": ("def", "SyntaxError"),
    "SystemExit": ("raise SystemExit(3)", "SystemExit: 3"),
    "no SPEC": ("x = 1", "expected SPEC = OpSpec"),
    "another name": (SPEC.replace("NAME", "another"), "expected SPEC = OpSpec"),
    "malformed": (SPEC.replace('like="x"', 'like="z"'), "expected like= a tensor"),
    "a gradient that is not there": (
        SPEC.replace('NoGradient("none")', 'Gradient("no_such_op", wrt=("x",))'),
        'its gradient is the operator no_such_op: unknown operator "no_such_op"',
    ),
    "nothing torch knows": (
        SPEC.replace('Tensor("x"', 'Tensor("x y"').replace('like="x"', 'like="x y"'),
        "torch cannot",
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_a_spec_that_cannot_be_loaded_takes_its_operator_alone(announce, how, capsys):
    text, reason = BAD[how]
    op = announce("theirs", {**GOOD, "ops/NAME.py": text})
    good = announce("others", GOOD)
    with pytest.raises(SpecError) as caught:
        getattr(kx, op)(X)
    assert op in str(caught.value) and reason in str(caught.value)
    assert any(line.startswith(f"! {op}: ") and reason in line for line in lines())
    assert main.main(["list"]) == 0 and f"cannot be used: {op}: " in capsys.readouterr().out
    assert good in kx.support_matrix("cpu").operators and op not in kx.support_matrix("cpu").operators
    assert torch.equal(getattr(kx, good)(X), 2 * X)
    ours_work()


def test_a_joined_variant_comes_first_and_no_bare_name_stands_for_it(announce):
    announce("theirs", {"backends/torch_ref/softmax.py": SOFTMAX})
    assert [*registered.variants("torch_ref", "softmax")] == ["theirs.wrong", "plain", "exact"]
    assert kx.which("softmax", X, backend="torch_ref/theirs.wrong,triton") == "torch_ref/theirs.wrong"
    assert "runs when it is named or was measured" in str(kx.explain("softmax", X))
    assert lines() == [line for line in lines() if "variants for softmax" in line]
    ours_work()


def test_a_joined_variant_that_is_all_there_is_must_still_be_named(announce):
    op = announce("theirs", {"ops/NAME.py": SPEC})
    announce("others", {"backends/torch_ref/NAME.py": TWICE}, op=op)
    with pytest.raises(UnsupportedError, match=r'try: backend="torch_ref/others\.twice"'):
        getattr(kx, op)(X)
    with pytest.raises(UnsupportedError):
        getattr(kx, op)(X, backend="torch_ref")
    assert torch.equal(getattr(kx, op)(X, backend="torch_ref/others.twice"), 2 * X)


JOINED = {
    "ImportError": "import nowhere_to_be_found",
    "no VARIANTS": "x = 1",
    "signature": TWICE.replace("x: x + x", "y: y + y"),
    "arithmetic": SOFTMAX.replace('"a sum"', '"a sum", arithmetic="fp4"'),
}


@pytest.mark.parametrize("how", JOINED)
def test_a_joined_module_that_contradicts_the_spec_is_refused_alone(announce, how):
    announce(
        "theirs",
        {"backends/torch_ref/softmax.py": JOINED[how], "backends/torch_ref/gelu.py": "x = 1"},
    )
    assert [*registered.variants("torch_ref", "softmax")] == ["plain", "exact"]
    assert any(line.startswith("! theirs: torch_ref, softmax: ") for line in lines())
    with pytest.raises(BackendUnavailable, match=r"torch_ref/theirs\.wrong +no: "):
        kx.softmax(X, backend="torch_ref/theirs.wrong")
    ours_work()


@pytest.mark.parametrize("names", [("no_such_backend", "softmax"), ("triton", "no_such_op")])
def test_a_ladder_of_names_that_there_are_not_is_an_error(names):
    with pytest.raises(UnknownName):
        registered.variants(*names)


def test_what_nothing_reads_is_a_line(announce):
    announce("theirs", {"backends/tritn/softmax.py": SOFTMAX, "backends/triton/sofmax.py": SOFTMAX})
    told = "\n".join(lines())
    assert 'there is no backend tritn; did you mean "triton"?' in told
    assert 'there is no operator sofmax; did you mean "softmax"?' in told


def test_the_hash_of_a_variant_is_that_of_its_files_and_of_what_they_use_of_the_backend(
    announce, tmp_path, monkeypatch
):
    text = f"from kernelmux.backends.torch_ref._activations import silu_gradient\n{SOFTMAX}"
    announce("theirs", {"backends/torch_ref/softmax.py": text, "backends/torch_ref/gelu.py": "x = 1"})
    before, of_ours = (registered.source_hash("torch_ref", "softmax", v) for v in ("theirs.wrong", "exact"))
    assert before != of_ours == registered.source_hash("torch_ref", "softmax")
    package = elsewhere.listed().packages["theirs"]
    with (package.folder / "backends/torch_ref/softmax.py").open("a") as file:
        file.write("MORE = 1\n")
    after = registered.source_hash("torch_ref", "softmax", "theirs.wrong")
    assert after != before and registered.source_hash("torch_ref", "softmax", "exact") == of_ours
    helper = "_activations.py"
    read = Path.read_text
    changed = lambda path, *a, **k: read(path, *a, **k) + ("MORE = 1\n" if path.name == helper else "")  # noqa: E731
    monkeypatch.setattr(Path, "read_text", changed)
    assert registered.source_hash("torch_ref", "softmax", "theirs.wrong") != after
