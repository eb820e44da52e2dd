"""Targets by file name: a new op or test file needs no entry in any BUILD file."""

load("//bazel:defs.bzl", "py_library", "py_test", "pytest_test")

def _stem(file):
    """matmul.py, _matmul.py and matmul/_blocked.py all give "matmul"."""
    return file.split("/")[0].split(".")[0].lstrip("_")

def _ops(files):
    """Every module or package of the folder that is not a helper."""
    modules = [file[:-len(".py")] for file in files if "/" not in file and file.endswith(".py")]
    packages = [file[:-len("/__init__.py")] for file in files if file.endswith("/__init__.py")]
    return [name for name in modules + packages if not name.startswith("_")]

def _families(files):
    """Files by the op they belong to: {"rms_norm": ["_rms_norm.py", "rms_norm.cu", "rms_norm_backward.py"]}."""
    ops = _ops(files)
    roots = [op for op in ops if not [other for other in ops if op.startswith(other + "_")]]
    return {
        root: [file for file in files if (_stem(file) + "_").startswith(root + "_")]
        for root in roots
    }

def op_libraries(name, files, deps = [], uses = {}):
    """One py_library per op family, one of what they share (:<name>_base), and :<name> for everything.

    uses: families that call others, {"matmul": ["transpose"]}.
    """
    families = _families(files)
    owned = [file for members in families.values() for file in members]
    py_library(
        name = name + "_base",
        srcs = [file for file in files if file not in owned],
        deps = deps,
    )
    for family, members in families.items():
        called = [":" + other for other in uses.get(family, [])]
        py_library(name = family, srcs = members, deps = [":" + name + "_base"] + called)
    py_library(name = name, deps = [":" + family for family in families] + [":" + name + "_base"])

def _needs(family, backend):
    """What a conformance target reads: the suite, the spec, and the op in this backend and in the baseline."""
    backends = [] if backend == "spec" else depset(["torch_ref", backend]).to_list()
    contestants = ["//backends/%s:%s" % (name, family) for name in backends]
    return contestants + ["//backends:root", "//conformance", "//registry/ops:" + family]

def conformance_tests(backend, files, gpu = False):
    """One conformance target per op of a backend, and one tagged gpu where the backend is for GPUs.

    The backend "spec" stands for the specs themselves: does every case tell right from wrong?
    """
    runs = [("_test", "cpu", [])] + ([("_gpu_test", "cuda", ["gpu", "exclusive", "no-cache"])] if gpu else [])
    for family, members in _families(files).items():
        for op in _ops(members):
            for suffix, device, tags in runs:
                py_test(
                    name = op + suffix,
                    size = "large",
                    args = ["--op", op, "--backend", backend, "--device", device, "--tier", "ci", "-n", "1"],
                    main = "kernelmux.conformance",
                    tags = ["conformance"] + tags,
                    deps = _needs(family, backend),
                )

def unit_tests(files, deps, size = "medium"):
    """One pytest target per tests/test_*.py; other files of tests/ come along with each."""
    helpers = [file for file in files if not file.startswith("tests/test_")]
    for file in files:
        if file not in helpers:
            name = file[len("tests/"):-len(".py")]
            pytest_test(name = name, size = size, srcs = [file] + helpers, deps = deps)
