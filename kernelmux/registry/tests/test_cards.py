"""Cards: their names, what a device says of itself, and whom the emulator stands for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.emulator.resources import MULTIPROCESSORS
from kernelmux.registry.errors import ArgumentError, UnknownName
from kernelmux.registry.util import cards

CAPABILITIES = {
    **{"t4": (7, 5), "a100": (8, 0), "rtx3090": (8, 6), "rtx4090": (8, 9), "h200": (9, 0)},
    **{"b200": (10, 0), "b300": (10, 3), "rtx5090": (12, 0), "gb10": (12, 1)},
}


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """GPU 0 is what the test says of it; what is remembered of it is forgotten."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device(**told))
    cards._device.cache_clear()
    yield told
    cards._device.cache_clear()


def device(name: str, capability: tuple[int, int], processors: int, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=processors,
        total_memory=2**34,
        **more,
    )


@pytest.mark.parametrize(("key", "capability"), CAPABILITIES.items())
def test_a_card_has_a_name_and_a_compute_capability(key: str, capability: tuple[int, int]) -> None:
    card, sm = cards.named(key), "{}.{}".format(*capability)
    assert card is cards.table()[key] is cards.named(f" {key.upper()} ") and card.capability == capability
    for name in (sm, f"sm_{sm.replace('.', '')}", f"SM_{sm.replace('.', '')}"):
        assert cards.named(name) is card, "the card in most hands stands for its capability"
    assert cards.named(card.arch) is card and card.sm == f"sm_{sm.replace('.', '')}" and str(card) == card.title


def test_from_sm_90_on_the_target_has_an_a() -> None:
    assert [cards.named(key).arch for key in ("t4", "rtx4090", "h100", "rtx5090")] == [
        "sm_75",
        "sm_89",
        "sm_90a",
        "sm_120a",
    ]


def test_a_capability_without_a_card_has_its_own_limits() -> None:
    orin = cards.named("sm_87")
    assert (orin.capability, orin.shared_per_block, orin.threads) == ((8, 7), 163 * 1024, 1536)
    assert orin.title == "a GPU of compute capability 8.7"


def test_a_card_has_the_name_of_the_driver_where_it_is_named_so() -> None:
    for name, key in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA L4", "l4")):
        card = cards.named(name)
        assert (card.key, card.title, card.processors) == (key, name, cards.table()[key].processors)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rtx4900", r'unknown card "rtx4900" in card; did you mean "rtx4090"\?'),
        ("", r'unknown card ""'),
        ("7.0", r"card: expected a compute capability of 7\.5, 8\.0, .*, got 7\.0"),
        ("sm_1000", r'unknown card "sm_1000"'),
        (89, "card: expected the name of a card or a compute capability, got 89"),
    ],
)
def test_another_name_is_an_error(name: Any, text: str) -> None:
    with pytest.raises((ArgumentError, UnknownName), match=text):
        cards.named(name)


def test_what_tensor_cores_take_follows_from_the_capability_and_has_a_rate() -> None:
    for card in cards.table().values():
        for kind in cards.SINCE:
            assert card.multiplies(kind) == (kind in card.rates), (card.key, kind)
        assert (
            card.rates["fp32"] <= card.rates["fp16"]
            and card.rates.get("bf16", card.rates["fp16"]) == card.rates["fp16"]
        )
        assert card.source, card.key


def test_a_geforce_card_has_half_the_rate_with_sums_in_fp32() -> None:
    """Of the same chip, per multiprocessor and clock: RTX 4090 and L40S, RTX 5090 and RTX PRO 6000, RTX 3090 and A10."""
    for half, full in (("rtx4090", "l40s"), ("rtx5090", "rtxpro6000"), ("rtx3090", "a10")):
        ratio = [cards.named(key).rates["fp16"] / cards.named(key).rates["fp32"] for key in (half, full)]
        assert ratio == [pytest.approx(2, rel=0.01), pytest.approx(4, rel=0.02)]


def test_the_emulator_and_the_compilers_know_the_same_limits() -> None:
    for (major, minor), (block, processor, threads) in cards.LIMITS.items():
        found = MULTIPROCESSORS[f"sm_{major}{minor}"]
        assert (found.shared_per_block, found.shared, found.warps * 32) == (block * 1024, processor * 1024, threads)


# --- a device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "capability", "key"),
    [
        ("Tesla T4", (7, 5), "t4"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "a100"),
        ("NVIDIA A10", (8, 6), "a10"),
        ("NVIDIA L4", (8, 9), "l4"),
        ("NVIDIA L40S", (8, 9), "l40s"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "rtx4090"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "h100"),
        ("NVIDIA H200", (9, 0), "h200"),
        ("NVIDIA GH200 480GB", (9, 0), "gh200"),
        ("NVIDIA GB200", (10, 0), "b200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), "rtxpro6000"),
        ("NVIDIA GB10", (12, 1), "gb10"),
    ],
)
def test_a_device_is_known_by_the_words_of_its_name(name: str, capability: tuple[int, int], key: str) -> None:
    listed = cards.named(key)
    found = cards._read(device(name, capability, listed.processors))
    assert (found.key, found.title, found.rates) == (key, name, listed.rates)


def test_what_a_device_says_of_itself_counts() -> None:
    """An H100 PCIe: fewer multiprocessors and a slower memory than the card of the table."""
    told = device(
        "NVIDIA H100 PCIe",
        (9, 0),
        114,
        L2_cache_size=50 << 20,
        memory_clock_rate=1593000,
        memory_bus_width=5120,
        shared_memory_per_block_optin=232448,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
    )
    found = cards._read(told)
    assert (found.key, found.processors, found.l2, found.memory) == ("h100", 114, 50 << 20, 2**34)
    assert found.bandwidth == pytest.approx(2.039e12, rel=0.001)
    assert found.rates["fp16"] == pytest.approx(989.4e12 * 114 / 132) and found.shared_per_block == 232448


def test_a_laptop_has_the_rates_of_its_multiprocessors() -> None:
    found = cards._read(device("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76))
    assert found.rates["bf16"] == pytest.approx(165.2e12 * 76 / 128) and found.title.endswith("Laptop GPU")


@pytest.mark.parametrize(("capability", "like"), [((7, 0), (7, 5)), ((13, 0), (12, 1)), ((8, 7), (8, 7))])
def test_a_capability_that_is_not_listed_is_that_of_the_card_before(
    capability: tuple[int, int], like: tuple[int, int]
) -> None:
    found = cards._read(device("NVIDIA Made Up", capability, 10))
    assert found.capability == capability and found.threads == cards.LIMITS[like][2]


def test_a_gpu_stands_for_a_lesser_card_and_for_no_better_one(
    one_gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_gpu.update(name="NVIDIA H200", capability=(9, 0), processors=132)
    monkeypatch.setenv(cards.AS_VARIABLE, "rtx4090")
    assert cards.of(0) is cards.named("rtx4090") and cards.capability_of(0) == (8, 9)
    monkeypatch.setenv(cards.AS_VARIABLE, "b200")
    cards._device.cache_clear()
    with pytest.raises(ArgumentError, match=r"KERNELMUX_GPU_AS: expected a card of at most sm_90, .*got b200, sm_100"):
        cards.of(0)


# --- the emulator -----------------------------------------------------------------------------------------------


def test_the_emulator_stands_for_an_h200_or_for_what_the_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cards.VARIABLE, raising=False)
    assert cards.of(-1).key == "h200" == cards.of_tensor(torch.zeros(1)).key
    monkeypatch.setenv(cards.VARIABLE, "8.6")
    assert cards.emulated().key == "rtx3090"
    with cards.standing_for("t4"):
        assert cards.emulated().key == "t4", "what a program says comes before the variable"
    monkeypatch.setenv(cards.VARIABLE, "rtx409")
    with pytest.raises(
        (ArgumentError, UnknownName), match=r'unknown card "rtx409" in KERNELMUX_EMULATED_GPU; did you mean "rtx4090"\?'
    ):
        cards.emulated()


def test_plans_are_forgotten_with_the_card_and_scopes_nest() -> None:
    @cards.remembered
    def plan(n: int) -> tuple[int, str]:
        return n, cards.emulated().key

    before = cards.emulated()
    with cards.standing_for("rtx4090") as card:
        assert card.key == "rtx4090" and plan(1) == (1, "rtx4090")
        with cards.standing_for(cards.named("t4")):
            assert plan(1) == (1, "t4")
        assert plan(1) == (1, "rtx4090")
        with pytest.raises(RuntimeError), cards.standing_for("a100"):
            raise RuntimeError
        assert cards.emulated() is card
    assert cards.emulated() is before and plan(1) == (1, before.key)
