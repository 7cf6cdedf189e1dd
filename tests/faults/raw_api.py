"""Objects of the API server as plain JSON, read and written without deviceshare's own client."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]
GROUPS = "/apis/deviceshare.io/v1alpha1/shareddevicegroups"
LEDGERS = "/apis/deviceshare.io/v1alpha1/nodedevices"
QUOTAS = "/apis/deviceshare.io/v1alpha1/devicequotas"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/deviceshare-system/leases/deviceshare"
NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
ALL_PODS = "/api/v1/pods"
_SECONDS = 10.0


class Answered(Exception):
    """A status of 300 and above; 0 where nobody answered."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:300]}")
        self.status = status


class RawApi:
    """As the cluster's admin, without a proxy between."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self.session, self.server = session, server

    async def call(self, method: str, path: str, body: Json | None = None, content_type: str = "") -> Json:
        """One request, not repeated; raises Answered."""
        headers = {"Content-Type": content_type or "application/json"}
        data = json.dumps(body) if body is not None else None
        try:
            async with (
                asyncio.timeout(_SECONDS),
                self.session.request(method, self.server + path, data=data, headers=headers) as answer,
            ):
                text = await answer.text()
                if answer.status >= 300:
                    raise Answered(answer.status, text)
                found: Json = json.loads(text)
                return found
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            raise Answered(0, repr(error)) from error

    async def get(self, path: str, seconds: float = 120) -> Json | None:
        """None where there is no such object; asks until the API server, which may be away, says so."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await self.call("GET", path)
                except Answered as error:
                    if error.status == 404:
                        return None
                await asyncio.sleep(0.2)

    async def insist(self, method: str, path: str, body: Json | None = None, seconds: float = 120) -> None:
        """Until it is done, though the API server or a webhook is away; what is there, or gone, counts as done."""
        content_type = "application/merge-patch+json" if method == "PATCH" else ""
        done = {"POST": 409, "DELETE": 404, "PATCH": 404}[method]
        async with asyncio.timeout(seconds):
            while True:
                try:
                    await self.call(method, path, body, content_type)
                    return
                except Answered as error:
                    if error.status == done:
                        return
                await asyncio.sleep(0.2)


@asynccontextmanager
async def admin(kubeconfig: Path) -> AsyncIterator[RawApi]:
    """By the sandbox's kubeconfig, whose form is known."""
    config = yaml.safe_load(kubeconfig.read_text())  # noqa: ASYNC240 a small file
    cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=2**22) as session:
        yield RawApi(session, cluster["server"])
