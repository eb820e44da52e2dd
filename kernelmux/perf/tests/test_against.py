"""Two trees side by side: the judgement of synthetic times, which rows are compared, the whole command on small trees."""

import json
import random
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelmux.perf.against import stand, trees, verdict
from kernelmux.perf.against.agenda import agenda
from kernelmux.perf.against.comparison import AGAIN
from kernelmux.perf.against.session import Session
from kernelmux.perf.against.trees import Tree
from kernelmux.perf.against.verdict import AMBIGUOUS, FAILED, FASTER, NO_BASE, SAME, SLOWER, Judged, Round, judge
from kernelmux.perf.cli import main
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.runner import results

WORDS = "--against HEAD --op add square silu gelu softmax --backend torch_ref --dtype fp32 --rounds 8 --out"
ROW = Row("softmax", "x=16384x8192", "bf16", "cuda", "registers")
REAL = Path(trees.__file__).resolve().parents[3]


def rounds(rng, ratio=1.0, noise=0.004, count=20):
    """Rounds as a GPU gives them: a clock that drifts by 10 % meets both sides, noise and outliers each of them."""

    def time(seconds):
        return seconds * rng.gauss(1.0, noise) * (1.2 if rng.random() < 0.01 else 1.0)

    drift = [1 + 0.1 * i / count for i in range(count)]
    return [Round(time(1e-4 * d), time(1e-4 * d * ratio)) for d in drift]


def verdicts(seed, ratio, draws, noise=0.004):
    rng = random.Random(seed)
    return Counter(judge(ROW, rounds(rng, noise=noise), rounds(rng, ratio, noise)).verdict for _ in range(draws))


@pytest.mark.parametrize(
    ("ratio", "expected"), [(1.05, SLOWER), (1 / 1.05, FASTER), (1.0, SAME), (1.002, SAME), (0.998, SAME)]
)
def test_a_planted_change_is_found_and_none_where_there_is_none(ratio, expected):
    found = verdicts(1, ratio, draws=100)
    assert found.keys() <= {expected, AMBIGUOUS} and found[expected] >= 95


def test_twenty_comparisons_of_a_tree_with_itself_stay_silent():
    assert verdicts(6, 1.0, draws=20) == {SAME: 20}
    assert not verdicts(5, 1.0, draws=200, noise=0.02).keys() & {SLOWER, FASTER}


def test_noise_as_large_as_the_change_leaves_it_open():
    assert verdicts(2, 1.05, draws=50, noise=0.05) == {AMBIGUOUS: 50}
    assert verdicts(3, 1.0, draws=50, noise=0.2) == {AMBIGUOUS: 50}


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = random.Random(4)
    found = [verdict.interval([rng.expovariate(0.6931471805599453) for _ in range(20)]) for _ in range(2000)]
    assert sum(i.low <= 1 <= i.high for i in found) / len(found) >= verdict.CONFIDENCE - 0.005
    assert verdict.interval([1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]) == verdict.Interval(5.0, 1.0, 9.0)


def test_the_noise_of_the_base_widens_the_limit():
    apart = [Round(1.0, 1.04)] * 20
    assert judge(ROW, [Round(1.0, 1.0)] * 20, [Round(1.0, 1.03)] * 20).verdict == SLOWER
    found = judge(ROW, apart, [Round(1.0, 1.03)] * 20)
    assert found.verdict == SAME and found.limit == pytest.approx(0.04)
    assert judge(ROW, apart, [Round(1.0, 1.045)] * 20).verdict == SLOWER


def test_a_verdict_says_how_certain_it_is():
    some = [Round(1.0, 1.05)] * 17 + [Round(1.0, 1.0)] * 3
    found = judge(ROW, [Round(1.0, 1.0)] * 20, some)
    assert found.verdict == SLOWER and found.confidence == pytest.approx(1 - 1351 / 2**20)


def test_a_change_stands_if_other_processes_find_it_too():
    slower = judge(ROW, [Round(1.0, 1.0)] * 20, [Round(1.0, 1.05)] * 20)
    more, same = replace(slower, ratio=1.08), replace(slower, verdict=SAME, ratio=1.004)
    assert verdict.confirmed(slower, more) == verdict.confirmed(more, slower) == slower
    found = verdict.confirmed(slower, same)
    assert (found.verdict, found.note) == (AMBIGUOUS, "in other processes SAME (+0.4%), at first SLOWER (+5.0%)")
    assert verdict.confirmed(slower, Judged(**ROW.identity, verdict=FAILED, note="x")).verdict == FAILED


def test_the_agenda_leaves_out_what_is_equal_and_names_what_is_missing():
    def told(**sources):
        return [(encode(replace(ROW, variant=name)), source) for name, source in sources.items()]

    broken = (encode(replace(ROW, backend="triton", variant="", problem="SyntaxError", broken=True)), "")
    base, here = told(a="1 s", b="1 s", old="1 s"), [*told(a="1 s", b="2 t", new="1 s"), broken]
    found = agenda(base, here, everything=False)
    assert [row.variant for row in found.rows] == ["b"] and found.respecified == ["softmax"]
    assert found.equal == [f"{ROW.op} {ROW.workload} bf16 cuda/a"]
    assert [name.rpartition("/")[2] for name in (*found.only_base, *found.only_here)] == ["old", "new"]
    assert [(row.verdict, row.note) for row in found.broken] == [(FAILED, "SyntaxError")]
    assert [row.variant for row in agenda(base, here, everything=True).rows] == ["a", "b"]


def test_a_tree_lists_the_rows_that_it_knows():
    options = PerfOptions(ops=("nope", "add"), backends=("torch_ref", "torch_ref/nope"), dtypes=("fp32",))
    assert [fields["op"] for fields, _ in stand.rows(options.as_dict())] == ["add"]
    assert stand.rows(PerfOptions(ops=("nope",)).as_dict()) == []


# --- trees ------------------------------------------------------------------------------------------------------


def git(folder, *words):
    own = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *own, *words], capture_output=True, text=True, check=True)
    return done.stdout


def module(*parameters, body):
    """A module of torch_ref with one variant."""
    head = "import os, time\nfrom kernelmux.registry.backend import Implementation\n\n"
    return (
        head + f"def plain({', '.join(parameters)}):\n    {body}\n\nVARIANTS = {{'plain': Implementation(plain, '')}}\n"
    )


def write(tree, **modules):
    for name, text in modules.items():
        (tree / "kernelmux/backends/torch_ref" / f"{name}.py").write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A repository with a tree whose torch_ref is its own; all other parts are links."""
    if shutil.which("git") is None or not (REAL / "kernelmux").is_dir():
        pytest.skip("needs git and a checkout")
    made = tmp_path_factory.mktemp("repository")
    backends = made / "kernelmux/backends"
    backends.mkdir(parents=True)
    for folder in (backends.parent, backends):
        for path in (REAL / folder.relative_to(made)).iterdir():
            if path.name not in ("backends", "torch_ref", "__pycache__"):
                (folder / path.name).symlink_to(path.resolve())
    own = (REAL / "kernelmux/backends/torch_ref").resolve()
    shutil.copytree(own, backends / "torch_ref", ignore=shutil.ignore_patterns("__pycache__"))
    write(made, add=module("x", "y", body="return x + y"), square=module("x", body="return x * x"))
    write(made, silu=module("x", body="return x * x.sigmoid()"), gelu=module("x", "approximate", body="return x + 1"))
    git(made, "init", "--quiet")
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message", "base")
    return made


@pytest.fixture(scope="module")
def compared(tree, tmp_path_factory):
    """A tree with changes that are not committed, against its HEAD: exit status, against.json, against.md, the folder."""
    out = tmp_path_factory.mktemp("out")
    write(
        tree, add=module("x", "y", body="time.sleep(2e-3); return x + y"), square=module("x", body="return x * x + 1")
    )
    write(tree, silu=module("x", body="os._exit(7)"), gelu=(REAL / "kernelmux/backends/torch_ref/gelu.py").read_text())
    patch = pytest.MonkeyPatch()
    patch.setattr(trees, "here", lambda: Tree("this tree", tree))
    patch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        status = main.main([*WORDS.split(), str(out)])
    finally:
        patch.undo()
    return status, json.loads((out / "against.json").read_text()), (out / "against.md").read_text(), out


def test_every_row_that_differs_has_a_verdict(compared):
    status, told, _, _ = compared
    found = {row["op"]: row for row in told["rows"]}
    expected = {"silu": FAILED, "square": FAILED, "add": SLOWER, "gelu": NO_BASE}
    assert {op: row["verdict"] for op, row in found.items()} == expected
    assert status == 1
    assert found["add"]["ratio"] > 5 and found["add"]["low"] > 1 + found["add"]["limit"]
    assert "wrong at" in found["square"]["note"] and "wrong at" in found["gelu"]["note"]
    assert "did not survive" in found["silu"]["note"] and "with status 7" in found["silu"]["note"]


def test_a_comparison_that_was_ended_goes_on_where_it_was(compared, tree, tmp_path, monkeypatch):
    """Verdicts that are there are not found again: not even in the second set of processes."""
    out = Path(compared[3])
    recorded = results.read(out / results.NAME)
    names = [line["item"] for line in recorded.rows]
    assert [name.partition("-")[0] for name in names] == ["add", "square", "silu", "gelu", f"{AGAIN}add"]
    shutil.copy(out / results.NAME, tmp_path)
    monkeypatch.setattr(trees, "here", lambda: Tree("this tree", tree))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Session, "judge", lambda *_: pytest.fail("it is timed once more"))
    words = [*WORDS.split(), str(tmp_path), "--resume"]
    assert main.main(words) == 1
    assert json.loads((tmp_path / "against.json").read_text())["rows"] == compared[1]["rows"]
    assert main.main([*words, "--all"]) == 2


def test_what_is_equal_is_not_timed_and_the_report_says_so(compared):
    _, told, text, _ = compared
    labels = [(name.partition(" ")[0], name.rpartition("/")[2]) for name in told["equal"]]
    assert labels == [("softmax", "plain"), ("softmax", "exact")]
    assert (told["only_base"], told["only_here"], told["respecified"]) == ([], [], [])
    assert "2 rows (--all times them)" in text and "1 slower, 2 failed, 1 failed in the base" in text


def test_no_work_tree_is_left(compared, tree):
    assert len(git(tree, "worktree", "list").splitlines()) == 1


def test_a_work_tree_goes_whatever_happens_in_it(tree):
    with pytest.raises(KeyboardInterrupt), trees.opened("HEAD", Tree("this tree", tree)) as base:
        assert (base.folder / "kernelmux/__init__.py").is_file()
        assert base.name.startswith("HEAD (") and base.folder != tree
        (base.folder / "left behind").write_text("by a compiler")
        raise KeyboardInterrupt
    assert not base.folder.exists() and len(git(tree, "worktree", "list").splitlines()) == 1


def test_a_folder_takes_the_place_of_a_revision(tree):
    with trees.opened(str(tree), Tree("this tree", REAL)) as base:
        assert base == Tree(str(tree), tree)
    assert tree.exists()


def test_an_unknown_revision_is_named(tree):
    with pytest.raises(ValueError, match="has no revision 'no-such-branch', and there is no such folder"):
        trees.opened("no-such-branch", Tree("this tree", tree)).__enter__()


def test_a_tree_without_git_takes_folders_only(tmp_path):
    with pytest.raises(ValueError, match=r"is no git checkout, so 'HEAD' must be the folder of another checkout"):
        trees.opened("HEAD", Tree("this tree", tmp_path)).__enter__()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "HEAD", "--record"], "--record"),
        (["--against", "HEAD", "--samples", "9"], "leave out --samples"),
        (["--against", "HEAD", "--rounds", "7"], "--rounds: expected at least 8"),
        (["--rounds", "9"], "expected --against REV beside them"),
        (["--against", "HEAD", "--op", "sofmax"], 'did you mean "softmax"?'),
    ],
)
def test_wrong_words_end_with_2_before_the_work(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main([*words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
