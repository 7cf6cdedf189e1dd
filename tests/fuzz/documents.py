"""What deviceshare is sent in earnest, and how strangers bend it: seeded, so that the same can be sent again."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

from deviceshare.domain import contract

Json = Any

_LABELS: Final = {contract.GROUP: "team"}
_CONTAINER: Final = {
    "name": "main",
    "image": "x",
    "env": [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}, "requests": {"cpu": 1}},
    "securityContext": {"privileged": False},
}
POD: Final[Json] = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u-1", "labels": _LABELS, "annotations": _LABELS},
    "spec": {
        "schedulerName": contract.SCHEDULER_NAME,
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "ephemeralContainers": [{"name": "debug", "env": None}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            }
        },
    },
    "status": {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "lastTransitionTime": None, "reason": "Unschedulable"}
        ],
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": None}}}],
    },
}
GROUP: Final[Json] = {
    "metadata": {"name": "team", "uid": "uid-of-team", "generation": 1},
    "spec": {"resources": {"nvidia.com/gpu": 1}, "schedulingStrategy": "spread", "nodeSelector": {"a": "b"}},
    "status": {"phase": "Bound", "nodeName": "node-1", "selectedDevices": {"nvidia.com/gpu": "0"}, "allocatedPods": []},
}
NODE_DEVICES: Final[Json] = {
    "metadata": {"name": "node-0", "managedFields": [{"manager": "m"}], "resourceVersion": "1"},
    "spec": {
        "claims": {"u": {"group": "team", "devices": [{"resource": "nvidia.com/gpu", "index": 0, "uuid": "GPU-1"}]}}
    },
    "status": {"devices": [{"resource": "nvidia.com/gpu", "index": 0}], "hardware": {"devices": []}, "total": "1"},
}
NODE: Final[Json] = {
    "metadata": {"name": "node-1", "labels": {contract.MODE_LABEL: contract.MODE_SHARED}, "annotations": {"a": "b"}},
    "spec": {"unschedulable": False, "taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
}


def _review(kind: str, whole: Json, random_: random.Random) -> Json:
    operation = random_.choice(["CREATE", "UPDATE", "DELETE", "CONNECT", ""])
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "42",
            "kind": {"group": "", "version": "v1", "kind": kind},
            "subResource": random_.choice(["", "", "", "ephemeralcontainers", "status"]),
            "operation": operation,
            "userInfo": {
                "username": random_.choice(["alice", contract.IDENTITY, contract.AGENT_IDENTITY]),
                "extra": {"authentication.kubernetes.io/node-name": ["node-0"]},
            },
            "object": whole,
            "oldObject": whole,
        },
    }


def document(path: str, random_: random.Random) -> Json:
    """A sound request of this path."""
    pod = copy.deepcopy(POD)
    if path in ("/filter", "/filter-best", "/prioritize"):
        names = {"Pod": pod, "NodeNames": ["node-1", "node-2", "elsewhere"], "Nodes": None}
        return random_.choice([names, {"Pod": pod, "NodeNames": None, "Nodes": {"items": [copy.deepcopy(NODE)]}}])
    if path == "/preempt":
        victims = {"Pods": [{"UID": "u-2"}], "NumPDBViolations": 0}
        whole = {"Pods": [copy.deepcopy(POD)], "NumPDBViolations": 1}
        known = {"NodeNameToMetaVictims": {"node-1": victims}}
        return {"Pod": pod, **random_.choice([known, {"NodeNameToVictims": {"node-1": whole, "node-2": None}}])}
    if path == "/bind":
        return {"PodName": "p", "PodNamespace": "ns", "PodUID": "u-1", "Node": "node-1"}
    if path in ("/mutate-groups", "/validate-groups"):
        return _review(contract.GROUP_KIND, copy.deepcopy(GROUP), random_)
    if path == "/validate-node-devices":
        return _review(contract.NODE_DEVICES_KIND, copy.deepcopy(NODE_DEVICES), random_)
    return _review("Pod", pod, random_)


# Bending.

_ODD: Final[list[Json]] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**200, 1.5, 1e308, "", " ", "0", "1k", "1e0", "null", "\x00",
    "\x1b[31m", "[/x]", "é", "\u202e", "😀", "x" * 64, "y" * 300, "a/b/c", "../..", [], {}, [[]], [None], {"": None},
    {"a": {"a": {}}},
]  # fmt: skip


def places(whole: Json) -> Iterator[tuple[Json, Any]]:
    """Each member of each map and list: whose it is, and under what."""
    members = whole.items() if isinstance(whole, dict) else enumerate(whole) if isinstance(whole, list) else ()
    for key, value in list(members):
        yield whole, key
        yield from places(value)


def bend(whole: Json, random_: random.Random) -> Json:
    """One to three members are something else, gone, twice there or where they don't belong."""
    whole = copy.deepcopy(whole)
    for _ in range(random_.choice([1, 1, 1, 2, 3])):
        found = list(places(whole))
        if not found:
            return random_.choice(_ODD)
        parent, key = random_.choice(found)
        way = random_.randrange(7)
        if way <= 2:
            parent[key] = copy.deepcopy(random_.choice(_ODD))
        elif way == 3:
            parent[key] = None  # what the API's schemas allow nearly everywhere
        elif way == 4:
            del parent[key]
        elif way == 5:
            other, under = random_.choice(found)
            parent[key] = (
                copy.deepcopy(other[under])
                if under in other or (isinstance(other, list) and under < len(other))
                else None
            )
        else:
            parent[key] = [copy.deepcopy(parent[key])] * random_.choice([0, 2, 20])
    return whole


def encode(whole: Json, random_: random.Random) -> bytes:
    """JSON, or what was JSON: cut, bitten, deep, twice there, in another encoding."""
    body = json.dumps(whole, ensure_ascii=random_.random() < 0.5).encode()
    way = random_.randrange(24)
    if way == 0:
        return body[: random_.randrange(len(body) + 1)]
    if way == 1:
        at = random_.randrange(len(body) + 1)
        return body[:at] + random_.randbytes(random_.choice([1, 2, 8])) + body[at:]
    if way == 2:
        at = random_.randrange(max(len(body), 1))
        return body[:at] + bytes([random_.randrange(256)]) + body[at + 1 :]
    if way == 3:
        depth = random_.choice([100, 990, 1010, 5000, 40_000])
        opened, closed = random_.choice([(b"[", b"]"), (b'{"a":', b"}")])
        deep = opened * depth + b"1" + closed * depth
        return (
            body.replace(b'"metadata": {', b'"metadata": {"x": ' + deep + b", ", 1) if random_.random() < 0.7 else deep
        )
    if way == 4:
        return body.decode().encode(random_.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"]))
    if way == 5:
        return body.replace(
            b'"', random_.choice([b'"\xff', b'"\\ud800', b'"\xed\xa0\x80', b"'"]), random_.randrange(1, 9)
        )
    if way == 6:
        return body.replace(b"{", b'{"kind": 1, "kind": "x", ', random_.randrange(1, 4))
    if way == 7:
        return random_.choice(
            [b"", b"null", b"[]", b"{}", b"1", b'""', b"NaN", b"\x00", b"-", body * 2, b" " * 5000 + body]
        )
    return body
