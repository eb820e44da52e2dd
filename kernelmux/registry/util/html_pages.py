"""Reports as one HTML page that needs nothing else: the style inside, no scripts, no fonts, no links to elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("style.css")


def rendered(template: Path, context: Mapping[str, Any], filters: Mapping[str, Any]) -> str:
    """The text of a page: a template of Jinja with `style`, and what the context and the filters give it."""
    import jinja2
    from markupsafe import Markup

    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    made.filters.update(filters)
    style = Markup(STYLE.read_text(encoding="utf-8").rstrip())
    return made.from_string(template.read_text(encoding="utf-8")).render(style=style, **context)
