"""Laws of the repository, read from its text: who may import whom, what belongs where, what must not be written."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kernelmux import emulator

TOP = Path(__file__).parents[3]
PACKAGE = Path("kernelmux")
PARTS = (
    "registry",
    "backends",
    "nn",
    "emulator",
    "conformance",
    "perf",
    "runner",
    "candidate",
    "judge",
    "tune",
    "warm",
    "docs",
)
BACKENDS = ("torch_ref", "triton", "cuda")

ARROWS = {
    "registry": {"registry"},
    "backends": {"backends", "registry", "emulator"},
    "nn": {"nn", "registry"},
    "emulator": {"emulator"},
    "runner": {"runner", "registry"},
    "candidate": {"candidate", "registry", "emulator"},
    "conformance": {"conformance", "candidate", "registry", "emulator", "runner"},
    "judge": {"judge", "candidate", "conformance", "perf", "registry", "emulator", "runner"},
    "warm": {"warm", "registry", "emulator", "runner"},
    "perf": {"perf", "warm", "registry", "emulator", "runner"},
    "tune": {"tune", "conformance", "candidate", "perf", "registry", "emulator", "runner"},
    "docs": {"docs", "registry", "conformance", "candidate", "perf", "emulator"},
}
# Tensors reach the emulator as objects with a data_ptr() (Triton alone wants torch's own); a spec says what, not how.
FOREIGN = {
    "emulator": {"torch", "cupy"},
    "registry": {"triton", "cupy"},
    "nn": {"triton", "cupy", "transformers"},
    "kernelmux/backends/torch_ref": {"triton", "cupy"},
}
EXCEPT = {
    Path("kernelmux/emulator/compilers/triton_driver.py"),
    Path("kernelmux/emulator/validation/hardware/gpu.py"),
    *(Path(f"kernelmux/emulator/validation/defects/families/triton_{stem}.py") for stem in ("rows", "matmul")),
}

INSIDE = {  # who uses what of the emulator beyond its face
    Path("kernelmux/conformance/bits/cli.py"): (
        "validation.hardware",
        "validation.progress",
    ),  # compares as the emulator does
    Path("kernelmux/conformance/tests/test_fp8_sums.py"): ("arithmetic.fused_dot",),  # the bound of exactly these sums
    Path("kernelmux/conformance/tests/test_compile_only.py"): ("compilers",),  # replaces what it knows of AMD GPUs
}

COMMAND = ("perf", "profile")  # python -m kernelmux.perf.profile; kernelmux/perf/ holds no file that is run as a script

BANNED = {
    "unfinished work": r"\b(TODO|FIXME|XXX|HACK)\b",
    "a path of one machine": r"(?<![\w.}~*-])/(home|root|tmp|work|mnt|Users)/\w",
    "a package host": r"(pypi\.org|pythonhosted\.org|download\.pytorch\.org)",
}
MARKS = (
    "kernelmux/registry/scaffold/",
    "test_scaffold",
    "new_operator",
)  # what writes, tries and shows the marks of new operators
VARIABLES = Path("kernelmux/registry/choice/requests.py")  # which names every one


def files(*patterns: str, parts: tuple[str, ...] = PARTS) -> list[Path]:
    """Files of parts, or of folders, as paths from the top of the checkout, without what tools leave and templates."""
    folders = [TOP / (PACKAGE / part if part in PARTS else part) for part in parts]
    found = {path for folder in folders for pattern in patterns for path in folder.rglob(pattern)}
    return sorted(path.relative_to(TOP) for path in found if not {"__pycache__", "templates"} & {*path.parts})


def text(path: Path) -> str:
    return (TOP / path).read_text(encoding="utf-8")


def is_test(path: Path) -> bool:
    return "tests" in path.parts


@cache
def statements(path: Path) -> list[ast.stmt]:
    """Imports, classes without their bodies and, outside of tests, assertions of a file, which is parsed once for all."""
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, *(() if is_test(path) else (ast.Assert,)))
    found = [node for node in ast.walk(ast.parse(text(path))) if isinstance(node, kinds)]
    for node in found:
        if isinstance(node, ast.ClassDef):
            node.body = []
    return found


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Every imported module of a file with its line; `from kernelmux import emulator` gives kernelmux.emulator."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            whole = module == "kernelmux" or module == "kernelmux.backends"
            yield from ((f"{module}.{name.name}" if whole else module, node.lineno) for name in node.names)


def offences(law: str, found: list[str]) -> None:
    if found:
        pytest.fail(f"{law}:\n  " + "\n  ".join(found), pytrace=False)


def test_there_is_something_to_read() -> None:
    assert {path.parts[1] for path in files("*.py")} == set(PARTS)


def test_parts_import_along_the_arrows_only() -> None:
    found = []
    for path in files("*.py"):
        for module, line in imports(path):
            part = module.split(".")[1] if module.startswith("kernelmux.") else ""
            part = part if part in PARTS else "registry"  # any other name belongs to the public face
            if module.startswith("kernelmux.") and not is_test(path) and part not in ARROWS[path.parts[1]]:
                found.append(f"{path}:{line} imports {module}")
    offences(
        "arrows: registry <- backends -> emulator, registry <- nn, conformance, perf; conformance, perf <- tune, docs; "
        "conformance <- judge; warm <- perf",
        found,
    )


def test_other_parts_use_what_the_emulator_offers_and_not_its_inside() -> None:
    """Its face is its names, the modules beside its __init__.py and, for `conformance.bits`, the comparison with a GPU."""
    face = {
        *emulator.__all__,
        "triton_cache",
        "triton_driver",
        *(p.stem for p in (TOP / "kernelmux/emulator").glob("*.py")),
    }
    found = []
    for path in files("*.py", parts=(*(part for part in PARTS if part != "emulator"), "examples")):
        if path == Path(__file__).relative_to(TOP):
            continue
        used = re.findall(r"kernelmux\.emulator\.([\w.]+)", text(path))  # also within texts
        for node in statements(path):
            if isinstance(node, ast.ImportFrom) and node.module == "kernelmux.emulator":
                used += [name.name for name in node.names]
        inside = [name for name in used if name.split(".")[0] not in face and name not in INSIDE.get(path, ())]
        found += [f"{path} uses kernelmux.emulator.{name}" for name in inside]
    offences("kernelmux/emulator/README.md lists what others use", found)


def test_backends_do_not_know_each_other() -> None:
    found = [
        f"{path}:{line} imports {module}"
        for backend in BACKENDS
        for path in files("*.py", parts=(f"kernelmux/backends/{backend}",))
        for module, line in imports(path)
        if module.startswith("kernelmux.backends") and module.split(".")[2:3] != [backend]
    ]
    offences("a backend imports itself, the registry and the emulator", found)


def test_suites_and_the_registry_name_no_backend() -> None:
    found = [
        f"{path}:{line} imports {module}"
        for path in files("*.py", parts=("registry", "nn", "conformance", "perf", "tune", "warm", "docs"))
        for module, line in imports(path)
        if module.startswith("kernelmux.backends") and not is_test(path)
    ]
    offences("a backend is reached through the registry", found)


def test_foreign_packages_stay_where_they_belong() -> None:
    found = [
        f"{path}:{line} imports {module}"
        for folder, foreign in FOREIGN.items()
        for path in files("*.py", parts=(folder,))
        for module, line in imports(path)
        if module.split(".")[0] in foreign and not is_test(path) and path not in EXCEPT
    ]
    offences("packages that a part does without", found)


def test_tests_do_not_import_tests() -> None:
    """What two of them need is a module of its own: Bazel runs each test with the helpers and itself only."""
    found = [
        f"{path}:{line} imports {module}"
        for path in files("*.py")
        for module, line in imports(path)
        if module.startswith("kernelmux.") and ".tests.test_" in module
    ]
    offences("no module imports a test module", found)


def test_our_modules_are_imported_by_their_full_name() -> None:
    found = [
        f"{path}:{line} imports {module}"
        for path in files("*.py")
        for node in statements(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module, line in _forms(node)
        if _is_wrong_form(module, isinstance(node, ast.Import))
    ]
    offences("the one form is: from kernelmux.part.module import name", found)


def _forms(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((name.name, node.lineno) for name in node.names)
    else:
        yield "." * node.level + (node.module or ""), node.lineno


def _is_wrong_form(module: str, plain: bool) -> bool:
    first = module.split(".")[0]
    return module.startswith(".") or first in PARTS or (plain and module.startswith("kernelmux."))


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    names = [(path, name) for path in files("*.py") for name in (*path.parts[2:-1], path.stem)]
    found = [str(p) for p, name in names if name in sys.stdlib_module_names and p.parts[1:3] != COMMAND]
    offences("shadows the standard library", found)


def test_every_folder_of_modules_is_a_package_that_says_what_it_is() -> None:
    folders = {path.parent for path in files("*.py")}
    missing = [str(folder) for folder in sorted(folders) if not (TOP / folder / "__init__.py").is_file()]
    offences("no __init__.py", missing)
    packages = [folder / "__init__.py" for folder in sorted(folders) if folder.name != "tests"]
    offences("no docstring", [str(path) for path in packages if not ast.get_docstring(ast.parse(text(path)))])


def test_a_name_stands_for_one_class() -> None:
    """What a plan or a row is of, a class says in its name. `Launch` is a public name of two parts."""
    places: dict[str, list[str]] = {}
    for path in files("*.py"):
        for node in statements(path):
            if isinstance(node, ast.ClassDef) and not is_test(path):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno} class {node.name}")
    several = [lines for name, lines in places.items() if len(lines) > (2 if name == "Launch" else 1)]
    offences("one name, one meaning", [line for lines in several for line in lines])


def test_functions_and_classes_are_not_named_by_a_bare_participle() -> None:
    """`found` does not say what comes back. Methods of the judge count by their names in keys of records."""
    bare = {"alone", "explained", "found", "made", "spelt", "told", "turns"}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    judge = Path("kernelmux/conformance/judging/probe.py")
    nodes = [
        (path, n)
        for path in files("*.py")
        if not is_test(path) and path != judge
        for n in ast.walk(ast.parse(text(path)))
    ]
    named = [(path, n) for path, n in nodes if isinstance(n, kinds) and n.name.lower().strip("_") in bare]
    offences("a name that says nothing", [f"{path}:{n.lineno} {n.name}" for path, n in named])


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = [(path, len(text(path).splitlines())) for path in files("*.py", "*.cu", "*.cuh", "*.html", "*.md")]
    offences("over 400 lines", [f"{path}: {length}" for path, length in lengths if length > 400])


def op_files(folder: str) -> dict[str, Path]:
    """Op -> its module: every module, or package, of a folder that is not a helper."""
    found = files("*.py", parts=(folder,))
    depth = len(Path(folder).parts)
    modules = {p.stem: p for p in found if len(p.parts) == depth + 1 and not p.stem.startswith("_")}
    packages = {p.parts[depth]: p for p in found if len(p.parts) == depth + 2 and p.name == "__init__.py"}
    return modules | {name: path for name, path in packages.items() if not name.startswith("_")}


def ops(folder: str) -> set[str]:
    return set(op_files(folder))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_op_module_has_a_spec_and_every_spec_a_module(backend: str) -> None:
    assert ops(f"kernelmux/backends/{backend}") == ops("kernelmux/registry/ops")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_op_module_ends_in_its_variants(backend: str) -> None:
    found = []
    for path in op_files(f"kernelmux/backends/{backend}").values():
        last = ast.parse(text(path)).body[-1]
        target = last.targets[0] if isinstance(last, ast.Assign) else getattr(last, "target", None)
        target = target.value if isinstance(target, ast.Subscript) else target  # one more, by its name
        if not (isinstance(target, ast.Name) and target.id == "VARIANTS"):
            found.append(str(path))
    offences("the last statement is VARIANTS = {...} or adds to it", found)


@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("op", ["silu", "reduce_max", "layer_norm"])
def test_an_operator_of_a_family_is_small(op: str, backend: str) -> None:
    """One of each family, elementwise, reductions and rows: its module and its CUDA source together."""
    own = files(f"{op}.py", f"{op}.cu", parts=(f"kernelmux/backends/{backend}",))
    lengths = {path.name: len(text(path).splitlines()) for path in own}
    assert len(own) == (2 if backend == "cuda" else 1)
    assert sum(lengths.values()) <= 60, lengths


def test_every_cuda_source_has_a_launcher_and_every_header_a_reader() -> None:
    launchers = ops("kernelmux/backends/cuda")
    sources = files("*.cu", parts=("kernelmux/backends/cuda",))
    shared = [path for path in sources if path.parent.name == "_families" and path.with_suffix(".py").exists()]
    rest = [path for path in sources if path not in shared]
    alone = [path for path in rest if not any(f"{path.stem}_".startswith(f"{op}_") for op in launchers)]
    offences("no op of that stem, and no module beside it of what ops share", list(map(str, alone)))
    headers = files("*.cuh", parts=("kernelmux/backends/cuda",))
    included = {name for path in sources + headers for name in re.findall(r'#include "([^"]+)"', text(path))}
    offences("included nowhere", [str(path) for path in headers if path.name not in included])


def test_backends_hold_no_tests_and_no_programs() -> None:
    found = [path for path in files("*.py", parts=("backends",)) if "__name__ ==" in text(path)]
    found += files("test_*.py", "conftest.py", "__main__.py", parts=("backends",))
    offences("a script inside kernelmux/backends/ would import our triton folder for triton", list(map(str, found)))


def narrows(condition: ast.expr) -> bool:
    """Whether a condition is there for the type checker: isinstance(x, T), x is not None."""
    if isinstance(condition, ast.Compare):
        return isinstance(condition.ops[0], ast.IsNot)
    return isinstance(condition, ast.Call) and getattr(condition.func, "id", "") == "isinstance"


def test_nothing_outside_tests_checks_its_input_by_assert() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in files("*.py", parts=("registry", "backends", "nn", "emulator", "perf", "tune", "warm"))
        for node in statements(path)
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ]
    offences("raise an error that names operator, argument, expected and got", found)


@pytest.mark.parametrize("what", BANNED)
def test_nobody_writes(what: str) -> None:
    law = re.compile(BANNED[what])
    kinds = ("*.py", "*.cu", "*.cuh", "*.md", "*.bzl", "BUILD")
    everywhere = files(*kinds, parts=(*PARTS, "bazel", "examples", "docs/operators"))
    everywhere += sorted(path.relative_to(TOP) for path in TOP.glob("docs/*.md"))
    everywhere += sorted(path.relative_to(TOP) for path in TOP.glob("*.*") if path.suffix in {".md", ".py", ".toml"})
    found = [
        f"{path}:{number} {line.strip()}"
        for path in everywhere
        if path.name != Path(__file__).name and not any(place in path.as_posix() for place in MARKS)
        for number, line in enumerate(text(path).splitlines(), 1)
        if law.search(line)
    ]
    offences(what, found)


def test_the_formatter_is_passed_over_for_arguments_of_kernels_alone() -> None:
    """A kernel has up to 40; one a line, its body would not fit a screen. Other tables are data, or one value a line."""
    found = [
        f"{path}:{number}"
        for path in files("*.py", parts=(*PARTS, "examples"))
        for number, line in enumerate(text(path).splitlines(), 1)
        if line.endswith("# fmt: " + "skip") and path.parts[1] != "backends" and not line.strip().startswith("):")
    ]
    offences("no mark for the formatter", found)


def test_settings_are_arguments_and_not_environment_variables() -> None:
    (listed,) = re.findall(r"^VARIABLES = \((.*?)\)", text(VARIABLES), re.DOTALL | re.MULTILINE)
    law = "|".join([*re.findall(r"KERNELMUX_\w+", listed), r"KERNELMUX_BACKEND_\w*", "KERNELMUX_"])
    found = [
        f"{path}: {name}"
        for path in files("*.py")
        for name in sorted(set(re.findall(r"\bKERNELMUX_\w+", text(path))))
        if not re.fullmatch(law, name) and not is_test(path)
    ]
    offences(f"the only variables are {law}", found)
