"""The webhooks' certificates, from the first start to whatever people do to the Secret, in virtual time."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from deviceshare.certificates import issuance, keeper
from deviceshare.certificates.keeper import Keeper, RenewalPace
from deviceshare.certificates.rotation import Lifetimes, Trust
from deviceshare.loops.kinds import SECRETS, WEBHOOK_CONFIGURATIONS
from deviceshare.loops.ports import Forbidden, Unavailable
from tests.unit.loops.live import LiveCluster, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

NAMESPACE, SECRET, CONFIGURATION = "system", "ca", "deviceshare"
LIFETIMES = Lifetimes(authority=timedelta(seconds=3600), certificate=timedelta(seconds=600), skew=timedelta(seconds=60))
PACE = RenewalPace(lifetimes=LIFETIMES)
CERTIFICATE_SECONDS = LIFETIMES.certificate.total_seconds()
START = datetime(2026, 1, 1, tzinfo=UTC)
WEBHOOK = {"name": "a.deviceshare.io", "clientConfig": {"service": {"name": "deviceshare"}}, "unknown": {"kept": 1}}


class KeepingReplica:
    """A keeper, and the server that it keeps."""

    def __init__(self, cluster: LiveCluster, *, leads: bool = True) -> None:
        self.leads = leads
        self.ahead = timedelta()
        """By how much its wall clock is wrong."""
        self.shown: list[str] = []
        self.keeper = Keeper(
            cluster,
            namespace=NAMESPACE,
            secret=SECRET,
            configuration=CONFIGURATION,
            dns_names=["deviceshare.system.svc"],
            serve=lambda certificate, key: self.shown.append(certificate),
            leading=lambda: self.leads,
            pace=PACE,
            clock=now,
            now=lambda: START + timedelta(seconds=now()) + self.ahead,
        )

    def shows(self, cluster: LiveCluster) -> bool:
        """Whether every API server that knows the configurations as they are believes it."""
        return all(any(verifies(self.shown[-1], each) for each in bundle) for bundle in bundles(cluster))


def verifies(certificate: str, authority: str) -> bool:
    issuer = x509.load_pem_x509_certificate(authority.encode())
    leaf = x509.load_pem_x509_certificate(certificate.encode())
    return leaf.issuer == issuer.subject


def bundles(cluster: LiveCluster) -> list[tuple[str, ...]]:
    """The certificates of each webhook of each configuration."""
    found = []
    for kind in WEBHOOK_CONFIGURATIONS:
        configuration = cluster.read(kind, CONFIGURATION)
        for webhook in configuration.webhooks if configuration else ():
            text = base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()
            found.append(issuance.split(text))
    return found


def register(cluster: LiveCluster) -> None:
    """As `kubectl apply` does it: without a bundle."""
    for kind in WEBHOOK_CONFIGURATIONS:
        cluster.put(kind, {"metadata": {"name": CONFIGURATION}, "webhooks": [WEBHOOK, {**WEBHOOK, "name": "b"}]})


def kept(cluster: LiveCluster) -> Trust:
    secret = cluster.read(SECRETS, SECRET, NAMESPACE)
    return keeper.decode(secret) if secret else Trust()


def sizes(cluster: LiveCluster) -> set[int]:
    return {len(bundle) for bundle in bundles(cluster)}


@asynccontextmanager
async def running(*replicas: KeepingReplica) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(replica.keeper.run()) for replica in replicas]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def registered() -> LiveCluster:
    """A cluster with both webhook configurations."""
    cluster = LiveCluster()
    register(cluster)
    return cluster


# The beginning.


@in_virtual_time
async def test_the_first_start_needs_nothing() -> None:
    """A Secret, a certificate and both configurations, within a second."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    assert "not been read yet" in replica.keeper.fault()
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1}, 1)
    assert replica.keeper.fault() == ""
    assert replica.shows(cluster)
    assert replica.keeper.served and not replica.keeper.served.key, "the server alone keeps it"
    assert replica.keeper.expiries()["serving"] == (START + LIFETIMES.certificate).timestamp()


@in_virtual_time
async def test_what_else_a_configuration_says_is_left() -> None:
    """Also what we have never heard of."""
    cluster = registered()
    async with running(KeepingReplica(cluster)):
        await soon(lambda: sizes(cluster) == {1}, 1)
    for kind in WEBHOOK_CONFIGURATIONS:
        configuration = cluster.read(kind, CONFIGURATION)
        assert configuration is not None
        first = configuration.webhooks[0]
        del first["clientConfig"]["caBundle"]
        assert first == WEBHOOK


@in_virtual_time
async def test_two_that_start_at_once_agree() -> None:
    """Even if both lead."""
    cluster = registered()
    replicas = [KeepingReplica(cluster) for _ in range(2)]
    async with running(*replicas):
        await soon(lambda: all(replica.shown for replica in replicas) and sizes(cluster) == {1}, 2)
    assert all(replica.shows(cluster) for replica in replicas)
    assert cluster.writes("secrets", "create").count(SECRET) == 2, "one of them was refused"


@in_virtual_time
async def test_who_does_not_lead_leaves_the_work_to_who_does() -> None:
    """And does it after a while if nobody leads."""
    cluster = registered()
    replica = KeepingReplica(cluster, leads=False)
    async with running(replica):
        await asyncio.sleep(PACE.standby - 1)
        assert cluster.writes("secrets", "create") == []
        await soon(lambda: sizes(cluster) == {1}, PACE.standby * 2 + 2 * PACE.look)
    assert replica.shows(cluster)


@in_virtual_time
async def test_a_configuration_that_comes_later_is_filled() -> None:
    """Or one that was applied again without its bundle."""
    cluster = registered()
    for kind in WEBHOOK_CONFIGURATIONS:
        cluster.remove(kind, CONFIGURATION)
    async with running(KeepingReplica(cluster)):
        await asyncio.sleep(60)
        register(cluster)
        await soon(lambda: sizes(cluster) == {1}, PACE.look + 1)
        register(cluster)
        await soon(lambda: sizes(cluster) == {1}, PACE.look + 1)


# Rotation and renewal.


async def stand(cluster: LiveCluster, replica: KeepingReplica, seconds: float) -> None:
    """Looks all the time whether the replica is believed."""
    end = now() + seconds
    while now() < end:
        assert replica.shows(cluster)
        await asyncio.sleep(1)


@in_virtual_time
async def test_an_authority_asked_for_is_introduced_before_it_signs() -> None:
    """Its predecessor stays believed until nothing that it signed is valid."""
    cluster = registered()
    leader, other = KeepingReplica(cluster), KeepingReplica(cluster, leads=False)
    async with running(leader, other):
        await soon(lambda: leader.shown and other.shown and sizes(cluster) == {1})
        [(first,), *_] = bundles(cluster)
        cluster.edit(SECRETS, SECRET, {"metadata": {"annotations": {keeper.ROTATE: "now"}}}, NAMESPACE)
        await soon(lambda: sizes(cluster) == {2}, PACE.look + 1)
        assert len(leader.shown) == 1
        await stand(cluster, leader, PACE.settle - 2 * PACE.look)
        assert len(leader.shown) == 1, "the bundle has not stood for long enough"
        await soon(lambda: (len(leader.shown), len(other.shown)) == (2, 2), 4 * PACE.look)
        assert sizes(cluster) == {2}
        assert not verifies(leader.shown[-1], first)
        await stand(cluster, other, CERTIFICATE_SECONDS)
        assert sizes(cluster) == {2}
        await soon(lambda: sizes(cluster) == {1}, 2 * LIFETIMES.skew.total_seconds() + 2 * PACE.look)
        assert leader.shows(cluster)
        assert kept(cluster).previous == ()


@in_virtual_time
async def test_a_rotation_goes_on_where_a_crash_left_it() -> None:
    """The successor counts its own time from the beginning."""
    cluster = registered()
    first = KeepingReplica(cluster)
    async with running(first):
        await soon(lambda: first.shown and sizes(cluster) == {1})
        cluster.edit(SECRETS, SECRET, {"metadata": {"annotations": {keeper.ROTATE: "now"}}}, NAMESPACE)
        await soon(lambda: sizes(cluster) == {2}, PACE.look + 1)
        await asyncio.sleep(PACE.settle / 2)
    second = KeepingReplica(cluster)
    async with running(second):
        await asyncio.sleep(PACE.settle - 1)
        assert kept(cluster).previous == ()
        await soon(lambda: len(kept(cluster).previous) == 1, 2 * PACE.look)
        await soon(lambda: len(second.shown) == 2, PACE.look)


@in_virtual_time
async def test_a_bundle_that_somebody_spoils_has_to_stand_again() -> None:
    """An API server may have seen it without the next authority a moment ago."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: sizes(cluster) == {1})
        cluster.edit(SECRETS, SECRET, {"metadata": {"annotations": {keeper.ROTATE: "now"}}}, NAMESPACE)
        await asyncio.sleep(PACE.settle - PACE.look)
        register(cluster)
        await asyncio.sleep(PACE.settle - PACE.look)
        assert len(replica.shown) == 1
        await soon(lambda: len(replica.shown) == 2, 4 * PACE.look)


@in_virtual_time
async def test_certificates_and_authorities_are_renewed_in_time() -> None:
    """For three lives of an authority, and never a moment without."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1})
        for _ in range(3 * 60):
            await asyncio.sleep(60)
            assert replica.shows(cluster)
            assert replica.keeper.fault() == ""
    assert len({x509.load_pem_x509_certificate(each.encode()).issuer for each in replica.shown}) > 3


@in_virtual_time
async def test_a_clock_that_jumps_is_followed() -> None:
    """A laptop slept: the certificate is renewed at the next look."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown)
        replica.ahead = timedelta(seconds=1000)
        assert "has expired" in replica.keeper.fault()
        await soon(lambda: len(replica.shown) == 2, PACE.look + 1)
        assert replica.keeper.fault() == ""


@in_virtual_time
async def test_a_replica_whose_clock_is_wrong_says_so() -> None:
    """It keeps out of the way instead of serving what nobody believes."""
    cluster = registered()
    right, wrong = KeepingReplica(cluster), KeepingReplica(cluster, leads=False)
    wrong.ahead = -timedelta(seconds=1000)
    async with running(right, wrong):
        await soon(lambda: right.shown)
        await asyncio.sleep(2 * PACE.look)
        assert "set the clock" in wrong.keeper.fault()
        assert wrong.shown == []


# What people do to the Secret.


@in_virtual_time
async def test_a_deleted_secret_is_recreated_without_a_gap() -> None:
    """The lost authority stays believed until everybody shows a certificate of the new one."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1})
        cluster.remove(SECRETS, SECRET, NAMESPACE)
        await stand(cluster, replica, PACE.settle + 6 * PACE.look)
        assert len(replica.shown) == 2
        assert sizes(cluster) == {2}
        await asyncio.sleep(CERTIFICATE_SECONDS - 60)
        await soon(lambda: sizes(cluster) == {1}, 60 + 2 * LIFETIMES.skew.total_seconds())
        assert replica.shows(cluster)


@pytest.mark.parametrize("spoiled", ["ca.crt", "ca.key"])
@in_virtual_time
async def test_an_authority_that_can_not_be_read_is_replaced(spoiled: str) -> None:
    """The Secret is ours; what the lost authority signed stays believed."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1})
        cluster.edit(SECRETS, SECRET, {"data": {spoiled: base64.b64encode(b"noise").decode()}}, NAMESPACE)
        await stand(cluster, replica, PACE.settle + 6 * PACE.look)
        assert len(replica.shown) == 2
        assert kept(cluster).current is not None


@in_virtual_time
async def test_a_secret_of_somebody_else_is_left_alone() -> None:
    """With the way out, to whoever asks why nothing is ready."""
    cluster = registered()
    cluster.put(SECRETS, {"metadata": {"name": SECRET}, "data": {"password": "c2VjcmV0"}}, NAMESPACE)
    replica = KeepingReplica(cluster)
    async with running(replica):
        await asyncio.sleep(60)
        fault = replica.keeper.fault()
        assert "Secret system/ca is not deviceshare's: it lacks the label deviceshare.io/" in fault
        assert "--ca-secret" in fault
        assert cluster.writes("secrets") == []
        assert sizes(cluster) == {0}
        cluster.remove(SECRETS, SECRET, NAMESPACE)
        await soon(lambda: replica.keeper.fault() == "", PACE.look + 1)


@in_virtual_time
async def test_an_empty_secret_with_our_label_is_filled() -> None:
    """An installer may bring it, so that it goes when deviceshare goes."""
    cluster = registered()
    cluster.put(SECRETS, {"metadata": {"name": SECRET, "labels": {keeper.OURS: ""}}}, NAMESPACE)
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1}, 1)
    assert cluster.writes("secrets", "create") == []


# The API server.


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("no right")])
@in_virtual_time
async def test_an_api_server_that_refuses_is_asked_again(error: Exception) -> None:
    """What is served goes on being served."""
    cluster = registered()
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1})
        cluster.fail = lambda verb, plural, name: error  # type: ignore[assignment, return-value]
        await asyncio.sleep(CERTIFICATE_SECONDS - 30)
        assert replica.keeper.fault() == ""
        await asyncio.sleep(60)
        assert "has expired; the API server has not answered since then" in replica.keeper.fault()
        cluster.fail = lambda verb, plural, name: None
        await soon(lambda: replica.keeper.fault() == "", 30)


@in_virtual_time
async def test_lost_answers_do_no_harm() -> None:
    """A request took effect, and nobody heard of it."""
    cluster = registered()
    fate = random.Random(1)
    cluster.lose = lambda: fate.random() < 0.3
    replica = KeepingReplica(cluster)
    async with running(replica):
        await soon(lambda: replica.shown and sizes(cluster) == {1}, 60)
    assert replica.shows(cluster)
