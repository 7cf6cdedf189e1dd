"""CRDs of an older release under a running deviceshare, as `helm rollback` or two people's `kubectl apply` bring them.

Previous release, this one, previous, this one again: nothing that anybody holds or wrote is lost by our writes.
"""

import asyncio
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from deviceshare import assets
from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import GPU, Json, Pool, pod, refers
from tests.controlplane.test_shares import MEMORY_LABEL, container, sharer
from tests.unit.kube.test_definitions import EARLIER

GROUPS, LEDGERS = "shareddevicegroups.deviceshare.io", "nodedevices.deviceshare.io"
DEVICES = "deviceshare.io/nvidia-visible-devices"
LIFE = {"releaseAfter": "1h", "deletionPolicy": "AfterLastPod", "nodeLossPolicy": "Move"}
QUIET_SECONDS = 5.0
"""A process that may write has converted, opened and summed up every ledger by then."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A cluster of its own, since its CRDs are exchanged; deviceshare is started and ended by `process`."""
    with running(Options(nodes=0, devices=4, deviceshare=False)) as started:
        yield started


class RunningProcess:
    """deviceshare, which an upgrade ends and starts again."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._command, self._log = sandbox.deviceshare_command, sandbox.layout.logs / "deviceshare-by-hand.log"
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._running is not None:
            self._running.terminate()
            self._running.wait(30)
        self._running = None


@pytest.fixture
def process(sandbox: Sandbox, pool: Pool) -> Iterator[RunningProcess]:
    """Started, with the CRDs of this release."""
    started = RunningProcess(sandbox)
    started.start()
    upgraded(pool)
    pool.kubectl("apply", "-f", str(sandbox.admission_manifest))
    yield started
    started.stop()
    started.start()
    upgraded(pool)
    pool.end()
    started.stop()


@pytest.fixture
def pool(sandbox: Sandbox) -> Pool:
    """As elsewhere, but ended by `process`, while somebody lets groups go."""
    return Pool(sandbox, f"test-{time.monotonic_ns()}")


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


def replaced(pool: Pool, crds: list[Json]) -> None:
    """Not `apply`, which would leave what another has applied."""
    for crd in crds:
        found = pool.get("crd", crd["metadata"]["name"])
        pool.kubectl("replace", "-f", "-", stdin=json.dumps({**found, "spec": crd["spec"]}))


def upgraded(pool: Pool) -> None:
    """The CRDs of this release are there, and deviceshare is ready."""
    replaced(pool, definitions(assets.manifests() / "crds"))
    pool.eventually(lambda: readiness(pool), refers("readyz check passed"))


def readiness(pool: Pool) -> str:
    try:
        with urllib.request.urlopen(f"{pool.sandbox.probe_url}/readyz?verbose", timeout=5) as answer:
            said: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        said = error.read().decode()
    except OSError as error:
        said = str(error)
    return said


def written_by_others(pool: Pool, node: str) -> None:
    """Whoever writes an object has the API server drop what its CRD lacks."""
    pool.kubectl("annotate", "--overwrite", "ndev", node, "seen=yes")


def held(pool: Pool, node: str) -> dict[str, Claim]:
    """The claims that can be read, in whichever form they are written, without marks and tokens, which come and go."""
    found: dict[str, Claim] = {}
    for uid, written in pool.get("ndev", node)["spec"].get("claims", {}).items():
        with suppress(msgspec.ValidationError):
            claim = msgspec.convert(written, Claim)
            found[uid] = replace(claim, shares=sorted(claim.shares), releasing="", token="")
    return found


def as_25e2181_wrote_it(pool: Pool, node: str) -> None:
    """Gives the ledger the form in which a process of that commit left it: its node's, summed up in the status.

    Recorded from one that ran on 1.20.2 with these very pods.
    """
    seen = pool.get("ndev", node)
    claims = seen["spec"]["claims"]
    for uid, claim in claims.items():
        if claim.pop("parts", None):
            claim["shares"] = msgspec.to_builtins(held(pool, node)[uid].shares)
    meta = {"name": node, "resourceVersion": seen["metadata"]["resourceVersion"]}
    meta["ownerReferences"] = [owner(pool, node)]
    document = {**seen, "metadata": meta, "spec": {"claims": claims}}
    pool.kubectl("replace", "-f", "-", stdin=json.dumps(document))
    summary = {"total": f"{GPU}=4", "free": f"{GPU}=1", "held": f"{pool.name}-first: {GPU}=0,1", "reasons": ""}
    asyncio.run(write_status(pool, node, summary))


def owner(pool: Pool, node: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": pool.get("node", node)["metadata"]["uid"]}


async def write_status(pool: Pool, node: str, status: Json) -> None:
    async with connect(str(pool.sandbox.kubeconfig)) as connection:
        await Api(connection).patch(NODE_DEVICES, node, {"status": status}, subresource="status")


def versions(pool: Pool) -> dict[str, str]:
    """Of everything of ours, and of pods."""
    found = (each["metadata"] for kind in ("ndev", "sdg", "pods") for each in pool.get(kind))
    return {each["uid"]: each["resourceVersion"] for each in found}


def told(pool: Pool) -> dict[str, Json]:
    """What runs in each pod, by name: its variables when it started, and what deviceshare wrote in its annotations."""
    pods = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in pool.running()}
    return {name: {key: text for key, text in of.items() if contract.PREFIX in key} for name, of in pods.items()}


def test_older_crds_for_a_while_cost_nobody_anything(pool: Pool, process: RunningProcess) -> None:
    """Of a release without shares and lives of groups: nothing is written and readiness says why; then it heals."""
    node = pool.node(4, **MEMORY_LABEL)
    group = pool.group("first", 2, **LIFE)
    pool.apply(pod("one", group), sharer(pool, "part", container(mem=3)))
    pool.running("one", "part")
    pool.eventually(lambda: pool.status(group).get("podCount"), lambda count: count == 1)
    claims, spec, devices = held(pool, node), pool.get("sdg", group)["spec"], pool.status(group)["selectedDevices"][GPU]
    assert len(claims) == 2

    replaced(pool, before_shares())
    pool.eventually(lambda: readiness(pool), refers(f"CRD {LEDGERS} lacks spec.claims"))
    pool.eventually(
        lambda: readiness(pool), refers(f"CRD {GROUPS} lacks")
    )  # The other is replaced, and seen, a moment later.
    assert "apply the CRDs of this release" in readiness(pool)
    written_by_others(pool, node)
    assert held(pool, node) != claims
    pool.apply(pod("two", group))
    pool.eventually(lambda: pool.reason("two"), refers("lacks"))

    upgraded(pool)
    pool.eventually(lambda: held(pool, node), lambda now: now == claims)
    assert pool.get("sdg", group)["spec"] == spec
    pool.apply(pod("two", group), sharer(pool, "more", container(mem=3)))
    pool.running("more")
    (two,) = pool.environments(pool.running("two"))
    assert two["NVIDIA_VISIBLE_DEVICES"] == devices
    pool.eventually(lambda: pool.status(group)["podCount"], lambda count: count == 2)
    assert claims.items() <= held(pool, node).items()


def test_previous_release_this_previous_and_this_again(pool: Pool, process: RunningProcess) -> None:
    """A group, a share, one within the group and one of many containers live through upgrade, rollback and upgrade."""
    node = pool.node(4, **MEMORY_LABEL)
    group = pool.group("first", 2, **LIFE)
    many = [container(f"c{number}", mem=1) for number in range(4)]
    pool.apply(pod("one", group), sharer(pool, "part", container(mem=3)), sharer(pool, "many", *many))
    pool.running("one")
    pool.apply(sharer(pool, "inside", container(percent=10), group=group))
    pool.running("one", "part", "many", "inside")
    pool.eventually(lambda: pool.status(group).get("podCount"), lambda count: count == 2)
    claims, pods, spec = held(pool, node), told(pool), pool.get("sdg", group)["spec"]
    assert len(claims) == 4
    process.stop()

    # What the previous release left: this one starts, says what is lacking, and writes nothing.
    as_25e2181_wrote_it(pool, node)
    replaced(pool, definitions(EARLIER))
    assert held(pool, node) == claims
    left = versions(pool)
    process.start()
    pool.eventually(lambda: readiness(pool), refers(f"CRD {LEDGERS} lacks spec.claims.parts, spec.summary, "))
    time.sleep(QUIET_SECONDS)
    assert versions(pool) == left

    for late in ("two", "three"):
        upgraded(pool)
        becomes_lasting(pool, node, claims)
        pool.apply(pod(late, group), sharer(pool, f"many-{late}", *many))
        pool.running(late, f"many-{late}")
        claims, now = held(pool, node), told(pool)
        assert pods.items() <= now.items()
        assert now[late][DEVICES] == pods["one"][DEVICES]
        pods = now

        # The previous release again: its CRDs know no packed claim. Up to 1.29 they let nobody write a ledger that has
        # one; since then what was invalid before may stay so (ratcheting, KEP-4008), and is only dropped.
        replaced(pool, definitions(EARLIER))
        pool.eventually(lambda: readiness(pool), refers("lacks"))
        patch = json.dumps({"metadata": {"ownerReferences": [owner(pool, node)]}})
        ratchets = pool.sandbox.plan.binaries.minor >= 30
        said = pool.kubectl("patch", "ndev", node, "--type=merge", "-p", patch, fails=not ratchets)
        assert ratchets or "must validate one and only one schema" in said
        assert held(pool, node) != claims

    upgraded(pool)
    becomes_lasting(pool, node, claims)
    pool.eventually(lambda: "releasing" in pool.kubectl("get", "ndev", node, "-o", "yaml"), lambda marked: not marked)
    assert held(pool, node) == claims
    assert told(pool) == pods
    assert pool.get("sdg", group)["spec"] == spec
    pool.eventually(lambda: pool.status(group)["podCount"], lambda count: count == 4)


def becomes_lasting(pool: Pool, node: str, claims: dict[str, Claim]) -> None:
    """Its ledger is this release's again, with these claims."""
    pool.eventually(lambda: pool.get("ndev", node)["metadata"], lambda meta: "ownerReferences" not in meta)
    meta = pool.get("ndev", node)["metadata"]
    assert meta["finalizers"] == [contract.CLAIMS_FINALIZER]
    assert meta["annotations"][contract.FILLED] == meta["uid"]
    pool.eventually(lambda: held(pool, node), lambda now: claims.items() <= now.items())
    pool.eventually(lambda: pool.get("ndev", node)["spec"].get("summary", {}).get("total"))
