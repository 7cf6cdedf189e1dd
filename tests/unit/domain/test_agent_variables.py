"""How containers are told where their node's agent answers."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject, inject_ephemeral
from deviceshare.domain.admission.settings import InjectionSettings, template_fault
from tests.unit.domain.jsonpatch import applied

Json = dict[str, Any]
URL = "http://{host}:9412"
HOST: Json = {
    "name": "DEVICESHARE_AGENT_HOST",
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}},
}
AGENT: Json = {"name": "DEVICESHARE_AGENT", "value": "http://$(DEVICESHARE_AGENT_HOST):9412"}
MINE: Json = {"name": "MINE", "value": "$(DEVICESHARE_AGENT)/smi"}


def with_agent(env: list[Json], template: str) -> tuple[list[Json], list[str]]:
    """The variables of a container that has these, without those of devices; and those that were replaced."""
    pod = {
        "metadata": {"annotations": {"deviceshare.io/group": "team"}},
        "spec": {"containers": [{"name": "main", "env": env}]},
    }
    bare = msgspec.convert({**pod, "spec": {"containers": [{"name": "main"}]}}, Draft)
    [of_devices] = [each["value"] for each in inject(bare, None).patch if each["path"].endswith("/env")]
    settings = InjectionSettings(agent_url=template)
    injection = inject(msgspec.convert(pod, Draft), None, settings=settings, group_known=False)
    stored = applied(pod, injection.patch)["spec"]["containers"][0]["env"]
    replaced = [warning.partition(": env ")[2].split()[0] for warning in injection.warnings]
    return [each for each in stored if each not in of_devices], replaced


def test_the_url_is_made_of_the_nodes_address() -> None:
    """The address stands before the URL, which refers to it, and both before the author's."""
    assert with_agent([MINE], URL) == ([HOST, AGENT, MINE], [])


def test_without_a_template_nothing_is_told() -> None:
    """Where agents don't answer pods, an author's own variable of the name is theirs."""
    own = {"name": "DEVICESHARE_AGENT", "value": "own"}

    assert with_agent([own], "") == ([own], [])


def test_a_template_without_the_address_needs_no_reference() -> None:
    """Such as a Service's name."""
    assert with_agent([], "http://agents.example:80") == (
        [{"name": "DEVICESHARE_AGENT", "value": "http://agents.example:80"}],
        [],
    )


def test_addresses_of_ipv6_are_bracketed_by_the_template() -> None:
    """Nobody knows at admission of which family the node's address is (RFC 3986, 3.2.2)."""
    [_, agent] = with_agent([], "http://[{host}]:9412")[0]

    assert agent["value"] == "http://[$(DEVICESHARE_AGENT_HOST)]:9412"


def test_others_of_these_names_are_replaced() -> None:
    """As in a pod that was copied from another cluster; said once, however many there are."""
    old = {"name": "DEVICESHARE_AGENT", "value": "http://old"}

    assert with_agent([old, HOST, MINE, old], URL) == ([HOST, AGENT, MINE], ["DEVICESHARE_AGENT"])


def test_a_second_time_changes_nothing() -> None:
    """API servers may call a webhook twice."""
    once, _ = with_agent([MINE], URL)
    defaulted = {"name": HOST["name"], "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}

    assert with_agent(once, URL) == (once, [])
    assert with_agent([defaulted, AGENT], URL) == ([defaulted, AGENT], [])


def test_every_container_of_a_groups_pod_is_told() -> None:
    """And of no other pod."""
    pod: Json = {
        "metadata": {"annotations": {"deviceshare.io/group": "team"}},
        "spec": {"initContainers": [{"name": "init"}], "containers": [{"name": "main", "env": [MINE]}]},
    }
    made = applied(pod, inject(msgspec.convert(pod, Draft), None, settings=InjectionSettings(agent_url=URL)).patch)

    for field in ("initContainers", "containers"):
        assert made["spec"][field][0]["env"][:2] == [HOST, AGENT]
    assert not inject(
        msgspec.convert({"spec": pod["spec"]}, Draft), None, settings=InjectionSettings(agent_url=URL)
    ).patch


def test_an_ephemeral_container_is_told() -> None:
    """Whoever debugs a pod asks first what its devices do."""
    pod: Json = {
        "metadata": {"annotations": {"deviceshare.io/group": "team"}},
        "spec": {"ephemeralContainers": [{"name": "debug"}]},
    }
    made = applied(
        pod, inject_ephemeral(msgspec.convert(pod, Draft), (), settings=InjectionSettings(agent_url=URL)).patch
    )

    assert made["spec"]["ephemeralContainers"][0]["env"][:2] == [HOST, AGENT]


@pytest.mark.parametrize("template", ["", URL, "http://[{host}]:9412", "https://agents.example", "http://10.0.0.1:1"])
def test_sound_templates_are_taken(template: str) -> None:
    """Nothing is one, too."""
    assert not template_fault(template)


@pytest.mark.parametrize(
    "template",
    ["{host}:9412", "http://", "http://{node}:9412", "http://$(X):1", "http://{host}:1/path", "http://a b", "x", " "],
)
def test_other_templates_are_refused_with_one_that_works(template: str) -> None:
    """Above all what the kubelet would expand."""
    assert "http://{host}:9412" in template_fault(template)
