"""The API server, asked in this process as the cluster's admin: a start of kubectl takes 70 to 90 ms of a processor."""

import base64
import http.client
import json
import ssl
import threading
import time
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

DEVICESHARE = "/apis/deviceshare.io/v1alpha1"
_PATHS = {
    "pod": ("/api/v1", "pods", True),
    "pods": ("/api/v1", "pods", True),
    "quota": ("/api/v1", "resourcequotas", True),
    "resourcequota": ("/api/v1", "resourcequotas", True),
    "node": ("/api/v1", "nodes", False),
    "nodes": ("/api/v1", "nodes", False),
    "ndev": (DEVICESHARE, "nodedevices", False),
    "sdg": (DEVICESHARE, "shareddevicegroups", False),
}
_SECONDS = 60.0

Json = dict[str, Any]


class AdminApi:
    """Requests over one connection, which is opened again where the API server closed it."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, self._token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
        tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        host = urlsplit(cluster["server"]).netloc
        self._connection = http.client.HTTPSConnection(host, timeout=_SECONDS, context=tls)
        weakref.finalize(self, self._connection.close)  # not every pool is ended: an open socket fails its test
        self._one_at_a_time = threading.Lock()

    @staticmethod
    def knows(what: str) -> bool:
        """Whether it can read this resource, by the name that kubectl has for it."""
        return what in _PATHS

    def get(self, what: str, name: str, namespace: str) -> Any:
        """One object, or the items of a list where there is no name; fails the test where there is none."""
        prefix, plural, namespaced = _PATHS[what]
        path = "/".join([prefix, *(["namespaces", namespace] if namespaced else []), plural, *([name] if name else [])])
        status, answer = self.send("GET", path)
        assert status == 200, f"GET {path}: {status} {answer}"
        found = json.loads(answer)
        if name:
            return found
        # As kubectl does: the items of a typed list don't say what they are.
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [kind | each for each in found["items"]]

    def create(self, path: str, body: Json) -> None:
        """Fails the test unless it is created."""
        status, answer = self.send("POST", path, body)
        assert status == 201, f"POST {path}: {status} {answer}"

    def send(self, method: str, path: str, body: Json | None = None) -> tuple[int, str]:
        """The status and the body of the answer, whatever they are. A PATCH is a merge patch."""
        with self._one_at_a_time:
            status, answer = self._ask(method, path, body)
            deadline = time.monotonic() + _SECONDS
            while status == http.HTTPStatus.TOO_MANY_REQUESTS and time.monotonic() < deadline:
                time.sleep(0.1)  # as after a CRD was changed: "storage is (re)initializing"
                status, answer = self._ask(method, path, body)
            return status, answer

    def close(self) -> None:
        """Gives the connection back."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: Json | None) -> tuple[int, str]:
        try:
            return self._once(method, path, body)
        except (http.client.HTTPException, OSError):
            self._connection.close()
        try:
            return self._once(method, path, body)
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            return 0, repr(error)

    def _once(self, method: str, path: str, body: Json | None) -> tuple[int, str]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()
