"""The outcomes as JUnit XML, which most services that run tests can show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from kernelmux.conformance import files, report
from kernelmux.conformance.execute import Outcome

UNLAWFUL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def write(path: Path, outcomes: list[Outcome], seconds: float) -> None:
    """Write the file: a case per item, of the class operator.backend; an expected failure counts as skipped."""
    counts = report.counts(outcomes)
    numbers = {"tests": len(outcomes), "failures": counts["failed"], "errors": 0, "skipped": counts["skipped"]}
    given = {name: str(number) for name, number in numbers.items()} | {"time": f"{seconds:.3f}"}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "conformance", **given})
    for outcome in outcomes:
        _case(suite, outcome)
    ElementTree.indent(suites)
    files.write(path, f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n')


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    item, text = outcome.item, UNLAWFUL.sub("?", outcome.text)
    name = item.id.removeprefix(f"{item.op}-{item.backend}").lstrip("/-")
    attributes = {"classname": f"{item.op}.{item.backend}", "name": name, "time": f"{outcome.seconds:.3f}"}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    first = text.splitlines()[0] if text else ""
    if outcome.status == "failed":
        ElementTree.SubElement(case, "failure", message=first).text = text
    elif outcome.status != "passed":
        ElementTree.SubElement(case, "skipped", message=first)
