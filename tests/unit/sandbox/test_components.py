"""Command lines and configuration, where they depend on the release or on the options."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.components import (
    Component,
    Components,
    asks_before_evicting,
    choose_ports,
    scheduler_config_version,
)
from deviceshare_sandbox.state import Layout, Options, SandboxPlan


def components(directory: Path, version: str = "v1.20.2", **options: Any) -> Components:
    """Those of a sandbox of this release."""
    binaries = Binaries("apiserver", "controller-manager", "scheduler", "kubectl", "etcd", version)
    layout, plan = Layout(directory), SandboxPlan(Options(**options), binaries)
    with layout.lock():
        layout.prepare(plan)
    return Components(layout, plan, choose_ports())


def config_of(component: Component) -> Any:
    """The configuration file that the command line names, as kube-scheduler reads it."""
    [(path, text)] = component.files.items()
    assert f"--config={path}" in component.command
    return yaml.safe_load(text)


@pytest.mark.parametrize(
    ("minor", "version"),
    [(20, "v1beta1"), (21, "v1beta1"), (22, "v1beta2"), (23, "v1beta3"), (24, "v1beta3"), (25, "v1"), (33, "v1")],
)
def test_the_scheduler_is_configured_in_a_version_that_it_reads(minor: int, version: str) -> None:
    """A kube-scheduler exits at once when it doesn't know the version."""
    assert scheduler_config_version(minor) == version


def test_our_scheduler_shows_every_node_to_the_extender_on_loopback(tmp_path: Path) -> None:
    """Sampling could hide a group's only node; the address must be where deviceshare listens."""
    parts = components(tmp_path)
    config = config_of(parts.deviceshare_scheduler)
    assert config["percentageOfNodesToScore"] == 100
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["deviceshare-scheduler"]
    (extender,) = config["extenders"]
    bound_to = parts.deviceshare.command[parts.deviceshare.command.index("--extender-bind") + 1]
    assert extender["urlPrefix"] == f"http://{bound_to}"


@pytest.mark.parametrize(
    ("version", "asks"),
    [
        ("v1.20.2", False),
        ("v1.20.10", True),
        ("v1.21", False),
        ("v1.21.3-gke.1", False),
        ("v1.21.14", True),
        ("v1.22.0", True),
        ("v1.34.1+k3s1", True),
        ("v2.0.0", True),
    ],
)
def test_a_scheduler_that_does_not_ask_before_it_evicts_evicts_nobody(tmp_path: Path, version: str, asks: bool) -> None:
    """kubernetes#103019: pods would die for devices that aren't free. The chart does the same."""
    assert asks_before_evicting(version) is asks
    config = config_of(components(tmp_path, version).deviceshare_scheduler)
    assert config["extenders"][0]["preemptVerb"] == "preempt"
    assert ("plugins" in config["profiles"][0]) is not asks


def test_the_plain_scheduler_has_no_extender(tmp_path: Path) -> None:
    """It is the one that every cluster has."""
    assert "extenders" not in config_of(components(tmp_path).scheduler)


def test_another_extender_takes_the_place_of_deviceshares(tmp_path: Path) -> None:
    """Benchmarks compare with one that says yes to everything."""
    other = {"urlPrefix": "http://127.0.0.1:1", "filterVerb": "filter"}
    assert config_of(components(tmp_path, extender=other).deviceshare_scheduler)["extenders"] == [other]


def test_flags_that_new_releases_dropped_are_not_given_to_them(tmp_path: Path) -> None:
    """An unknown flag ends a component at once."""
    old, new = components(tmp_path / "old"), components(tmp_path / "new", "v1.33.0")
    assert "--port=0" in old.controller_manager.command
    assert "--port=0" not in new.controller_manager.command
    tokens = tmp_path / "tokens.csv"
    assert any("EphemeralContainers" in flag for flag in old.apiserver(tokens).command)
    assert not any("feature-gates" in flag for flag in new.apiserver(tokens).command)


def test_every_listener_has_a_port_of_its_own() -> None:
    """Several sandboxes and many listeners share one loopback interface."""
    ports = choose_ports()
    numbers = [getattr(ports, field) for field in ports.__struct_fields__]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("version", "wanted", "mode"),
    [
        ("v1.20.2", "auto", "webhooks"),
        ("v1.35.9", "auto", "webhooks"),
        ("v1.36.3", "auto", "policies"),
        ("v1.36.3", "webhooks", "webhooks"),
        ("v1.36.3", "policies", "policies"),
    ],
)
def test_deviceshare_serves_webhooks_only_where_no_policies_admit_pods(
    tmp_path: Path, version: str, wanted: str, mode: str
) -> None:
    """As the chart chooses, by the release."""
    command = components(tmp_path, version, admission=wanted).deviceshare.command
    assert command[command.index("--admission") + 1] == mode
    assert ("--webhook-bind" in command, "--tls-cert" in command) == (mode == "webhooks", mode == "webhooks")
