"""CRDs of an older release under a running deviceshare, as `helm rollback` or two people's `kubectl apply` bring them.

Previous release, this one, previous, this one again: nothing that anybody holds or wrote is lost by our writes.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceshare import assets
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import GPU, Json, Pool, pod, refers
from tests.controlplane.test_shares import MEMORY_LABEL, container, sharer
from tests.unit.kube.test_definitions import EARLIER

GROUPS, LEDGERS = "shareddevicegroups.deviceshare.io", "nodedevices.deviceshare.io"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A cluster of its own, since its CRDs are exchanged."""
    with running(Options(nodes=0, devices=4)) as started:
        yield started


def definitions(directory: Path) -> list[Json]:
    return [yaml.safe_load(file.read_text()) for file in sorted(directory.glob("*.yaml"))]


def before_shares() -> list[Json]:
    """As an earlier release than any that is stored had them: no shares, no tokens, no life of groups."""
    older = definitions(EARLIER)
    for crd in older:
        root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        if crd["metadata"]["name"] == GROUPS:
            for name in ("releaseAfter", "deletionPolicy", "nodeLossPolicy", "allowedNamespaces"):
                del root["spec"]["properties"][name]
            del root["status"]["properties"]["claimToken"]
        if crd["metadata"]["name"] == LEDGERS:
            claim = root["spec"]["properties"]["claims"]["additionalProperties"]
            del claim["oneOf"]
            for name in ("pod", "shares", "within", "token"):
                del claim["properties"][name]
    return older


def replace(pool: Pool, crds: list[Json]) -> None:
    """Not `apply`, which would leave what another has applied."""
    for crd in crds:
        found = pool.get("crd", crd["metadata"]["name"])
        pool.kubectl("replace", "-f", "-", stdin=json.dumps({**found, "spec": crd["spec"]}))


def readiness(pool: Pool) -> str:
    try:
        with urllib.request.urlopen(f"{pool.sandbox.probe_url}/readyz?verbose", timeout=5) as answer:
            said: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        said = error.read().decode()
    return said


def written_by_others(pool: Pool, node: str) -> None:
    """Whoever writes an object has the API server drop what its CRD lacks."""
    pool.kubectl("annotate", "--overwrite", "ndev", node, "seen=yes")


def held(pool: Pool, node: str) -> dict[str, Any]:
    """The claims without marks, which come and go, and tokens, without which a claim is good, too."""
    claims = pool.get("ndev", node)["spec"]["claims"]
    return {uid: {k: v for k, v in claim.items() if k not in ("releasing", "token")} for uid, claim in claims.items()}


@pytest.mark.parametrize("older", [before_shares, lambda: definitions(EARLIER)], ids=["before-shares", "25e2181"])
def test_older_crds_for_a_while_cost_nobody_anything(pool: Pool, older: Any) -> None:
    """While they are there nothing is written and readiness says why; then it heals by itself."""
    node = pool.node(4, **MEMORY_LABEL)
    life = {"releaseAfter": "1h", "deletionPolicy": "AfterLastPod", "nodeLossPolicy": "Move"}
    group = pool.group("first", 2, **life)
    pool.apply(pod("one", group), sharer(pool, "part", container(mem=3)))
    pool.running("one", "part")
    pool.eventually(lambda: pool.status(group).get("podCount"), lambda count: count == 1)
    claims, spec, devices = held(pool, node), pool.get("sdg", group)["spec"], pool.status(group)["selectedDevices"][GPU]
    assert len(claims) == 2

    replace(pool, crds := older())
    if crds != definitions(EARLIER):
        pool.eventually(lambda: readiness(pool), refers(f"CRD {LEDGERS} lacks spec.claims"))
        assert f"CRD {GROUPS} lacks" in readiness(pool)
        assert "apply the CRDs of this release" in readiness(pool)
        written_by_others(pool, node)
        assert held(pool, node) != claims
        pool.apply(pod("two", group))
        pool.eventually(lambda: pool.reason("two"), refers("lacks"))

    replace(pool, definitions(assets.manifests() / "crds"))
    pool.eventually(lambda: readiness(pool), refers("readyz check passed"))
    pool.eventually(lambda: held(pool, node), lambda now: now == claims)
    assert pool.get("sdg", group)["spec"] == spec
    pool.apply(pod("two", group), sharer(pool, "more", container(mem=3)))
    pool.running("more")
    (two,) = pool.environments(pool.running("two"))
    assert two["NVIDIA_VISIBLE_DEVICES"] == devices
    pool.eventually(lambda: pool.status(group)["podCount"], lambda count: count == 2)
    assert claims.items() <= held(pool, node).items()
