"""py_library, py_test and pytest_test in the usual words, without the native Python rules.

Hence no toolchain, no rules_* repositories, and any Bazel from 4 on. Files appear under <runfiles>/<path in the
repository> whatever the workspace is called, so the import name holds under WORKSPACE and under modules alike."""

load("@python_env//:env.bzl", "PYTHON")

PyFiles = provider(
    doc = "What a Python target needs at run time.",
    fields = {"files": "depset of the sources and data of the target and its deps"},
)

def _files(ctx):
    return depset(ctx.files.srcs + ctx.files.data, transitive = [dep[PyFiles].files for dep in ctx.attr.deps])

def _py_library_impl(ctx):
    return [PyFiles(files = _files(ctx)), DefaultInfo(files = depset(ctx.files.srcs))]

_LIBRARY_ATTRS = {
    "srcs": attr.label_list(doc = "Python sources.", allow_files = True),
    "data": attr.label_list(doc = "Files read at run time.", allow_files = True),
    "deps": attr.label_list(doc = "py_library targets.", providers = [PyFiles]),
}

py_library = rule(implementation = _py_library_impl, attrs = _LIBRARY_ATTRS)

# OMP_NUM_THREADS: Bazel counts one core per test. HOME: caches of compilers stay in the sandbox.
_LAUNCHER = """#!/bin/sh
cd "{folder}" || exit 1
export PYTHONPATH="$TEST_SRCDIR" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HOME="$TEST_TMPDIR"
[ -x '{python}' ] || {{ echo "{python} is gone: run bazel sync --configure"; exit 1; }}
{env}exec '{python}' {command} "$@"
"""

def _test_providers(ctx, folder, command, extra = []):
    launcher = ctx.actions.declare_file(ctx.label.name)
    env = "".join(["export %s='%s'\n" % item for item in ctx.attr.env.items()])
    content = _LAUNCHER.format(python = PYTHON, folder = folder, env = env, command = command)
    ctx.actions.write(launcher, content, is_executable = True)
    links = {file.short_path: file for file in _files(ctx).to_list() + extra}
    links[".versions"] = ctx.file._versions
    return [DefaultInfo(executable = launcher, runfiles = ctx.runfiles(root_symlinks = links))]

_TEST_ATTRS = dict(
    _LIBRARY_ATTRS,
    env = attr.string_dict(doc = "Environment variables of the test."),
    _versions = attr.label(default = "@python_env//:versions.txt", allow_single_file = True),
)

def _py_test_impl(ctx):
    return _test_providers(ctx, "$TEST_TMPDIR", "-m '%s'" % ctx.attr.main)  # reports go to the current folder

py_test = rule(
    doc = "Runs a module by name, as python -m does; it passes when the exit status is 0.",
    implementation = _py_test_impl,
    test = True,
    attrs = dict(_TEST_ATTRS, main = attr.string(doc = "Import name of the module.", mandatory = True)),
)

def _pytest_test_impl(ctx):
    tests = [file.short_path for file in ctx.files.srcs if file.basename.startswith("test_")]
    if not tests:
        fail("%s: no test_*.py in srcs" % ctx.label)
    main = ctx.file._main
    command = " ".join(["'%s'" % path for path in [main.short_path, ctx.file._config.short_path] + tests])
    return _test_providers(ctx, "$TEST_SRCDIR", command, [main, ctx.file._config, ctx.file._shared])

pytest_test = rule(
    doc = "Runs pytest over the test_*.py files in srcs, under the settings of pyproject.toml.",
    implementation = _pytest_test_impl,
    test = True,
    attrs = dict(
        _TEST_ATTRS,
        _main = attr.label(default = "//bazel:pytest_main.py", allow_single_file = True),
        _config = attr.label(default = "//:pyproject.toml", allow_single_file = True),
        _shared = attr.label(default = "//:conftest.py", allow_single_file = True),
    ),
)
