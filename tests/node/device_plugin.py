"""A vendor's device plugin, as small as one can be: `python -m tests.node.device_plugin DIRECTORY RESOURCE ID…`.

It offers the devices of these ids until it is ended, and tells a container of its own by a variable, as NVIDIA's does.
https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream

from deviceshare.agent.allocations import STRING, message_classes
from tests.node.cluster import VISIBLE

NAME: Final = "test.sock"
VERSION: Final = "v1beta1"

# The part that is needed of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto. A map is a list of entries.
MESSAGES: Final = message_classes(
    VERSION,
    {
        "Empty": {},
        "DevicePluginOptions": {},
        "RegisterRequest": {1: (STRING, "version"), 2: (STRING, "endpoint"), 3: (STRING, "resource_name")},
        "ListAndWatchResponse": {1: ("repeated Device", "devices")},
        "Device": {1: (STRING, "ID"), 2: (STRING, "health")},
        "AllocateRequest": {1: ("repeated ContainerAllocateRequest", "container_requests")},
        "ContainerAllocateRequest": {1: ("repeated string", "devices_ids")},
        "AllocateResponse": {1: ("repeated ContainerAllocateResponse", "container_responses")},
        "ContainerAllocateResponse": {1: ("repeated Entry", "envs")},
        "Entry": {1: (STRING, "key"), 2: (STRING, "value")},
    },
)


class Plugin:
    """The kubelet asks these methods."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids

    def __mapping__(self) -> dict[str, Handler]:
        def unary(method: Any, request: str, reply: str) -> Handler:
            return Handler(method, Cardinality.UNARY_UNARY, MESSAGES[request], MESSAGES[reply])

        watched = MESSAGES["ListAndWatchResponse"]
        return {
            f"/{VERSION}.DevicePlugin/GetDevicePluginOptions": unary(self._options, "Empty", "DevicePluginOptions"),
            f"/{VERSION}.DevicePlugin/ListAndWatch": Handler(
                self._list, Cardinality.UNARY_STREAM, MESSAGES["Empty"], watched
            ),
            f"/{VERSION}.DevicePlugin/Allocate": unary(self._allocate, "AllocateRequest", "AllocateResponse"),
        }

    async def _options(self, stream: Stream[Message, Message]) -> None:
        await stream.recv_message()
        await stream.send_message(MESSAGES["DevicePluginOptions"]())

    async def _list(self, stream: Stream[Message, Message]) -> None:
        await stream.recv_message()
        devices = [{"ID": each, "health": "Healthy"} for each in self._ids]
        await stream.send_message(MESSAGES["ListAndWatchResponse"](devices=devices))
        await asyncio.Event().wait()  # Nothing ever changes, and the end of the stream would be the end of the devices.

    async def _allocate(self, stream: Stream[Message, Message]) -> None:
        request: Any = await stream.recv_message()
        told = [{"key": VISIBLE, "value": ",".join(each.devices_ids)} for each in request.container_requests]
        answer = MESSAGES["AllocateResponse"](container_responses=[{"envs": [entry]} for entry in told])
        await stream.send_message(answer)


async def serve(directory: Path, resource: str, ids: list[str]) -> None:
    """Registers with the kubelet whose sockets lie in `directory`, and answers it until cancelled."""
    server = Server([Plugin(ids)])
    await server.start(path=str(directory / NAME))
    async with Channel(path=str(directory / "kubelet.sock")) as channel:
        register: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(
            channel, f"/{VERSION}.Registration/Register", MESSAGES["RegisterRequest"], MESSAGES["Empty"]
        )
        await register(MESSAGES["RegisterRequest"](version=VERSION, endpoint=NAME, resource_name=resource))
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
