"""The examples as modules: they lie in no package."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """A function from the name of an example to its module."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", Path(__file__).parents[1] / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: threads that wait for each other on a busy machine cost more than they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
