"""Generator of the chart's derived files; a test fails while any of them is stale.

    python -m charts.generate
    python -m charts.generate install.yaml

- the resources that the description of `spec.resources` in the groups' CRD names, from the table of vendors;
- the chart's copy of the CRDs, from manifests/crds (a chart is installed without the repository around it);
- the tables of the admission policies (policies.py);
- values.schema.json and the table of values in the chart's README, from values.yaml;
- manifests/webhooks.yaml and policies.yaml, which doctor compares with the cluster's, from the chart;
- manifests/rights.yaml, what the chart grants deviceshare, which doctor asks the cluster about.

install.yaml, for people without Helm, is part of a release and not of the repository; with a file's name it is written.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from charts import helm, policies, values
from deviceshare.doctor.installation import ROLES
from deviceshare.domain import vendors
from deviceshare.domain.wording import listed

ROOT: Final = Path(__file__).parent.parent
_TABLE: Final = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)

_KNOWN: Final = re.compile(r"Known resources are .*")

_INSTALL_HEAD: Final = """\
# deviceshare with the chart's default values, for Kubernetes {minor} and later. Generated: python -m charts.generate
# The image of kube-scheduler must not be newer than the API server, nor older by more than one minor version. The image
# localhost/deviceshare is the one that you build from Containerfile: put in the name under which you pushed it.
# For other values, or an earlier Kubernetes:
#   helm template deviceshare charts/deviceshare --namespace {namespace} --kube-version VERSION
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    # deviceshare meets this level, and so must everything else in its namespace.
    pod-security.kubernetes.io/enforce: restricted
"""


def generated() -> Iterator[tuple[Path, str]]:
    """Each generated file as it should be, to be written one by one: the chart is rendered with the first."""
    chart = helm.CHART
    known = f"Known resources are {listed(vendors.known_resources())}."
    for file in (ROOT / "manifests/crds").iterdir():
        text = _KNOWN.sub(known, file.read_text())
        yield file, text
        yield chart / "files" / "crds" / file.name, text
    described, readme = values.read(chart / "values.yaml"), chart / "README.md"
    yield chart / "values.schema.json", values.schema(described)
    yield readme, _TABLE.sub(lambda _: values.table(described), readme.read_text())
    for name, text in policies.tables():
        yield chart / "files" / "policies" / "tables" / name, text
    # Agents that don't answer pods need no address in these.
    agents = {"agent": {"enabled": True, "pods": {"enabled": False}}}
    webhooks = helm.render_files({"admission": "webhooks", **agents}, _WITHOUT_CONDITIONS)
    yield ROOT / "manifests/webhooks.yaml", _of("templates/webhooks/", _WEBHOOKS_HEAD, webhooks)
    policies_ = helm.render_files({"admission": "policies", **agents}, helm.WITH_POLICIES)
    yield ROOT / "manifests/policies.yaml", _of("templates/policies/", _POLICIES_HEAD, policies_)
    yield ROOT / "manifests/rights.yaml", _rights()


_WITHOUT_CONDITIONS: Final = "1.27.0"
"""The last version whose webhooks have no matchConditions: without them, they do for all versions."""

_WEBHOOKS_HEAD: Final = """\
# deviceshare's admission webhooks with the chart's default values, in a form that every version of Kubernetes takes:
# the chart makes them stricter from 1.28 on. The caBundle is filled in by deviceshare itself (--ca-secret), by
# cert-manager, or by the person who installs it. Generated: python -m charts.generate
"""

_POLICIES_HEAD: Final = """\
# deviceshare's admission policies with the chart's default values, which take the place of the webhooks
# (manifests/webhooks.yaml) where the API server serves MutatingAdmissionPolicy v1: Kubernetes 1.36 and later.
# Generated: python -m charts.generate
"""


_RIGHTS_HEAD: Final = """\
# What the chart grants deviceshare: by role of a replica, and by setting, the rules of RBAC that come with it.
# `namespaced`: in deviceshare's own namespace alone. Generated: python -m charts.generate
"""
_HOLDS: Final = {"dra": {"holds": True}}
_BEFORE_DRA: Final = "1.31.0"
_BY_SETTING: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any], str]]] = {
    "dra": ({}, {}, _BEFORE_DRA),
    "preemption": ({}, {"preemption": True}, helm.CURRENT),
    "scaling-pods": ({}, {"autoscaling": {"scalingPods": True}}, helm.CURRENT),
    "dra-holds": ({}, _HOLDS, helm.CURRENT),
    "dra-handover": (_HOLDS, {"dra": {"holds": True, "handover": True}}, helm.CURRENT),
    "gates": ({}, {"placement": "gates"}, helm.CURRENT),
}
"""The chart's values without it and with it, and the version of Kubernetes without it."""


def _rights() -> str:
    found = {role: {"always": rules} for role, rules in _rules({}, _BEFORE_DRA).items()}
    for setting, (without, with_it, version) in _BY_SETTING.items():
        before = _rules(without, version)
        for role, rules in _rules(with_it).items():
            if more := [rule for rule in rules if rule not in before[role]]:
                found[role][setting] = more
    return _RIGHTS_HEAD + yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=1000)


def _rules(values: dict[str, Any], version: str = helm.CURRENT) -> dict[str, list[helm.Json]]:
    found: dict[str, list[helm.Json]] = {}
    for each in helm.render({"preemption": False, **values}, version):
        role = each["metadata"]["name"].removeprefix("deviceshare").lstrip("-") or "replica"
        if each["kind"] in ("ClusterRole", "Role") and role in ("replica", *ROLES):
            where = {"namespaced": True} if each["kind"] == "Role" else {}
            found.setdefault(role, []).extend({**rule, **where} for rule in each["rules"])
    return found


def _of(folder: str, head: str, files: Mapping[str, str]) -> str:
    documents = [text.strip().removeprefix("---\n") for path, text in sorted(files.items()) if folder in path]
    return head + "---\n" + _without_helm("\n---\n".join(documents)) + "\n"


def install(chart: Path = helm.CHART) -> str:
    """The chart with its default values, for kubectl and kustomize."""
    files = helm.render_files({}, chart=chart)
    minor = ".".join(helm.CURRENT.split(".")[:2])
    head = _INSTALL_HEAD.format(minor=minor, namespace=helm.NAMESPACE)
    documents = [text.strip().removeprefix("---\n") for path, text in sorted(files.items()) if path.endswith(".yaml")]
    body = "\n---\n".join(documents)
    return f"{head}---\n{_without_helm(body)}\n"


def _without_helm(text: str) -> str:
    # These labels and annotations are for Helm; the files are applied with kubectl.
    text = re.sub(r"^ +app.kubernetes.io/managed-by: Helm\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^ +annotations:\n +helm.sh/resource-policy: keep\n", "", text, flags=re.MULTILINE)


def stale() -> Iterator[tuple[Path, str]]:
    """The generated files that differ from what they should be, with the right text."""
    return ((file, text) for file, text in generated() if not file.exists() or file.read_text() != text)


def main() -> None:
    """Writes what is stale, and names it; or install.yaml into the file that is named."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(install())
        return
    for file, text in stale():
        file.write_text(text)
        sys.stdout.write(f"{file.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
