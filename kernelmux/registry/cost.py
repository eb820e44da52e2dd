"""`kernelmux/registry/spec/cost.py`, under the name by which specs and backends of other packages import it."""

from kernelmux.registry.spec.cost import (
    Cost,
)

__all__ = ["Cost"]
