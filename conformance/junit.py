"""The outcomes as JUnit XML, which most services that run tests can show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from kernelmux.conformance import files, report
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.tested import Tested

UNLAWFUL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def write(path: Path, outcomes: list[Outcome], seconds: float, told: Tested, errors: list[str]) -> None:
    """Write the file: a case per item, of the class operator.backend; an expected failure counts as skipped.

    A backend that lacks a package, and what is wrong with the run as a whole, is an error of a case of its own.
    """
    counts, wrong = report.counts(outcomes), [*told.failures, *errors]
    numbers = {"tests": len(outcomes) + len(wrong), "failures": counts["failed"], "errors": len(wrong)}
    numbers["skipped"] = counts["skipped"]
    given = {name: str(number) for name, number in numbers.items()} | {"time": f"{seconds:.3f}"}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "conformance", **given})
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="tested", value=_lawful(str(told)))
    for outcome in outcomes:
        _case(suite, outcome)
    for text in map(_lawful, wrong):
        case = ElementTree.SubElement(suite, "testcase", classname="conformance", name="run", time="0.000")
        ElementTree.SubElement(case, "error", message=text.partition("\n")[0]).text = text
    ElementTree.indent(suites)
    files.write(path, f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n')


def _lawful(text: str) -> str:
    return UNLAWFUL.sub("?", text)


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    item, text = outcome.item, _lawful(outcome.text)
    name = item.id.removeprefix(f"{item.op}-{item.backend}").lstrip("/-")
    attributes = {"classname": f"{item.op}.{item.backend}", "name": name, "time": f"{outcome.seconds:.3f}"}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    first = text.splitlines()[0] if text else ""
    if outcome.status == "failed":
        ElementTree.SubElement(case, "failure", message=first).text = text
    elif outcome.status != "passed":
        ElementTree.SubElement(case, "skipped", message=first)
