"""The environment that a kubelet gives a container: plain values, `$(VAR)` references and the downward API.

Pure, and after Kubernetes's code: `makeEnvironmentVariables` in pkg/kubelet and third_party/forked/golang/expansion.
Variables from ConfigMaps, Secrets, resource fields and `envFrom` are left out, and so are those of Services: nothing of
deviceshare depends on them.
"""

import ipaddress
import re
import zlib
from collections.abc import Mapping

from deviceshare_sandbox.simulated.pod import KubeletContainer, KubeletPod

_SUBSCRIPT = re.compile(r"metadata\.(?P<map>annotations|labels)\['(?P<key>.*)'\]")
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^)]*)\))")


def environment(pod: KubeletPod, container: KubeletContainer) -> dict[str, str]:
    """NAME → value as the container would find them if it started now. Of equal names the last one wins."""
    values: dict[str, str] = {}
    for variable in container.env:
        if variable.value:
            values[variable.name] = expand(variable.value, values)
        elif variable.value_from is None:
            values[variable.name] = ""
        elif variable.value_from.field_ref is not None:
            values[variable.name] = _field(pod, variable.value_from.field_ref.field_path)
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by a value set earlier; an unknown name stays as written, and `$$` is one dollar sign.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return _REFERENCE.sub(lambda match: "$" if match["name"] is None else values.get(match["name"], match[0]), text)


def pod_ip(pod: KubeletPod) -> str:
    """An address for a pod that stays the same however often it is asked for."""
    return str(ipaddress.IPv4Address("10.128.0.0") + zlib.crc32(pod.metadata.uid.encode()) % 2**22)


def host_ip(node: str) -> str:
    """An address for a node, likewise."""
    return str(ipaddress.IPv4Address("10.64.0.0") + zlib.crc32(node.encode()) % 2**22)


def _field(pod: KubeletPod, path: str) -> str:
    """The downward API's fields; an annotation or label that isn't there gives an empty string.

    https://kubernetes.io/docs/concepts/workloads/pods/downward-api/#available-fields
    """
    if match := _SUBSCRIPT.fullmatch(path):
        return (pod.metadata.annotations if match["map"] == "annotations" else pod.metadata.labels).get(
            match["key"], ""
        )
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": host_ip(pod.spec.node_name),
        "status.hostIPs": host_ip(pod.spec.node_name),
        "status.podIP": pod_ip(pod),
        "status.podIPs": pod_ip(pod),
    }
    return fields[path]  # The API server admits no other path.
