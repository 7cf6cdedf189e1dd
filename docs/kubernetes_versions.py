"""The tables of docs/kubernetes.md: what each version of Kubernetes gives and needs, and on which the tests were run.

What follows from a version is asked of the code and of the chart as Helm renders it; the rest are facts of Kubernetes.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from charts import helm
from deviceshare_sandbox.components import asks_before_evicting, scheduler_config_version

OLDEST: Final = 20
NEWEST: Final = 36
RUNS: Final = Path(__file__).parent / "kubernetes_runs.toml"

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]

_SINCE: Final = {
    21: "namespaces have the label `kubernetes.io/metadata.name` by themselves; a PodDisruptionBudget is of `v1`",
    22: "a Service can lead to the pods of one node only (`agent.pods.through: service`)",
    23: "a Binding's preconditions are compared, so a replica that was paused for long can't bind any more",
    24: "kubelets report a pod's end after its containers have ended (also 1.22.8 and 1.23.5)",
    25: "validation rules in CRDs (the chart uses them from 1.26 on)",
    27: "scheduling gates; the chart spreads replicas of one revision (`matchLabelKeys`)",
    28: "`matchConditions` of webhooks",
    29: "sidecars (init containers with `restartPolicy: Always`)",
    30: "ValidatingAdmissionPolicy `v1`; an agent's token names its node, and it may write of that node only",
    32: "DRA's `resource.k8s.io/v1beta1`",
    33: "CPU and memory of running containers can be changed in place",
    34: "DRA's `resource.k8s.io/v1`; limits of a pod as a whole",
    35: "kubelets refuse control groups of version 1 unless their configuration has `failCgroupV1: false`",
    36: "MutatingAdmissionPolicy `v1`",
}
"""Facts of Kubernetes that matter here, by the minor version from which they hold.

https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/ and the releases' change logs.
"""


def versions(table: Table) -> str:
    """A row for each minor version."""
    return table(
        ("Kubernetes", "kube-scheduler's configuration", "the webhook is asked about", "preemption", "new in it"),
        [_row(minor) for minor in range(OLDEST, NEWEST + 1)],
    )


def _row(minor: int) -> Sequence[str]:
    objects = helm.render({}, f"1.{minor}.0")
    return (
        f"1.{minor}",
        f"`{scheduler_config_version(minor)}`",
        _asked(objects),
        _preemption(minor),
        _SINCE.get(minor, ""),
    )


def _asked(objects: Iterable[Mapping[str, Any]]) -> str:
    """Which pods the mutating webhook is called for."""
    webhooks = [each for one in objects if one["kind"] == "MutatingWebhookConfiguration" for each in one["webhooks"]]
    if not webhooks:
        return "nothing: there are policies instead"
    return "pods that concern it" if all("matchConditions" in each for each in webhooks) else "every new pod"


def _preemption(minor: int) -> str:
    if asks_before_evicting(f"v1.{minor}.0"):
        return "yes"
    fixed = next((patch for patch in range(1, 20) if asks_before_evicting(f"v1.{minor}.{patch}")), None)
    return f"from 1.{minor}.{fixed} on"


def runs(table: Table) -> str:
    """What was run where, the newest first; an entry says what was run then, not what would pass today."""
    rows = [
        (each["kubernetes"], each["what"], each["result"], each["date"], f"`{each['commit']}`", each["by"])
        for each in tomllib.loads(RUNS.read_text())["run"]
    ]
    return table(("Kubernetes", "what", "result", "date", "commit", "by"), rows)
