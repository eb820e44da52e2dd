"""Targets by file name: a new op or test file needs no entry in any BUILD file."""

load("//bazel:defs.bzl", "py_library", "py_test", "pytest_test")
load("//bazel:uses.bzl", "GRADIENTS", "USES")

def _stem(file):
    """matmul.py, matmul/_wgmma.py and include/matmul.cuh all give "matmul"."""
    parts = file.split("/")
    return parts[1 if parts[0] == "include" else 0].split(".")[0].lstrip("_")

def _ops(files):
    """Every module or package of the folder that is not a helper."""
    modules = [file[:-len(".py")] for file in files if "/" not in file and file.endswith(".py")]
    packages = [file[:-len("/__init__.py")] for file in files if file.endswith("/__init__.py")]
    return [name for name in modules + packages if not name.startswith("_")]

def _owner(file, ops):
    """The op with the longest name that the file's begins with, "" for what ops share."""
    found = ""
    for op in ops:
        if len(op) > len(found) and (_stem(file) + "_").startswith(op + "_"):
            found = op
    return found

def _members(files):
    """Files by the op they belong to: {"rms_norm": ["rms_norm/__init__.py", "rms_norm/rms_norm.cu", "include/rms_norm.cuh"]}."""
    ops = _ops(files)
    return {op: [file for file in files if _owner(file, ops) == op] for op in ops}

def op_libraries(name, files, deps = []):
    """One py_library per op, with the ops that it reads, one of what they share (:<name>_base), and :<name> for everything."""
    uses = USES[native.package_name()]
    members = _members(files)
    owned = [file for of_op in members.values() for file in of_op]
    py_library(
        name = name + "_base",
        srcs = [file for file in files if file not in owned],
        deps = deps,
    )
    for op, of_op in members.items():
        used = [":" + other for other in uses.get(op, [])]
        py_library(name = op, srcs = of_op, deps = [":" + name + "_base"] + used)
    py_library(name = name, deps = [":" + op for op in members] + [":" + name + "_base"])

def _needs(op, backend, ops):
    """What a conformance target reads: the suite, the spec, and the op in this backend and in the baseline.

    An op is asked for its gradient too, which <op>_backward gives, or other ops do; a spec for that of any kind.
    """
    if backend == "spec":
        return ["//kernelmux/backends:root", "//kernelmux/backends/torch_ref", "//kernelmux/conformance", "//kernelmux/registry/ops"]
    names = [op] + [other for other in (op + "_backward",) if other in ops]
    names += [other for other in GRADIENTS.get(op, []) if other not in names]
    contestants = ["//kernelmux/backends/%s:%s" % (b, name) for b in depset(["torch_ref", backend]).to_list() for name in names]
    return contestants + ["//kernelmux/backends:root", "//kernelmux/conformance"] + ["//kernelmux/registry/ops:" + name for name in names]

def conformance_tests(backend, files, gpu = False):
    """One conformance target per op of a backend, and one tagged gpu where the backend is for GPUs.

    On a CPU it is of tier smoke: every check of every variant, on small cases; `nox -s conformance` runs tier ci.
    The backend "spec" stands for the specs themselves: does every case tell right from wrong?
    """
    runs = [("_test", "cpu", "smoke", [])]
    runs += [("_gpu_test", "cuda", "ci", ["gpu", "exclusive", "no-cache"])] if gpu else []
    for op in _ops(files):
        for suffix, device, tier, tags in runs:
            py_test(
                name = op + suffix,
                size = "large",
                args = ["--op", op, "--backend", backend, "--device", device, "--tier", tier, "-n", "1"],
                main = "kernelmux.conformance",
                tags = ["conformance"] + tags,
                deps = _needs(op, backend, _ops(files)),
            )

def unit_tests(files, deps, size = "medium", shards = {}):
    """:unit_tests, all of tests/test_*.py in two processes, and a target per file that runs where it is named alone.

    A process takes seconds to import torch, and what one test has compiled the next one finds. Other files of tests/
    come along with each target. shards: files with a target of their own, and into how many processes it is split.
    """
    helpers = [file for file in files if not file.startswith("tests/test_")]
    together = []
    for file in files:
        if file not in helpers:
            name = file[len("tests/"):-len(".py")]
            together += [] if name in shards else [file]
            pytest_test(
                name = name,
                size = size,
                srcs = [file] + helpers,
                shard_count = shards.get(name),
                tags = [] if name in shards else ["manual"],
                deps = deps,
            )
    pytest_test(
        name = "unit_tests",
        size = "enormous",
        srcs = together + helpers,
        shard_count = 2,
        deps = deps,
    )
