"""Histories of whole clusters by seeds that stay the same, so that a change is judged by what it changes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulator.checker import Checker
from tests.simulator.history import run
from tests.simulator.machines import SimulatedMachine

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ((20261277, "cordons"), (74, "cordons"), (5013, ""))
"""Seeds of histories that went wrong once, and the events that didn't happen in them."""


def simulate(*arguments: str) -> str:
    """What the command says; fails where a history went wrong. The order of sets is the same in each run."""
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_whole_clusters_keep_their_promises_in_fifty_histories() -> None:
    """Everything at once, and what must be so when things came to rest."""
    assert "50 histories" in simulate("--histories", "50", "--seed", "1")


@pytest.mark.parametrize(("seed", "without"), EXAMPLES)
def test_a_history_that_went_wrong_once_does_not_again(seed: int, without: str) -> None:
    """Each is a mistake that was repaired."""
    simulate("--histories", "1", "--seed", str(seed), "--without", without)


def test_a_history_has_the_same_events_each_time() -> None:
    """Otherwise a seed would be no example."""
    first, second = (run(3, ["agents"]).told for _ in range(2))
    assert first == second
    assert len(first) > 50


def a_pod(name: str, holder: str, node: str, **annotations: str) -> dict[str, object]:
    """As the API server stores it."""
    written = {f"deviceshare.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    named = {"deviceshare.io/group": "a", "deviceshare.io/group-uid": holder, **written}
    return {"metadata": {"name": name, "uid": name, "annotations": named}, "spec": {"nodeName": node, "containers": []}}


def faults(machine: SimulatedMachine, **pods: dict[str, object]) -> list[str]:
    """What the checker finds wrong with these pods alone."""
    return Checker({"pods": pods}, {machine.name: machine}).look()


def test_the_checker_sees_that_a_number_and_a_uuid_mean_one_card() -> None:
    """After a boot the number 1 is GPU-C, which another group has by its name."""
    machine = SimulatedMachine("n1", ["GPU-A", "GPU-B", "GPU-C"], agent=False)
    pods = {
        "p1": a_pod("p1", "g1", "n1", nvidia_visible_devices="1"),
        "p2": a_pod("p2", "g2", "n1", nvidia_visible_devices="GPU-C"),
    }
    assert faults(machine, **pods) == []
    machine.order = ["GPU-A", "GPU-C"]
    assert "two groups use GPU-C" in faults(machine, **pods)[0]


def test_the_checker_adds_up_shares() -> None:
    """Of 60 and 60 percent, and beside a whole group."""
    machine = SimulatedMachine("n1", ["GPU-A"], agent=False)

    def share(name: str) -> dict[str, object]:
        shares = '[{"container": "main", "resource": "nvidia.com/gpu", "index": 0, "percent": 60}]'
        pod = a_pod(name, name, "n1", shares=shares)
        pod["metadata"]["annotations"] |= {"deviceshare.io/nvidia-devices.main": "0", "deviceshare.io/group": ""}  # type: ignore[index]
        return pod

    assert faults(machine, s1=share("s1")) == []
    assert "120 %" in faults(machine, s1=share("s1"), s2=share("s2"))[0]
    whole = a_pod("p1", "g1", "n1", nvidia_visible_devices="GPU-A")
    assert "a foreign share" in faults(machine, s1=share("s1"), p1=whole)[0]
