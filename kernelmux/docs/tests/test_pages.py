"""The pages that teach, typed in by a machine: snippets print what the page shows, links and tables are there."""

import contextlib
import io
import re
import runpy
import shlex
import warnings
from pathlib import Path

import pytest
import torch

from kernelmux.docs import ladder_pictures
from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup
from kernelmux.registry.cli import main

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (
    "softmax",
    "matmul",
    "transpose",
    "reduce_sum",
    "conv2d",
    "debugging",
    "roofline",
    "measuring",
    "cuda_graphs",
    "fusing",
    "attention",
    "reduce_the_bytes",
    "trace",
    "writing_a_spec",
)
OTHERS = tuple(sorted(path.stem for path in DOCS.glob("*.md") if path.stem not in {*PAGES, "README"}))
LADDERS = tuple(ladder_pictures.CALLS)
BREAK = "\0"


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def linked(page: str) -> list[str]:
    """What the links of a text lead to, but for addresses and code."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)


def shown(page: str) -> list[tuple[str, str | None]]:
    """The Python of a page with what stands below it as its output."""
    form = r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?"
    return [(m[1], m[2]) for m in re.finditer(form, text(page), re.DOTALL | re.MULTILINE)]


def printed(page: str, folder: Path) -> list[str]:
    """What each snippet of a page prints; they run in their order as one file: Triton reads the sources of kernels."""
    path = folder / f"{page}.py"
    path.write_text(f"\nprint({BREAK!r}, end='')\n".join(code for code, _ in shown(page)), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as told:
        runpy.run_path(str(path))
    return told.getvalue().split(BREAK)


needs_emulator = pytest.mark.skipif(
    nvrtc.unavailable() is not None or torch.cuda.is_available(), reason="the snippets count on the emulator"
)


@needs_emulator
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in text(page)])
def test_the_snippets_print_what_the_page_shows(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are emulated
        found = printed(page, tmp_path)
    for got, (_, wanted) in zip(found, shown(page), strict=True):
        assert wanted is None or got == wanted


@needs_emulator
@pytest.mark.parametrize(
    "command",
    [
        line
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("kernelmux ")
    ],
)
def test_the_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("page", [*PAGES, "README", *OTHERS])
def test_links_lead_somewhere(page: str) -> None:
    assert not [link for link in linked(text(page)) if not (DOCS / link).exists()]


def anchors(path: Path) -> set[str]:
    """The headings of a page as links name them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", [*DOCS.glob("*.md"), *DOCS.glob("operators/*.md"), DOCS.parent / "README.md"], ids=str)
def test_a_link_into_a_page_meets_a_heading(path: Path) -> None:
    links = re.findall(r"\]\(([^)#: ]*\.md|)#([^)]+)\)", path.read_text(encoding="utf-8"))
    assert not [
        f"{page}#{anchor}" for page, anchor in links if anchor not in anchors(path.parent / page if page else path)
    ]


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    links = linked(readme)
    assert links and not [link for link in links if not (DOCS.parent / link).exists()]
    generated = re.search("<!-- cards -->.*<!-- /cards -->\n", readme, re.DOTALL)
    assert generated and len(readme.replace(generated[0], "").splitlines()) <= 150
    assert f"** {len(catalog.names())} operators" in readme  # as many as there are
    order = [readme.index(part) for part in ("<picture>", "\n## Install\n", "\n## Use\n", "\nnox ", "\n## Pages\n")]
    assert order == sorted(order)


def test_the_index_names_every_page() -> None:
    named = set(re.findall(r"\]\((\w+)\.md\)", text("README")))
    assert named == {path.stem for path in DOCS.glob("*.md")} - {"README"}


@pytest.mark.parametrize("op", LADDERS)
def test_a_ladder_has_its_table_its_picture_and_a_word_on_each_rung(op: str) -> None:
    page, picture = text(op), ladder_pictures.path_of(op).read_text(encoding="utf-8")
    assert f"<!-- rungs {op}" in page and f"(images/{op}_ladder_counts.svg)" in page
    for name in ("cuda", "triton"):
        assert not [rung for rung in lookup.variants(name, op) if f"**{rung}**" not in page and f"`{rung}`" not in page]
    assert all(f">{rung}</text>" in picture for rung in ladder_pictures.rungs(op))
    assert "prefers-color-scheme:dark" in picture


@pytest.mark.parametrize("page", [*LADDERS, "attention"])
def test_quoted_code_stands_in_a_file_that_the_page_links(page: str) -> None:
    """A line `...` is left out, and so is what `...` stands for inside of a line."""
    files = [DOCS / link for link in linked(text(page)) if Path(link).suffix in {".cu", ".cuh"}]
    sources = [" ".join(path.read_text(encoding="utf-8").split()) for path in files]
    quoted = [line for block in blocks(page, "cuda") for line in block.splitlines() if line.strip() != "..."]
    forms = [".*?".join(map(re.escape, " ".join(line.split()).split("..."))) for line in quoted]
    missing = [line for line, form in zip(quoted, forms, strict=True) if not any(re.search(form, s) for s in sources)]
    assert len(quoted) > 1 and not missing


@needs_emulator
@pytest.mark.parametrize("op", ["transpose", "softmax"])
def test_a_picture_is_that_of_the_kernels_as_they_are(op: str) -> None:
    shape = ladder_pictures.CALLS[op]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rungs = ladder_pictures.counted(op, shape, ladder_pictures.rungs(op))
    wanted = ladder_pictures.picture(op, shape, rungs)
    assert ladder_pictures.path_of(op).read_text(encoding="utf-8") == wanted, "python -m kernelmux.docs --pictures"
