"""A condition of variants that suit few long rows."""

from dataclasses import dataclass

from kernelmux.registry.spec import Call


@dataclass(frozen=True)
class FewRows:
    """The input `name`, [..., N], has no more than `most` rows."""

    name: str
    most: int

    @property
    def text(self) -> str:
        return f"at most {self.most} rows"

    def check(self, call: Call) -> str | None:
        """None, or how many there are."""
        rows = call.arguments[self.name].numel() // max(1, call.axes["N"])
        return None if rows <= self.most else f"there are {rows} rows, needs {self.text}"
