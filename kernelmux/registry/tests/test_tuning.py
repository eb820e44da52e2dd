"""What plans get from a table of tuned configurations, and when they get the rule's; on a made-up GPU."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, timings, tuned_configs
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.search_space import Forced, Key, Space
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.cli import doctor
from kernelmux.registry.errors import SpecError, TunedTableWarning
from kernelmux.registry.util import cards
from kernelmux.registry.util.files import GpuFiles

GPU = "Fake GPU 9000"
RULE = {"BLOCK": 1}


class Problem(NamedTuple):
    device: int
    n: int
    kind: str = "fp32"


def too_wide(config, problem):
    return "wider than the problem" if config["BLOCK"] > problem.n else None


@pytest.fixture
def space(monkeypatch, tmp_path):
    monkeypatch.setattr(tuned_configs, "TABLES", replace(tuned_configs.TABLES, place=GpuFiles(tmp_path)))
    monkeypatch.setattr(device_tables, "gpu", lambda device: None if device == -1 else GPU)
    monkeypatch.setattr(registered, "source_hash", lambda backend, op, variant="": f"{backend} as it is")
    tuned_configs.forget()
    key = lambda problem: Key(problem.kind, (problem.n,))  # noqa: E731
    yield Space("fake", "transpose", "fast", {"BLOCK": (1, 2, 4, 8)}, lambda problem: dict(RULE), key, too_wide)
    monkeypatch.undo()
    tuned_configs.forget()


def entry(block=4, n=1000, **more):
    spec = catalog.spec("transpose").hash
    made = TunedConfig(
        "transpose",
        "fake",
        "fast",
        "fp32",
        (n,),
        {"BLOCK": block},
        5.0,
        RULE,
        9.0,
        "x=64x64",
        "fp32",
        spec,
        "fake as it is",
        dict(device_tables.installed()),
    )
    return replace(made, **more)


def write(*entries):
    path = tuned_configs.TABLES.path(GPU)
    path.write_text(tuned_configs.TABLES.text(Table(GPU, entries)))
    tuned_configs.forget()
    return path


def test_without_a_table_and_without_a_gpu_the_rule_decides(space):
    assert space.choice(Problem(0, 1000)) == RULE
    write(entry())
    assert space.choice(Problem(-1, 1000)) == RULE


def test_a_problem_has_the_entry_of_its_sizes_else_the_nearest_of_its_bucket(space):
    write(entry(2, 600), entry(4, 1000), entry(8, 1024))
    blocks = {n: space.choice(Problem(0, n))["BLOCK"] for n in (600, 1000, 1024, 620, 990, 1020)}
    assert blocks == {600: 2, 1000: 4, 1024: 8, 620: 2, 990: 4, 1020: 8}
    assert space.choice(Problem(0, 512)) == space.choice(Problem(0, 1025)) == RULE


def test_another_kind_and_another_variant_have_the_rule(space):
    write(entry(), entry(8, kind="bf16"), entry(2, variant="slow"))
    assert space.choice(Problem(0, 1000, "fp16")) == RULE
    assert space.choice(Problem(0, 1000, "bf16")) == {"BLOCK": 8}
    assert space.choice(Problem(0, 1000)) == {"BLOCK": 4}


def test_buckets_round_up_to_powers_of_two():
    assert Key("k", (0, 1, 2, 3, 64, 65, 1000)).bucket == Key("k", (1, 1, 2, 4, 64, 128, 1024))


def test_a_configuration_that_does_not_fit_the_problem_or_the_space_is_not_used(space):
    write(entry(8, 8), entry(64, 1000))
    assert space.choice(Problem(0, 8)) == {"BLOCK": 8}
    assert space.choice(Problem(0, 7)) == RULE, "of the bucket, but wider than the problem"
    assert space.choice(Problem(0, 1000)) == RULE, "no value of the space"


@pytest.mark.parametrize(
    "field, value, told",
    [
        ("source", "fake as it was", "source is fake as it is and was fake as it was"),
        ("op", "no_such_op", "its operator or backend is not here"),
    ],
)
def test_a_stale_entry_is_ignored_and_named(space, field, value, told):
    write(entry(**{field: value}), entry(2, 2000))
    assert space.choice(Problem(0, 1000)) == RULE
    assert space.choice(Problem(0, 2000)) == {"BLOCK": 2}
    count, stale = tuned_configs.summary()
    assert count == "Fake GPU 9000: 1 of 2 tuned configurations count"
    assert stale.startswith("  stale: ") and told in stale
    assert list(doctor._tuned()) == [count, stale]


def test_an_entry_of_other_packages_is_older_and_used_after_one_of_those_at_hand(space):
    old = {**device_tables.installed(), "torch": "1.0"}
    write(entry(8, versions=old))
    assert space.choice(Problem(0, 1000)) == {"BLOCK": 8}
    count, older = tuned_configs.summary()
    assert count == "Fake GPU 9000: 1 of 1 tuned configurations count"
    assert older.startswith("  older: transpose fake/fast (1): torch is ") and older.endswith(" and was 1.0")
    write(entry(8, versions=old), entry(2, 600))  # further away
    assert space.choice(Problem(0, 1000)) == {"BLOCK": 2}
    assert tuned_configs.merged(Table(GPU, (entry(8, versions=old),)), [], {entry().place}).rows == ()


def test_the_users_entries_come_before_those_that_ship_and_those_of_gpus_alike_last(space, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELMUX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(device_tables, "card", lambda device: cards.named("h100"))
    mine = tuned_configs.TABLES.at(tmp_path / "home/tuned")
    mine.place.folder.mkdir(parents=True)
    other = tuned_configs.TABLES.path("Another GPU")
    other.write_text(tuned_configs.TABLES.text(Table("Another GPU", (entry(8), entry(8, 2000)), "9.0", 132)))
    write(entry(4), entry(4, 4000))
    mine.path(GPU).write_text(mine.text(Table(GPU, (entry(2),))))
    tuned_configs.forget()
    assert [space.choice(Problem(0, n))["BLOCK"] for n in (1000, 4000, 2000)] == [2, 4, 8]
    other.write_text(tuned_configs.TABLES.text(Table("Another GPU", (entry(8, 2000),), "9.0", 114)))
    tuned_configs.forget()
    assert space.choice(Problem(0, 2000)) == RULE
    assert "Fake GPU 9000, yours: 1 of 1 tuned configurations count" in tuned_configs.summary()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "gpu": "g", "entries": [{"op": "x"}]}']
)
def test_a_damaged_table_is_named_once_and_ignored(space, text):
    path = tuned_configs.TABLES.path(GPU)
    path.write_text(text)
    with pytest.raises(SpecError, match="expected tuned configurations"):
        tuned_configs.TABLES.read(path)
    with pytest.warns(TunedTableWarning, match="is ignored") as told:
        assert space.choice(Problem(0, 1000)) == space.choice(Problem(0, 500)) == RULE
    assert len(told) == 1
    assert tuned_configs.summary()[0].startswith("! ")


def test_what_is_written_is_read(space):
    assert tuned_configs.TABLES.read(write(entry(), entry(2, 2000))) == Table(GPU, (entry(), entry(2, 2000)))


def test_a_new_entry_takes_the_place_of_one_for_the_same_sizes():
    table = tuned_configs.merged(Table(GPU, (entry(2), entry(4, 2000))), [entry(8)])
    assert sorted((e.sizes, e.config["BLOCK"]) for e in table.rows) == [((1000,), 8), ((2000,), 4)]


def test_a_forced_configuration_is_that_of_its_kind_and_ends_with_its_block(space):
    with space.using(Forced(space, {"BLOCK": 8}, "fp32")) as forced:
        assert space.choice is forced
        assert space.choice(Problem(-1, 3)) == {"BLOCK": 8}
        assert space.choice(Problem(-1, 3, "bf16")) == RULE
    assert forced.count == 1
    assert space.choice(Problem(-1, 3)) == RULE


def test_plans_are_not_shared_between_choices(space):
    before = space.choice
    assert space.choice is before
    tuned_configs.forget()
    space.renew()
    assert space.choice is not before and space.choice != before


def test_auto_takes_tuned_times_for_calls_of_the_same_bucket(space, monkeypatch, tmp_path):
    monkeypatch.setattr(timings, "TABLES", replace(timings.TABLES, place=GpuFiles(tmp_path / "times")))
    (tmp_path / "times").mkdir()
    cost = catalog.spec("transpose").hypothetical(catalog.spec("transpose").case("x=64x64"), torch.float32).cost
    rows = [
        timings.Time(
            "transpose", "x=64x64", "fp32", backend, variant, us, f"{backend} as it is", cost.bytes, cost.flops
        )
        for backend, variant, us in (("fake", "fast", 9.0), ("other", "only", 6.0))
    ]
    timings.TABLES.path(GPU).write_text(timings.TABLES.text(Table(GPU, tuple(rows))))
    write(entry(us=5.0))
    timings.forget()
    spec = catalog.spec("transpose")
    known = {n: timings.nearest(spec.bind(torch.zeros(n, 64))) for n in (64, 40, 32)}
    timings.forget()
    assert {n: at.times["fake/fast"] for n, at in known.items() if at} == {64: 5.0, 40: 5.0, 32: 9.0}
    assert known[64] and known[64].fastest(["other/only", "fake/fast"]) == "fake/fast"
