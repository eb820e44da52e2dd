"""The outcomes as JUnit XML, which most services that run tests can show."""

from __future__ import annotations

import io
import re
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from kernelmux.conformance.report import output_files
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.tested_backends import Tested

UNLAWFUL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def write(path: Path, outcomes: list[Outcome], seconds: float, told: Tested, errors: list[str]) -> None:
    """Write the file: a case per item, of the class operator.backend; an expected failure counts as skipped.

    Where there are several cards, the class is operator.backend.card. A backend that lacks a package, and what is wrong
    with the run as a whole, is an error of a case of its own.
    """
    suite = TestSuite("conformance")
    suite.add_property("tested", _lawful(str(told)))
    suite.add_testcases([*map(_case, outcomes), *(_error(_lawful(text)) for text in (*told.failures, *errors))])
    suite.time = round(seconds, 3)
    whole, content = JUnitXml(), io.BytesIO()
    whole.add_testsuite(suite)
    whole.write(content, pretty=True)
    output_files.write(path, content.getvalue().decode())


def _lawful(text: str) -> str:
    return UNLAWFUL.sub("?", text)


def _case(outcome: Outcome) -> TestCase:
    item, text = outcome.item, _lawful(outcome.text)
    name = item.id.removeprefix(f"{item.op}-{item.backend}").lstrip("/-")
    place = f".{outcome.card}" if outcome.card else ""
    case = TestCase(name, f"{item.op}.{item.backend}{place}", round(outcome.seconds, 3))
    if outcome.status == "failed":
        case.result = _with_text(Failure(_first(text)), text)
    elif outcome.status != "passed":
        case.result = Skipped(_first(text))
    return case


def _error(text: str) -> TestCase:
    case = TestCase("run", "conformance", 0.0)
    case.result = _with_text(Error(_first(text)), text)
    return case


def _with_text(result: Failure | Error, text: str) -> Failure | Error:
    result.text = text
    return result


def _first(text: str) -> str:
    return text.partition("\n")[0]
