"""The interpreter that runs the tests.

@python_env looks for one that has what the tests import: $KERNELMUX_PYTHON, $VIRTUAL_ENV, .venv, an environment of nox,
python3 on PATH. Where there is none, @python_venv makes one from requirements.lock, once, with pip as it is set up on
the machine."""

_PROBE = """
import sys, importlib.metadata as m
import torch, rich, jinja2, matplotlib, pytest, xdist, pytest_benchmark, hypothesis, transformers
version = lambda name: name + " " + m.version(name)
print(sys.executable)
print(sys.version.split()[0], *map(version, ["torch", "triton", "numpy", "pytest"]))
"""

def _probe(rctx, python):
    """[path, versions] of an interpreter that has what the tests import, else None."""
    if not rctx.path(python).exists:
        return None
    result = rctx.execute([python, "-c", _PROBE], timeout = 300)
    return result.stdout.strip().split("\n")[-2:] if result.return_code == 0 else None

def _candidates(rctx):
    root = str(rctx.path(Label("//:WORKSPACE")).dirname)
    folders = [root + "/.venv"] + [root + "/.nox/" + session for session in ("bazel", "conformance", "tests")]
    if rctx.os.environ.get("VIRTUAL_ENV"):
        folders.insert(0, rctx.os.environ["VIRTUAL_ENV"])
    system = rctx.which("python3")
    return [folder + "/bin/python" for folder in folders] + ([str(system)] if system else [])

def _find(rctx):
    wanted = rctx.os.environ.get("KERNELMUX_PYTHON")
    for python in [wanted] if wanted else _candidates(rctx):
        found = _probe(rctx, python)
        if found:
            return found
    if wanted:
        fail("KERNELMUX_PYTHON=%s lacks packages of bazel/requirements.lock" % wanted)
    made = str(rctx.path(Label("@python_venv//:BUILD")).dirname) + "/venv/bin/python"
    return _probe(rctx, made) or fail("%s lacks packages of bazel/requirements.lock" % made)

def _python_env_impl(rctx):
    python, versions = _find(rctx)
    rctx.file("BUILD", 'exports_files(["versions.txt"])\n')
    rctx.file("versions.txt", versions + "\n")
    rctx.file("env.bzl", "PYTHON = %r\n" % python)

python_env = repository_rule(
    implementation = _python_env_impl,
    environ = ["KERNELMUX_PYTHON", "VIRTUAL_ENV"],
    configure = True,  # bazel sync --configure looks again
    local = True,  # and so does every start of the server
)

def _python_venv_impl(rctx):
    lock = str(rctx.path(Label("//bazel:requirements.lock")))
    for command in (
        ["python3", "-m", "venv", "venv"],
        ["venv/bin/python", "-m", "pip", "install", "--quiet", "-r", lock],
    ):
        rctx.report_progress(" ".join(command))
        result = rctx.execute(command, timeout = 3600)
        if result.return_code:
            fail("%s\n%s%s" % (" ".join(command), result.stdout, result.stderr))
    rctx.file("BUILD", "")

python_venv = repository_rule(implementation = _python_venv_impl)

def _stub_impl(rctx):
    rctx.file("BUILD", "".join([
        'filegroup(name = "%s", visibility = ["//visibility:public"])\n' % name
        for name in rctx.attr.targets
    ]))

_stub = repository_rule(implementation = _stub_impl, attrs = {"targets": attr.string_list()})

def kernelmux_repositories():
    """All that the workspace needs from outside itself."""
    python_env(name = "python_env")
    python_venv(name = "python_venv")
    if native.bazel_version == "":  # Debian's 4.2.3 reports no version; spare it a download
        _stub(name = "remote_coverage_tools", targets = ["coverage_report_generator", "lcov_merger"])
