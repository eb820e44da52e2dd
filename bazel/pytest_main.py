"""What a pytest_test target runs: ``pytest_main.py <pyproject.toml> <test files>``."""

import os
import pathlib
import sys
from collections import Counter

import pytest


def arguments(config: str, *tests: str) -> list[str]:
    """Arguments of pytest, with the wishes that Bazel passes in the environment."""
    part = pathlib.Path(*pathlib.Path(tests[0]).parts[:2])  # above it stands the public face, which wants the registry
    args = [
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",  # that of all parts, which stands above the folder of a part
        "-o",
        "pythonpath=",
        "-c",
        config,
        "--rootdir",
        str(part.parent),
        "--confcutdir",
        str(part),
    ]
    if report := os.environ.get("XML_OUTPUT_FILE"):
        args.append(f"--junitxml={report}")
    if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        args += ["-k", only]
    return [*args, *tests]


class Shard:
    """Keeps the tests of one shard of `total`: whole files, or of a target with one file every `total`-th test.

    Tests of a file share what fixtures make and what kernels compile to. The file with the most tests goes first, each to
    the shard that has the fewest. Neighbours in a file cost alike, so they go to different shards.
    """

    def __init__(self, index: int, total: int) -> None:
        self.index, self.total = index, total

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        counts = Counter(item.path for item in items)
        if len(counts) == 1:
            items[:] = items[self.index :: self.total]
            return
        shards: list[list[pathlib.Path]] = [[] for _ in range(self.total)]
        for path, _ in counts.most_common():
            min(shards, key=lambda paths: sum(counts[p] for p in paths)).append(path)
        items[:] = [item for item in items if item.path in shards[self.index]]


def plugins() -> list[Shard]:
    """The shard that Bazel asks for, if the target has several; touching the file says that it is heeded."""
    if "TEST_SHARD_STATUS_FILE" not in os.environ:
        return []
    pathlib.Path(os.environ["TEST_SHARD_STATUS_FILE"]).touch()
    return [Shard(int(os.environ["TEST_SHARD_INDEX"]), int(os.environ["TEST_TOTAL_SHARDS"]))]


if __name__ == "__main__":
    sys.exit(pytest.main(arguments(*sys.argv[1:]), plugins()))
