"""What Triton's kernels need of AMD GPUs: `python -m kernelmux.perf.emulated.amd`, `... --update docs/amd.md`.

Every variant is called with its largest workload on CPU tensors that are never written, as in `resources`; each kernel
that it would launch is compiled for every AMD GPU of which the limits are known. Nothing runs, here or there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from kernelmux.emulator import amdgcn
from kernelmux.emulator.launch_log import Launch, Recipe
from kernelmux.perf.emulated import resources
from kernelmux.perf.emulated.resources import InspectedVariant
from kernelmux.perf.report.markdown import table
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import between

BACKEND = "triton"  # the language that compiles for AMD GPUs; launching CUDA C++ would only take time
BEGIN, END = "<!-- amd -->", "<!-- /amd -->"
DTYPES = ("bf16", "e4m3", "int8", "fp32")  # the first of them that a workload has


@dataclass(frozen=True)
class AmdKernel:
    """One kernel of one variant: for each GPU what it needs, with all of its LDS, or why it does not compile."""

    op: str
    variant: str
    dtype: str
    kernel: str
    by_arch: dict[str, amdgcn.Need | str]


def compiled(candidate: InspectedVariant, options: PerfOptions) -> Iterator[AmdKernel]:
    """The kernels of a variant on its largest workload that Triton launches."""
    for case, dtype in resources.work(catalog.spec(candidate.op), options):
        found = resources.launches(candidate, case, dtype)
        if found is not None:
            able = ((one, one.recipe) for one in found if one.recipe and one.recipe.obstacles)
            common = (candidate.op, candidate.variant, dtypes.SHORT[dtype])
            yield from (AmdKernel(*common, one.kernel, {a: _for(one, by, a) for a in amdgcn.GPUS}) for one, by in able)
            return


def _for(launch: Launch, recipe: Recipe, arch: str) -> amdgcn.Need | str:
    if reasons := recipe.obstacles(arch) if recipe.obstacles else []:
        return "; ".join(reasons)
    made = recipe.compile(arch)
    need = amdgcn.needs(made.log)[launch.kernel]
    return replace(need, lds=need.lds + (made.shared or 0))


def report(found: Sequence[AmdKernel], idle: Sequence[InspectedVariant] = ()) -> str:
    """The text of the tables: what does not compile and why, and what the others need; idle: without a workload.

    A kernel that a variant launches twice alike counts once.
    """
    found = [one for i, one in enumerate(found) if one not in found[:i]]
    counts = {arch: sum(isinstance(one.by_arch[arch], amdgcn.Need) for one in found) for arch in amdgcn.GPUS}
    able = ", ".join(f"{count} of them for {arch}" for arch, count in counts.items())
    intro = f"{len(found)} kernels, compiled by Triton {version('triton')}: {able}."
    if idle:
        intro += f" No workload runs {', '.join(f'`{one.op}` {one.variant}' for one in idle)}."
    needs = table(HEAD, (_cells(one) for one in found if any(isinstance(n, amdgcn.Need) for n in one.by_arch.values())))
    return f"{intro}\n\n{table(('variants', 'for', 'what they use'), _missing(found))}\n\n{needs}"


def _missing(found: Sequence[AmdKernel]) -> Iterator[tuple[str, str, str]]:
    """Variants with a kernel that does not compile, those with one reason together."""
    groups: dict[str, dict[str, list[str]]] = {}
    for one in found:
        for arch, why in one.by_arch.items():
            if isinstance(why, str):
                archs = groups.setdefault(why, {}).setdefault(f"`{one.op}` {one.variant}", [])
                archs += [arch] if arch not in archs else []
    for why, variants in groups.items():
        all_archs = {arch: None for listed in variants.values() for arch in listed}
        yield ", ".join(variants), ", ".join(all_archs), why


HEAD = ("variant", "kernel", "dtype", "VGPRs", "AGPRs", "SGPRs", "SGPRs spilled", "LDS", "scratch")


def _cells(one: AmdKernel) -> tuple[str, ...]:
    """One number where both GPUs need the same, else one for each; in bold what a GPU has not."""
    kernel = one.kernel.removeprefix(f"{one.op}_").removesuffix("_kernel")
    names = ("vgprs", "agprs", "sgprs", "sgpr_spills", "lds", "scratch")
    return f"`{one.op}` {one.variant}", kernel, one.dtype, *(_pair(one, name) for name in names)


def _pair(one: AmdKernel, name: str) -> str:
    texts = [_number(need, name, amdgcn.GPUS[arch]) for arch, need in one.by_arch.items()]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _number(need: amdgcn.Need | str, name: str, unit: amdgcn.ComputeUnit) -> str:
    if isinstance(need, str):
        return "-"
    amount = getattr(need, name)
    return f"**{amount}**" if name == "lds" and amount > unit.lds else str(amount)


def _update(path: Path, content: str) -> None:
    try:
        text = between(path.read_text(encoding="utf-8"), BEGIN, END, content)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--update: {path}: {error}") from error
    output_files.write(path, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    made = terminal.Parser(prog="python -m kernelmux.perf.emulated.amd", description=__doc__)
    made.add_argument("--op", nargs="+", default=[], metavar="OP", help="operators (default: all)")
    made.add_argument("--update", type=Path, metavar="FILE", help=f"write the tables between {BEGIN} and {END}")
    return terminal.run("amd", lambda: _main(made.parse_args(arguments)))


def _main(args: argparse.Namespace) -> int:
    if args.update and args.op:
        raise ArgumentError("--update: expected all operators, got --op")
    options = PerfOptions(ops=tuple(args.op), backends=(BACKEND,), dtypes=DTYPES)
    by_variant = {c: list(compiled(c, options)) for c in resources.candidates(options) if not c.broken}
    content = report(
        [one for found in by_variant.values() for one in found], [c for c, found in by_variant.items() if not found]
    )
    if args.update:
        _update(args.update, content)
    else:
        print(content)
    return terminal.OK


if __name__ == "__main__":
    sys.exit(main())
