"""CRDs: whether they are served at our version, with every field of this release."""

from deviceshare import assets
from deviceshare.doctor.findings import PROBLEM, Check, Finding, check, listed, unread
from deviceshare.domain.contract import API_GROUP, API_VERSION
from deviceshare.kube.definitions import CRDS, Crd, shipped_definitions
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


def judge(shipped: Crd, found: Crd | None) -> list[Finding]:
    """What is wrong with the CRD in the cluster."""
    name = shipped.metadata.name
    cure = f"helm upgrade the release with crds.enabled=true, or kubectl apply -f {assets.manifests() / 'crds'}"
    if found is None:
        kind = shipped.spec.names["kind"]
        return [Finding(PROBLEM, f"the CRD {name} is missing, so the cluster has no {kind}", cure)]
    if found.ours is None:
        served = listed([each.name for each in found.spec.versions if each.served]) or "none"
        return [Finding(PROBLEM, f"the CRD {name} doesn't serve {API_VERSION} but {served}", cure)]
    if not found.established:
        reasons = "; ".join(each.message for each in found.status.conditions if each.status == "False")
        look = f"kubectl describe crd {name}"
        return [Finding(PROBLEM, f"the API server doesn't serve the CRD {name}: {reasons or 'not established'}", look)]
    if lacking := found.lacking(shipped):
        what = f"the CRD {name} is of another release, so nothing is written; it lacks {listed(lacking)}"
        return [Finding(PROBLEM, what, cure)]
    return []
