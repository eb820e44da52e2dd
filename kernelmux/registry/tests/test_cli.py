"""The command line: what it prints and how it ends."""

import functools
import importlib.util
import os
import shlex
import subprocess
import sys

import pytest

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cli import main, terminal


def run(capsys, *arguments):
    code = main.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_names_operators_and_variants(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0 and "softmax" in out and "exact" in out


def test_show_gives_formula_arguments_and_implementations(capsys):
    code, out, _ = run(capsys, "show", "softmax")
    assert code == 0 and "exp(scale*x - m)" in out and "torch_ref/exact" in out


def test_explain_judges_a_call_from_its_shapes(capsys):
    code, out, _ = run(capsys, "explain", "softmax", "--shape", "x=4096x8192:bf16,axis=0", "--backend", "torch_ref")
    assert code == 0 and "chosen: torch_ref/exact" in out and "x bf16[4096, 8192]" in out and "axis=0" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("explain", "softmx", "--shape", "x=3"), 'did you mean "softmax"'),
        (
            ("explain", "softmax", "--shape", "y=3"),
            'unknown argument "y" in the shapes of softmax; known: x, axis, scale',
        ),
        (
            ("explain", "softmax", "--shape", "axis=0"),
            "expected all of x in 'axis=0', got none for x; the signature is (x, axis=-1, scale=1.0)",
        ),
        (("explain", "softmax", "--shape", "x=3x4,dim=0.5"), 'unknown argument "dim"'),
        (("explain", "softmax", "--shape", "x=3x4", "--device", "tpu"), "expected cpu, cuda"),
        (("explain", "softmax", "--shape", "x=3x4", "--backend", "cudda"), 'did you mean "cuda"'),
        (("explain", "softmax", "--shape", "x=3x4", "--device", "sm_9"), "a capability such as sm_90, got 'sm_9'"),
        (("explain", "softmax", "--shape", "x=4xx5"), "x: expected lengths such as 4x1000"),
        (("explain", "softmax", "--shape", "x=tanh"), "x: expected lengths such as 4x1000"),
        (("explain", "softmax", "--shape", "x=1e3:fp16"), "x: expected lengths such as 4x1000"),
        (("explain", "softmax", "--shape", "x=4,x=5x5"), "x is given twice"),
        (("explain", "softmax", "--shape", "x=999999999999x99999999999"), "at most 2**58 elements"),
        (("explain", "softmax", "--shape", "x=4x5,axis=4x5"), "axis: expected a number"),
        (("explain", "softmax", "--shape", "x=4x5,scale=0.5.5"), "scale: expected a number"),
        (("explain", "copy_column", "--shape", "x=4x5"), "got none for column"),
        (("explain", "softmax", "--shape", "x=3", "--card", "rtx4909"), 'in --card; did you mean "rtx4090"?'),
        (("explain", "softmax", "--shape", "x=3", "--card", "sm_99"), "--card: expected a compute capability of 7.5"),
        (
            ("explain", "softmax", "--shape", "x=3", "--card", "t4", "--device", "sm_90"),
            "--device: expected cpu or nothing beside --card t4, got 'sm_90'",
        ),
        (("support", "--card", "h1000"), 'did you mean "h100"?'),
        (("support", "--cards", "--card", "t4"), "--cards: tells of every card; leave out --card"),
        (("support", "--cards", "--device", "cpu"), "--cards: tells of every card; leave out --device"),
        (("support", "softmx", "--cards"), 'did you mean "softmax"'),
    ],
)
def test_mistakes_are_explained(capsys, arguments, text):
    code, _, err = run(capsys, *arguments)
    assert code == 2 and text in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("nothing",), ("explain", "softmax"), ("list", "--all")])
def test_wrong_words_take_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        main.main(list(arguments))
    assert end.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_no_words_are_a_question_for_help(capsys):
    code, out, _ = run(capsys)
    assert code == 0 and all(name in out for name in (*main.PROVIDED, *main.PROGRAMS))


def test_a_command_that_is_nearly_one(capsys):
    with pytest.raises(SystemExit):
        main.main(["conformanc"])
    assert 'did you mean "conformance"?' in capsys.readouterr().err


def test_a_command_of_a_checkout_alone(capsys, monkeypatch):
    monkeypatch.setattr(main, "find_spec", lambda name: None)
    code, _, err = run(capsys, "docs")
    assert code == 2 and "docs: expected a checkout of kernelmux" in err
    monkeypatch.undo()
    monkeypatch.setitem(main.PROGRAMS, "docs", ("kernelmux.no_such_part.docs", ""))
    assert run(capsys, "docs")[0] == 2


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"kernelmux {kx.__version__}\n"


def test_a_call_is_judged_by_a_card(capsys):
    words = ("explain", "matmul", "--shape", "a=64x64:bf16,b=64x64:bf16", "--backend", "cuda", "--card")
    code, out, _ = run(capsys, *words, "rtx4090")
    assert code == 0 and "on cuda (sm_89)" in out and "the GPU is sm_89, needs sm_90" in out
    assert "cuda/wgmma                   no" not in run(capsys, *words, "h100")[1]
    code, out, _ = run(capsys, *words, "sm_89", "--device", "cpu")
    assert code == 0 and "chosen: cuda/" in out and "the GPU is sm_89, needs sm_90" in out


def test_a_card_has_the_times_of_its_kind_and_a_capability_none(capsys):
    words = ("explain", "silu", "--shape", "x=8192x8192:bf16")
    assert "(from auto: measured on NVIDIA H200" in run(capsys, *words, "--card", "h200")[1]
    assert "requested: auto (from auto)" in run(capsys, *words, "--device", "sm_90")[1]


def test_a_question_about_another_gpu_does_not_depend_on_what_is_installed_here(capsys, monkeypatch):
    monkeypatch.setattr(registered, "unavailable", lambda name, device: "the package cupy is not installed")
    arguments = ("explain", "softmax", "--shape", "x=4096x8192:bf16", "--device")
    code, out, _ = run(capsys, *arguments, "sm_90")
    assert code == 0 and "chosen: cuda/" in out and "cupy" not in out
    code, out, _ = run(capsys, *arguments, "cpu")
    assert code == 1 and "no: the package cupy is not installed" in out


def test_a_backend_that_raises_is_one_cell_of_each_table(capsys, monkeypatch):
    """And its brackets are no markup."""
    names = registered.backend_names()

    def raises(name, *rest, known):
        if name == "theirs":
            raise RuntimeError("[/bold] broken [x")
        return known(name, *rest)

    for function in ("variants", "unavailable", "backend"):
        known = getattr(registered, function)
        monkeypatch.setattr(registered, function, functools.partial(raises, known=known))
    monkeypatch.setattr(registered, "backend_names", lambda: (*names, "theirs"))
    for words in (("list",), ("show", "softmax"), ("doctor",)):
        _, out, err = run(capsys, *words)
        assert "[/bold]" in out and "torch_ref" in out and not err


def test_ctrl_c_and_a_closed_pipe_end_quietly(capsys, monkeypatch):
    def ends(error):
        def command(console, options):
            raise error

        monkeypatch.setitem(main.COMMANDS, "list", command)
        return run(capsys, "list")

    assert ends(KeyboardInterrupt()) == (130, "", "kernelmux: interrupted\n")


@pytest.mark.parametrize("redirection", ["| head -c 1 >/dev/null", ">&-"])
def test_nothing_is_said_where_nothing_reads(redirection):
    code = "import sys; from kernelmux.registry.cli.main import main; sys.exit(main(['show', 'attention']))"
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {redirection}"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    found = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, text=True, check=False)
    assert found.stderr == ""


def test_doctor_reports_every_backend(capsys):
    _, out, _ = run(capsys, "doctor")
    assert "torch_ref" in out and "cuda" in out and "triton" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("explain softmax --shpae x=3", 'kernelmux explain: unrecognized arguments: --shpae; did you mean "--shape"?'),
        ("explain softmax --shape x=3 --bakend=cuda", '--bakend=cuda; did you mean "--backend"?'),
        ("list --jsn", '--jsn; did you mean "--json"?'),
        ("explain softmax", "the following arguments are required: --shape (--help"),
        ("list --xyzzy", "unrecognized arguments: --xyzzy (--help"),
        ("--versoin", 'did you mean "--version"?'),
    ],
)
def test_a_misspelt_option_gets_the_nearest_of_its_command(capsys, words, told):
    with pytest.raises(SystemExit) as end:
        main.main(words.split())
    err = capsys.readouterr().err
    assert end.value.code == 2 and told in err and err.count("\n") == 1


def test_a_program_says_which_command_started_it():
    assert terminal.program("kernelmux.perf") == "python -m kernelmux.perf"
    with pytest.raises(KeyError), terminal.started_as("kernelmux perf"):
        assert terminal.program("kernelmux.perf") == "kernelmux perf"
        raise KeyError
    assert terminal.program("kernelmux.perf") == "python -m kernelmux.perf"


def test_without_shtab_completion_says_what_to_install(capsys, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "shtab" else known(name))
    assert run(capsys, "completion", "bash") == (2, "", "kernelmux: completion: needs shtab: pip install shtab\n")


def test_options_of_a_command_that_cannot_be_loaded_are_left_out_and_that_is_said(capsys, monkeypatch):
    pytest.importorskip("shtab")
    monkeypatch.setattr(main, "PROVIDED", {"theirs": ("kernelmux.registry.nowhere", "made up")})
    monkeypatch.setattr(main, "PROGRAMS", {})
    code, out, err = run(capsys, "completion", "bash")
    assert code == 0 and "theirs" in out
    assert (
        err
        == "kernelmux completion: the options of theirs are left out: No module named 'kernelmux.registry.nowhere'\n"
    )
