"""Each cure that a text names, performed: the pod that waits is bound. tests/unit/test_cures.py knows them all."""

import asyncio
import json
import shlex
from collections.abc import Callable

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.shares import ALIYUN_GPU_MEM, METAGPU
from deviceshare.domain.placement import shared_resources
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODES
from tests.controlplane.pool import GPU, Json, Pool, deployment, pod, refers
from tests.controlplane.test_inventory import capacity
from tests.controlplane.test_rebind import deviceshare

HOSTNAME = "kubernetes.io/hostname"


def recreate(pool: Pool, group: str, **spec: object) -> None:
    """What the texts call "delete the group and recreate it"; its pods stay, and wait."""
    selector = pool.get("sdg", group)["spec"]["nodeSelector"]
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group).returncode == 0)
    pool.group(group.removeprefix(f"{pool.name}-"), **({"nodeSelector": selector} | spec))


def two_pods(pool: Pool, group: str) -> None:
    """A Deployment of the group with two pods that run."""
    pool.apply(deployment("work", group, 2))
    running = pool.eventually(lambda: pool.get("pods"), lambda pods: len(pods) == 2)
    pool.running(*(each["metadata"]["name"] for each in running))


def replaced(pool: Pool) -> list[str]:
    """Has the Deployment recreate its pods; returns their names once the scheduler has refused them."""
    pool.kubectl("delete", "pods", "--all", "-n", pool.name)
    pods = pool.eventually(lambda: pool.get("pods"), lambda pods: len(pods) == 2 and all(map(refused, pods)))
    return [each["metadata"]["name"] for each in pods]


def refused(each: Json) -> bool:
    conditions = each["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def places(pool: Pool) -> set[str]:
    """The nodes of the Deployment's pods, once both run."""
    return {each["spec"]["nodeName"] for each in pool.running()}


def explained(pool: Pool, *what: str) -> str:
    return deviceshare(pool, "explain", *what).stdout.replace("\n", " ")


def test_a_group_whose_node_is_cordoned_goes_elsewhere_when_it_is_created_again(pool: Pool) -> None:
    """The pods were admitted while it lived on the cordoned node, and nothing of that is frozen into them."""
    home, other = pool.node(), pool.node()
    group = pool.group(cordonPolicy="Stay")
    two_pods(pool, group)
    first = pool.status(group)["nodeName"]
    pool.kubectl("cordon", first)
    waiting = replaced(pool)
    assert f"kubectl uncordon {first}" in explained(pool, "pod", f"{pool.name}/{waiting[0]}")

    recreate(pool, group)

    assert places(pool) == {home, other} - {first}


def test_a_cordoned_node_is_uncordoned(pool: Pool) -> None:
    """The pods join their group where it is."""
    home = pool.node()
    group = pool.group()
    two_pods(pool, group)
    pool.kubectl("cordon", home)
    replaced(pool)
    pool.kubectl("uncordon", home)
    assert places(pool) == {home}


def test_a_bound_group_gets_another_selector_by_being_created_again(pool: Pool) -> None:
    """The refusal of the change names the way."""
    old, new = pool.node(zone="a"), pool.node(zone="b")
    group = pool.group(nodeSelector={"zone": "a"})
    two_pods(pool, group)
    change = '{"spec": {"nodeSelector": {"zone": "b"}}}'
    said = pool.kubectl("patch", "sdg", group, "--type=merge", "-p", change, fails=True)
    assert "delete the group" in said and "recreate it" in said
    pool.kubectl("cordon", old)
    replaced(pool)

    recreate(pool, group, nodeSelector={"zone": "b"})

    assert places(pool) == {new}


def test_a_waiting_group_gets_another_selector(pool: Pool) -> None:
    """Its pods were admitted under the old one."""
    node = pool.node(zone="b")
    group = pool.group(nodeSelector={"zone": "a"})
    pool.apply(pod("waits", group))
    pool.eventually(lambda: pool.condition(group).get("message", ""), refers("matches spec.nodeSelector"))
    pool.kubectl("patch", "sdg", group, "--type=merge", "-p", '{"spec": {"nodeSelector": {"zone": "b"}}}')
    pool.running("waits")
    assert pool.placed("waits") == node


def lose_the_node(pool: Pool, node: str) -> str:
    pool.kubectl("delete", "node", node)
    return "NodeGone"


def unshare_the_node(pool: Pool, node: str) -> str:
    pool.kubectl("label", "node", node, f"{contract.MODE_LABEL}-")
    return "NodeNotShared"


def lose_devices(pool: Pool, node: str) -> str:
    pool.kubectl("annotate", "--overwrite", "node", node, f"{contract.INVENTORY_ANNOTATION}={GPU}=1")
    return "DevicesLost"


@pytest.mark.parametrize("trouble", [lose_the_node, unshare_the_node, lose_devices])
def test_a_degraded_group_is_well_elsewhere_when_it_is_created_again(
    pool: Pool, trouble: Callable[[Pool, str], str]
) -> None:
    """Its pods, which the Deployment recreated meanwhile, go along."""
    node = pool.node(0, inventory=f"{GPU}=4")
    group = pool.group()
    two_pods(pool, group)
    other = pool.node()
    reason = trouble(pool, node)
    sick = pool.eventually(lambda: pool.condition(group, "Healthy"), lambda each: each.get("reason") == reason)
    assert f"kubectl delete sdg {group}" in sick["message"]
    pool.kubectl("delete", "pods", "--all", "-n", pool.name, "--force", "--grace-period=0")  # no kubelet may be left
    pool.eventually(lambda: pool.get("pods"), lambda pods: len(pods) == 2 and all(map(refused, pods)))

    recreate(pool, group)

    assert places(pool) == {other}


def test_a_node_that_is_not_shared_any_more_is_labelled_again(pool: Pool) -> None:
    """The group stays where it is."""
    node = pool.node()
    group = pool.group()
    two_pods(pool, group)
    unshare_the_node(pool, node)
    cure = f"kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}"
    pool.eventually(lambda: pool.condition(group, "Healthy").get("message", ""), refers(cure))
    replaced(pool)
    pool.kubectl(*cure.split()[1:])
    assert places(pool) == {node}


def test_a_node_without_devices_is_annotated(pool: Pool) -> None:
    """Waiting pods get them."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    pool.kubectl("annotate", "--overwrite", "node", node, f"{contract.INVENTORY_ANNOTATION}=")
    pool.apply(pod("waits", pool.group()))
    cure = f"kubectl annotate node {node} {contract.INVENTORY_ANNOTATION}={GPU}=4"
    pool.eventually(lambda: pool.kubectl("describe", "node", node), refers(cure))
    pool.kubectl(*cure.split()[1:], "--overwrite")
    pool.running("waits")


def test_what_another_plugin_left_on_a_node_is_removed(pool: Pool) -> None:
    """Its kubelet would refuse pods that ask for it; the command takes it out, and nothing else."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    before = pool.get("node", node)["status"]["capacity"]
    capacity(pool, node, **{ALIYUN_GPU_MEM: "0", METAGPU: "30"})
    pool.kubectl("annotate", "--overwrite", "node", node, f"{contract.INVENTORY_ANNOTATION}=")
    told = f"the device plugin of metagpu ({METAGPU}) allocates its GPUs"
    said = pool.eventually(lambda: pool.kubectl("describe", "node", node), refers(told))
    assert "kubectl patch node NODE --subresource=status --type=merge -p '" in said

    left = shared_resources.advertised(seen(pool, node))
    assert left == {ALIYUN_GPU_MEM, METAGPU}
    cure = shared_resources.leftover_reason(left).cure
    run_in_shell(pool, cure[cure.index("kubectl") : cure.rindex("(")].replace("NODE", node))

    status = pool.get("node", node)["status"]
    assert status["capacity"] == status["allocatable"] == before
    assert not shared_resources.advertised(seen(pool, node))
    pool.eventually(lambda: pool.kubectl("get", "ndev", node), lambda text: "metagpu" not in text)


def seen(pool: Pool, node: str) -> Node:
    return msgspec.convert(pool.get("node", node), Node)


def run_in_shell(pool: Pool, command: str) -> None:
    """The command as a person runs it; where kubectl is older than 1.24, the request that a newer one would send."""
    verb, *arguments = shlex.split(command)[1:]
    done = pool.sandbox.kubectl(verb, *arguments)
    if "unknown flag: --subresource" not in done.stderr:
        assert done.returncode == 0, done.stderr
        return
    assert (verb, arguments[0], arguments[2:5]) == ("patch", "node", ["--subresource=status", "--type=merge", "-p"])

    async def send() -> None:
        async with connect(str(pool.sandbox.kubeconfig)) as connection:
            await Api(connection).patch(NODES, arguments[1], json.loads(arguments[5]), subresource="status")

    asyncio.run(send())


def test_an_idle_group_that_is_in_the_way_is_deleted(pool: Pool) -> None:
    """As `explain` says of each device that it holds."""
    pool.node()
    idle = pool.group("idle", 4)
    pool.apply(pod("brief", idle))
    pool.running("brief")
    pool.kubectl("delete", "pod", "brief", "-n", pool.name)
    waits = pool.group("waits", 2)
    pool.apply(pod("waits", waits))
    pool.eventually(lambda: pool.reason("waits"), bool)
    pool.eventually(lambda: deviceshare(pool, "explain", "group", waits, "-d").stdout, refers("kubectl delete sdg"))
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", idle).returncode == 0)
    pool.running("waits")


# Pods that bear a node affinity which rules their group's node out.


def frozen_to(node: str) -> Json:
    """The node affinity that an earlier deviceshare wrote into a pod of a group on this node."""
    labels = [{"key": contract.MODE_LABEL, "operator": "In", "values": [contract.MODE_SHARED]}]
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    terms = [{"matchExpressions": labels, "matchFields": fields}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("spec", "cure"),
    [({"affinity": frozen_to("elsewhere")}, "recreate the pod"), ({"nodeSelector": {HOSTNAME: "x"}}, "recreate it")],
)
def test_a_pod_whose_own_affinity_rules_its_groups_node_out_is_recreated(pool: Pool, spec: Json, cure: str) -> None:
    """Condition, event, `explain` and `doctor` name the pod and the cure."""
    pool.node()
    group = pool.group()
    pool.apply(pod("first", group))
    pool.running("first")
    pool.apply(pod("stuck", group, **spec))

    named = pool.eventually(lambda: pool.condition(group).get("message", ""), refers("stuck"))
    assert f"pod {pool.name}/stuck can't join it" in named and cure in named
    event = "reason=NodesRuledOut,involvedObject.name=stuck"
    told = ("get", "events", "-n", pool.name, "--field-selector", event, "-o", "jsonpath={..message}")
    pool.eventually(lambda: pool.kubectl(*told), refers(cure))
    assert cure in explained(pool, "pod", f"{pool.name}/stuck")
    said = deviceshare(pool, "doctor", "--no-canary", "-o", "json").stdout
    assert f"{pool.name}/stuck can't be bound" in said and cure in said

    pool.kubectl("delete", "pod", "stuck", "-n", pool.name)
    pool.apply(pod("stuck", group))
    pool.running("stuck")
    pool.eventually(lambda: pool.condition(group).get("message", ""), lambda message: "stuck" not in message)
