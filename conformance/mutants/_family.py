"""The backend that a family of mutants is."""

from kernelmux.registry.backend import Backend


def family(package: str) -> Backend:
    """The backend of the family in `package`: `kernelmux.conformance.mutants.basics` is "mutants_basics"."""
    name = f"mutants_{package.rpartition('.')[2]}"
    return Backend(name, "broken on purpose", priority=-1, unavailable=lambda device: None, emulates=True)
