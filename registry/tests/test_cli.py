"""The command line: what it prints and how it ends."""

import pytest

from kernelmux.registry import cli


def run(capsys, *arguments):
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_names_operators_and_variants(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0 and "softmax" in out and "eager" in out


def test_show_gives_formula_arguments_and_implementations(capsys):
    code, out, _ = run(capsys, "show", "softmax")
    assert code == 0 and "exp(scale*x - m)" in out and "torch_ref/eager" in out


def test_explain_judges_a_call_from_its_shapes(capsys):
    code, out, _ = run(capsys, "explain", "softmax", "--shape", "x=4096x8192:bf16,axis=0", "--backend", "torch_ref")
    assert code == 0 and "chosen: torch_ref/eager" in out and "x bf16[4096, 8192]" in out and "axis=0" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("explain", "softmx", "--shape", "x=3"), 'did you mean "softmax"'),
        (("explain", "softmax", "--shape", "y=3"), "missing x"),
        (("explain", "softmax", "--shape", "x=3x4,y=3x4"), "unknown y"),
        (("explain", "softmax", "--shape", "x=3x4,dim=0.5"), "unknown argument dim"),
        (("explain", "softmax", "--shape", "x=3x4", "--device", "tpu"), "expected cpu, cuda"),
        (("explain", "softmax", "--shape", "x=3x4", "--backend", "cudda"), 'did you mean "cuda"'),
    ],
)
def test_mistakes_are_explained(capsys, arguments, text):
    code, _, err = run(capsys, *arguments)
    assert code == 2 and text in " ".join(err.split())


def test_doctor_reports_every_backend(capsys):
    _, out, _ = run(capsys, "doctor")
    assert "torch_ref" in out and "cuda" in out and "triton" in out
