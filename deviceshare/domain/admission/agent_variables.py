"""The variables by which a container finds the agent of its node (docs/inside.md).

A pod's node isn't known when the pod is admitted, so its address is a reference that the kubelet resolves at each start
of a container: https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
"""

import re
from collections.abc import Sequence
from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.admission.drafts import Json

HOST: Final = "{host}"
"""What stands for the node's address in a template."""
_URL: Final = re.compile(r"https?://[^\s$/?#{}]+")


def template_fault(template: str) -> str:
    """What is wrong with a template of the agents' URL, and what would be right; "" where it is sound, or empty."""
    if not template or _URL.fullmatch(template.replace(HOST, "host", 1)):
        return ""
    return f"it is not a URL such as http://{HOST}:{contract.PODS_PORT}, with {HOST} for the node's address"


def with_agent(env: Sequence[Json], template: str) -> tuple[list[Json], list[str]]:
    """The container's variables with those of the agent first, and the names of its author's that were replaced.

    They are first so that later ones may refer to them. Without a template nothing is changed.
    """
    ours = _variables(template) if template else []
    names = [variable["name"] for variable in ours]  # not a set: a name may be any JSON, even unhashable
    others = [variable for variable in env if variable.get("name") in names and variable not in ours]
    replaced = [name for name in names if any(variable["name"] == name for variable in others)]
    return [*ours, *(variable for variable in env if variable.get("name") not in names)], replaced


def _variables(template: str) -> list[Json]:
    host = contract.AGENT_HOST_VARIABLE
    url: Json = {"name": contract.AGENT_VARIABLE, "value": template.replace(HOST, f"$({host})", 1)}
    if HOST not in template:
        return [url]
    return [{"name": host, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}}, url]
