"""Helm as a library: renders and lints the chart without a cluster.

It is helm-python-sdk with Helm 4 inside, so there is no binary to install.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from helm_python import Chart, _native, lint

CHART: Final = Path(__file__).parent / "deviceshare"
NAMESPACE: Final = "deviceshare-system"
CURRENT: Final = "1.34.0"
"""The Kubernetes version that is rendered for by default."""
WITH_POLICIES: Final = "1.36.0"
"""The first that serves MutatingAdmissionPolicy v1."""

Json = dict[str, Any]


def render_files(
    values: Mapping[str, Any], kube_version: str = CURRENT, api_versions: Iterable[str] = (), chart: Path = CHART
) -> dict[str, str]:
    """Each rendered template, as text by its path in the chart; raises helm_python.HelmError.

    NOTES.txt is among them; templates that come out empty are not. `api_versions` are those of `--api-versions`,
    besides Kubernetes's own.
    """
    # Helm's own render call knows the cluster's version; helm_python 0.2.2's method for it has no parameter for that.
    options = {
        "name": "deviceshare",
        "namespace": NAMESPACE,
        "kube_version": f"v{kube_version}",
        "api_versions": list(api_versions),
    }
    with Chart.load(chart) as loaded:
        answer = _native.call_string("helm_render", loaded._raw(), json.dumps(values), json.dumps(options))
    files: dict[str, str] = json.loads(answer)
    return {path.removeprefix("deviceshare/"): text for path, text in files.items() if text.strip()}


def render(values: Mapping[str, Any], kube_version: str = CURRENT, api_versions: Iterable[str] = ()) -> list[Json]:
    """The objects that `helm install` would create, in the order of their templates."""
    return list(_objects(render_files(values, kube_version, api_versions)))


def _objects(files: Mapping[str, str]) -> Iterator[Json]:
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            # By libyaml, which PyYAML's wheels contain: the chart is rendered hundreds of times in tests.
            yield from (document for document in yaml.load_all(text, yaml.CSafeLoader) if document)


def complaints(values: Mapping[str, Any], kube_version: str = CURRENT) -> list[str]:
    """What `helm lint --strict` finds wrong; advice doesn't count."""
    report = lint(CHART, dict(values), strict=True, namespace=NAMESPACE, kube_version=f"v{kube_version}")
    return [*report["errors"], *(each["error"] for each in report["messages"] if each["severity"] > 1)]
