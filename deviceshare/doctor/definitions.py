"""CRDs: whether they are served at our version, with every field of this release."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from deviceshare import assets
from deviceshare.doctor.findings import PROBLEM, WARNING, Check, Finding, check, listed, unread
from deviceshare.doctor.kinds import CRDS, Crd
from deviceshare.domain.contract import API_GROUP, API_VERSION
from deviceshare.loops.ports import ApiError, Cluster, NotFound


async def examine(api: Cluster) -> Check:
    """Compares each CRD in the cluster with the one that travels with this program."""
    findings = []
    for shipped in shipped_definitions():
        try:
            found = await api.get(CRDS, shipped.metadata.name)
            findings += judge(shipped, found)
        except NotFound:
            findings += judge(shipped, None)
        except ApiError as error:
            findings.append(unread(f"the CRD {shipped.metadata.name}", error))
    return check("CRDs", f"served as {API_GROUP}/{API_VERSION}, with every field of this release", findings)


def shipped_definitions() -> list[Crd]:
    """The CRDs of this release. The API server drops fields that a CRD doesn't have."""
    files = sorted((assets.manifests() / "crds").glob("*.yaml"))
    return [msgspec.yaml.decode(file.read_bytes(), type=Crd) for file in files]


def judge(shipped: Crd, found: Crd | None) -> list[Finding]:
    """What is wrong with the CRD in the cluster."""
    name = shipped.metadata.name
    cure = f"helm upgrade the release with crds.enabled=true, or kubectl apply -f {assets.manifests() / 'crds'}"
    if found is None:
        kind = shipped.spec.names["kind"]
        return [Finding(PROBLEM, f"the CRD {name} is missing, so the cluster has no {kind}", cure)]
    ours = next((each for each in found.spec.versions if each.name == API_VERSION and each.served), None)
    if ours is None:
        served = listed([each.name for each in found.spec.versions if each.served]) or "none"
        return [Finding(PROBLEM, f"the CRD {name} doesn't serve {API_VERSION} but {served}", cure)]
    if not found.established:
        reasons = "; ".join(each.message for each in found.status.conditions if each.status == "False")
        look = f"kubectl describe crd {name}"
        return [Finding(PROBLEM, f"the API server doesn't serve the CRD {name}: {reasons or 'not established'}", look)]
    wanted = next(each for each in shipped.spec.versions if each.name == API_VERSION)
    lacking = sorted(set(paths(wanted.schema)) - set(paths(ours.schema)))
    if lacking:
        what = f"the CRD {name} is of another release, and these fields are dropped: {listed(lacking)}"
        return [Finding(WARNING, what, cure)]
    return []


def paths(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every field of a schema, as `status.hardware.devices.index`."""
    inner = schema.get("openAPIV3Schema", schema)
    for name, field in inner.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from paths(field, f"{prefix}{name}.")
    for each in ("items", "additionalProperties"):
        if isinstance(inner.get(each), dict):
            yield from paths(inner[each], prefix)
