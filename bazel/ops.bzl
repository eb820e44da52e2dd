"""Targets by file name: a new op or test file needs no entry in any BUILD file."""

load("//bazel:defs.bzl", "py_library", "py_test", "pytest_test")

def _ops(files):
    return [file[:-len(".py")] for file in files if file.endswith(".py") and not file.startswith("_")]

def _belongs(file, op):
    return file.startswith(op + ".") or file.startswith(op + "_")

def _families(files):
    """Files by the op they belong to: {"rms_norm": ["rms_norm.py", "rms_norm.cu", "rms_norm_backward.py"]}."""
    ops = _ops(files)
    roots = [op for op in ops if not [other for other in ops if op.startswith(other + "_")]]
    return {root: [file for file in files if _belongs(file, root)] for root in roots}

def op_libraries(name, files, deps = []):
    """One py_library per op family, one of what they share (:<name>_base), and :<name> for everything."""
    families = _families(files)
    owned = [file for members in families.values() for file in members]
    py_library(
        name = name + "_base",
        srcs = [file for file in files if file not in owned],
        deps = deps,
    )
    for family, members in families.items():
        py_library(name = family, srcs = members, deps = [":" + name + "_base"])
    py_library(name = name, deps = [":" + family for family in families] + [":" + name + "_base"])

def _family_of(op, files):
    return [family for family in _families(files) if op == family or op.startswith(family + "_")][0]

def conformance_tests(backend, files, gpu):
    """One conformance target per op of a backend, and one tagged gpu where the backend is for GPUs."""
    for op in _ops(files):
        family = _family_of(op, files)
        contestants = {"//backends/%s:%s" % (name, family): None for name in ("torch_ref", backend)}
        for suffix, device, tags in [("", "cpu", []), ("_gpu", "cuda", ["gpu", "exclusive", "no-cache"])]:
            if suffix and not gpu:
                continue
            py_test(
                name = op + suffix + "_test",
                size = "large",
                args = ["--op", op, "--backend", backend, "--device", device, "--tier", "ci"],
                main = "kernelmux.conformance",
                tags = ["conformance", backend] + tags,
                deps = contestants.keys() + ["//conformance", "//registry/ops:" + family],
            )

def unit_tests(files, deps, size = "medium"):
    """One pytest target per tests/test_*.py; other files of tests/ come along with each."""
    helpers = [file for file in files if not file.startswith("tests/test_")]
    for file in files:
        if file not in helpers:
            name = file[len("tests/"):-len(".py")]
            pytest_test(name = name, size = size, srcs = [file] + helpers, deps = deps)
