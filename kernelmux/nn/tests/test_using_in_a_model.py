"""docs/using_in_a_model.md, typed in by a machine: its snippets run in their order, and print what it says."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOP = Path(__file__).parents[3]
PAGE = (TOP / "docs/using_in_a_model.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.filterwarnings("ignore:layer_norm. a call of a module that patch.. swapped")  # as the page says
def test_the_snippets_run_and_print_what_the_page_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="bazel/requirements.lock has it")
    torch.manual_seed(0)
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # the compiler of torch imports where functions come from
    for number, snippet in enumerate(blocks("python"), 1):
        exec(compile(snippet, f"snippet {number} of using_in_a_model.md", "exec"), page.__dict__)
    assert len(blocks("python")) == 15
    assert capsys.readouterr().out.startswith(blocks("text")[0])


def test_the_programs_of_the_page_are_there() -> None:
    named = set(re.findall(r"examples/\w+\.py", PAGE))
    assert named == {f"examples/{name}.py" for name in ("tiny_transformer", "draw_losses", "llama_block")}
    assert all((TOP / name).is_file() for name in named)
    assert (TOP / "docs/images/losses.svg").is_file()
