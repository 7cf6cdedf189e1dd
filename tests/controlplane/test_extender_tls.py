"""The extender over the network: a real kube-scheduler that shows its certificate, and strangers who have none."""

import asyncio
import contextlib
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from msgspec.structs import replace

from deviceshare.certificates import issuance
from deviceshare.domain.admission import settings
from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.connection import Connection
from deviceshare.loops.ports import ApiError
from tests.benchmarks.control_plane import control_plane, send
from tests.controlplane.pool import GPU, pod

PODS = "/api/v1/namespaces/default/pods"
GROUP = {
    "apiVersion": "deviceshare.io/v1alpha1",
    "kind": "SharedDeviceGroup",
    "metadata": {"name": "team"},
    "spec": {"resources": {GPU: 2}},
}


class Files:
    """A CA, and certificates of an extender and of a kube-scheduler."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._times: dict[str, Any] = {
            "now": datetime.now(UTC),
            "lifetime": timedelta(hours=1),
            "skew": timedelta(hours=1),
        }
        self._authority = issuance.new_authority("test", **self._times)
        self.authority = directory / "ca.crt"
        self.authority.write_text(self._authority.certificate)
        self.server = self._issue("server", for_client=False)
        self.client = self._issue("client", for_client=True)

    def _issue(self, name: str, *, for_client: bool) -> tuple[Path, Path]:
        issued = issuance.issue(
            self._authority, name, dns_names=[], addresses=["127.0.0.1"], for_client=for_client, **self._times
        )
        certificate, key = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        certificate.write_text(issued.certificate)
        key.write_text(issued.key)
        return certificate, key


async def bound(connection: Connection, name: str) -> Pod:
    """The pod, once it has a node; the caller bounds the wait."""
    while True:
        found = msgspec.json.decode(await send(connection, "GET", f"{PODS}/{name}"), type=Pod)
        if found.node:
            return found
        await asyncio.sleep(0.2)


async def webhooks_work(connection: Connection) -> None:
    """Returns once the API server knows of them, and asks them; the caller bounds the wait."""
    while True:
        with contextlib.suppress(ApiError):
            answer = await send(connection, "POST", f"{PODS}?dryRun=All", json.dumps(pod("a", "team")).encode())
            if msgspec.json.decode(answer, type=Pod).injected:
                return
        await asyncio.sleep(0.2)


async def test_a_scheduler_with_a_certificate_is_served_and_a_stranger_is_not(tmp_path: Path) -> None:
    """As with `scheduler.enabled=false`: the stanza of the cluster's own kube-scheduler."""
    files = Files(tmp_path)
    async with control_plane(1, 4) as (plane, admin):
        flags = ["--extender-tls-cert", str(files.server[0]), "--extender-tls-key", str(files.server[1])]
        flags += ["--extender-client-ca", str(files.authority)]
        extender = replace(plane.parts.deviceshare, command=[*plane.parts.deviceshare.command, *flags])
        url = f"https://127.0.0.1:{plane.ports.extender}"
        stanza = {
            "urlPrefix": url,
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt",
            "bindVerb": "bind",
            "weight": 100,
            "nodeCacheCapable": True,
            "httpTimeout": "15s",
            "enableHTTPS": True,
            "tlsConfig": {
                "caFile": str(files.authority),
                "certFile": str(files.client[0]),
                "keyFile": str(files.client[1]),
            },
        }
        async with (
            plane.beside([extender, plane.scheduler_asking(stanza)]),
            plane.admission(admin, settings.WEBHOOKS),
            asyncio.timeout(90),
        ):
            await webhooks_work(admin)
            await send(admin, "POST", "/apis/deviceshare.io/v1alpha1/shareddevicegroups", json.dumps(GROUP).encode())
            await send(admin, "POST", PODS, json.dumps(pod("a", "team")).encode())
            assert (await bound(admin, "a")).metadata.annotations["deviceshare.io/nvidia-visible-devices"] == "0,1"

            stranger = TCPConnector(ssl=ssl.create_default_context(cafile=str(files.authority)))
            async with ClientSession(connector=stranger, timeout=ClientTimeout(10)) as session:
                with pytest.raises(ClientError):
                    await session.post(f"{url}/bind", data=b"{}")
