"""Four nodes of a Ray cluster on this machine, in a network of their own: items end once each, whatever becomes of a
node."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import machine
from kernelmux.runner.cluster.engine import RayCluster, declared
from kernelmux.runner.cluster.local_cluster import inside, possible
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.machine import VisibleGpu, Workers
from kernelmux.runner.run import chosen

RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not RAY, reason="Ray is not installed: nox -s cluster has it")


def trial(*words: str) -> dict[str, object]:
    if lack := possible():
        pytest.skip(lack)
    own = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "kernelmux.runner.cluster.trial", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=own, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


@needs_ray
def test_a_node_is_killed_and_another_joins_and_every_item_ends_once() -> None:
    found = trial("sleep", "--items", "160", "--seconds", "0.5", "--slots", "2", "--disturbed")
    assert found["ended"] == 160
    assert found["twice"] == []
    assert found["errors"] == []
    assert 1 <= int(str(found["run again"])) <= 2  # what the lost node had
    by_node = found["items by node"]
    assert isinstance(by_node, dict)
    assert len(by_node) == 5  # the one that joined has worked too
    assert float(str(found["driver MB"])) < 500


ON_NODES = """
import subprocess, sys
from kernelmux.runner.cluster.local_cluster import LocalCluster

with LocalCluster(1, sys.argv[1].split(",")) as cluster:
    sys.exit(subprocess.run([*sys.argv[2:], "--cluster", cluster.address]).returncode)
"""
# What NVML says on a node that has a GPU, for a torch that does not see it.
PYNVML = """
from types import SimpleNamespace


class NVMLError(Exception):
    pass


nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = nvmlDeviceGetHandleByUUID = lambda which: which
nvmlDeviceGetUUID = lambda handle: "GPU-0"
nvmlDeviceGetName = lambda handle: "NVIDIA H100 80GB HBM3"
nvmlSystemGetDriverVersion = lambda: "580.1"
nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=80 << 30)
nvmlDeviceGetCudaComputeCapability = lambda handle: (9, 0)
"""


def on_gpus(cards: str, home: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """A conformance run on the GPUs of nodes that declare these cards. first: a folder that comes first on their path."""
    if lack := possible():
        pytest.skip(lack)
    own = os.environ | {"PYTHONPATH": os.pathsep.join([first, *sys.path] if first else sys.path)}
    asked = ["--op", "add", "--check", "exact", "--device", "cuda", "--out", str(home)]
    command = [sys.executable, "-m", "kernelmux", "conformance", *asked]
    code = [sys.executable, "-c", ON_NODES, cards, *command]
    return subprocess.run(inside(code), capture_output=True, text=True, env=own, timeout=240, check=False)


@needs_ray
def test_a_card_that_is_declared_alone_runs_nothing_that_needs_a_gpu(tmp_path: Path) -> None:
    done = on_gpus("H100,", tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "declares h100-declared, and NVML names no GPU there" in done.stderr
    assert not (tmp_path / "rows.jsonl").exists()


@needs_ray
def test_a_plan_of_this_machine_without_a_gpu_goes_to_the_gpus_of_nodes(tmp_path: Path) -> None:
    """Here torch has no GPU on the node either, which its workers say; what they were to run is missed by name."""
    (tmp_path / "pynvml.py").write_text(PYNVML)
    done = on_gpus("H100", tmp_path / "out", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "sees no GPU in this process" in said and "no worker is left that can run" in said
    head = json.loads((tmp_path / "out" / "rows.jsonl").read_text().splitlines()[0])
    assert head["asked"]["elsewhere"] and head["items"] > 0


@needs_ray
def test_what_is_no_cluster_is_an_error() -> None:
    command = [sys.executable, "-m", "kernelmux", "conformance", "--op", "add", "--cluster", "127.0.0.1:1"]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=own)
    assert done.returncode == 2
    assert "--cluster 127.0.0.1:1: expected a running Ray cluster" in done.stderr


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match=r"--cluster: needs Ray: pip install ray"):
        RayCluster("auto", "", None, Workers(cpu=True)).__enter__()


def test_cards_are_chosen_by_a_part_of_their_names() -> None:
    cards = ["nvidia_a100_sxm4_80gb", "nvidia_h100_80gb_hbm3"]
    assert chosen(cards, []) == cards
    assert chosen(cards, ["H100"]) == cards[1:]
    assert chosen(["nvidia_h200"], ["all"]) == []
    with pytest.raises(ArgumentError, match="--on t4: expected a part of nvidia_a100"):
        chosen(cards, ["t4"])


def test_what_a_node_declares_is_never_taken_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    card = declared({"CPU": 4.0, "accelerator_type:H100": 1.0})
    assert card == "h100-declared" and declared({"CPU": 4.0}) == ""
    assert {slot.card for slot in Workers(cpu=True).slots("node", card, 2)} == {card}
    real = VisibleGpu("GPU-1", "NVIDIA H100 80GB HBM3", 80 << 30, "580")
    monkeypatch.setattr(machine, "visible_gpus", lambda: [real])
    assert {slot.card for slot in Workers(cpu=True, gpu=1 << 30).slots("node", card, 2)} == {real.card}


def test_a_slot_takes_what_is_for_its_card() -> None:
    assert Slot("a", card="h100").admits(WorkItem("x", card="h100"))
    assert not Slot("a", card="h100").admits(WorkItem("x", card="t4"))
