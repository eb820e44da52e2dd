"""Lines of a picture's file: shapes of one part share them, up to a length, and nothing stands between the shapes."""

import re

from kernelmux.emulator.tracing.drawing.svg import LONGEST, Canvas


def test_shapes_of_a_part_share_lines() -> None:
    canvas = Canvas()
    for part in range(2):
        canvas.part()
        for i in range(40):
            canvas.rect(i, part, 1, 1, "#000000", title=f"shape {i}")
    lines = [line for line in canvas.image(40, 2).splitlines() if "<title>" in line]
    told = "".join(lines)
    assert max(map(len, lines)) <= LONGEST and len(lines) < 12 and told.count("<rect ") == 80
    assert re.sub(r">\s+<", "><", told) == told
    assert [line for line in lines if 'y="1"' in line and 'y="0"' in line] == []
