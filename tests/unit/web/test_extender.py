"""The scheduler extender over HTTP: what kube-scheduler asks and what it is told."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NO_LEDGER, NOT_SHARED, OTHER_LABELS, not_injected
from deviceshare.loops.ports import Unavailable
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.replica.binder import Binder
from deviceshare.metrics import Metrics
from deviceshare.web.extender import MAX_BODY, STARTING, TIMEOUT, Extender
from deviceshare.web.server import Server
from tests.unit.web.mirrors import FixedMirror

GPU = "nvidia.com/gpu"
JSON = {"Content-Type": "application/json"}


class RecordingBinder(Binder):
    """Stands where the Binder would; raises `failure` if there is one."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.remembered: list[str] = []
        self.plain: set[str] = set()
        self.bound: list[tuple[str, str, str, str]] = []

    def remember(self, pod: Pod) -> None:
        self.remembered.append(pod.metadata.uid)
        if not pod.group:
            self.plain.add(pod.metadata.uid)

    def deviceless(self, uid: str) -> bool:
        return uid in self.plain

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        if self.failure:
            raise self.failure
        self.bound.append((namespace, name, uid, node))


def whole_node(name: str, **labels: str) -> dict[str, Any]:
    """A shared node as the scheduler sends it; `zone="a"` is a label."""
    return {"metadata": {"name": name, "labels": {contract.MODE_LABEL: contract.MODE_SHARED, **labels}}}


def fleet(free: dict[str, int], total: int = 4, **labels: str) -> Fleet:
    """Shared nodes of `total` GPUs each, with so many of them free, all with the same labels."""
    known = Fleet()
    for name, count in free.items():
        devices = [{"resource": GPU, "index": index} for index in range(total)]
        claims = {"someone": {"group": "else", "devices": devices[count:]}} if count < total else {}
        ledger = {"metadata": {"name": name}, "spec": {"claims": claims}, "status": {"devices": devices}}
        known.set_node(name, msgspec.convert(whole_node(name, **labels), Node))
        known.set_ledger(name, msgspec.convert(ledger, NodeDevices))
    return known


def group(count: int = 2, *, node: str = "", **spec: Any) -> Group:
    """The group `team`."""
    document = {"metadata": {"name": "team", "uid": "g-1"}, "spec": {"resources": {GPU: count}, **spec}}
    return msgspec.convert(document | {"status": {"nodeName": node}}, Group)


def pod(name: str = "p", *, joins: str = "team", injected: bool = True, labelled: bool = True) -> dict[str, Any]:
    """A pod as the webhook leaves it, or as it slipped past the webhook."""
    refs = [
        {"name": vendor.env, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{vendor.annotation}']"}}}
        for vendor in vendors.VENDORS
    ]
    annotations = {contract.GROUP: joins} if joins else {}
    metadata: dict[str, Any] = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": annotations}
    if joins and labelled:
        metadata["labels"] = {contract.GROUP: joins}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "env": refs if injected else []}]}}


@asynccontextmanager
async def asking(
    known: Fleet, *groups: Group, binder: RecordingBinder | None = None, ready: bool = True
) -> AsyncIterator[ClientSession]:
    extender = Extender(known, FixedMirror(*groups), binder or RecordingBinder(), lambda: "" if ready else STARTING)
    async with served(extender) as client:
        yield client


@asynccontextmanager
async def served(extender: Extender) -> AsyncIterator[ClientSession]:
    server = Server("extender", "127.0.0.1", 0, extender.routes(), Metrics(), max_body=MAX_BODY, timeout=TIMEOUT)
    await server.start()
    async with ClientSession(f"http://127.0.0.1:{server.port}") as client:
        yield client
    await server.stop()


async def post(client: ClientSession, verb: str, body: Any) -> Any:
    """The answer's JSON; the status must be 200, since kube-scheduler reads no other."""
    async with client.post(f"/{verb}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


# filter


async def test_filter_names_the_nodes_that_fit_and_a_reason_for_each_other() -> None:
    """The reasons reach the user in the pod's FailedScheduling event."""
    async with asking(fleet({"a": 4, "b": 1, "c": 2}), group()) as client:
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a", "b", "c", "d"]})
    assert answer["NodeNames"] == ["a", "c"]
    assert answer["FailedNodes"] == {
        "b": f"node(s) too full: group team needs 2 {GPU} (1 of 4 free)",
        "d": str(NOT_SHARED),
    }
    assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]
    assert answer["Error"] == ""
    assert "Nodes" not in answer


async def test_newer_kube_schedulers_are_told_each_reason_once() -> None:
    """Those that read `FailedAndUnresolvableNodes`: of thousands of nodes the answer is half as long."""
    known = fleet({"a": 4, "b": 1})
    newer = Extender(known, FixedMirror(group()), RecordingBinder(), lambda: "", since_1_21=lambda: True)
    asked = {"Pod": pod(), "NodeNames": ["a", "b"]}
    async with asking(known, group()) as client, served(newer) as other:
        old, new = await post(client, "filter", asked), await post(other, "filter", asked)
    assert old.pop("FailedNodes") and old == new


async def test_a_pod_of_a_namespace_that_is_left_out_goes_nowhere() -> None:
    """Nobody looks after what it says of groups; the reason names the setting and the way out."""
    forged = pod()
    forged["metadata"]["namespace"] = "kube-system"
    async with asking(fleet({"a": 4}), group()) as client:
        answer = await post(client, "filter", {"Pod": forged, "NodeNames": ["a"]})
    assert answer["NodeNames"] == []
    assert "namespace kube-system" in answer["FailedNodes"]["a"]
    assert "webhooks.excludedNamespaces" in answer["FailedNodes"]["a"]


async def test_filter_gives_whole_nodes_back_as_they_came() -> None:
    """With `nodeCacheCapable: false` the scheduler goes on with what it gets back, fields unknown to us included."""
    nodes = [whole_node(name) | {"spec": {"podCIDR": name}} for name in ("a", "b")]
    async with asking(fleet({"a": 0, "b": 4}), group()) as client:
        answer = await post(client, "filter", {"Pod": pod(), "Nodes": {"metadata": {}, "items": nodes}})
    assert answer["Nodes"]["items"] == [nodes[1]]
    assert list(answer["FailedNodes"]) == ["a"]
    assert "NodeNames" not in answer


async def test_null_is_no_list_of_names() -> None:
    """Go writes the field that it doesn't use as null."""
    asked: dict[str, Any] = {"Pod": pod(), "Nodes": {"items": [whole_node("a")]}, "NodeNames": None}
    async with asking(fleet({"a": 4}), group()) as client:
        assert (await post(client, "filter", asked))["Nodes"]["items"] == [whole_node("a")]
        assert (await post(client, "filter", asked | {"Nodes": None, "NodeNames": ["a"]}))["NodeNames"] == ["a"]
        assert (await post(client, "filter", asked | {"Nodes": {"items": None}}))["Nodes"] == {"items": []}


async def test_a_pod_without_a_group_passes_untouched_even_before_we_are_ready() -> None:
    """A deviceshare that starts holds up nobody else's pods."""
    async with asking(Fleet(), ready=False) as client:
        answer = await post(client, "filter", {"Pod": pod(joins=""), "NodeNames": ["a", "b"]})
    assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == (["a", "b"], {}, "")


async def test_not_ready_is_an_error_and_never_an_empty_list() -> None:
    """After an error the pod comes back by itself; after an empty list it may wait five minutes."""
    async with asking(fleet({"a": 4}), group(), ready=False) as client:
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a"]})
        assert answer == {"Error": STARTING}
        binding = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "a"}
        assert await post(client, "bind", binding) == {"Error": STARTING}


async def test_a_pod_without_a_group_is_bound_whether_the_mirrors_are_synced_or_not() -> None:
    """Our start must not hold up what is none of our business."""
    binder = RecordingBinder()
    async with asking(fleet({"a": 4}), binder=binder, ready=False) as client:
        await post(client, "filter", {"Pod": pod("plain", joins=""), "NodeNames": ["a"]})
        binding = {"PodName": "plain", "PodNamespace": "ns", "PodUID": "uid-plain", "Node": "a"}
        assert await post(client, "bind", binding) == {"Error": ""}
    assert binder.bound == [("ns", "plain", "uid-plain", "a")]


async def test_a_pod_prepared_by_hand_but_without_the_label_is_not_placed() -> None:
    """No mirror would show it, so its devices could be given to others while it lives."""
    async with asking(fleet({"a": 4}), group()) as client:
        answer = await post(client, "filter", {"Pod": pod(labelled=False), "NodeNames": ["a"]})
    assert (answer["NodeNames"], answer["FailedNodes"]) == (
        [],
        {"a": str(not_injected([f"the label {contract.GROUP}"]))},
    )


async def test_a_pod_that_slipped_past_the_webhook_is_told_to_be_recreated() -> None:
    """Its containers would see whatever their image says, `all` for instance."""
    async with asking(fleet({"a": 4}), group()) as client:
        answer = await post(client, "filter", {"Pod": pod(injected=False), "NodeNames": ["a"]})
    assert (answer["NodeNames"], answer["FailedNodes"]) == (
        [],
        {"a": str(not_injected(["the env NVIDIA_VISIBLE_DEVICES"]))},
    )
    assert "recreate the pod" in answer["FailedNodes"]["a"]


async def test_a_pod_that_was_injected_before_a_vendor_was_known_is_still_placed() -> None:
    """Only the variables of the group's own devices are asked for."""
    older = pod()
    for container in older["spec"]["containers"]:
        container["env"] = [each for each in container["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES"]
    async with asking(fleet({"a": 4}), group()) as client:
        answer = await post(client, "filter", {"Pod": older, "NodeNames": ["a"]})
    assert answer["NodeNames"] == ["a"]


async def test_a_group_that_does_not_exist_is_named() -> None:
    """A typo in the annotation is found by reading the event."""
    async with asking(fleet({"a": 4})) as client:
        answer = await post(client, "filter", {"Pod": pod(joins="taem"), "NodeNames": ["a"]})
    assert answer["FailedNodes"] == {"a": "group taem does not exist: create it"}


async def test_an_impossible_group_is_refused_with_its_field() -> None:
    """It may have been created while the webhook was away."""
    async with asking(fleet({"a": 4}), group(0)) as client:
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a"]})
    assert "group team is invalid: spec.resources[nvidia.com/gpu]: 0" in answer["FailedNodes"]["a"]


async def test_a_bound_group_is_sent_to_its_own_node_only() -> None:
    """Though others have more room."""
    async with asking(fleet({"a": 4, "b": 2}), group(node="b")) as client:
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a", "b"]})
        assert (answer["NodeNames"], answer["FailedNodes"]) == (["b"], {"a": "group team lives on node b"})
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a"]})
        assert (answer["NodeNames"], list(answer["FailedNodes"])) == ([], ["a"])


async def test_nodes_without_a_ledger_or_with_other_labels_are_refused_with_that_reason() -> None:
    """What the operator must do differs."""
    known = fleet({"a": 4}, zone="x")
    known.set_node("new", msgspec.convert(whole_node("new", zone="y"), Node))
    async with asking(known, group(nodeSelector={"zone": "y"})) as client:
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a", "new"]})
    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {"a": str(OTHER_LABELS), "new": str(NO_LEDGER)})


async def test_filter_remembers_the_pod_for_its_bind() -> None:
    """The bind that follows then needs no read."""
    binder = RecordingBinder()
    async with asking(fleet({"a": 4}), group(), binder=binder) as client:
        await post(client, "filter", {"Pod": pod("one"), "NodeNames": ["a"]})
    assert binder.remembered == ["uid-one"]


# prioritize


@pytest.mark.parametrize(("strategy", "best"), [("binpack", "tight"), ("spread", "wide")])
async def test_prioritize_scores_by_the_groups_strategy(strategy: str, best: str) -> None:
    """binpack prefers fewer free devices, spread more."""
    async with asking(fleet({"tight": 2, "wide": 4}), group(schedulingStrategy=strategy)) as client:
        answer = await post(client, "prioritize", {"Pod": pod(), "NodeNames": ["tight", "wide"]})
    scores = {each["Host"]: each["Score"] for each in answer}
    assert (max(scores, key=lambda node: scores[node]), sorted(scores.values())) == (best, [0, 10])


@pytest.mark.parametrize(("strategy", "best"), [("binpack", ["tight"]), ("spread", ["wide", "wider"])])
async def test_filter_best_answers_what_prioritize_would_score_highest(strategy: str, best: list[str]) -> None:
    """Among equals kube-scheduler's own scores choose. Why others don't fit is said as by filter."""
    nodes = {"tight": 2, "full": 0, "wide": 4, "wider": 4}
    async with asking(fleet(nodes), group(schedulingStrategy=strategy)) as client:
        asked = {"Pod": pod(), "NodeNames": list(nodes)}
        answer, every = await post(client, "filter-best", asked), await post(client, "filter", asked)
        assert answer == every | {"NodeNames": best} and every["NodeNames"] == ["tight", "wide", "wider"]
        none = asked | {"NodeNames": ["full"]}
        assert await post(client, "filter-best", none) == await post(client, "filter", none)
        others = {"Pod": pod(joins=""), "NodeNames": ["a", "z"]}
        assert (await post(client, "filter-best", others))["NodeNames"] == ["a", "z"]


async def test_prioritize_has_no_opinion_on_other_pods() -> None:
    """Every node is listed, since kube-scheduler adds the scores up."""
    async with asking(fleet({"a": 4}), group()) as client:
        asked = {"Pod": pod(joins=""), "Nodes": {"items": [whole_node("a"), whole_node("z")]}}
        assert await post(client, "prioritize", asked) == [{"Host": "a", "Score": 0}, {"Host": "z", "Score": 0}]


# preempt


def victims(*nodes: str) -> dict[str, Any]:
    """What kube-scheduler would evict there: a pod on each."""
    return {node: {"Pods": [{"UID": f"uid-on-{node}"}], "NumPDBViolations": 1} for node in nodes}


async def test_pods_are_evicted_only_where_the_group_fits() -> None:
    """To evict one doesn't free a device of a claim; the pod would die in vain."""
    asked = {"Pod": pod(), "NodeNameToVictims": None, "NodeNameToMetaVictims": victims("full", "free", "unknown")}
    async with asking(fleet({"full": 0, "free": 2}), group()) as client:
        assert await post(client, "preempt", asked) == {"NodeNameToMetaVictims": victims("free")}
    async with asking(fleet({"full": 0, "free": 2}), group(3)) as client:
        assert await post(client, "preempt", asked) == {"NodeNameToMetaVictims": {}}


async def test_for_a_bound_group_pods_are_evicted_on_its_own_node_only() -> None:
    """Though others have devices free, and its own has none left."""
    asked = {"Pod": pod(), "NodeNameToMetaVictims": victims("home", "other")}
    async with asking(fleet({"home": 0, "other": 4}), group(node="home")) as client:
        assert await post(client, "preempt", asked) == {"NodeNameToMetaVictims": victims("home")}


async def test_for_a_pod_that_could_not_be_bound_anyway_nobody_is_evicted() -> None:
    """It slipped past the webhook, its group isn't there, or nobody looks after what its namespace says of groups."""
    forged = pod()
    forged["metadata"]["namespace"] = "kube-system"
    async with asking(fleet({"a": 4}), group()) as client:
        for bad in (pod(injected=False), pod(joins="taem"), forged):
            asked = {"Pod": bad, "NodeNameToMetaVictims": victims("a")}
            assert await post(client, "preempt", asked) == {"NodeNameToMetaVictims": {}}


async def test_whole_victims_are_answered_by_their_uids() -> None:
    """With `nodeCacheCapable: false` the question has whole pods; the answer never has."""
    whole = {"a": {"Pods": [{"metadata": {"name": "v", "uid": "uid-on-a"}, "spec": {}}], "NumPDBViolations": 1}}
    asked = {"Pod": pod(), "NodeNameToVictims": whole, "NodeNameToMetaVictims": None}
    async with asking(fleet({"a": 4}), group()) as client:
        assert await post(client, "preempt", asked) == {"NodeNameToMetaVictims": victims("a")}


async def test_victims_of_a_pod_without_a_group_are_none_of_our_business() -> None:
    """Ready or not."""
    asked = {"Pod": pod(joins=""), "NodeNameToMetaVictims": victims("a", "b")}
    async with asking(Fleet(), ready=False) as client:
        assert await post(client, "preempt", asked) == {"NodeNameToMetaVictims": victims("a", "b")}


async def test_nobody_is_evicted_before_we_are_ready() -> None:
    """The answer to preempt has no field for an error: any status but 200 is one."""
    asked = {"Pod": pod(), "NodeNameToMetaVictims": victims("a")}
    async with asking(fleet({"a": 4}), group(), ready=False) as client, client.post("/preempt", json=asked) as response:
        assert response.status == 503
        assert (await response.json())["Error"] == STARTING


# bind

BINDING = {"PodName": "p", "PodNamespace": "ns", "PodUID": "uid-p", "Node": "a"}


async def test_bind_is_passed_on_and_answered_without_error() -> None:
    """The pod's UID goes with it, since names are used again."""
    binder = RecordingBinder()
    async with asking(fleet({"a": 4}), group(), binder=binder) as client:
        assert await post(client, "bind", BINDING) == {"Error": ""}
    assert binder.bound == [("ns", "p", "uid-p", "a")]


@pytest.mark.parametrize("failure", [Refused("pod ns/p is gone"), Unavailable("pod ns/p is gone")])
async def test_a_bind_that_fails_is_answered_with_the_reason(failure: Exception) -> None:
    """kube-scheduler shows it to the user and tries the pod again."""
    async with asking(fleet({"a": 4}), group(), binder=RecordingBinder(failure)) as client:
        assert await post(client, "bind", BINDING) == {"Error": "deviceshare: pod ns/p is gone"}


async def test_a_bind_that_fails_says_percent_in_a_word() -> None:
    """kube-scheduler formats the text once more, and what follows a percent sign is garbled."""
    binder = RecordingBinder(Refused("at most 40% of one are free"))
    async with asking(fleet({"a": 4}), group(), binder=binder) as client:
        assert await post(client, "bind", BINDING) == {"Error": "deviceshare: at most 40 percent of one are free"}


# What is no request.


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"Pod": 3, "PodName": 3}', b"{}"])
async def test_malformed_json_is_answered_400_with_the_fault(verb: str, body: bytes) -> None:
    """A status other than 200 is an error to kube-scheduler; the text is for whoever looks."""
    async with asking(fleet({"a": 4}), group()) as client, client.post(f"/{verb}", data=body, headers=JSON) as response:
        assert response.status == 400
        assert (await response.json())["Error"].startswith("not a request of a kube-scheduler")


async def test_whole_nodes_without_a_name_are_malformed() -> None:
    """They couldn't be answered for."""
    asked = {"Pod": pod(), "Nodes": {"items": [{"metadata": {}}]}}
    async with asking(fleet({"a": 4}), group()) as client, client.post("/filter", json=asked) as response:
        assert response.status == 400


async def test_a_request_about_no_node_at_all_is_answered_with_none() -> None:
    """An empty cluster is no error."""
    async with asking(fleet({}), group()) as client:
        assert (await post(client, "filter", {"Pod": pod(), "NodeNames": []}))["NodeNames"] == []
        assert (await post(client, "filter", {"Pod": pod()}))["Nodes"] == {"items": []}
        assert await post(client, "prioritize", {"Pod": pod(), "NodeNames": []}) == []


# What no kube-scheduler sends.


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"Pod": {"metadata": {"name": "\xff"}}}',
        b"[" * 100_000,
        b'{"Pod": ' + b'{"x":' * 100_000,
        b'{"PodName": "\\ud800"}',
    ],
    ids=["no UTF-8", "deep lists", "deep maps", "half a character"],
)
async def test_what_is_no_json_at_all_is_answered_400(verb: str, body: bytes) -> None:
    """And in few words."""
    async with asking(fleet({"a": 4}), group()) as client, client.post(f"/{verb}", data=body, headers=JSON) as response:
        assert response.status == 400
        assert len(await response.text()) < 500


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8888"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_what_a_browser_was_led_to_send_is_refused(verb: str, headers: dict[str, str], status: int) -> None:
    """A web site can have a person's browser post to loopback, where kubectl forwards the port."""
    binder = RecordingBinder()
    body = json.dumps({"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "a", "Pod": pod(), "NodeNames": []})
    async with (
        asking(fleet({"a": 4}), group(), binder=binder) as client,
        client.post(f"/{verb}", data=body, headers=JSON | headers) as response,
    ):
        assert response.status == status
    assert (binder.bound, binder.remembered) == ([], [])


@pytest.mark.parametrize("host", ["localhost:8888", "127.0.0.1:8888", "[::1]:8888"])
async def test_the_scheduler_may_call_the_extender_by_any_name_of_loopback(host: str) -> None:
    """As its configuration says; and with a charset, as some libraries send it."""
    headers = {"Host": host, "Content-Type": "application/json; charset=utf-8"}
    body = json.dumps({"Pod": pod(), "NodeNames": ["a"]})
    async with asking(fleet({"a": 4}), group()) as client, client.post("/filter", data=body, headers=headers) as answer:
        assert answer.status == 200


async def test_behind_client_certificates_the_extender_answers_to_its_services_name() -> None:
    """Which the scheduler has checked, and which no browser comes by."""
    extender = Extender(fleet({"a": 4}), FixedMirror(group()), RecordingBinder(), lambda: "", own_name=None)
    headers = JSON | {"Host": "deviceshare-extender.deviceshare-system.svc"}
    body = json.dumps({"Pod": pod(), "NodeNames": ["a"]})
    async with served(extender) as client, client.post("/filter", data=body, headers=headers) as answer:
        assert answer.status == 200
