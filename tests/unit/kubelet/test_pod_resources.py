"""Reading the kubelet's pod-resources socket: what is understood, and what is said when it can't be read."""

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from deviceshare.agent.allocations import (
    MESSAGES,
    METHOD,
    STRING,
    Allocated,
    PodResourcesUnknown,
    ask_kubelet,
    message_classes,
)

# As Kubernetes 1.37 has it, as far as it differs from what we read.
NEWER = message_classes(
    "v1",
    {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {1: ("repeated PodResources", "pod_resources")},
        "PodResources": {
            1: (STRING, "name"),
            2: (STRING, "namespace"),
            3: ("repeated ContainerResources", "containers"),
            9: (STRING, "invented_tomorrow"),
        },
        "ContainerResources": {
            1: (STRING, "name"),
            2: ("repeated ContainerDevices", "devices"),
            5: ("repeated DynamicResource", "dynamic_resources"),
        },
        "ContainerDevices": {
            1: (STRING, "resource_name"),
            2: ("repeated string", "device_ids"),
            3: ("NUMANode", "topology"),
        },
        "NUMANode": {1: (STRING, "id")},
        "DynamicResource": {2: (STRING, "claim_name")},
    },
)

Answer = Callable[[], Awaitable[Message]]


def listing(pods: list[dict[str, Any]], kinds: dict[str, type[Message]] = MESSAGES) -> Message:
    return kinds["ListPodResourcesResponse"](pod_resources=pods)


def pod(name: str, *containers: dict[str, list[str]], namespace: str = "default") -> dict[str, Any]:
    """A pod; each container's devices by resource."""
    return {
        "name": name,
        "namespace": namespace,
        "containers": [
            {"name": f"c{number}", "devices": [{"resource_name": r, "device_ids": ids} for r, ids in given.items()]}
            for number, given in enumerate(containers)
        ],
    }


class Kubelet:
    """The service, answering as the test says."""

    def __init__(self, answer: Answer, reply: type[Message]) -> None:
        self._answer, self._reply = answer, reply

    def __mapping__(self) -> dict[str, Handler]:
        request = MESSAGES["ListPodResourcesRequest"]
        return {METHOD: Handler(self._list, Cardinality.UNARY_UNARY, request, self._reply)}

    async def _list(self, stream: Stream[Message, Message]) -> None:
        await stream.recv_message()
        await stream.send_message(await self._answer())


@asynccontextmanager
async def kubelet(socket: Path, answer: Answer, *, kinds: dict[str, type[Message]] = MESSAGES) -> AsyncIterator[None]:
    server = Server([Kubelet(answer, kinds["ListPodResourcesResponse"])])
    await server.start(path=str(socket))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def saying(socket: Path, said: bytes, *, then_close: bool = False) -> AsyncIterator[None]:
    """Something on the socket that says these bytes to who connects; at the end that one must have closed, too."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        if not then_close:
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        gone.set()

    async with await asyncio.start_unix_server(serve, socket):
        yield
        await asyncio.wait_for(gone.wait(), 5)


def always(message: Message) -> Answer:
    async def answer() -> Message:
        return message

    return answer


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


async def test_each_pod_and_resource_is_one_entry_over_all_its_containers(socket: Path) -> None:
    """Containers, and one container's entries for several NUMA nodes, are joined; the order is always the same."""
    answer = listing(
        [
            pod("train", {"nvidia.com/gpu": ["GPU-2"]}, {"nvidia.com/gpu": ["GPU-1"], "example.com/nic": ["nic0"]}),
            pod("serve", {"nvidia.com/gpu": ["GPU-3::0"]}, namespace="a"),
        ]
    )
    async with kubelet(socket, always(answer)):
        assert await ask_kubelet(socket) == [
            Allocated("a", "serve", "nvidia.com/gpu", ("GPU-3::0",)),
            Allocated("default", "train", "example.com/nic", ("nic0",)),
            Allocated("default", "train", "nvidia.com/gpu", ("GPU-1", "GPU-2")),
        ]


async def test_pods_without_devices_are_left_out(socket: Path) -> None:
    """Most pods of a node have none; an empty node gives an empty list, not an error."""
    answer = listing([pod("web", {}), pod("bare"), pod("odd", {"nvidia.com/gpu": []})])
    async with kubelet(socket, always(answer)):
        assert await ask_kubelet(socket) == []


async def test_fields_of_later_releases_are_ignored(socket: Path) -> None:
    """Topology, dynamic resources and whatever comes next must not keep the agent from reading the rest."""
    newer = pod("train", {"nvidia.com/gpu": ["GPU-1"]})
    newer["invented_tomorrow"] = "x"
    newer["containers"][0]["dynamic_resources"] = [{"claim_name": "claim"}]
    newer["containers"][0]["devices"][0]["topology"] = {"id": "0"}
    async with kubelet(socket, always(listing([newer], NEWER)), kinds=NEWER):
        assert await ask_kubelet(socket) == [Allocated("default", "train", "nvidia.com/gpu", ("GPU-1",))]


async def test_an_answer_of_many_mebibytes_is_read(socket: Path) -> None:
    """Larger than HTTP/2's windows (4 MiB here) and gRPC's usual limit of 4 MiB for one message."""
    ids = [f"GPU-{number:036}" for number in range(1000)]
    answer = listing([pod(f"pod-{number:03}", {"nvidia.com/gpu": ids}) for number in range(250)])
    assert answer.ByteSize() > 10 * 2**20
    async with kubelet(socket, always(answer)):
        found = await ask_kubelet(socket, seconds=60)
    assert len(found) == 250 and all(len(pod.device_ids) == 1000 for pod in found)


async def test_a_missing_socket_is_told_with_what_to_mount(socket: Path) -> None:
    """The agent without the host path, or on a node whose kubelet keeps its files elsewhere."""
    with pytest.raises(
        PodResourcesUnknown,
        match=r"The socket .*kubelet\.sock does not exist: mount the kubelet's directory pod-resources",
    ):
        await ask_kubelet(socket)


async def test_a_socket_that_nobody_serves_is_told(socket: Path) -> None:
    """The kubelet is down: its socket's file stays."""
    with sockets.socket(sockets.AF_UNIX) as bound:
        bound.bind(str(socket))
    with pytest.raises(PodResourcesUnknown, match=r"No process listens on .*systemctl status kubelet"):
        await ask_kubelet(socket)


async def test_no_permission_is_told(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is root's. Said by the system's own error, as tests may run as root, whom nothing is refused."""

    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", refuse)
    with pytest.raises(PodResourcesUnknown, match=r"Permission denied .*runAsUser: 0"):
        await ask_kubelet(socket)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.UNIMPLEMENTED, r"UNIMPLEMENTED.*Kubernetes 1\.20 or later.*KubeletPodResources"),
        (Status.RESOURCE_EXHAUSTED, "limits its requests.*retries later"),
        (Status.INTERNAL, "refused.*journalctl"),
    ],
)
async def test_a_refusal_is_told_in_the_kubelets_words(socket: Path, status: Status, expected: str) -> None:
    """Before 1.20 there is no v1; current kubelets limit how often they are asked; anything else is in their log."""

    async def refuse() -> Message:
        raise GRPCError(status, "rejected by me")

    async with kubelet(socket, refuse):
        with pytest.raises(PodResourcesUnknown, match=expected) as told:
            await ask_kubelet(socket)
    assert "rejected by me" in str(told.value)


async def test_a_kubelet_that_hangs_is_given_up(socket: Path) -> None:
    """It answers neither HTTP/2's greeting nor the call; the connection is closed all the same."""
    async with saying(socket, b""):
        with pytest.raises(PodResourcesUnknown, match=r"did not answer in 0\.2 s: see its log"):
            await ask_kubelet(socket, seconds=0.2)


async def test_a_kubelet_that_hangs_in_the_call_is_given_up(socket: Path) -> None:
    """HTTP/2 works, the answer never comes."""
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang() -> Message:
        asked.set()
        await never.wait()
        return listing([])

    async with kubelet(socket, hang):
        with pytest.raises(PodResourcesUnknown, match=r"did not answer in 1 s"):
            await ask_kubelet(socket, seconds=1)
        assert asked.is_set()


async def test_being_cancelled_is_not_taken_for_a_failure(socket: Path) -> None:
    """The agent stops while the kubelet hangs."""
    async with saying(socket, b""):
        asking = asyncio.create_task(ask_kubelet(socket, seconds=60))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


@pytest.mark.parametrize(
    ("said", "then_close"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", True), (b"", True), (b"\x00" * 100, False)],
    ids=["an HTTP/1.1 server", "nothing", "zeros"],
)
async def test_something_else_on_the_socket_is_told(socket: Path, said: bytes, then_close: bool) -> None:
    """Another program's socket is mounted there."""
    async with saying(socket, said, then_close=then_close):
        with pytest.raises(PodResourcesUnknown, match="does not serve the kubelet's pod-resources API"):
            await ask_kubelet(socket)


async def test_an_answer_that_is_no_message_is_told(socket: Path) -> None:
    """gRPC works, but what comes is of another schema: here a name where the list of pods should be."""
    other = message_classes("v1", {"ListPodResourcesResponse": {1: (STRING, "name")}})
    answer = other["ListPodResourcesResponse"](name="\x0f not a message")  # field 1, of a wire type that doesn't exist
    async with kubelet(socket, always(answer), kinds=other):
        with pytest.raises(PodResourcesUnknown, match="does not serve the kubelet's pod-resources API"):
            await ask_kubelet(socket)


class Silent(Kubelet):
    """Ends each call in good order, without an answer."""

    def __mapping__(self) -> dict[str, Handler]:
        [(name, known)] = super().__mapping__().items()
        return {name: known._replace(func=self._end, cardinality=Cardinality.UNARY_STREAM)}

    async def _end(self, stream: Stream[Message, Message]) -> None:
        await stream.recv_message()


async def test_a_call_that_ends_without_an_answer_is_told(socket: Path) -> None:
    """It must not end the agent."""
    server = Server([Silent(always(listing([])), MESSAGES["ListPodResourcesResponse"])])
    await server.start(path=str(socket))
    with pytest.raises(PodResourcesUnknown, match="does not serve the kubelet's pod-resources API"):
        await ask_kubelet(socket)
    server.close()
    await server.wait_closed()
