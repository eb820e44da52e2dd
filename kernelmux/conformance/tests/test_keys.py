"""Keys follow what runs: edits of a copy of the tree that change nothing, and edits that do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelmux.conformance.report import artifacts
from kernelmux.conformance.verified import launches, ledger, meaning, rekey
from kernelmux.registry import catalog
from kernelmux.registry.backend import launch_keys, timings
from kernelmux.registry.backend.launch_keys import CHANGED, OTHER, SAME, UNKNOWN, Keys, SourceKeys, compared
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import GpuFiles

ROOT = Path(__file__).resolve().parents[3]
ASKED = ["cuda transpose", "cuda square", "triton silu", "torch_ref swiglu"]
MEANT = ["silu", "silu_backward", "swiglu", "swiglu_backward", "linear", "softmax", "add", "transpose"]
SCRIPT = f"""
import json, sys
from kernelmux.conformance.verified import launches, meaning
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry import catalog
launches.stand_for_the_card()
found = {{op: meaning.oracle(catalog.spec(op)) for op in {MEANT}}} | {{"judge": meaning.judge()}}
for pair in {ASKED}:
    backend, op = pair.split()
    for variant in registered.variants(backend, op):
        found[f"{{backend}}/{{variant}} {{op}}"] = launches.keys(op, backend, variant)[1]
json.dump(found, sys.stdout)
"""


class Tree:
    """A copy of the checkout that a test edits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "tests", "perf", "docs")
        shutil.copytree(ROOT / "kernelmux", folder / "kernelmux", ignore=ignored)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file}: {old}"
        path.write_text(text.replace(old, new))

    def keys(self) -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = json.loads(done.stdout)
        assert not [key for key in found.values() if launch_keys.UNTOLD in key], done.stderr
        return found


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return Tree(tmp_path_factory.mktemp("before")).keys()


def test_comments_names_and_places_change_no_key(tmp_path: Path, before: dict[str, str]) -> None:
    tree = Tree(tmp_path / "tree")
    tree.edit(
        "kernelmux/backends/cuda/_launch/runtime.py",
        '"""a / b rounded up."""',
        '"""a / b, rounded up to a whole number."""  # exact',
    )
    tree.edit("kernelmux/registry/ops/softmax.py", "Softmax along one axis", "The softmax along an axis")
    tree.edit(
        "kernelmux/registry/ops/softmax.py",
        "e = torch.exp(z - z.amax(axis, keepdim=True))",
        "top = torch.exp(z - z.amax(axis, keepdim=True))",
    )
    tree.edit(
        "kernelmux/registry/ops/softmax.py",
        "return e / e.sum(axis, keepdim=True)",
        "return top / top.sum(axis, keepdim=True)",
    )
    tree.edit("kernelmux/backends/triton/_families/elementwise.py", "start", "first_of_block")  # in a kernel
    tree.edit("kernelmux/backends/triton/_families/elementwise.py", "elementwise_flat_kernel", "flat_kernel")
    tree.edit("kernelmux/backends/cuda/transpose/__init__.py", "kernel = SOURCE", "tiles = SOURCE")  # in a launcher
    tree.edit("kernelmux/backends/cuda/transpose/__init__.py", "    kernel(cdiv(M", "    tiles(cdiv(M")
    tree.edit("kernelmux/backends/cuda/transpose/transpose.cu", "transpose_naive", "transpose_plainly")
    tree.edit("kernelmux/backends/cuda/transpose/__init__.py", '"transpose_naive"', '"transpose_plainly"')
    moved = "import torch\n\n\ndef product(value):\n    return value * torch.sigmoid(value)\n"
    (tree.folder / "kernelmux/registry/moved.py").write_text(moved)
    tree.edit(
        "kernelmux/registry/ops/silu.py",
        "import torch\n",
        "import torch\n\nfrom kernelmux.registry.moved import product\n",
    )
    tree.edit("kernelmux/registry/ops/silu.py", "return formula(x", "return product(x")
    after = tree.keys()
    assert {name for name in before if after[name] != before[name]} == set()


def test_formulas_bounds_tiles_and_options_change_keys(tmp_path: Path, before: dict[str, str]) -> None:
    tree = Tree(tmp_path / "tree")
    tree.edit("kernelmux/registry/ops/silu.py", "return x * torch.sigmoid(x)", "return 2 * x * torch.sigmoid(x)")
    tree.edit("kernelmux/registry/spec/numerics.py", "factor = 8 + tail", "factor = 9 + tail")
    tree.edit("kernelmux/registry/ops/add.py", "torch.zeros_like(x)),", "torch.ones_like(x)),")
    tree.edit(
        "kernelmux/backends/cuda/transpose/__init__.py", "_TILE, _TILE_ROWS = 32, 8", "_TILE, _TILE_ROWS = 32, 16"
    )
    tree.edit("kernelmux/backends/cuda/_launch/launch_emulated.py", "-ftz=true", "-ftz=false")
    tree.edit(
        "kernelmux/backends/triton/_families/elementwise.py",
        "LEAST_BYTES, PROGRAMS = 1024",
        "LEAST_BYTES, PROGRAMS = 2048",
    )
    after = tree.keys()
    changed = {name for name in before if after[name] != before[name]}
    assert {"silu", "silu_backward", "swiglu", "swiglu_backward", "linear", "add", "judge"} <= changed
    assert {"cuda/tiled transpose", "cuda/vectorized square", "triton/blocked silu"} <= changed
    assert not {"softmax", "transpose", "cuda/vectorized transpose", "torch_ref/exact swiglu"} & changed


def test_the_map_holds_what_the_tree_launches(before: dict[str, str]) -> None:
    if launch_keys.known().made_with != rekey.versions():
        pytest.skip("keys are computed with other compilers")
    for pair in ASKED:
        backend, op = pair.split()
        if found := launch_keys.known().rows.get((op, backend, artifacts.source_hash(backend, op))):
            here = {name.split()[0].partition("/")[2]: keys for name, keys in before.items() if name.endswith(f" {op}")}
            assert {v: k for v, k in here.items() if not found.keys[v].startswith(k)} == {}, pair


# --- the map ----------------------------------------------------------------------------------------------------------


def row(source: str, *keys: str, asked: str = "aaaaaabbbbbb") -> SourceKeys:
    return SourceKeys("softmax", "cuda", source, asked, {"naive": "".join(keys)})


@pytest.fixture
def map_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes a map of these rows and lets everyone read it."""

    def written(*rows: SourceKeys, **made_with: str) -> Path:
        path = tmp_path / "launch_keys.json"
        path.write_text(launch_keys.text(Keys(launch_keys.FORMAT, made_with, {row.place: row for row in rows})))
        monkeypatch.setattr(launch_keys, "FILE", path)
        launch_keys.known.cache_clear()
        return path

    yield written
    launch_keys.known.cache_clear()


def test_two_sources_are_compared_by_what_both_were_asked(map_file: Callable[..., Path]) -> None:
    map_file(
        row("old", "111111", "222222"),
        row("alike", "111111", "222222", "333333", asked="aaaaaabbbbbbcccccc"),
        row("other", "111111", "444444"),
        row("untold", "111111", launch_keys.UNTOLD),
    )

    def found(now: str, item: str = "", variant: str = "naive", then: str = "old") -> str:
        return compared("softmax", "cuda", variant, then, now, item)

    assert found("alike") == SAME  # whose new case says nothing of the old ones
    assert found("other") == CHANGED
    assert found("other", "aaaaaa") == SAME  # one workload alone
    assert found("alike", "cccccc") == SAME  # not asked of one of them, so that all else speaks for it
    assert found("other", "cccccc") == CHANGED
    assert found("untold") == found("never seen") == UNKNOWN
    assert found("alike", variant="new") == UNKNOWN
    assert found("x", then="x") == SAME  # the same text needs no key


def test_an_entry_counts_while_it_launches_and_means_the_same(map_file: Callable[..., Path]) -> None:
    now = artifacts.source_hash("torch_ref", "softmax")
    map_file(
        *(
            SourceKeys("softmax", "torch_ref", s, "aaaaaa", {"exact": k})
            for s, k in ((now, "1" * 6), ("moved", "1" * 6), ("tiled", "2" * 6))
        )
    )
    spec = catalog.spec("softmax")
    asked = "".join(launch_keys.digest(c.text) for c in spec.cases)
    entry = {"oracle": meaning.oracle(spec), "judge": meaning.judge(), "source": now, "asked": asked}

    def stands(**changed: str) -> tuple[str, tuple[str, ...]]:
        there = (entry | changed, "softmax", "torch_ref", "exact")
        return ledger.standing(*there), ledger.changed(*there)

    assert stands() == stands(source="moved") == ("verified", ())
    assert stands(source="tiled") == ("stale", ("launches",))
    assert stands(source="never seen") == ("unknown", ("unknown",))
    assert stands(oracle="other") == ("stale", ("oracle",))
    assert stands(judge="other", source="never seen") == ("stale", ("judge", "unknown"))
    assert ledger.unasked(entry, "softmax") == []
    first = spec.cases[0].text
    assert ledger.unasked(entry | {"asked": asked.replace(launch_keys.digest(first), "")}, "softmax") == [first]


def test_a_time_counts_while_its_workload_launches_the_same(map_file: Callable[..., Path]) -> None:
    spec = catalog.spec("square")
    text, now = spec.workloads[0].text, artifacts.source_hash("torch_ref", "square")
    item, cost = launch_keys.workload(text, "bf16"), spec.hypothetical(spec.workloads[0], torch.bfloat16).cost
    rows = [
        SourceKeys("square", "torch_ref", s, f"{item}cccccc", {"plain": k})
        for s, k in ((now, "111111222222"), ("old", "111111333333"))
    ]
    map_file(*rows)
    time = timings.Time("square", text, "bf16", "torch_ref", "plain", 1.0, "old", cost.bytes, cost.flops)
    assert time.current
    map_file(rows[0], SourceKeys("square", "torch_ref", "old", item, {"plain": "444444"}))
    assert not time.current


def test_new_pins_carry_what_launched_the_same() -> None:
    twice = "aaaaaaaaaaaabbbbbb"  # two cases with one text have one id
    then, now = row("then", "111111", "111111", "222222", asked=twice), row("now", "111111", "999999")
    made = {now.place: row("now", "aaaa11", "bbbb22")}
    old = Keys(1, {}, {then.place: then, now.place: now})
    assert dict(rekey.carried(old, made)) == {then.place: row("then", "aaaa11", "aaaa11", OTHER, asked=twice)}


def test_a_new_format_keeps_what_an_entry_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path))
    entries = {f"square/cuda/{name}": {"oracle": name, "judge": "as then", "source": "x"} for name in ("then", "older")}
    ledger.write({"gpu": "NVIDIA H200", "entries": entries})
    known = Keys(0, {}, {}, {"square": "then", "judge": "as then"}, rekey.texts())
    rekey.restamp(known)
    found = ledger.books()[0]["entries"]
    assert found["square/cuda/then"]["oracle"] == meaning.oracle(catalog.spec("square"))
    assert found["square/cuda/older"]["oracle"] == "older"
    assert {entry["judge"] for entry in found.values()} == {meaning.judge()}
    with pytest.raises(ArgumentError, match="the format of keys has changed, and specs or the judge too"):
        rekey.restamp(replace(known, texts="other"))
    ledger.books.cache_clear()


def test_rekey_computes_what_is_missing_and_says_what_it_shows(
    map_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, said = rekey.versions(), list[str]()
    path = map_file(row("unspoken of", "111111", "222222"), **here)
    now = artifacts.source_hash("torch_ref", "square")
    spec = catalog.spec("square")
    entry = {"oracle": meaning.oracle(spec), "judge": meaning.judge(), "source": "older", "asked": ""}
    book = {"gpu": "NVIDIA H200", "entries": {"square/torch_ref/plain": entry}}
    monkeypatch.setattr(ledger, "books", lambda: (book,))
    monkeypatch.setattr(rekey, "pairs", lambda ops: [("square", "torch_ref")])
    assert rekey.command("missing", ("square",), said.append) == 0
    assert ("square", "torch_ref", now) in launch_keys.read(path).rows
    assert "square/torch_ref/plain on NVIDIA H200: unknown" in said
    keys = launch_keys.read(path).rows["square", "torch_ref", now]
    map_file(keys, SourceKeys("square", "torch_ref", "older", keys.asked, keys.keys), **here)
    assert ledger.status("square", "torch_ref", "plain") == ("verified", ("NVIDIA H200",))
    map_file(keys, **{**here, "triton": "1.0"})
    with pytest.raises(ArgumentError, match=r"--rekey: keys are computed with .*triton 1\.0.*--rekey pins"):
        rekey.command("missing", ("square",), said.append)


def test_names_of_kernels_lines_and_comments_do_not_count_in_ptx() -> None:
    text = """
    .visible .entry softmax_rows(.param .u64 softmax_rows_param_0) // of a row
    {
        .loc 1 7 3
        ld.param.u64 %rd1, [softmax_rows_param_0];
        add.f32 %f1, %f1, 0f3F800000;
    }
    """
    other = text.replace("softmax_rows", "rows").replace("1 7 3", "1 9 1").replace("// of a row", "")
    assert launches.normal(text, "softmax_rows") == launches.normal(other, "rows")
    assert launches.normal(text, "softmax_rows") != launches.normal(
        text.replace("add.f32", "add.ftz.f32"), "softmax_rows"
    )


def test_no_key_of_what_is_right_depends_on_where_objects_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, hashed = [], meaning._hash

    def noted(text: str) -> str:
        texts.append(text)
        return hashed(text)

    monkeypatch.setattr(meaning, "_hash", noted)
    for op in catalog.names():
        meaning.oracle(catalog.spec(op))
    assert texts and not [text for text in texts if " at 0x" in text]
