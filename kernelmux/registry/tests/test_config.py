"""The configuration file: where it is found, which rule fits, and the text of each mistake."""

import os
import re
from pathlib import Path

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import config_file, precedence, predicate
from kernelmux.registry.cli import main
from kernelmux.registry.errors import ArgumentError, KernelmuxError, UnknownName


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """A folder without a configuration above it, and nothing read yet."""
    before = dict(os.environ)
    monkeypatch.delenv("KERNELMUX_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    precedence.reread()
    yield
    monkeypatch.undo()
    os.environ.clear()
    os.environ.update(before)
    precedence.reread()


def write(text, name="choice.toml", ask=True):
    path = Path(name).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if ask:
        os.environ["KERNELMUX_CONFIG"] = str(path)
    precedence.reread()
    return path


def asked(op, text, dtype=torch.float32, **machine):
    """Names and source of the request for a case of an operator."""
    spec = catalog.spec(op)
    found = precedence.requested(op, None, spec.hypothetical(spec.case(text), dtype, **machine))
    return ",".join(found.names), found.source.rpartition(", ")[2]


CUDA = torch.device("cuda")
RULES = """
backend = "triton"
[[rules]]
op = ["softmax", "log_softmax"]
dtype = ["bf16", "float16"]
where = "N >= 64 and N % 8 == 0"
backend = ["cuda", "triton"]
[[rules]]
device = "sm_90"
backend = "cuda"
[[rules]]
op = "matmul"
device = ["cpu", "sm_100"]
where = "precision in ('ieee', 'tf32') and not M * N < K"
backend = "torch_ref/exact"
"""


@pytest.mark.parametrize(
    ("op", "text", "dtype", "machine", "expected"),
    [
        ("softmax", "x=4x64", torch.bfloat16, {}, ("cuda,triton", "rule 1")),
        ("log_softmax", "x=4x64", torch.float16, {"device": CUDA, "capability": (9, 0)}, ("cuda,triton", "rule 1")),
        ("softmax", "x=4x60", torch.bfloat16, {}, ("triton", "backend")),
        ("softmax", "x=4x68", torch.bfloat16, {"device": CUDA, "capability": (9, 0)}, ("cuda", "rule 2")),
        ("softmax", "x=4x64", torch.float32, {"device": CUDA, "capability": (8, 0)}, ("triton", "backend")),
        ("softmax", "x=64x3 axis=0", torch.bfloat16, {}, ("cuda,triton", "rule 1")),
        ("matmul", "a=4x64 b=64x64", torch.float32, {}, ("torch_ref/exact", "rule 3")),
        ("matmul", "a=4x64 b=64x4", torch.float32, {}, ("triton", "backend")),
        (
            "matmul",
            "a=4x64 b=64x64",
            torch.float32,
            {"device": CUDA, "capability": (10, 0)},
            ("torch_ref/exact", "rule 3"),
        ),
        ("add", "x=8 y=8", torch.float32, {}, ("triton", "backend")),
    ],
)
def test_the_first_rule_that_fits_speaks_then_the_general_choice(op, text, dtype, machine, expected):
    write(RULES)
    assert asked(op, text, dtype, **machine) == expected


def test_a_real_call_obeys_and_calls_of_other_shapes_are_chosen_apart():
    path = write('[[rules]]\nop = "softmax"\nwhere = "N == 3"\nbackend = "cuda/nonsense"\n')
    assert dispatch.which("softmax", torch.zeros(2, 4)) == "torch_ref/exact"
    dispatch.function("softmax")(torch.zeros(2, 4))
    for ask in (dispatch.function("softmax"), lambda x: dispatch.which("softmax", x)):
        with pytest.raises(UnknownName) as caught:
            ask(torch.zeros(2, 3))
        assert str(caught.value).startswith(
            f'unknown variant of cuda for softmax "nonsense" in {path}, rule 1; known: '
        )


def test_explain_tells_file_and_rule_on_the_command_line_too(capsys):
    path = write('[[rules]]\nop = "softmax"\nwhere = "N == 3"\nbackend = "torch_ref"\n')
    text = str(dispatch.explain("softmax", torch.zeros(2, 3)))
    assert f"requested: torch_ref (from {path}, rule 1; strict)" in text
    assert main.main(["explain", "softmax", "--shape", "x=2x3"]) == 0
    assert f"{path}, rule 1; strict" in capsys.readouterr().out


def test_without_a_call_those_rules_speak_that_look_at_the_operator_alone():
    write('[[rules]]\ndtype = "bf16"\nbackend = "cuda"\n[[rules]]\nop = "add"\nbackend = "triton"\n')
    assert precedence.requested("add", None).names == ("triton",)
    assert precedence.requested("softmax", None).names == ("auto",)


def test_a_call_without_an_axis_that_a_rule_names_does_not_fit():
    spec = catalog.spec("rms_norm")
    write('[[rules]]\nop = "rms_norm"\nwhere = "eps < 1.0"\nbackend = "triton"\n')
    assert spec is not None and asked("rms_norm", "x=4x8 weight=8") == ("triton", "rule 1")
    call = spec.hypothetical(spec.case("x=4x8 weight=8"))
    absent = predicate.Predicate("B > 1", "here", frozenset({"B"}), compile("B > 1", "", "eval"))
    assert not absent.holds(call)


# --- where it is found ------------------------------------------------------------------------------------------------

PROJECT = '[tool.kernelmux]\nbackend = "cuda,torch_ref"\n[[tool.kernelmux.rules]]\nop = "add"\nbackend = "triton"\n'


def test_the_nearest_pyproject_from_the_current_folder_upwards(monkeypatch, tmp_path):
    write(PROJECT, "pyproject.toml", ask=False)
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    precedence.reread()
    assert asked("softmax", "x=4") == ("cuda,torch_ref", "backend") and asked("add", "x=4 y=4")[0] == "triton"
    assert precedence.requested("softmax", None).source == f"{tmp_path / 'pyproject.toml'}, backend"
    (tmp_path / "a/pyproject.toml").write_text('[project]\nname = "nearer, and silent"\n')
    precedence.reread()
    assert asked("softmax", "x=4") == ("auto", "auto")


def test_a_variable_comes_before_pyproject_and_an_empty_one_means_no_file(monkeypatch):
    write(PROJECT, "pyproject.toml", ask=False)
    write('backend = "triton"')
    assert asked("softmax", "x=4")[0] == "triton"
    monkeypatch.setenv("KERNELMUX_CONFIG", "")
    precedence.reread()
    assert asked("softmax", "x=4") == ("auto", "auto")


def test_a_pyproject_that_is_named_is_read_like_one_that_is_found(tmp_path):
    write(PROJECT, "elsewhere/pyproject.toml")
    assert asked("softmax", "x=4")[0] == "cuda,torch_ref"


def test_a_folder_that_is_gone_has_no_configuration(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert config_file.read() == config_file.Config()


def test_the_file_is_read_once_per_process(monkeypatch):
    path = write('backend = "triton"')
    assert asked("softmax", "x=4")[0] == "triton"
    path.write_text('backend = "cuda"')
    os.environ["KERNELMUX_CONFIG"] = "no such file"
    assert asked("add", "x=4 y=4")[0] == "triton"
    precedence.reread()
    with pytest.raises(ArgumentError):
        asked("add", "x=4 y=4")


# --- mistakes -----------------------------------------------------------------------------------------------------------

HEAD = '[[rules]]\nop = "softmax"\nbackend = "cuda"\n'  # a rule without a mistake, so that the wrong one is the second
WHERE = '[[rules]]\nbackend = "cuda"\nop = "softmax"\nwhere = '
FORM = 'expected a condition such as "N >= 4096 and N % 8 == 0", got'
WORDS = "expected names of axes and scalars, numbers, texts, + - * // %, comparisons, in, and, or, not, got"

MISTAKES = [
    ("backend = 5", "backend: expected a name or a list of names, got 5 from {path}, backend"),
    ('backend = ["auto", "cuda"]', "backend: \"auto\" stands alone, got ['auto', 'cuda'] from {path}, backend"),
    ('backend = "cudda"', 'unknown backend "cudda" in {path}, backend; did you mean "cuda"? known: …'),
    ('bakend = "cuda"', 'unknown key "bakend" in {path}; did you mean "backend"? known: backend, rules'),
    ("[tool.kernelmux]", 'unknown key "tool" in {path}; known: backend, rules…; its keys stand at the top level'),
    ("rules = 3", "{path}: rules: expected tables [[rules]], got 3"),
    ("rules = [3]", "{path}: rules: expected tables [[rules]], got [3]"),
    ("[rules]\nop = 'add'", "{path}: rules: expected tables [[rules]], got {'op': 'add'}"),
    (HEAD + '[[rules]]\nop = "add"', "{path}, rule 2: expected backend = a name or a list of names, got none"),
    (
        HEAD + '[[rules]]\nbackend = "tritn"',
        'unknown backend "tritn" in {path}, rule 2; did you mean "triton"? known: …',
    ),
    (
        HEAD + '[[rules]]\nbackend = "cuda"\nops = "add"',
        'unknown key "ops" in {path}, rule 2; did you mean "op"? known: op, device, dtype, where, backend',
    ),
    (
        HEAD + '[[rules]]\nbackend = "cuda"\nop = ["add", "softmx"]',
        'unknown operator "softmx" in {path}, rule 2; did you mean "softmax"? known: …',
    ),
    (HEAD + '[[rules]]\nbackend = "cuda"\nop = 7', "{path}, rule 2: op: expected a name or a list of names, got 7"),
    (
        HEAD + '[[rules]]\nbackend = "cuda"\ndtype = []',
        "{path}, rule 2: dtype: expected a name or a list of names, got []",
    ),
    (
        HEAD + '[[rules]]\nbackend = "cuda"\ndtype = "fp61"',
        'unknown dtype "fp61" in {path}, rule 2; did you mean "fp64"? known: …',
    ),
    (
        HEAD + '[[rules]]\nbackend = "cuda"\ndevice = "sm_9O"',
        'unknown device "sm_9O" in {path}, rule 2; did you mean "sm_90"? known: cpu, cuda, sm_80, sm_90, sm_100',
    ),
    (
        HEAD + '[[rules]]\nbackend = "cuda"\nwhere = "N > 3"',
        "{path}, rule 2: where: expected op beside it, whose axes it is about, got none",
    ),
    (WHERE + "5", "{path}, rule 1: where: expected a text, got 5"),
    (
        WHERE + '"Nn > 3"',
        'unknown axis or scalar of softmax "Nn" in {path}, rule 1: where; did you mean "N"? known: N, axis, scale',
    ),
    (WHERE + '"N > "', "{path}, rule 1: where: " + FORM + " 'N > ': …"),
    (WHERE + '"N"', "{path}, rule 1: where: " + FORM + " 'N', which for softmax with N = 1024 gives 1024"),
    (
        WHERE + "\"N > 'a'\"",
        "{path}, rule 1: where: " + FORM + " \"N > 'a'\", which for softmax with N = 1024 gives TypeError: …",
    ),
    (WHERE + '"len(N) > 3"', "{path}, rule 1: where: " + WORDS + " 'len(N)' in 'len(N) > 3'"),
    (WHERE + '"N.real > 3"', "{path}, rule 1: where: " + WORDS + " 'N.real' in 'N.real > 3'"),
    (WHERE + '"N ** N > 3"', "{path}, rule 1: where: " + WORDS + " 'N ** N' in 'N ** N > 3'"),
    (WHERE + "\"'a' * N > 3\"", "{path}, rule 1: where: " + WORDS + " \"'a' * N\" in \"'a' * N > 3\""),
    (WHERE + '"N / 2 > 3"', "{path}, rule 1: where: " + WORDS + " 'N / 2' in 'N / 2 > 3'"),
    (WHERE + '"[n for n in (1, 2)] == N"', "{path}, rule 1: where: " + WORDS + " …"),
    (WHERE + '"(lambda: N)() > 1"', "{path}, rule 1: where: " + WORDS + " …"),
    ("backend = ", "{path}: expected TOML, got: Invalid value (at end of document)…"),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=lambda text: text.splitlines()[-1][:40])
def test_each_mistake_is_an_error_that_names_file_and_rule(text, told):
    """told: the whole text, in which "…" stands for what is listed elsewhere, or said by Python."""
    path = write(text)
    golden = ".*".join(map(re.escape, told.replace("{path}", str(path)).split("…")))
    add = dispatch.function("add")
    for ask in (precedence.check_environment, lambda: add(torch.zeros(3), torch.zeros(3), backend="torch_ref")):
        with pytest.raises(KernelmuxError) as caught:
            ask()
        assert re.fullmatch(golden, str(caught.value), re.DOTALL), str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_an_error_at_every_call(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELMUX_CONFIG", str(tmp_path / "no.toml"))
    for _ in range(2):
        with pytest.raises(ArgumentError) as caught:
            dispatch.which("softmax", torch.zeros(3))
        missing = f"{tmp_path}/no.toml: No such file or directory"
        assert str(caught.value) == f"KERNELMUX_CONFIG: expected a TOML file, got {missing}"
    monkeypatch.setenv("KERNELMUX_CONFIG", str(tmp_path))
    with pytest.raises(ArgumentError, match="Is a directory"):
        config_file.read()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("KERNELMUX_CONFIG", "bytes.toml")
    with pytest.raises(ArgumentError, match=r"bytes\.toml: expected TOML, got: 'utf-8' codec"):
        config_file.read()


def test_a_pyproject_that_is_asked_for_must_have_the_table():
    path = write('[project]\nname = "x"\n', "pyproject.toml")
    with pytest.raises(
        ArgumentError, match=rf"^KERNELMUX_CONFIG: {path}: expected a table \[tool.kernelmux\], got none$"
    ):
        config_file.read()
    write("[tool]\nkernelmux = 3\n", "pyproject.toml")
    with pytest.raises(ArgumentError, match=r"tool\.kernelmux: expected a table, got 3"):
        config_file.read()


def test_a_condition_that_has_no_answer_for_a_call_says_so_at_that_call():
    path = write('[[rules]]\nop = "softmax"\nwhere = "8 % axis == 0"\nbackend = "torch_ref"\n')
    assert dispatch.which("softmax", torch.zeros(2, 3)) == "torch_ref/exact"
    with pytest.raises(ArgumentError) as caught:
        dispatch.which("softmax", torch.zeros(2, 3), 0)
    assert str(caught.value).startswith(
        f"{path}, rule 1: where: {FORM} '8 % axis == 0', which for softmax with axis = 0 gives ZeroDivisionError: "
    )


@pytest.mark.parametrize("text", ["(" * 400 + "N" + ")" * 400 + " > 1", "not " * 5000 + "N > 1", "9" * 5000 + " > N"])
def test_absurd_conditions_are_refused_and_do_not_crash(text):
    write(f'[[rules]]\nop = "softmax"\nwhere = "{text}"\nbackend = "torch_ref"\n')
    with pytest.raises(ArgumentError, match="where: expected a condition"):
        config_file.read()


# --- files as editors write them, and long names ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["choice.toml", "pyproject.toml"])
def test_a_file_with_a_byte_order_mark_is_read(name):
    head = "[tool.kernelmux]\n" if name == "pyproject.toml" else ""
    write(f'\ufeff{head}backend = "torch_ref"\n', name)
    assert asked("softmax", "x=4") == ("torch_ref", "backend")


@pytest.mark.parametrize(("device", "meant"), [("gpu", "cuda"), ("GPU", "cuda"), ("host", "cpu"), ("sm90", "sm_90")])
def test_a_device_by_another_name_gets_the_one_that_is_known(device, meant):
    path = write(f'[[rules]]\ndevice = "{device}"\nbackend = "cuda"\n')
    with pytest.raises(UnknownName) as told:
        config_file.read()
    assert str(told.value) == (
        f'unknown device "{device}" in {path}, rule 1; did you mean "{meant}"? known: cpu, cuda, sm_80, sm_90, sm_100'
    )


LONG = "z" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f'{LONG} = "cuda"',
        f'backend = "{LONG}"',
        f'backend = "{LONG}/"',
        f"backend = ['cuda', '{LONG}']",
        f"rules = '{LONG}'",
        f'[[rules]]\n{LONG} = "cuda"',
        f'[[rules]]\nbackend = "cuda"\nop = "{LONG}"',
        f'[[rules]]\nbackend = "cuda"\ndevice = "{LONG}"',
        f'[[rules]]\nbackend = "cuda"\ndtype = "{LONG}"',
        f'[[rules]]\nbackend = "cuda"\nop = "softmax"\nwhere = "{LONG} > 1"',
        f'[[rules]]\nbackend = "cuda"\nop = "softmax"\nwhere = "{LONG}("',
        f'[[rules]]\nbackend = "cuda"\nop = "softmax"\nwhere = "{LONG}()"',
        f'[[rules]]\nbackend = "cuda"\nop = "softmax"\nwhere = "N + {"1 + " * 2000}1"',
        f'[[rules]]\nbackend = "cuda"\nop = "softmax"\nwhere = "\'{LONG}\' > N"',
        "backend = " + "[" * 5000,
    ],
)
def test_a_long_name_is_cut_in_the_error(text):
    path = write(text)
    with pytest.raises(KernelmuxError) as told:
        config_file.read()
    assert str(path) in str(told.value) and len(str(told.value)) < 1500
