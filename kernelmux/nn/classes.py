"""A module gets our forward by a change of its class: parameters, buffers, hooks, flags and references to it stay.

The new class derives from ours and from the one that the module had, so that isinstance() and attribute access go on as
before. Its instances can be copied and pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kernelmux.nn.fallback import guarded
from kernelmux.nn.module import Ours


class Swapped:
    """Base of the classes made here, which tells a module that was swapped from one that a user made of ours.

    recipe: the function, and its arguments, that makes this class anew elsewhere; the class before comes among them.
    """

    recipe: tuple[Callable[..., type], tuple[Any, ...]]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        make, arguments = self.recipe
        return _empty, (make, *arguments), self.__dict__.copy()


def _empty(make: Callable[..., type], *arguments: Any) -> Any:
    """An instance without attributes: unpickling adds them."""
    made: Any = make(*arguments)
    return made.__new__(made)


def derived(ours: type, cls: type, recipe: tuple[Callable[..., type], tuple[Any, ...]], **members: Any) -> type:
    """A class with the name of `cls` whose methods are ours where we have them, and those of `cls` elsewhere."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "recipe": recipe}
    return type(cls.__name__, (Swapped, ours, cls), names | members)


@cache
def mixed(ours: Any, cls: Any) -> type:
    """The class of a module that had `cls` and gets the forward of ours, for the calls that ours does not decline."""
    members = {} if ours.declined is Ours.declined else {"forward": guarded(ours, cls)}
    return derived(ours, cls, (mixed, (ours, cls)), **members)
