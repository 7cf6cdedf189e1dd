"""What the doctor makes of kube-scheduler's configuration, and of pods that wait in vain."""

from typing import Any

import msgspec
from msgspec.structs import replace

from charts import helm
from deviceshare.doctor import installation, nodes
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING
from deviceshare.doctor.kinds import SchedulerPod
from deviceshare.domain import contract
from deviceshare.domain.objects.object_decoder import decoder_of
from tests.unit.doctor.test_findings import only
from tests.unit.domain.objects import a_group, a_ledger, a_node, a_pod, gpus

CONFIGURED = ("ConfigMap", contract.SCHEDULER_NAME)
ASKS = {"filterVerb": "filter", "bindVerb": "bind", "preemptVerb": "preempt"}


def configuration(percentage: int | None = 100, *, profile: int | None = None, **extender: Any) -> str:
    """As a file has it; a percentage of None is left out."""
    body: dict[str, Any] = {"profiles": [{"schedulerName": contract.SCHEDULER_NAME}], "extenders": [ASKS | extender]}
    if percentage is not None:
        body["percentageOfNodesToScore"] = percentage
    if profile is not None:
        body["profiles"][0]["percentageOfNodesToScore"] = profile
    return msgspec.yaml.encode(body).decode()


def test_the_charts_own_scheduler_configuration_is_as_it_should_be() -> None:
    """In each version in which the chart writes it."""
    for version in ("1.20.2", "1.30.0"):
        rendered = helm.render({}, version)
        [found] = [each for each in rendered if (each["kind"], each["metadata"]["name"]) == CONFIGURED]
        assert [*installation.judge_configuration("here", found["data"]["config.yaml"])] == []


def test_a_scheduler_that_samples_nodes_is_found() -> None:
    """Above 100 nodes a group's own may never be offered; a profile's own percentage wins where there is one."""
    for text in (configuration(None), configuration(0), configuration(profile=0)):
        assert "a sample of the nodes" in only(installation.judge_configuration("here", text), WARNING)
    said = only(installation.judge_configuration("the file", configuration(30)), WARNING)
    assert "only 30%" in said and "(the file)" in said and "percentageOfNodesToScore: 100" in said
    assert [*installation.judge_configuration("here", configuration(30, profile=100))] == []


def test_an_extender_that_is_not_asked_before_pods_are_evicted_is_found() -> None:
    """Others' pods would die for nothing; and one that may be ignored is no guard at all."""
    said = only(installation.judge_configuration("here", configuration(preemptVerb="")), WARNING)
    assert "evicts other pods" in said and "preemptVerb: preempt" in said
    assert "ignorable: false" in only(installation.judge_configuration("here", configuration(ignorable=True)))
    assert "names no extender" in only(installation.judge_configuration("here", configuration(filterVerb="")))
    best = configuration(filterVerb="filter-best")
    assert [*installation.judge_configuration("here", best)] == []
    twice = msgspec.yaml.decode(best)
    twice["extenders"].append({"filterVerb": "f"})
    said = only(installation.judge_configuration("here", msgspec.yaml.encode(twice).decode()), WARNING)
    assert "another extender" in said and "prioritizeVerb: prioritize" in said
    assert "names no extender" in only(
        installation.judge_configuration("here", "percentageOfNodesToScore: 100\nextenders: null")
    )


def test_a_configuration_that_cannot_be_read_is_not_tested() -> None:
    """It may be a version of which nobody knows yet."""
    for text in ("", "{", "[]", "percentageOfNodesToScore: many"):
        assert "can't be read" in only(installation.judge_configuration("here", text), UNTESTED)


def scheduler_pod(*flags: str, in_args: bool = False, mounted: str = "", config_map: str = "") -> SchedulerPod:
    """As kubeadm's static pods show themselves; with a volume at `mounted`."""
    container: dict[str, Any] = {"command": ["kube-scheduler", "--leader-elect=true", *(() if in_args else flags)]}
    container |= {"args": list(flags) if in_args else None}
    volumes: list[dict[str, Any]] = [{"name": "kubeconfig", "hostPath": {"path": "/etc/kubernetes"}}]
    if mounted:
        container["volumeMounts"] = [{"name": "config", "mountPath": mounted}]
        volumes.append({"name": "config", "configMap": {"name": config_map}})
    pod = {"metadata": {"name": "s"}, "spec": {"nodeName": "cp-1", "containers": [container], "volumes": volumes}}
    return decoder_of(SchedulerPod).decode(msgspec.json.encode(pod))


def test_where_a_foreign_schedulers_configuration_lies_is_told() -> None:
    """On its host, mostly, where nobody can look through the API server."""
    first, second = "--config=/etc/kubernetes/scheduler.yaml", ("--config", "/b.yaml")
    said = only(
        installation.judge_unseen_configuration([scheduler_pod(first), scheduler_pod(*second, in_args=True)]), UNTESTED
    )
    assert "/b.yaml on cp-1 and /etc/kubernetes/scheduler.yaml on cp-1" in said
    assert "percentageOfNodesToScore: 100, and preemptVerb: preempt" in said
    assert "wherever it runs" in only(installation.judge_unseen_configuration([]), UNTESTED)
    assert "wherever it runs" in only(installation.judge_unseen_configuration([scheduler_pod()]), UNTESTED)


def test_a_configuration_in_a_config_map_is_found_through_its_mount() -> None:
    """As a scheduler has it that runs as a Deployment."""
    flag = "--config=/etc/scheduler/config.yaml"
    assert scheduler_pod(flag, mounted="/etc/scheduler/", config_map="its").config_map == ("its", "config.yaml")
    assert scheduler_pod(flag, mounted="/etc/other", config_map="its").config_map is None
    assert scheduler_pod(flag).config_map is None


def test_pods_that_wait_in_vain_are_one_finding_for_each_reason() -> None:
    """A Deployment's pods all have the same fault."""
    selector = {"zone": "nowhere"}
    pods = [
        replace(each, spec=replace(each.spec, node_selector=selector))
        for each in (a_pod("a"), a_pod("b"), a_pod("c", "other"))
    ]
    ledger = a_ledger("n1", team=gpus(0))
    groups = [a_group(node="n1"), a_group("other")]
    first, second = nodes.judge_waiting([a_node()], [ledger], groups, [*pods, a_pod("fine")])
    assert {each.mark for each in (first, second)} == {WARNING}
    assert first.what.startswith("ns/a and ns/b can't be bound: ") and "node n1, where group team lives" in first.what
    assert second.what.startswith("ns/c can't") and "recreate it" in second.cure
    assert [*nodes.judge_waiting([a_node()], [ledger], groups, [a_pod()])] == []


def test_groups_on_nodes_that_are_gone_or_cordoned_are_named() -> None:
    """Their pods wait, and every other tool says that all is well."""
    drained = a_node("n2")
    drained = replace(drained, spec=replace(drained.spec, unschedulable=True))
    groups = [a_group(node="n1"), a_group("gone", node="n3"), a_group("drained", node="n2"), a_group("free")]
    first, second = nodes.judge_homes([a_node(), drained], groups)
    assert (first.mark, second.mark) == (PROBLEM, WARNING)
    assert first.what.endswith("whose nodes are gone: gone") and "nodeLossPolicy" in first.cure
    assert second.what.endswith("cordoned: drained (n2)") and "uncordon" in second.cure
    assert nodes.judge_homes([a_node()], groups[:1]) == []
