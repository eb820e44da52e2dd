"""What the installed version of Triton lacks."""

from importlib.metadata import version

import pytest

VERSION = tuple(int(part) for part in version("triton").split(".")[:2])
NAME = "Triton {}.{}".format(*VERSION)


def needs(minor: tuple[int, int], otherwise: str) -> pytest.MarkDecorator:
    """Skips a test before this version; `otherwise` completes the sentence "Triton x.y ..."."""
    return pytest.mark.skipif(VERSION < minor, reason=f"{NAME} {otherwise}")


def until(minor: tuple[int, int], otherwise: str) -> pytest.MarkDecorator:
    """Skips a test from this version on."""
    return pytest.mark.skipif(VERSION >= minor, reason=f"{NAME} {otherwise}")
