"""The CRDs against a real API server: what their schemas refuse, and how they read in kubectl.

deviceshare is away here, so every refusal is the schema's own, and nobody mends what a test makes.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deviceshare.domain.objects.groups import MAX_COUNT
from deviceshare_sandbox import Options, Sandbox, running

Json = dict[str, Any]


def a_group(name: str = "crd-test", **spec: Any) -> Json:
    return {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "SharedDeviceGroup",
        "metadata": {"name": name},
        "spec": {"resources": {"nvidia.com/gpu": 1}, **spec},
    }


def plain(said: str) -> str:
    """A message in one notation: by version, a map's key is in brackets, and an item's number is there or not.

    Newer releases also say of 1.5, where a whole number is wanted, that it isn't one: then the two are a list.
    """
    return re.sub(r"\.\d+\b", "", said.replace("[", ".").replace("]", "")).replace("invalid: \n* ", "invalid: ")


def create(sandbox: Sandbox, manifest: Json) -> tuple[int, str]:
    """The exit status of `kubectl create` and what it said."""
    # kubectl checks against the schema, too; what counts is what the server does with clients that don't.
    done = sandbox.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(manifest))
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """The API server with the CRDs, and nobody who works on them."""
    with running(Options(nodes=0, deviceshare=False, kubelet=False)) as started:
        yield started


@pytest.fixture(autouse=True)
def leave_nothing_behind(sandbox: Sandbox) -> Iterator[None]:
    yield
    done = sandbox.kubectl("delete", "--ignore-not-found", "sdg/crd-test", "ndev/crd-test")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"resources": {"nvidia.com/gpu": 0}}, "spec.resources.nvidia.com/gpu"),
        ({"resources": {"nvidia.com/gpu": -1}}, "spec.resources.nvidia.com/gpu"),
        ({"resources": {"nvidia.com/gpu": 1.5}}, "spec.resources.nvidia.com/gpu"),
        ({"resources": {"nvidia.com/gpu": "1"}}, "spec.resources.nvidia.com/gpu"),
        ({"resources": {"nvidia.com/gpu": MAX_COUNT + 1}}, "spec.resources.nvidia.com/gpu"),
        ({"resources": {"nvidia.com/gpu": 10**12}}, "spec.resources.nvidia.com/gpu"),
        ({"resources": {"nvidia.com/gpu": 2, "amd.com/gpu": 0}}, "spec.resources.amd.com/gpu"),
        ({"resources": {}}, "spec.resources"),
        ({"resources": {f"example.com/{number}": 1 for number in range(9)}}, "spec.resources"),
        ({"resources": None}, "spec.resources"),
        ({"schedulingStrategy": "random"}, "spec.schedulingStrategy"),
        ({"schedulingStrategy": ""}, "spec.schedulingStrategy"),
        ({"nodeSelector": {"zone": "not a label"}}, "spec.nodeSelector.zone"),
        ({"nodeSelector": {"zone": "a" * 64}}, "spec.nodeSelector.zone"),
        ({"nodeSelector": {"zone": "-a"}}, "spec.nodeSelector.zone"),
        ({"nodeSelector": {"zone": 1}}, "spec.nodeSelector.zone"),
    ],
    ids=str,
)
def test_a_group_that_can_not_be_is_refused_by_field(sandbox: Sandbox, spec: Json, field: str) -> None:
    """Without any webhook."""
    status, said = create(sandbox, a_group(**spec))

    assert status != 0
    assert plain(said).startswith(f'The SharedDeviceGroup "crd-test" is invalid: {field}:')


def test_a_group_without_a_spec_is_refused(sandbox: Sandbox) -> None:
    """It would ask for nothing."""
    manifest = a_group()
    del manifest["spec"]

    status, said = create(sandbox, manifest)

    assert status != 0
    assert "spec: Required value" in said


def test_a_group_name_too_long_for_a_label_is_refused(sandbox: Sandbox) -> None:
    """No pod could carry it."""
    status, said = create(sandbox, a_group(name="a" * 64))

    assert status != 0
    assert "metadata.name" in said


@pytest.mark.parametrize(
    "spec",
    [
        {"resources": {"nvidia.com/gpu": MAX_COUNT, "huawei.com/Ascend910": 1}},
        {"schedulingStrategy": "spread"},
        {"nodeSelector": {"zone": "", "topology.kubernetes.io/zone": "a" * 63}},
    ],
    ids=str,
)
def test_what_is_possible_is_taken(sandbox: Sandbox, spec: Json) -> None:
    """The bounds themselves, and everything that a label may be."""
    status, said = create(sandbox, a_group(**spec))

    assert status == 0, said


def test_the_strategy_is_binpack_unless_told_otherwise(sandbox: Sandbox) -> None:
    """Filled in by the API server, so that everybody reads the same."""
    create(sandbox, a_group())

    done = sandbox.kubectl("get", "sdg", "crd-test", "-o", "jsonpath={.spec.schedulingStrategy}")

    assert done.stdout == "binpack"


def test_a_status_can_not_be_given_with_the_spec(sandbox: Sandbox) -> None:
    """It has a door of its own, with rights of its own."""
    create(sandbox, a_group() | {"status": {"nodeName": "stolen"}})

    done = sandbox.kubectl("get", "sdg", "crd-test", "-o", "jsonpath={.status.nodeName}")

    assert (done.returncode, done.stdout) == (0, "")


def test_groups_are_listed_by_phase_and_node(sandbox: Sandbox) -> None:
    """The columns people see every day; -o wide adds devices, the number of pods and why."""
    create(sandbox, a_group())

    short = sandbox.kubectl("get", "sdg").stdout.splitlines()[0].split()
    wide = sandbox.kubectl("get", "sdg", "-o", "wide").stdout.splitlines()[0].split()

    assert short == ["NAME", "PHASE", "NODE", "AGE"]
    assert wide == ["NAME", "PHASE", "NODE", "WANTS", "DEVICES", "PODS", "IDLE", "WHY", "AGE"]


@pytest.mark.parametrize(
    "path", ["sdg.spec", "sdg.spec.resources", "sdg.spec.nodeSelector", "sdg.status.fence", "ndev.spec.claims"]
)
def test_kubectl_explains_the_fields(sandbox: Sandbox, eventually: Callable[..., Any], path: str) -> None:
    """Where people look before they look anywhere else. An API server publishes new kinds a moment later."""
    done = eventually(lambda: (said := sandbox.kubectl("explain", path)).returncode == 0 and said)

    assert "DESCRIPTION:" in done.stdout
    assert "<empty>" not in done.stdout


def test_a_status_may_hold_empty_texts(sandbox: Sandbox) -> None:
    """A node that nobody holds anything on says so with an empty line."""
    create(sandbox, a_ledger())
    patch = {"status": {"total": "nvidia.com/gpu=1", "free": "nvidia.com/gpu=1", "held": ""}}
    url = "/apis/deviceshare.io/v1alpha1/nodedevices/crd-test/status"

    done = sandbox.kubectl("replace", "--raw", url, "-f", "-", stdin=json.dumps(read(sandbox) | patch))

    assert done.returncode == 0, done.stderr


def read(sandbox: Sandbox) -> Json:
    """The ledger as it is stored."""
    ledger: Json = json.loads(sandbox.kubectl("get", "ndev", "crd-test", "-o", "json").stdout)
    return ledger


def test_both_kinds_are_found_by_category(sandbox: Sandbox) -> None:
    """`kubectl get deviceshare` shows everything at a glance."""
    for manifest in (a_group(), a_ledger()):
        status, said = create(sandbox, manifest)
        assert status == 0, said

    found = sandbox.kubectl("get", "deviceshare", "-o", "name").stdout.split()

    assert {"nodedevices.deviceshare.io/crd-test", "shareddevicegroup.deviceshare.io/crd-test"} <= set(found)


A_SHARE: Json = {"container": "c", "resource": "nvidia.com/gpu", "index": 0, "percent": 1}
SHARE_FIELD = "spec.claims.uid-1.shares"


def a_ledger(**claim: Any) -> Json:
    """A group's claim with these changes; None takes a field out."""
    whole = {"group": "team", "devices": [{"resource": "nvidia.com/gpu", "index": 0}], **claim}
    return {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": "crd-test"},
        "spec": {"claims": {"uid-1": {key: value for key, value in whole.items() if value is not None}}},
    }


@pytest.mark.parametrize(
    ("claim", "field"),
    [
        ({"group": None}, "spec.claims.uid-1"),
        ({"pod": "ns/p", "shares": [A_SHARE]}, "spec.claims.uid-1"),
        ({"group": None, "pod": "ns/p", "shares": []}, "spec.claims.uid-1"),
        ({"group": None, "devices": None, "pod": "ns/p", "shares": [A_SHARE | {"percent": 101}]}, SHARE_FIELD),
        ({"group": None, "devices": None, "pod": "ns/p", "shares": [A_SHARE | {"memoryMib": 1}]}, SHARE_FIELD),
        ({"devices": []}, "spec.claims.uid-1.devices"),
        ({"devices": [{"resource": "nvidia.com/gpu", "index": -1}]}, "spec.claims.uid-1.devices.index"),
        ({"devices": [{"resource": "nvidia.com/gpu"}]}, "spec.claims.uid-1.devices.index"),
        ({"devices": [{"index": 0}]}, "spec.claims.uid-1.devices.resource"),
        ({"releasing": True}, "spec.claims.uid-1.releasing"),
    ],
    ids=str,
)
def test_a_claim_that_can_not_be_is_refused_by_field(sandbox: Sandbox, claim: Json, field: str) -> None:
    """Whoever mends a ledger by hand can't make it unreadable."""
    status, said = create(sandbox, a_ledger(**claim))

    assert status != 0
    # What contradicts `oneOf` is named behind the field that isn't there.
    assert plain(said).startswith('The NodeDevices "crd-test" is invalid: ')
    assert field in plain(said)


def test_a_claim_keeps_its_mark(sandbox: Sandbox) -> None:
    """The schema prunes what it doesn't know; the collector's mark must survive."""
    status, said = create(sandbox, a_ledger(releasing="2026-01-01T00:00:00.000001Z"))
    assert status == 0, said

    done = sandbox.kubectl("get", "ndev", "crd-test", "-o", "jsonpath={.spec.claims.uid-1.releasing}")

    assert done.stdout == "2026-01-01T00:00:00.000001Z"
