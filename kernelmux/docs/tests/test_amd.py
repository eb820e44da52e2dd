"""amd.md: no Triton kernel is missing from its tables."""

import re
from pathlib import Path

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup

PAGE = Path(__file__).parents[3] / "docs/amd.md"


def test_every_triton_variant_is_in_a_table() -> None:
    tables = PAGE.read_text(encoding="utf-8").partition("<!-- amd -->")[2].partition("<!-- /amd -->")[0]
    named = re.findall(r"`(\w+)` (\w+)", tables)
    wanted = [(op, variant) for op in catalog.names() for variant in lookup.variants("triton", op)]
    assert wanted and [one for one in wanted if one not in named] == []
