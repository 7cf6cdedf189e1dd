"""A DRA driver, as small as one can be: `python -m tests.node.dra_driver KUBELET KUBECONFIG`.

For each device of a claim it names a CDI device, whose specification (`specification`) gives containers a variable.
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/,
k8s.io/kubelet/pkg/apis/dra/v1/api.proto, k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream

from deviceshare.agent.allocations import STRING, message_classes
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import HOLDS
from tests.unit.domain.dra_objects import DRIVER, Json, card

SOCKET: Final = "plugins_registry/deviceshare-test.sock"
KIND: Final = "deviceshare.io/test"
REGISTRATION: Final = message_classes(
    "pluginregistration",
    {
        "InfoRequest": {},
        "PluginInfo": {
            1: (STRING, "type"),
            2: (STRING, "name"),
            3: (STRING, "endpoint"),
            4: ("repeated string", "supported_versions"),
        },
        "RegistrationStatus": {2: (STRING, "error")},
        "RegistrationStatusResponse": {},
    },
)
PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
MESSAGES: Final = message_classes(
    PACKAGE,
    {
        "Claim": {1: (STRING, "namespace"), 2: (STRING, "uid"), 3: (STRING, "name")},
        "Claims": {1: ("repeated Claim", "claims")},
        "Device": {
            1: ("repeated string", "request_names"),
            2: (STRING, "pool_name"),
            3: (STRING, "device_name"),
            4: ("repeated string", "cdi_device_ids"),
        },
        "Answer": {1: ("repeated Device", "devices")},
        "Entry": {1: (STRING, "key"), 2: ("Answer", "value")},
        "Answers": {1: ("repeated Entry", "claims")},
    },
)
"""A map is a list of entries; to unprepare a claim takes and answers the same, without devices."""


def specification(count: int) -> Json:
    """The CDI specification of so many devices, for `/run/cdi`."""
    edits = [{"env": [f"DEVICE_{number}={card(number)}"]} for number in range(count)]
    devices = [{"name": f"gpu-{number}", "containerEdits": each} for number, each in enumerate(edits)]
    return {"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}


class Driver:
    """The kubelet asks these methods."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __mapping__(self) -> dict[str, Handler]:
        def unary(method: Any, request: type[Message], reply: type[Message]) -> Handler:
            return Handler(method, Cardinality.UNARY_UNARY, request, reply)

        registration, asked, answer = "/pluginregistration.Registration", MESSAGES["Claims"], MESSAGES["Answers"]
        of = REGISTRATION
        return {
            f"{registration}/GetInfo": unary(self._info, of["InfoRequest"], of["PluginInfo"]),
            f"{registration}/NotifyRegistrationStatus": unary(
                self._registered, of["RegistrationStatus"], of["RegistrationStatusResponse"]
            ),
            f"/{PACKAGE}.DRAPlugin/NodePrepareResources": unary(self._prepare, asked, answer),
            f"/{PACKAGE}.DRAPlugin/NodeUnprepareResources": unary(self._unprepare, asked, answer),
        }

    async def _info(self, stream: Stream[Message, Message]) -> None:
        await stream.recv_message()
        info = {"type": "DRAPlugin", "name": DRIVER, "endpoint": f"/var/lib/kubelet/{SOCKET}"}
        await stream.send_message(REGISTRATION["PluginInfo"](**info, supported_versions=["v1.DRAPlugin"]))

    async def _registered(self, stream: Stream[Message, Message]) -> None:
        status: Any = await stream.recv_message()
        print("registered", status.error, flush=True)
        await stream.send_message(REGISTRATION["RegistrationStatusResponse"]())

    async def _prepare(self, stream: Stream[Message, Message]) -> None:
        request: Any = await stream.recv_message()
        entries = [{"key": each.uid, "value": {"devices": await self._devices(each)}} for each in request.claims]
        await stream.send_message(MESSAGES["Answers"](claims=entries))

    async def _devices(self, asked: Any) -> list[Json]:
        claim = await self._api.get(HOLDS, asked.name, asked.namespace)
        return [
            {"pool_name": each.pool, "device_name": each.device, "cdi_device_ids": [f"{KIND}={each.device}"]}
            for each in claim.holds
        ]

    async def _unprepare(self, stream: Stream[Message, Message]) -> None:
        request: Any = await stream.recv_message()
        await stream.send_message(MESSAGES["Answers"](claims=[{"key": each.uid} for each in request.claims]))


async def serve(kubelet: Path, kubeconfig: str) -> None:
    """Answers the kubelet whose directory this is until cancelled; it finds the socket by itself."""
    (kubelet / SOCKET).unlink(missing_ok=True)
    async with connect(kubeconfig) as connection:
        server = Server([Driver(Api(connection))])
        await server.start(path=str(kubelet / SOCKET))
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
