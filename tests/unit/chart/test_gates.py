"""The chart without a kube-scheduler: `placement: gates`."""

from typing import Any

import pytest
from helm_python import HelmError

from charts import helm
from deviceshare.domain.admission.settings import GATES
from tests.unit.chart.objects import containers, named
from tests.unit.chart.test_pod import settings

VALUES = {"placement": "gates"}


def rights(values: dict[str, Any]) -> set[tuple[str, str]]:
    """Resource and verb of everything that the controller's cluster-wide role allows."""
    rules = named(helm.render(values), "ClusterRole", "deviceshare-controller")["rules"]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def test_no_scheduler_is_installed_and_none_is_expected() -> None:
    """No container, no configuration, no lease, no rights of a scheduler, and no port for one."""
    objects = helm.render(VALUES)
    assert list(containers(objects)) == ["deviceshare"]
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert not [name for name in names if "scheduler" in name[1] or "extender" in name[1]]
    arguments = containers(objects)["deviceshare"]["args"]
    assert "--placement=gates" in arguments
    assert not [each for each in arguments if each.startswith("--extender")]


def test_deviceshare_injects_the_gate() -> None:
    """By the same setting."""
    chosen = settings(VALUES)
    assert chosen.injection.placement == GATES
    assert not chosen.serves_extender
    assert "deviceshare.io/gpu-mem" in chosen.share_resources


@pytest.mark.parametrize("version", ["1.30.0", helm.WITH_POLICIES])
@pytest.mark.parametrize("roles", [["controller"], ["controller", "webhook"]])
def test_only_the_resources_of_chosen_systems_are_advertised(version: str, roles: list[str]) -> None:
    """However pods are admitted: the others' capacity is another system's to write."""
    arguments = containers(helm.render({**VALUES, "roles": roles, "shares": {"dialects": ["metagpu"]}}, version))

    assert arguments["deviceshare"]["args"].count("--dialects=metagpu") == 1


def test_what_only_this_mode_needs_is_granted_only_there() -> None:
    """To delete pods, and to advertise the resources of shares."""
    assert rights(VALUES) - rights({}) == {("pods", "delete"), ("nodes/status", "patch")}


def test_an_api_server_that_drops_gates_is_refused() -> None:
    """Its own scheduler would place pods before they have devices."""
    helm.render(VALUES, "1.27.0")
    with pytest.raises(HelmError, match="placement=gates needs Kubernetes"):
        helm.render(VALUES, "1.26.15")


def test_the_own_scheduler_stays_the_default() -> None:
    """Gates are for clusters that allow none."""
    assert set(containers(helm.render({}))) == {"deviceshare", "kube-scheduler"}
    assert not [each for each in containers(helm.render({}))["deviceshare"]["args"] if "--placement" in each]
