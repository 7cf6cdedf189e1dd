"""The claim protocol's last step of a bind where a scheduling gate takes the Binding's place (claims.md, gates).

One patch, which needs the version of the pod that was read before the ledger, writes the devices, allows no node but
the chosen one, and lifts the gate. From then on the pod lives on that node for everybody who reads claims
(`Pod.placed_on`): kube-scheduler can bind it there or nowhere, and neither gate nor affinity can be changed back.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/
"""

from collections.abc import Mapping

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.requests import Holder
from deviceshare.domain.placement.pinned_affinity import pinned_to
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import Cluster, Conflict, NotFound
from deviceshare.loops.protocol import bind
from deviceshare.loops.protocol.bind import Refused


async def lift(
    cluster: Cluster, pod: Pod, holder: Holder, node: str, devices: Mapping[str, str], *, timeout: float
) -> None:
    """Step 5 behind a gate; see `bind.attach`, whose arguments and errors it has.

    Raises Refused, too, where the gate isn't there any more: somebody else removed it, so the pod may be on any node.
    """
    meta = pod.metadata
    if not pod.awaits_placement:
        raise Refused(f"pod {meta.key} isn't behind the scheduling gate {contract.PLACEMENT_GATE} alone")
    if meta.hides("spec.affinity"):
        raise Refused(f"the affinity of pod {meta.key} can't be read ({meta.fault})")
    annotations = {**bind.written_with(pod, holder, devices), contract.PLACED_ON: node}
    body = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": annotations},
        "spec": {"schedulingGates": None, "affinity": pinned_to(node, pod.spec.affinity)},
    }
    try:
        await cluster.patch(PODS, meta.name, body, namespace=meta.namespace, timeout=timeout)
    except NotFound:
        raise Refused(f"pod {meta.key} is gone") from None
    except Conflict:
        await bind.after_conflict(cluster, pod, node)
