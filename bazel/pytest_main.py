"""What a pytest_test target runs: ``pytest_main.py <pyproject.toml> <test files>``."""

import os
import pathlib
import sys

import pytest


def arguments(config: str, *tests: str) -> list[str]:
    """Arguments of pytest, with the wishes that Bazel passes in the environment."""
    part = pathlib.Path(*pathlib.Path(tests[0]).parts[:2])  # above it stands the public face, which wants the registry
    args = ["-p", "no:cacheprovider", "-c", config, "--rootdir", str(part.parent), "--confcutdir", str(part)]
    if report := os.environ.get("XML_OUTPUT_FILE"):
        args.append(f"--junitxml={report}")
    if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        args += ["-k", only]
    return [*args, *tests]


if __name__ == "__main__":
    sys.exit(pytest.main(arguments(*sys.argv[1:])))
