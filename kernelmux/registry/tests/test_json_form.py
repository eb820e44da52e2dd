"""--json: one strict document on stdout that holds what the text shows, with the exit status of the text."""

import json

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings
from kernelmux.registry.choice import precedence
from kernelmux.registry.choice.decide import decide
from kernelmux.registry.cli import doctor, json_form, main
from kernelmux.registry.tests import made_up

CALL = ("explain", "softmax", "--shape")


def strict(text):
    def refused(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refused)


def answer(capsys, *words, status=0):
    assert main.main([*words, "--json"]) == status
    shown = capsys.readouterr()
    assert not shown.err
    return strict(shown.out)


def test_list_has_every_variant_in_ladder_order(capsys):
    found = answer(capsys, "list")
    assert found["backends"] == list(registered.backend_names())
    assert [op["name"] for op in found["operators"]] == list(catalog.names())
    softmax = next(op for op in found["operators"] if op["name"] == "softmax")
    assert softmax["variants"] == {name: list(registered.variants(name, "softmax")) for name in found["backends"]}


def test_what_cannot_be_loaded_has_its_reason(capsys, monkeypatch):
    known = registered.variants

    def variants(name, op):
        if name == "triton":
            raise RuntimeError("broken")
        return known(name, op)

    monkeypatch.setattr(registered, "variants", variants)
    (first, *_) = answer(capsys, "list")["operators"]
    assert first["unavailable"] == {"triton": "RuntimeError: broken"} and "triton" not in first["variants"]
    assert answer(capsys, "show", "softmax")["unavailable"] == {"triton": "RuntimeError: broken"}


def test_show_has_formula_arguments_cases_and_conditions(capsys):
    spec, found = catalog.spec("softmax"), answer(capsys, "show", "softmax")
    assert (found["math"], found["version"], found["hash"]) == (spec.math, spec.version, spec.hash)
    assert [a["name"] for a in found["arguments"]] == ["x", "axis", "scale"]
    assert [case["text"] for case in found["cases"]] == [case.text for case in spec.cases]
    assert found["workloads"] == [case.text for case in spec.workloads]
    by_name = {f"{i['backend']}/{i['variant']}": i for i in found["implementations"]}
    assert by_name["cuda/registers"]["conditions"] == ["N <= 32768"]
    assert by_name["cuda/registers"]["layout"] == {"x": "contiguous"} and by_name["cuda/registers"]["arithmetic"]
    assert by_name["torch_ref/plain"]["also_rounds"] and by_name["torch_ref/exact"]["also_rounds"] is None


def test_explain_has_the_choice_and_each_condition(capsys):
    found = answer(capsys, *CALL, "x=3x40000:bf16", "--backend", "cuda/registers,torch_ref")
    assert found["chosen"] == "torch_ref/exact" and found["requested"]["names"] == ["cuda/registers", "torch_ref"]
    assert found["call"]["arguments"]["x"] == {"dtype": "bf16", "shape": [3, 40000], "strides": [40000, 1]}
    assert found["call"]["arguments"]["scale"] == 1.0
    candidates = {c["name"]: c for c in found["candidates"]}
    assert candidates["cuda/registers"]["unmet"] == [{"reason": "N = 40000, needs N <= 32768", "remedy": None}]
    assert candidates["cuda/online"]["able"] and not candidates["cuda/online"]["asked"]
    assert found["fallbacks"] == [{"name": "cuda/registers", "unmet": ["N = 40000, needs N <= 32768"]}]


def test_remedies_are_those_of_the_text(capsys):
    words = ("explain", "matmul", "--shape", "a=64x63:fp16,b=63x64:fp16", "--device", "sm_90")
    found, told = answer(capsys, *words), []
    for candidate in found["candidates"]:
        told += [f"no: {u['reason']}" + (f" -> {u['remedy']}" if u["remedy"] else "") for u in candidate["unmet"]]
    main.main(list(words))
    text = " ".join(capsys.readouterr().out.split())
    assert any("->" in line for line in told) and all(line in text for line in told)


def test_a_call_that_nothing_can_run_is_a_document_and_status_1(capsys):
    found = answer(capsys, *CALL, "x=3x40000", "--backend", "cuda/registers", status=1)
    assert found["chosen"] is None and found["requested"]["strict"]


@pytest.mark.parametrize("words", [(*CALL, "y=3"), ("show", "softmx"), ("support", "softmx"), ("explain", "softmax")])
def test_an_error_is_a_line_on_stderr_and_nothing_on_stdout(words, capsys):
    try:
        assert main.main([*words, "--json"]) == 2
    except SystemExit as end:  # argparse's
        assert end.code == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.count("\n") == 1


def test_the_times_that_a_choice_relied_on(monkeypatch):
    near = timings.Nearest("NVIDIA H200", "x=4x100", "bf16", {"torch_ref/plain": 2.0, "torch_ref/exact": 1.5})
    monkeypatch.setattr(timings, "nearest", lambda call: near)
    spec = catalog.spec("softmax")
    call = spec.hypothetical(spec.case("x=4x100"), device=torch.device("cpu"))
    found = json_form.decision(decide(call, precedence.requested("softmax", None, call), thorough=True))
    told = {"gpu": "NVIDIA H200", "workload": "x=4x100", "dtype": "bf16", "times": near.times}
    assert found["measured"] == told | {"alike": False, "older": ""}
    assert found["requested"]["source"] == near.source


def test_support_has_dtypes_conditions_and_problems(capsys):
    found = answer(capsys, "support", "softmax", "--device", "sm_90")
    entries = {f"{e['backend']}/{e['variant']}": e for e in found["entries"]}
    assert found["device"] == "sm_90" and entries["cuda/registers"]["conditions"] == ["N <= 32768"]
    assert entries["triton/online"]["able"] and entries["triton/online"]["problem"] is None
    assert "bf16" in entries["triton/online"]["dtypes"]


def test_doctor_has_facts_by_name_and_problems(capsys, monkeypatch):
    found = answer(capsys, "doctor")
    sections = {s["title"]: s for s in found["sections"]}
    facts = {fact["name"]: fact["value"] for fact in sections["packages"]["facts"]}
    assert facts["torch"].startswith(torch.__version__.partition("+")[0]) and found["problems"] == 0
    health = [(f["name"], f["device"]) for f in sections["backends"]["facts"] if f["value"] == "yes"]
    assert ("torch_ref", "cpu") in health
    monkeypatch.setattr(doctor, "SECTIONS", {"caches": lambda: iter(["! kernels: no folder", "a sentence"])})
    found = answer(capsys, "doctor", status=1)
    fact = {"name": None, "device": None, "value": "a sentence"}
    assert found["sections"] == [{"title": "caches", "facts": [fact], "problems": ["kernels: no folder"]}]
    assert found["problems"] == 1


def test_the_text_of_doctor_and_its_document_are_of_the_same_lines():
    for section in doctor.report():
        assert len(section.facts) + section.problems == len(section.lines)
        for fact in section.facts:
            assert fact.value in fact and (fact.device or fact.name is None or fact.startswith(fact.name))


def test_a_number_that_json_does_not_have_is_null():
    given = {"a": [float("inf"), -float("inf"), float("nan"), 1.5], "b": (1, True, None, "x")}
    assert strict(json_form.text(given)) == {"a": [None, None, None, 1.5], "b": [1, True, None, "x"]}


def test_without_packages_the_documents_say_what_is_missing():
    script = """
from kernelmux.registry.cli import main as cli
for words in ("doctor", "support"):
    assert cli.main([words, "--json"]) == 0
"""
    done = made_up.python(made_up.without("triton", "cupy", "nvidia") + script, CUDA_HOME="/nowhere")
    assert not done.returncode and not done.stderr and "pip install triton" in done.stdout
