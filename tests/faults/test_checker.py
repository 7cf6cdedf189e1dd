"""The checker notices what it is for: each rule is broken once, by hand."""

import copy
import json
from typing import Any

import pytest

from tests.faults.checker import State, never, unfinished, unproven
from tests.faults.raw_api import Json

GPU = "nvidia.com/gpu"


def pod(name: str, node: str, group: str = "", devices: str = "", shares: tuple[Json, ...] = (), **said: str) -> Json:
    annotations = dict(said)
    if group:
        annotations |= {"group-uid": group, "selected-devices": json.dumps({GPU: devices})}
    if shares:
        annotations["shares"] = json.dumps(shares)
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "annotations": {f"deviceshare.io/{k}": v for k, v in said_(annotations)},
    }
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def said_(annotations: dict[str, str]) -> list[tuple[str, str]]:
    return [(key.replace("_", "-"), text) for key, text in annotations.items()]


def whole(group: str, *numbers: int, **more: Any) -> Json:
    return {"group": group, "devices": [{"resource": GPU, "index": n} for n in numbers], **more}


def part(number: int, percent: int) -> Json:
    return {"container": "main", "resource": GPU, "index": number, "percent": percent}


def ledger(**claims: Json) -> Json:
    return {"spec": {"claims": claims}, "status": {"devices": [{"resource": GPU, "index": n} for n in range(4)]}}


def group(name: str, node: str) -> Json:
    return {
        "metadata": {"name": name, "uid": name},
        "status": {"nodeName": node, "phase": "Bound" if node else "Pending"},
    }


SOUND = State(
    {"a": group("a", "n1"), "b": group("b", "n2")},
    {
        "default/one": pod("one", "n1", "a", "0,1"),
        "default/two": pod("two", "n2", "b", "0"),
        "default/part": pod("part", "n1", shares=(part(2, 60),)),
        "default/inner": pod("inner", "n2", "b", "0", shares=(part(0, 50),)),
    },
    {
        "n1": ledger(a=whole("a", 0, 1), **{"uid-part": {"pod": "default/part", "shares": [part(2, 60)]}}),
        "n2": ledger(
            b=whole("b", 0), **{"uid-inner": {"pod": "default/inner", "shares": [part(0, 50)], "within": "b"}}
        ),
    },
)


def test_a_sound_state_has_no_fault() -> None:
    """Groups, a share of its own and one within a group."""
    assert (never(SOUND), unproven(SOUND), unfinished(SOUND)) == ([], [], [])


BROKEN: dict[str, tuple[str, dict[str, dict[str, Json]]]] = {
    "two claims of one device": (
        "belongs to ['a', 'c']",
        {"ledgers": {"n1": ledger(a=whole("a", 0, 1), c=whole("c", 1))}},
    ),
    "a former device claimed by another": (
        "belongs to ['a', 'c']",
        {"ledgers": {"n1": ledger(a=whole("a", 0, former=[{"resource": GPU, "index": 1}]), c=whole("c", 1))}},
    ),
    "a whole device and an outsider's part": (
        "and in parts to",
        {"ledgers": {"n1": ledger(a=whole("a", 0, 1), p={"pod": "x/p", "shares": [part(1, 10)]})}},
    ),
    "parts that are more than a device": (
        "more than the whole",
        {
            "ledgers": {
                "n1": ledger(
                    p={"pod": "x/p", "shares": [part(3, 60)]},
                    q={"pod": "x/q", "parts": [f"main 41% {GPU} 3=GPU-d", f"aux 1024Mi {GPU} 2=GPU-c,3=GPU-d former"]},
                    a=whole("a", 0, 1),
                )
            }
        },
    ),
    "pods of two groups with one device": (
        "belongs to ['a', 'c']",
        {"pods": {"default/three": pod("three", "n1", "c", "1")}},
    ),
    "a pod with what is claimed for another": (
        "which is claimed for a",
        {"pods": {"default/three": pod("three", "n1", "c", "3")}, "ledgers": {"n1": ledger(a=whole("a", 0, 1, 3))}},
    ),
    "pods of one group on two nodes": ("is on ['n1', 'n2']", {"pods": {"default/three": pod("three", "n2", "a", "2")}}),
    "a group that says another node than its pod's": ("is on ['n1', 'n2']", {"groups": {"a": group("a", "n2")}}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_may_never_be_is_noticed(case: str) -> None:
    """By name."""
    expected, changes = BROKEN[case]
    assert any(expected in text for text in never(changed(changes)))


def test_use_without_a_claim_is_noticed() -> None:
    """Of a device, of a part, and by a group's own word; not while the ledger is closed."""
    empty = changed({"ledgers": {"n1": ledger()}})
    assert len(unproven(empty)) == 3
    closed = changed({"ledgers": {"n1": {"spec": {}, "status": {}}}})
    assert unproven(closed) == []
    other = changed({"pods": {"default/one": pod("one", "n1", "a", "0,3")}})
    assert ["default/one" in text for text in unproven(other)] == [True]


def test_what_is_left_over_is_noticed() -> None:
    """A mark, a claim of a group that is gone, one of a pod elsewhere, and a closed ledger."""
    marked = changed({"ledgers": {"n2": ledger(b=whole("b", 0, releasing="m"))}})
    assert ["mark" in text for text in unfinished(marked)] == [True]
    gone = changed({"ledgers": {"n1": ledger(a=whole("a", 0, 1), c=whole("c", 3))}})
    assert unfinished(gone) == ["n1: c has a claim and is on ''"]
    elsewhere = changed({"ledgers": {"n1": ledger(a=whole("a", 0, 1), **{"uid-inner": {"pod": "i", "shares": []}})}})
    assert unfinished(elsewhere) == ["n1: i has a claim and is on 'n2'"]
    assert unfinished(changed({"ledgers": {"n3": {"spec": {}}}})) == ["the ledger of n3 is closed"]


def test_a_pod_that_has_ended_uses_nothing() -> None:
    """Whatever its annotations say."""
    over = pod("three", "n1", "c", "1")
    over["status"]["phase"] = "Succeeded"
    assert never(changed({"pods": {"default/three": over}})) == []


def changed(changes: dict[str, dict[str, Json]]) -> State:
    """The sound state with these objects in it."""
    sound = copy.deepcopy(SOUND)
    return State(*({**getattr(sound, kind), **changes.get(kind, {})} for kind in State._fields))
