"""Admission of pods whose group hands its devices over by a ResourceClaim."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import AllowedNamespaces, Group, GroupMeta, GroupSpec
from tests.unit.web.webhooks import Json, Webhooks, a_pod, patched

ALLOWED = AllowedNamespaces("Selector", names=["a"])
SPEC = GroupSpec({"nvidia.com/gpu": 1}, allowed_namespaces=ALLOWED, handover="claim")
GROUP = Group(GroupMeta(name="team", uid="1"), SPEC)


@pytest.fixture
async def webhooks() -> AsyncIterator[Webhooks]:
    async with Webhooks(group=GROUP, by_claim=True) as served:
        yield served


async def mutated(webhooks: Webhooks, pod: Json) -> Json:
    response = await webhooks.ask("/mutate-pods", object=pod, namespace="a")
    return patched(pod, response) if response.get("patch") else pod


async def refusal(webhooks: Webhooks, pod: Json, namespace: str = "a") -> str:
    response = await webhooks.ask("/validate-pods", object=pod, namespace=namespace)
    assert not response.get("warnings")
    return "" if response["allowed"] else str(response["status"]["message"])


async def test_a_pod_names_its_groups_claim_and_no_variable(webhooks: Webhooks) -> None:
    """In each container, beside what it claims itself; a second review changes nothing."""
    own = {"name": "net", "resourceClaimName": "mine"}
    containers = [{"name": "main", "resources": {"claims": [{"name": "net"}]}}, {"name": "log"}]
    pod = a_pod(containers=containers, resourceClaims=[own], schedulerName=contract.SCHEDULER_NAME)
    found = await mutated(webhooks, pod)
    spec, annotations = found["spec"], found["metadata"]["annotations"]
    assert spec["resourceClaims"] == [own, {"name": "deviceshare", "resourceClaimName": "deviceshare-1"}]
    used = [each["resources"]["claims"] for each in spec["containers"]]
    assert used == [[{"name": "net"}, {"name": "deviceshare"}], [{"name": "deviceshare"}]]
    assert spec["schedulerName"] == "default-scheduler"
    assert annotations == {contract.GROUP: "team", contract.GROUP_UID: "1", contract.CLAIM: "a/deviceshare-1"}
    names = {each["name"] for container in spec["containers"] for each in container["env"]}
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in names and "NVIDIA_VISIBLE_DEVICES" not in names
    assert await mutated(webhooks, found) == found
    response = await webhooks.ask("/validate-pods", object=found, namespace="a")
    assert response["allowed"]
    assert [each for each in response["warnings"] if "resourceClaims[1]" in each] == []


async def test_what_the_claim_is_not_for_is_refused(webhooks: Webhooks) -> None:
    """Pods that weren't injected, of another namespace, with a share, with devices of a plugin; a group that ends."""
    sound = await mutated(webhooks, a_pod())
    assert await refusal(webhooks, sound) == ""
    assert "did not inject the claim" in await refusal(webhooks, a_pod(label="team"))
    elsewhere = await mutated(webhooks, a_pod())
    assert "takes" in await refusal(webhooks, elsewhere, "b")
    for limits, said in (
        ({"deviceshare.io/gpu-percent": 40}, "a share can't"),
        ({"nvidia.com/gpu": 1}, "leave the limit"),
    ):
        greedy = await mutated(webhooks, a_pod(containers=[{"name": "main", "resources": {"limits": limits}}]))
        assert said in await refusal(webhooks, greedy)
    ending = replace(GROUP, metadata=replace(GROUP.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    webhooks.groups.hear(ending)
    assert "is being deleted" in await refusal(webhooks, sound)


@pytest.mark.parametrize("where", ["containers", "initContainers"])
async def test_a_container_without_the_claim_is_refused(webhooks: Webhooks, where: str) -> None:
    """Another webhook may have added it after ours."""
    pod = await mutated(webhooks, a_pod())
    pod["spec"].setdefault(where, []).append({"name": "late"})
    position = len(pod["spec"][where]) - 1
    assert f"spec.{where}[{position}].resources.claims" in await refusal(webhooks, pod)


async def test_a_copied_or_forged_pod_gets_what_its_group_has(webhooks: Webhooks) -> None:
    """What it says of another group's claim goes, and without the webhook it is refused."""
    pod = a_pod()
    pod["metadata"]["annotations"] |= {contract.CLAIM: "a/deviceshare-9", contract.SELECTED_DEVICES: "{}"}
    assert "written by deviceshare only" in await refusal(webhooks, pod | {"metadata": pod["metadata"]})
    found = await mutated(webhooks, pod)
    assert found["metadata"]["annotations"][contract.CLAIM] == "a/deviceshare-1"
    assert contract.SELECTED_DEVICES not in found["metadata"]["annotations"]


async def test_a_group_that_comes_with_its_pod_is_awaited() -> None:
    """kubectl apply creates both within milliseconds, and the mirror hears of the group a moment later."""
    other = replace(GROUP, metadata=replace(GROUP.metadata, name="other"))
    async with Webhooks(group=other, by_claim=True) as webhooks:
        asked = asyncio.create_task(mutated(webhooks, a_pod()), name="review")
        await asyncio.sleep(0.2)
        webhooks.groups.hear(GROUP)
        found: Any = await asked
    assert contract.CLAIM in found["metadata"]["annotations"]


async def test_such_a_group_needs_the_setting() -> None:
    """Nobody would make its claim."""
    body = {"metadata": {"name": "team"}, "spec": {"resources": {"nvidia.com/gpu": 1}, "handover": "claim"}}
    async with Webhooks() as webhooks:
        response = await webhooks.ask("/validate-groups", contract.GROUP_KIND, object=body)
    assert "dra.handover=true" in response["status"]["message"]
