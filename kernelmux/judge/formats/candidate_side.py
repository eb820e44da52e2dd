"""What runs in the candidate's process: its files are written and imported, and become a function of tensors.

This file imports nothing of the project: its text goes to a process that has none of the judge. It is given texts and
tensors, and no reference, no expected result and no seed of inputs. What a call looks like crosses as JSON: `spelled` by
the process of the reference, read here by `value`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

Outputs = tuple[torch.Tensor, ...]
MOVES = frozenset({torch.Tensor.cuda, torch.Tensor.pin_memory})
COPIED = torch.Tensor.__deepcopy__  # is given all that was copied before, which is not looked through for each tensor
# What is asked of a tensor, and what one on a GPU answers; what does nothing where there is none.
ANSWERS = {"is_cuda": True, "is_cpu": False, "device": torch.device("cuda", 0)}
ASKED: dict[Any, Any] = {getattr(torch.Tensor, name).__get__: answer for name, answer in ANSWERS.items()}
ASKED[torch.Tensor.get_device] = 0
WITHOUT_GPU: dict[str, Callable[..., Any]] = {
    "synchronize": lambda device=None: None,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "device": nullcontext,
}
OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
BY_ROWS = frozenset({torch.sparse_csr, torch.sparse_bsr})
COMPRESSED = BY_ROWS | {torch.sparse_csc, torch.sparse_bsc}


class SparseParts(NamedTuple):
    """A sparse tensor as tensors that have memory: where its values stand, and the values."""

    layout: str
    places: tuple[torch.Tensor, ...]
    values: torch.Tensor
    size: tuple[int, ...]


def in_parts(x: Any) -> Any:
    """A sparse tensor as its parts; everything else as it is."""
    if not isinstance(x, torch.Tensor) or x.layout not in (torch.sparse_coo, *COMPRESSED):
        return x
    with _disable_current_modes():  # what takes it apart is not what computes the result
        if x.layout == torch.sparse_coo:
            x = x.coalesce()
            places: tuple[torch.Tensor, ...] = (x.indices(),)
        elif x.layout in BY_ROWS:
            places = (x.crow_indices(), x.col_indices())
        else:
            places = (x.ccol_indices(), x.row_indices())
        return SparseParts(str(x.layout).removeprefix("torch."), places, x.values(), tuple(x.shape))


def whole(given: Any) -> Any:
    """The sparse tensor of its parts; everything else as it is."""
    if not isinstance(given, SparseParts):
        return given
    with _disable_current_modes():
        parts: tuple[Any, ...] = (*given.places, given.values, given.size)
        if given.layout == "sparse_coo":
            return torch.sparse_coo_tensor(*parts, check_invariants=True)
        return torch.sparse_compressed_tensor(*parts, layout=getattr(torch, given.layout), check_invariants=True)


# --- a call as JSON -----------------------------------------------------------------------------------------------


def spelled(value: Any, leaves: list[torch.Tensor]) -> Any:
    """A nested argument as JSON; its tensors are added to the leaves, each once. TypeError for what cannot travel."""
    if isinstance(value, torch.Tensor):
        place = next((i for i, x in enumerate(leaves) if x is value), None)
        if place is None:
            leaves.append(value)
            place = len(leaves) - 1
        return {"tensor": place}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [spelled(v, leaves) for v in value]}
    if type(value) is list:
        return [spelled(v, leaves) for v in value]
    if isinstance(value, SparseParts):
        return {"sparse": [spelled(v, leaves) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[spelled(k, leaves), spelled(v, leaves)] for k, v in value.items()]}
    raise TypeError(f"an argument of type {type(value).__name__} cannot be handed to another process")


def value(told: Any, leaves: Sequence[torch.Tensor]) -> Any:
    """What `spelled` made JSON of."""
    if isinstance(told, list):
        return [value(v, leaves) for v in told]
    if not isinstance(told, dict):
        return told
    ((kind, what),) = told.items()
    if kind == "tensor":
        return leaves[what]
    if kind == "torch":
        return getattr(torch, what)
    if kind == "device":
        return torch.device(what)
    if kind == "complex":
        return complex(*what)
    if kind == "tuple":
        return tuple(value(v, leaves) for v in what)
    if kind == "sparse":
        return whole(SparseParts(*(value(v, leaves) for v in what)))
    return {value(k, leaves): value(v, leaves) for k, v in what}


# --- the candidate ------------------------------------------------------------------------------------------------


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the candidate's files into a folder of its own; the path of the first one, which holds the entry."""
    for name, text in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"expected a file inside of the candidate's folder, got {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(files))


def imported(main: Path, entry: str) -> Any:
    """The candidate's class or function; its own folder comes first in what it imports."""
    sys.path.insert(0, str(main.parent))
    spec = importlib.util.spec_from_file_location(main.stem, main)
    if spec is None or spec.loader is None:
        raise ImportError(f"{main.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[main.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, entry, None)
    if not callable(found):
        raise AttributeError(
            f"{main.name}: expected {entry}, got {'nothing of that name' if found is None else found!r}"
        )
    return found


def serving(
    home: Path,
    files: Mapping[str, str],
    entry: str,
    style: str,
    device: str,
    product: Callable[..., torch.Tensor] | None = None,
) -> Callable[..., Any]:
    """The candidate as a function of a text and tensors, which is what the judge calls; its files lie in `home`.

    A function whose sizes are reduced is imported again, with other numbers in its first file.

    The text says by JSON how the tensors lie in the arguments, and of a task with modules how the class is built. style:
    "module" for a class that is built once for each init_seed, after seeding with it as the reference was, and is then
    given the reference's parameters; "function"; "destination" for a function that is also given its outputs, the last
    tensors of a call. product: see `OnDevice`.
    """
    if device == "cpu":
        for name, instead in WITHOUT_GPU.items():
            setattr(torch.cuda, name, instead)
    else:
        torch.backends.cudnn.allow_tf32 = False  # torch's own convolutions in fp32 are fp32, as its products are

    def where() -> AbstractContextManager[None]:
        return placed(torch.device(device), product, AsCuda)

    with where():
        found = imported(write(home, files), entry)
    known: dict[str, Callable[..., Any]] = {"{}": found}
    built: dict[int, Callable[..., Any]] = {}

    def sized(sizes: Mapping[str, tuple[Any, Any]]) -> Callable[..., Any]:
        text, first = json.dumps(sizes), next(iter(files))
        if text not in known:
            with _disable_current_modes():
                made = {**files, first: resized(files[first], sizes)}
                known[text] = imported(write(home / f"sizes_{len(known)}", made), entry)
        return known[text]

    def call(text: str, *leaves: torch.Tensor) -> Any:
        told = json.loads(text)
        args, kwargs = value(told["args"], leaves), value(told["kwargs"], leaves)
        with where():
            if style != "module":
                function = sized(value(told["sizes"], leaves))
                if style == "destination":
                    function(*args, *leaves[told["leaves"] :], **kwargs)
                    return ()
                return plain(function(*args, **kwargs))
            seed = told["init_seed"]
            if seed not in built:
                with _disable_current_modes():  # what builds it is not what computes the result
                    built.clear()
                    resize(found, value(told["sizes"], leaves))
                    built[seed] = model(found, value(told["init"], leaves), seed, told, leaves, device)
            return plain(built[seed](*args, **kwargs))

    return call


def resize(found: Any, sizes: Mapping[str, tuple[Any, Any]]) -> None:
    """Reduce the variables of the candidate's file as those of the reference were: of the same names and values."""
    own = vars(sys.modules[found.__module__])
    for name, (old, new) in sizes.items():
        if type(own.get(name)) is type(old) and own[name] == old:
            own[name] = new


class Resized(ast.NodeTransformer):
    """Other integers where a text names a size, as in `H = 7168` and `assert H == 7168`, but for sizes of blocks."""

    def __init__(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        self.new = dict(sizes.values())

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if not any("block" in ast.unparse(target).lower() for target in node.targets):
            node.value = self._other(node.value)
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        node.left, node.comparators = self._other(node.left), [self._other(one) for one in node.comparators]
        self.generic_visit(node)
        return node

    def _other(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in self.new:
            return ast.Constant(self.new[node.value])
        return node


def resized(text: str, sizes: Mapping[str, tuple[int, int]]) -> str:
    """The text of a file with sizes before and after they were reduced."""
    return ast.unparse(ast.fix_missing_locations(Resized(sizes).visit(ast.parse(text))))


def model(
    found: Any, init: Any, seed: int, told: Mapping[str, Any], leaves: Sequence[torch.Tensor], device: str
) -> Callable[..., Any]:
    """An object of the candidate's class, with the parameters of the reference."""
    torch.manual_seed(seed)
    with torch.device(device):
        made: Callable[..., Any] = found(*init[0], **init[1])
    if isinstance(made, torch.nn.Module):
        for part in made.modules():
            if type(part).__name__.startswith(("Dropout", "AlphaDropout", "FeatureAlphaDropout")):
                part.eval()
        given(made, value(told["parameters"], leaves))
    return made


def given(module: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
    """Copy the reference's parameters and buffers into a module.

    By name where all names agree, else in order where the shapes do, else not at all: it keeps what the seed gave.
    """
    own = module.state_dict(keep_vars=True)
    if set(own) == set(parameters) and all(own[n].shape == parameters[n].shape for n in own):
        pairs = [(own[name], x) for name, x in parameters.items()]
    elif [x.shape for x in own.values()] == [x.shape for x in parameters.values()]:
        pairs = list(zip(own.values(), parameters.values(), strict=True))
    else:
        return
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.copy_(theirs)


def plain(result: Any) -> Any:
    """A result with tuples in the place of other containers, tensors in the place of numbers, and sparse ones in parts.

    What is conjugate by a mark alone, as a result of torch.fft.ifft, has its numbers in memory.
    """
    result = in_parts(result)
    if isinstance(result, torch.Tensor) and result.is_complex():
        return result.resolve_conj()
    if isinstance(result, SparseParts):
        return (*result.places, result.values)
    if isinstance(result, bool | int | float):
        return torch.tensor(result)
    if isinstance(result, Mapping):
        return tuple(plain(v) for v in result.values())
    return tuple(plain(v) for v in result) if isinstance(result, tuple | list) else result


def tensors(result: Any) -> Outputs:
    """The outputs in order: of a tuple, a list or a dict those inside; numbers become tensors."""
    result = plain(result)
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, tuple):
        return tuple(x for one in result for x in tensors(one))
    if result is None:
        return ()
    raise TypeError(f"expected tensors, got {type(result).__module__}.{type(result).__qualname__}")


# --- where the text says cuda -------------------------------------------------------------------------------------


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The arguments of a call with a function of each. A torch.Size stays one: `x.new(size)` reads a tuple as numbers."""
    return pytree.tree_map(function, tree, is_leaf=lambda value: type(value) is torch.Size)


class OnDevice(TorchFunctionMode):
    """Where the text says cuda, another device is meant: that of the judge.

    product: what computes torch._scaled_mm of 4-bit floats, which a CPU does not have (`block_scaled.product`).
    """

    def __init__(self, device: torch.device, product: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.device, self.product = device, product

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in MOVES:
            return args[0].to(self.device)
        if func is COPIED:
            return func(*args, **(kwargs or {}))
        args, named = mapped(self._placed, (args, dict(kwargs or {})))
        if self.product and func is torch._scaled_mm and args[0].dtype == torch.float4_e2m1fn_x2:
            return self.product(*args, **named)
        return func(*args, **named)

    def _placed(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return self.device
        return str(self.device) if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class AsCuda(OnDevice):
    """`OnDevice`, and tensors of a CPU say that they lie on a GPU: solutions ask, and refuse others."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in ASKED and args[0].device.type == "cpu":
            return ASKED[func]
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def placed(
    device: torch.device, product: Callable[..., torch.Tensor] | None = None, mode: type[OnDevice] = OnDevice
) -> Iterator[None]:
    """Inside, cuda means `device`, in a stranger's text and for its random generators. product: see `OnDevice`."""
    if device.type == "cuda":
        yield
        return
    real = torch.Generator

    class Generator(real):  # type: ignore[misc, valid-type]
        """One of the CPU, whatever device is asked for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return real.__new__(cls, "cpu")  # type: ignore[call-arg]

    torch.Generator = Generator  # type: ignore[misc]
    try:
        with mode(device, product):
            yield
    finally:
        torch.Generator = real  # type: ignore[misc]
