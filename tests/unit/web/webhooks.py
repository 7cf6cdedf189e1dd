"""The webhooks, served for a test, and the pods that it asks them about."""

import base64
import io
import json
from typing import Any

import msgspec
from aiohttp import ClientSession

from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.objects.groups import Group, GroupMeta, GroupSpec, GroupStatus
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.metrics import Metrics
from deviceshare.web.admission import MAX_BODY, Admission, namespace_of
from deviceshare.web.server import Server
from tests.unit.domain.jsonpatch import applied
from tests.unit.web.mirrors import FixedMirror

Json = dict[str, Any]
IDENTITY = "system:serviceaccount:deviceshare-system:deviceshare"
GROUP = Group(GroupMeta(name="team", uid="1"), GroupSpec({"nvidia.com/gpu": 1}), GroupStatus(node_name="node-1"))
USER = Pod(ObjectMeta(name="user", namespace="a", annotations={"deviceshare.io/group": "team"}), PodSpec("node-1"))


class Webhooks:
    """The three webhooks, with the mirrors they look at; served as long as they are entered."""

    def __init__(self, *pods: Pod, group: Group = GROUP, **settings: Any) -> None:
        self.groups = FixedMirror(group)
        self.pods = FixedMirror(*(pods or (USER,)))
        self.metrics = Metrics()
        routes = Admission(self.groups, self.pods, IDENTITY, **settings).routes()
        bounds: Json = {"max_body": MAX_BODY, "timeout": 2, "tenant": namespace_of}
        self.server = Server("webhook", "127.0.0.1", 0, routes, self.metrics, **bounds)
        self.session: ClientSession

    async def __aenter__(self) -> "Webhooks":
        await self.server.start()
        self.session = ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.server.stop()

    async def post(self, path: str, body: bytes) -> tuple[int, str]:
        async with self.session.post(f"http://127.0.0.1:{self.server.port}{path}", data=io.BytesIO(body)) as response:
            return response.status, await response.text()

    async def ask(self, path: str, kind: str = "Pod", **request: Any) -> Json:
        """The `response` to a review; `user` names who asks."""
        user = {"username": request.pop("user", "alice"), "groups": ["system:authenticated"], **request.pop("who", {})}
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "42",
                "kind": {"group": "", "version": "v1", "kind": kind},
                "userInfo": user,
                "operation": "CREATE",
                "object": None,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions"},
                **request,
            },
        }
        status, text = await self.post(path, json.dumps(review).encode())
        assert status == 200, text
        answer = json.loads(text)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert answer["response"]["uid"] == "42"
        response: Json = answer["response"]
        return response


def a_pod(*, group: str | None = "team", label: str | None = None, **spec: Any) -> Json:
    annotations = {} if group is None else {"deviceshare.io/group": group}
    labels = {} if label is None else {"deviceshare.io/group": label}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "creationTimestamp": None, "annotations": annotations, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": {}}], **spec},
        "status": {},
    }


def patched(pod: Json, response: Json) -> Json:
    assert response["patchType"] == "JSONPatch"
    result: Json = applied(pod, json.loads(base64.b64decode(response["patch"])))
    return result


def ready(pod: Json) -> Json:
    """The pod as the mutating webhook leaves it."""
    draft = msgspec.convert(pod, Draft)
    result: Json = applied(pod, inject(draft, GROUP).patch)
    return result
