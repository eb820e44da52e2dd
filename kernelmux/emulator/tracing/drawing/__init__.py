"""The picture of a trace: SVG without anything from outside, alone or in an HTML page."""
