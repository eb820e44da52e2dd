"""What `check_model` found: errors layer by layer, choices of routers, tokens, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kernelmux.nn.report import generic
from kernelmux.nn.verdicts import Error
from kernelmux.registry.util import text_tables

WIDTH = 140
LONG = 40  # rows of a table, beyond which layers of one kind share a row
WHOLE = "(the model)"
NUMBERS = ("forward\nplain", "forward\npatched", "backward\nplain", "backward\npatched", "of what is\nallowed")


@dataclass(frozen=True)
class ComparedLayer:
    """A module that was swapped or holds one that was. ops: the operators it was swapped for.

    forward, backward: the worst errors of its outputs, and of its gradients, where it gets what the plain one got; for the
    whole model, end to end. flow: the errors of its output end to end, where each model goes on with its own. flow_back:
    those of the gradient that comes back to the output.
    """

    path: str
    cls: str
    ops: tuple[str, ...]
    forward: Error
    backward: Error | None
    flow: Error | None = None
    flow_back: Error | None = None

    @property
    def errors(self) -> list[Error]:
        return [found for found in (self.forward, self.backward) if found]

    @property
    def off(self) -> bool:
        return any(found.off for found in self.errors)

    @property
    def excess(self) -> float:
        return max(found.excess for found in self.errors)

    @property
    def verdict(self) -> str:
        wrong = [(way, e) for way, e in (("forward", self.forward), ("backward", self.backward)) if e and e.off]
        return "OFF: " + ", ".join(f"{way} ({e.tensor})" for way, e in wrong) if wrong else "ok"


@dataclass(frozen=True)
class Routing:
    """A module that chooses, as a router does: how many choices it makes, and how many are not float64's.

    plain, patched: with the choices before them held to float64's. free: of the patched model other than of the plain one,
    each with its own choices throughout.
    """

    path: str
    choices: int
    plain: int
    patched: int
    free: int

    def __str__(self) -> str:
        return (
            f"  {self.path}: {self.choices} choices, not as float64: plain {self.plain}, patched {self.patched};"
            f" plain and patched differ in {self.free}"
        )


@dataclass(frozen=True)
class Apart:
    """A gradient that plain and patched disagree on most, relative to the plain one: free, and with float64's choices."""

    parameter: str
    free: float
    held: float


@dataclass(frozen=True)
class Tokens:
    """The best token of each place: the share of places where two models agree on it.

    expected: what roundings make likely for plain and patched, if the errors of two logits are independent and as large as
    they are on average. margin: median distance of float64's two best logits; widest: the largest margin at which plain and
    patched disagree. error_plain, error_patched: root mean square errors of a logit.
    """

    places: int
    plain_patched: float
    plain_exact: float
    patched_exact: float
    expected: float
    margin: float
    widest: float
    error_plain: float
    error_patched: float

    def __str__(self) -> str:
        widest = f", where plain and patched disagree {self.widest:.2g} at most" if self.plain_patched < 1 else ""
        return (
            f"best token of {self.places} places: plain and patched agree in {self.plain_patched:.1%}, where roundings"
            f" alone make {self.expected:.1%} likely;\n  plain and float64 in {self.plain_exact:.1%}, patched and float64"
            f" in {self.patched_exact:.1%}\n  error of a logit: plain {self.error_plain:.2g}, patched"
            f" {self.error_patched:.2g}; float64's two best are {self.margin:.2g} apart (median){widest}"
        )


@dataclass(frozen=True)
class CheckReport:
    """A comparison. layers: in the order in which they run, the model as a whole at the end. uncalled: modules that
    were swapped and did not run. apart: where routers chose differently, the gradients that show it most. rounding:
    parameters whose gradient is next to nothing, so that no digit of it is right in the plain model.

    print(report) gives the tables; `ok` is the verdict, `first_off` the layer that it names.
    """

    model: str
    dtype: str
    device: str
    swapped: int
    layers: tuple[ComparedLayer, ...]
    uncalled: tuple[str, ...] = ()
    routing: tuple[Routing, ...] = ()
    apart: tuple[Apart, ...] = ()
    rounding: tuple[str, ...] = ()
    tokens: Tokens | None = None

    @property
    def first_off(self) -> ComparedLayer | None:
        """The first layer that is off and holds none that is; of the model as a whole only if no layer is."""
        off = [layer for layer in self.layers if layer.off]
        return next((layer for layer in off if not any(_within(other.path, layer.path) for other in off)), None)

    @property
    def ok(self) -> bool:
        return self.first_off is None

    @property
    def verdict(self) -> str:
        first = self.first_off
        if first is None:
            return f"no layer is off: {max(layer.excess for layer in self.layers):.2f} of what roundings allow at most"
        if not first.path:
            return f"the model as a whole is off, and none of its layers: {_wrong(first)}"
        on = f" (on {', '.join(first.ops)})" if first.ops else ""
        return f"{first.path} is the first layer that is off: {first.cls}{on}: {_wrong(first)}"

    def __str__(self) -> str:
        return self.text()

    def text(self, every_row: bool = False, width: int = WIDTH) -> str:
        """The tables. every_row: a row for each layer, also where many are of one kind."""
        lines = [
            f"{self.model}, {self.dtype}, {self.device}: {text_tables.counted(self.swapped, 'module')} swapped; errors"
            " relative to the size of float64's tensors",
            "",
            "each layer by itself, given what it gets in the plain model:",
            text_tables.text(("module", "operators", *NUMBERS, "verdict"), self._rows(every_row), NUMBERS, (), width),
            "",
            "end to end, each with its own inputs: outputs, and the gradients that come back to them:",
            text_tables.text(("module", *NUMBERS[:-1]), self._flow(every_row), NUMBERS, (), width),
            "",
        ]
        if self.uncalled:
            lines.append(f"swapped, and not called: {', '.join(self.uncalled)}")
        if self.rounding:
            lines.append(
                f"gradients that are rounding and nothing else, in the plain model too: {', '.join(self.rounding)}"
            )
        lines += [*self._routed(), *([str(self.tokens)] if self.tokens else []), self.verdict]
        return "\n".join(lines)

    def _rows(self, every_row: bool) -> Iterator[tuple[str, ...]]:
        for name, layer in self._shown(self.layers, every_row):
            verdict = layer.verdict
            yield (
                name,
                ", ".join(layer.ops),
                *_pair(layer.forward),
                *_pair(layer.backward),
                f"{layer.excess:.2f}",
                verdict,
            )

    def _flow(self, every_row: bool) -> Iterator[tuple[str, ...]]:
        flowing = [layer for layer in self.layers if layer.flow and not layer.ops]
        for name, layer in self._shown(flowing, True) if every_row or len(flowing) <= LONG else _ends(flowing):
            yield name, *_pair(layer.flow), *_pair(layer.flow_back)

    @staticmethod
    def _shown(layers: Iterable[ComparedLayer], every_row: bool) -> Iterator[tuple[str, ComparedLayer]]:
        """Rows with their names; of layers of one kind the worst, where all would be too many."""
        listed = list(layers)
        if every_row or len(listed) <= LONG:
            yield from ((layer.path or WHOLE, layer) for layer in listed)
            return
        kinds: dict[tuple[str, tuple[str, ...]], list[ComparedLayer]] = {}
        for layer in listed:
            kinds.setdefault((generic(layer.path), layer.ops), []).append(layer)
        for (path, _), of_kind in kinds.items():
            several = f" (worst of {len(of_kind)})" if len(of_kind) > 1 else ""
            yield f"{path or WHOLE}{several}", max(of_kind, key=lambda layer: layer.excess)

    def _routed(self) -> Iterator[str]:
        if not any(found.plain or found.patched or found.free for found in self.routing):
            return
        yield "routing differs, which is a jump and no error; the tables are with float64's choices:"
        yield from (str(found) for found in self.routing if found.plain or found.patched or found.free)
        for one in self.apart:
            yield (
                f"  gradient of {one.parameter}: plain and patched {one.free:.2g} of its size apart,"
                f" {one.held:.2g} with float64's choices"
            )

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {"schema": 1, "ok": self.ok, "verdict": self.verdict} | asdict(self)


def _within(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(f"{outer}."))


def _pair(found: Error | None) -> tuple[str, str]:
    return (f"{found.plain:.1e}", f"{found.patched:.1e}") if found else ("-", "-")


def _ends(layers: list[ComparedLayer]) -> Iterator[tuple[str, ComparedLayer]]:
    """The first layers and the last."""
    half = LONG // 2
    yield from ((layer.path or WHOLE, layer) for layer in (*layers[:half], *layers[-half:]))


def _wrong(layer: ComparedLayer) -> str:
    """What is off about it."""
    found = [(way, e) for way, e in (("forward", layer.forward), ("backward", layer.backward)) if e and e.off]
    return "; ".join(
        f"{way}, {e.tensor}: error {e.patched:.2g}, plain {e.plain:.2g}, {e.excess:.3g} times what roundings allow"
        for way, e in found
    )
