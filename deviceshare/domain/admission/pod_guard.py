"""The guard against forged pods: it strips deviceshare's labels and annotations from pods that nobody validates.

A pod's annotations say which group's devices it has, and repair rebuilds ledgers from that. They can be trusted because
admission, by webhooks or policies, lets only deviceshare write them. In namespaces left out any user may write
anything; so the same setting strips deviceshare's names from their pods, wherever a pod is read.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod

USUAL: Final = frozenset({"kube-system", contract.NAMESPACE})
"""Excluded by the manifests, and by the chart unless its values say otherwise."""

GUARDING: Final = "validate-pods.deviceshare.io"
"""The webhook that refuses others' writes of deviceshare's labels and annotations."""
GUARDING_POLICY: Final = "deviceshare-pods"
"""The policy that does."""


class PodGuard:
    """Calling it with a pod returns the pod as far as it can be trusted."""

    def __init__(self, left_out: Iterable[str] = USUAL) -> None:
        """`left_out`: the namespaces excluded from admission."""
        self.left_out = frozenset(left_out)

    def __call__(self, pod: Pod) -> Pod:
        meta = pod.metadata
        if meta.namespace not in self.left_out:
            return pod
        bare = replace(meta, labels=_others(meta.labels), annotations=_others(meta.annotations))
        if bare == meta and not pod.share:
            return pod
        return replace(pod, metadata=bare, left_out=pod.holder_name or meta.labels.get(contract.GROUP, ""))


def left_out(matched: Mapping[str, Any]) -> frozenset[str]:
    """The namespaces that the selector of a webhook, of a policy's matchConstraints or of a binding excludes by name.

    https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-metadata-name
    """
    selector = matched.get("namespaceSelector") or {}
    wanted = ("kubernetes.io/metadata.name", "NotIn")
    return frozenset(
        name
        for each in selector.get("matchExpressions") or ()
        if (each.get("key"), each.get("operator")) == wanted
        for name in each.get("values") or ()
    )


def _others(names: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in names.items() if not name.startswith(contract.PREFIX)}
