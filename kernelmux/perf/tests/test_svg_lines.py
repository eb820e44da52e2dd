"""A picture as a file: small groups share a line, nothing else changes."""

import re

from kernelmux.perf.pictures import figures


def test_a_small_group_is_a_line_and_a_large_one_keeps_its_lines() -> None:
    mark = '   <g id="tick_1">\n    <path d="M 0 0"/>\n    <text>1</text>\n   </g>\n'
    text = f"<svg>\n <defs>\n  <style>a</style>\n </defs>\n <g id='axes'>\n{mark * 30}   <line/>\n </g>\n</svg>\n"
    made = figures.joined(text)
    assert made.count('   <g id="tick_1"><path d="M 0 0"/><text>1</text></g>\n') == 30
    assert " <defs><style>a</style></defs>\n <g id='axes'>\n" in made and made.endswith("   <line/>\n </g>\n</svg>\n")
    assert re.sub(r">\s+<", "><", made) == re.sub(r">\s+<", "><", text)


def test_what_is_in_one_line_already_stays() -> None:
    text = '<svg>\n <g id="a"><path/></g>\n <g id="b"/>\n <defs><clipPath id="c"><rect/></clipPath></defs>\n</svg>\n'
    assert figures.joined(text) == text and figures.joined(figures.joined(text)) == text
