"""Certificates under load: a new CA and new certificates while the API server asks fifty times a second.

Two replicas, each behind one of the webhooks, with an API server of their own and deviceshare's real rights. Their day
has eighteen seconds, and what has to stand for a minute stands for two.
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml
from cryptography import x509

from deviceshare import assets
from deviceshare.certificates import keeper
from deviceshare.certificates.keeper import RenewalPace, read
from deviceshare.certificates.rotation import Lifetimes
from deviceshare.cli.run import run
from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Connection, connect
from deviceshare.loops.kinds import SECRETS
from deviceshare.loops.ports import ApiError
from deviceshare.run.process import Process
from deviceshare.run.settings import Settings
from deviceshare_sandbox.network import free_ports
from tests.benchmarks.control_plane import control_plane, send
from tests.controlplane.pool import pod

NAMESPACE, SECRET, CONFIGURATION = "deviceshare-system", "deviceshare-ca", "deviceshare"
A_SECOND = 20
PACE = RenewalPace(
    look=1,
    first=0.1,
    settle=2,
    standby=2,
    lifetimes=Lifetimes(authority=timedelta(hours=1), certificate=timedelta(seconds=18), skew=timedelta(seconds=3)),
)


class WebhookReplica:
    """One deviceshare, in this process."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        self.port, probe = free_ports(2)
        flags = ["--roles", "controller,webhook", "--kubeconfig", str(kubeconfig), "--instance", name]
        flags += ["--webhook-bind", f"127.0.0.1:{self.port}", "--probe-bind", f"127.0.0.1:{probe}"]
        flags += ["--ui-bind", "off"]
        with run.make_context("run", [*flags, "--ca-secret", SECRET]) as context:
            self._settings = Settings(**context.params)
        self.shown: list[x509.Certificate] = []
        """The different certificates that it was seen to show, the oldest first."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopping = asyncio.Event()
        async with connect(str(self._settings.kubeconfig)) as connection:
            process = Process(self._settings, Api(connection), trust_pace=PACE)
            task = asyncio.create_task(process.run(stopping), name=self._settings.instance)
            try:
                yield
            finally:
                stopping.set()
                assert await task == 0

    async def shake_hands(self, bundle: str) -> None:
        """As an API server that was told this bundle; raises OSError where it would refuse the webhook."""
        context = ssl.create_default_context(cadata=bundle)
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        shown = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        if not self.shown or self.shown[-1] != shown:
            self.shown.append(shown)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Load:
    """What is done all the time, and how often it went well."""

    def __init__(self, connection: Connection, replicas: list[WebhookReplica]) -> None:
        self.admitted = 0
        self.shaken = 0
        self.failures: list[str] = []
        self._connection = connection
        self._replicas = replicas
        self._over = False
        self._room = asyncio.Semaphore(2 * A_SECOND)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._admit())
            tasks.create_task(self._shake_hands())
            yield
            self._over = True

    async def _admit(self) -> None:
        """Twenty pods a second, whatever becomes of the earlier ones."""
        async with asyncio.TaskGroup() as tasks:
            while not self._over:
                await self._room.acquire()
                tasks.create_task(self._create())
                await asyncio.sleep(1 / A_SECOND)

    async def _create(self) -> None:
        try:
            if await admitted(self._connection):
                self.admitted += 1
            else:
                self.failures.append("a pod was not made ready")
        except ApiError as error:
            self.failures.append(str(error))
        finally:
            self._room.release()

    async def _shake_hands(self) -> None:
        """New connections, which the API server opens only now and then."""
        while not self._over:
            for bundle in await bundles(Api(self._connection)):
                for replica in self._replicas:
                    try:
                        await replica.shake_hands(bundle)
                        self.shaken += 1
                    except OSError as error:
                        self.failures.append(f"handshake: {error}")
            await asyncio.sleep(0.02)


async def admitted(connection: Connection) -> bool:
    """Has the API server ask both webhooks about a pod; whether it came back ready. Raises ApiError."""
    body = json.dumps(pod("a", "team")).encode()
    answer = await send(connection, "POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
    return msgspec.json.decode(answer, type=Pod).injected


async def bundles(api: Api) -> list[str]:
    """What each webhook's configuration tells the API server to believe; "" where it says nothing."""
    webhooks = [webhook for each in await read(api, CONFIGURATION) for webhook in each.found.webhooks]
    return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode() for webhook in webhooks]


async def register(connection: Connection, mutating: WebhookReplica, validating: WebhookReplica) -> None:
    """deviceshare's webhooks as they are shipped, without a bundle; but nothing is let through unasked."""
    for document in yaml.safe_load_all((assets.manifests() / "webhooks.yaml").read_text()):
        replica = mutating if document["kind"].startswith("Mutating") else validating
        for webhook in document["webhooks"]:
            url = f"https://127.0.0.1:{replica.port}{webhook['clientConfig']['service']['path']}"
            webhook |= {"clientConfig": {"url": url}, "failurePolicy": "Fail", "timeoutSeconds": 30}
        path = f"/apis/{document['apiVersion']}/{document['kind'].lower()}s"
        await send(connection, "POST", path, json.dumps(document).encode())


async def until(true: Callable[[], Any]) -> None:
    """Returns when it is true; the caller bounds the wait."""
    while True:
        if true():
            return
        await asyncio.sleep(0.05)


async def works(connection: Connection) -> bool:
    """Whether the bundles have been filled in and the API server has learnt of them."""
    try:
        return all(await bundles(Api(connection))) and await admitted(connection)
    except ApiError:
        return False


async def test_nobody_notices_that_certificates_change() -> None:
    """Bundles filled in; another CA; certificates that come of age: no admission and no handshake fails."""
    async with control_plane(0, 0) as (plane, admin), contextlib.AsyncExitStack() as stack:
        api = Api(admin)
        first, second = (
            WebhookReplica(plane._layout.kubeconfigs / "deviceshare.yaml", name) for name in ("first", "second")
        )
        await register(admin, first, second)
        await stack.enter_async_context(first.running())
        await stack.enter_async_context(second.running())
        async with asyncio.timeout(60):
            while True:
                if await works(admin):
                    break
                await asyncio.sleep(0.1)

        load = Load(admin, [first, second])
        async with asyncio.timeout(120), load.running():
            await until(lambda: first.shown and second.shown)
            asked = {"metadata": {"annotations": {keeper.ROTATE: "now"}}}
            await api.patch(SECRETS, SECRET, asked, namespace=NAMESPACE)
            await until(lambda: all(issuers(replica) == 2 for replica in (first, second)))
            known = len(first.shown), len(second.shown)
            await until(lambda: len(first.shown) > known[0] and len(second.shown) > known[1])

        print(f"{load.admitted} admissions and {load.shaken} handshakes across {len(first.shown)} certificates")
        assert load.failures == []
        assert min(load.admitted, load.shaken) > A_SECOND


def issuers(replica: WebhookReplica) -> int:
    return len({certificate.issuer for certificate in replica.shown})
