"""Scaling pods stand for what waits, as whole devices of new nodes."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.domain.placement.scaling import MOST, UnplacedPod, scaling_pods

GPU = "nvidia.com/gpu"
SHARED = {contract.MODE_LABEL: contract.MODE_SHARED}


def no_size(_: Collection[str]) -> int:
    return 0


def a_node(name: str, **allocatable: str) -> Node:
    labels = {**SHARED, "kubernetes.io/hostname": name}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}, Node)


def sharing(name: str, limits: Mapping[str, Any], **spec: Any) -> UnplacedPod:
    container = {"name": "main", "resources": {"limits": limits, "requests": {"cpu": "500m", **limits}}}
    meta = {"name": name, "namespace": "ns", "uid": name, "labels": {contract.GROUP: ""}}
    pod = msgspec.convert({"metadata": meta, "spec": {"containers": [container], **spec}}, Pod)
    request = request_of(pod, None)
    assert request
    return UnplacedPod(pod, request)


def of_group(name: str, count: int, **selector: str) -> UnplacedPod:
    spec = {"resources": {GPU: count}, "nodeSelector": selector}
    group = msgspec.convert({"metadata": {"name": "team", "uid": "g"}, "spec": spec}, Group)
    meta = {"name": name, "namespace": "ns", "uid": name, "annotations": {contract.GROUP: "team"}}
    pod = msgspec.convert({"metadata": meta, "spec": {"containers": [{"name": "main"}]}}, Pod)
    request = request_of(pod, group)
    assert request
    return UnplacedPod(pod, request)


def devices(body: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = body["spec"]["containers"][0]["resources"]["limits"]
    return found


def test_one_for_each_group_whatever_the_number_of_its_pods() -> None:
    """With the selector of the group, on none of today's nodes, and by a scheduler that nobody runs."""
    [body] = scaling_pods(
        [of_group("a", 4, zone="x"), of_group("b", 4, zone="x")], [a_node("n1", **{GPU: "8"})], no_size
    ).values()
    assert devices(body) == {GPU: "4"}
    assert body["spec"]["nodeSelector"] == {**SHARED, "zone": "x"}
    assert body["spec"]["schedulerName"] == "deviceshare-scaling"
    required = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}]


def test_shares_that_one_device_holds_have_one() -> None:
    """Three of 40 % need two devices; their CPU is added up."""
    bodies = scaling_pods([sharing(name, {"deviceshare.io/gpu-percent": 40}) for name in "abc"], [], no_size).values()
    assert [devices(body) for body in bodies] == [{GPU: "1"}, {GPU: "1"}]
    cpu = [body["spec"]["containers"][0]["resources"]["requests"]["cpu"] for body in bodies]
    assert cpu == ["1000m", "500m"]
    assert [body["metadata"]["annotations"]["deviceshare.io/scaling"] for body in bodies] == ["ns/a and ns/b", "ns/c"]


def test_shares_by_memory_are_parts_of_the_largest_device_or_a_guess() -> None:
    asked = [sharing(f"p{number}", {"deviceshare.io/gpu-mem": 8}) for number in range(4)]
    assert len(scaling_pods(asked, [], lambda _: 16384)) == 2
    assert len(scaling_pods(asked, [], no_size)) == 1


def test_parts_of_several_devices_are_of_one_node() -> None:
    [body] = scaling_pods(
        [sharing("a", {"deviceshare.io/gpu-percent": 30, "deviceshare.io/gpu-count": 2})], [], no_size
    ).values()
    assert devices(body) == {GPU: "2"}
    [body] = scaling_pods([sharing("a", {"deviceshare.io/gpu-percent": 250})], [], no_size).values()
    assert devices(body) == {GPU: "3"}


def test_pods_for_other_nodes_are_not_added_up() -> None:
    """By selector, affinity or tolerations."""
    pods = [
        sharing("a", {"deviceshare.io/gpu-percent": 10}),
        sharing("b", {"deviceshare.io/gpu-percent": 10}, nodeSelector={"a": "b"}),
    ]
    assert len(scaling_pods(pods, [], no_size)) == 2


def test_a_node_without_a_device_plugin_is_asked_for_as_a_node() -> None:
    """Autoscalers take it as the model of the next, which would have no such resource either."""
    [body] = scaling_pods([of_group("a", 4)], [a_node("n1", cpu="8")], no_size).values()
    assert devices(body) == {}


def test_names_stay_and_are_few() -> None:
    """The same as long as the first pod waits, and never more than autoscalers should act on at once."""
    pods = [sharing(f"p{number:02}", {"deviceshare.io/gpu-percent": 100}) for number in range(40)]
    first, second = (list(scaling_pods(pods[:number], [], no_size)) for number in (5, 40))
    assert first == second[:5]
    assert len(second) == MOST
