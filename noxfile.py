"""What a developer runs here; ``nox -l`` lists it, ``nox`` alone runs lint, types and tests.

``pip install nox`` is enough; with ``pip install "nox[uv]"`` an environment takes seconds instead of half a minute.
On a machine that already has everything (a GPU box without a network): ``nox --no-venv -s conformance``.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = pathlib.Path(__file__).parent
LOCK = "bazel/requirements.lock"
PARTS = ("registry", "nn", "emulator", "conformance", "perf", "runner", "candidate", "judge", "tune", "warm", "docs")
TESTS = {"examples": "examples/tests"} | {part: f"kernelmux/{part}/tests" for part in PARTS}
DOCUMENTS = ("docs/performance.md", "docs/reduce_the_bytes.md", "docs/curves.md")  # that have tables of records
TUNED = "docs/tuning.md"
SMOKE = ("softmax", "rms_norm", "silu", "cross_entropy", "matmul", "linear")  # operators that show much in a short time
TORCH = ("2.11.0", "2.15.0")  # the oldest that pyproject.toml allows, and the newest that passed
TRITON = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")  # the last patch of every minor version that the emulator supports


def prepare(session: nox.Session, *packages: str) -> str:
    """Install what the session needs, unless it runs on the caller's interpreter; return the python to run."""
    session.env["PYTHONPATH"] = str(ROOT)
    if session.venv_backend == "none":
        return sys.executable  # with --no-venv a bare "python" is whatever PATH finds first
    if "PIP_FIND_LINKS" in os.environ:  # uv reads no PIP_ variables
        session.env.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):  # else every process would compile torch anew
        session.env.setdefault("UV_COMPILE_BYTECODE", "1")
    session.install(*packages)
    return "python"


def pinned(session: nox.Session, *names: str) -> str:
    """Prepare the session with the named packages, or with all there are, at the locked versions."""
    return prepare(session, *([locked()[name] for name in names] if names else ("-r", LOCK)))


def locked() -> dict[str, str]:
    """Name of a package -> its line in the lock."""
    lines = (ROOT / LOCK).read_text(encoding="utf-8").splitlines()
    return {re.split(r"[\[<>=;]", line)[0]: line for line in lines if line and not line.startswith("#")}


@nox.session(default=False)
def conformance(session: nox.Session) -> None:
    """Every backend against the specs (-- --op softmax --backend triton --tier ci)."""
    program = f"nox {'--no-venv ' if session.venv_backend == 'none' else ''}-s conformance --"  # for "reproduce:"
    session.run(pinned(session), "-m", "kernelmux.conformance", "--program", program, *session.posargs)


@nox.session(default=False)
def perf(session: nox.Session) -> None:
    """Time every backend and report (-- --op matmul --backend all), or compare two trees (-- --against main)."""
    session.run(pinned(session), "-m", "kernelmux.perf", *session.posargs)


@nox.session(default=False)
def tune(session: nox.Session) -> None:
    """Search the tiles of kernels for faster ones than their rule's (-- --op matmul --backend triton)."""
    session.run(pinned(session), "-m", "kernelmux.tune", *session.posargs)


@nox.session(default=False)
def profile(session: nox.Session) -> None:
    """Where the time of an operator or a script goes (-- --op softmax --backend triton; -- script.py; -- --read t.json)."""
    session.run(pinned(session), "-m", "kernelmux.perf.profile", *session.posargs)


def processes() -> int:
    """How many run tests side by side: one for each core that has 2 GiB of memory, 16 at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return min(cores, 4)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, memory // 2**31, 16))


def run_tests(session: nox.Session, python: str, args: list[str], spread: bool) -> None:
    """pytest with these arguments, on all cores or in one process."""
    session.env.setdefault("OMP_NUM_THREADS", "1")  # tensors are small: threads of torch would only wait
    session.env["PYTHONDONTWRITEBYTECODE"] = ""  # hundreds of processes that tests start would compile the project anew
    parallel = ("bazel/pytest_line.py", "-n", str(processes()), "--dist", "worksteal")
    session.run(python, *(parallel if spread else ("-m", "pytest")), "-p", "no:benchmark", *args)  # it warns everywhere


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests of the parts (-- emulator) on all cores, or of less in one process (-- emulator -k dispatch)."""
    python = pinned(session)
    args = [TESTS.get(arg, arg) for arg in session.posargs]
    run_tests(session, python, args, spread=set(session.posargs) <= set(TESTS))


@nox.session(default=False)
def triton_versions(session: nox.Session) -> None:
    """The emulator's Triton corpus on every supported version of Triton, 1 GB each on disk (-- 3.6.0)."""
    python, failed = pinned(session), []
    for version in session.posargs or TRITON:
        folder = session.cache_dir / f"triton-{version}"
        if not folder.exists():
            install = ("--no-deps", "--no-cache-dir", "--target", str(folder), f"triton=={version}")
            if session.venv_backend == "none":
                session.run(python, "-m", "pip", "install", *install)
            else:
                session.install(*install)
        session.env["TRITON_CACHE_DIR"] = str(folder / "cache")
        path = os.pathsep.join((str(folder), str(ROOT)))
        for target, tests in (("sm_80", "sm_80"), ("sm_90", "not sm_80 and not sm_100"), ("sm_100", "sm_100")):
            session.log(f"triton {version}, {target}")
            try:
                files = sorted(map(str, ROOT.glob("kernelmux/emulator/tests/test_triton_*.py")))
                session.run(python, "-m", "pytest", "-q", "-rs", "-k", tests, *files, env={"PYTHONPATH": path})
            except nox.command.CommandFailed:
                failed.append(f"{version} for {target}")
    if failed:
        session.error(f"tests fail with triton {', '.join(failed)}")


@nox.session(default=False)
@nox.parametrize("torch", TORCH)
def torch_versions(session: nox.Session, torch: str) -> None:
    """The suites of the CPU on the oldest and the newest torch, 5 GB each on disk (-- registry)."""
    if session.venv_backend == "none":
        session.error(f"expected an environment for torch {torch} alone: leave out --no-venv")
    rest = [line for name, line in locked().items() if name not in ("torch", "triton")]
    python = prepare(session, f"torch=={torch}", "triton; sys_platform == 'linux'", *rest)
    session.env["TRITON_CACHE_DIR"] = str(session.cache_dir / f"torch-{torch}")
    args = [TESTS.get(arg, arg) for arg in session.posargs or ("registry", "nn")]
    run_tests(session, python, args, spread=not session.posargs)
    if not session.posargs:
        chosen = ("--tier", "smoke", "--device", "cpu", "--op", *SMOKE, "--backend", "torch_ref", "triton", "cuda")
        session.run(python, "-m", "kernelmux.conformance", *chosen)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Make sdist and wheel in dist/ and try the wheel in a bare environment; a git tag must be the version."""
    python, version = pinned(session, "build"), checked_version(session)
    session.env.pop("PYTHONPATH", None)
    session.run(python, "-m", "build", "--outdir", "dist", ".")
    bare = pathlib.Path(session.create_tmp()).resolve() / "bare"
    session.run(python, "-m", "venv", "--clear", str(bare))
    python = str(bare / ("Scripts" if os.name == "nt" else "bin") / "python")
    wheel = ROOT / "dist" / f"kernelmux-{version}-py3-none-any.whl"
    session.run(python, "-m", "pip", "install", "--quiet", str(wheel), locked()["torch"], external=True)
    session.chdir(bare)
    session.run(python, "-c", TRIED, version, external=True)
    session.run(python, "-m", "kernelmux", "list", external=True)


TRIED = """
import sys, torch, kernelmux as kx
x = torch.randn(4, 100)
torch.testing.assert_close(kx.softmax(x, backend="torch_ref"), torch.softmax(x, -1))
assert kx.__version__ == sys.argv[1] and "site-packages" in kx.__file__, (kx.__version__, kx.__file__)
print(f"kernelmux {kx.__version__} from {kx.__file__}: softmax on torch_ref agrees with torch {torch.__version__}")
"""


def checked_version(session: nox.Session) -> str:
    """The version of the project; the session fails if a git tag of this commit says another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = str(project["version"])
    told = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        session.log(compared(version, told.stdout.split()))
    except ValueError as error:
        session.error(str(error))
    return version


def compared(version: str, tags: list[str]) -> str:
    """What to say of the tags of a commit; ValueError if one of them is another version. Other tags do not matter."""
    versions = [tag for tag in tags if re.match(r"v?\d+\.\d", tag)]
    if wrong := [tag for tag in versions if tag.removeprefix("v") != version]:
        raise ValueError(
            f"expected the git tag v{version}, as pyproject.toml says, got {', '.join(wrong)}: change one of them"
        )
    return f"version {version}, " + (f"git tag {versions[0]}" if versions else "no git tag at this commit")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff (-- --fix mends)."""
    python = pinned(session, "ruff")
    fix = "--fix" in session.posargs
    session.run(python, "-m", "ruff", "check", ".", *(["--fix"] if fix else []))
    session.run(python, "-m", "ruff", "format", ".", *([] if fix else ["--check"]))


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy over the import root."""
    session.run(pinned(session), "-m", "mypy", "--num-workers", str(processes()), *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Write the generated pages and tables, and the types of the public face (-- --check fails if that changes them).

    All recorded rows are drawn as build/docs/records/<gpu>.md.
    """
    python = pinned(session)
    check = ["--check"] if "--check" in session.posargs else []
    session.run(python, "-m", "kernelmux.registry.stubs")
    for document in DOCUMENTS:
        session.run(python, "-m", "kernelmux.perf", "--update", document)
    session.run(python, "-m", "kernelmux.tune", "--update", TUNED)
    session.run(python, "-m", "kernelmux.docs", "--drawn", "build/docs", *check)
    if check:
        session.run("git", "diff", "--exit-code", *DOCUMENTS, TUNED, "kernelmux/__init__.pyi", external=True)


@nox.session(default=False, venv_backend="none")
def count(session: nox.Session) -> None:
    """Lines by hand and by programs, and the limits of the latter (-- --at v0.3 for a commit beside it)."""
    session.run(sys.executable, str(ROOT / "bazel/count_lines.py"), *session.posargs)


@nox.session(default=False)
def bazel(session: nox.Session) -> None:
    """Run bazel test //... on the interpreter that nox made (-- //kernelmux/conformance:cuda)."""
    python = pinned(session)
    if python != sys.executable:
        python = str(pathlib.Path(session.bin) / python)
    session.run("bazel", "test", *(session.posargs or ["//..."]), env={"KERNELMUX_PYTHON": python}, external=True)


@nox.session(default=False, venv_backend="none")
def dev(session: nox.Session) -> None:
    """Make .venv: everything at the locked versions and an editable install."""
    python = str(ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    packages = ("-r", LOCK, "-e", ".")
    if shutil.which("uv"):
        links = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
        session.run("uv", "venv", "--allow-existing", ".venv")
        session.run("uv", "pip", "install", "--python", python, *packages, env=links)
    else:
        session.run(sys.executable, "-m", "venv", ".venv")
        session.run(python, "-m", "pip", "install", *packages)
