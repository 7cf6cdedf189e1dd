"""deviceshare as its chart installs it, run here: the processes of its pod, each as a ServiceAccount of its own.

The nodes of the cluster are simulated, so what the chart's Deployment describes doesn't run there. Each process has
exactly the rights that the chart's roles give it. In the pod they have one ServiceAccount, where one process's rights
could hide that another lacks them.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from charts import helm
from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.network import free_ports
from tests.controlplane.rights import Request, request

Json = dict[str, Any]

NAMESPACE = helm.NAMESPACE
ROLE, CLUSTER_ROLE = "Role", "ClusterRole"
DISCOVERY = ("/version", "/apis", "/api/v1")
RECORDER = str(Path(__file__).parent / "recorder.py")


class Installed:
    """The release in a cluster, and its processes on this machine."""

    def __init__(self, sandbox: Sandbox, directory: Path, objects: Sequence[Json]) -> None:
        """`objects` is what the chart rendered; `directory` takes kubeconfigs, logs and records."""
        self.objects = objects
        self.extender, self.webhook, self._secure, self._plain = free_ports(4)
        self._sandbox = sandbox
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def kubectl(self, *arguments: str, stdin: Json | None = None) -> str:
        """What kubectl said as the cluster's admin; fails the test unless it succeeds."""
        done = self._sandbox.kubectl(*arguments, stdin=json.dumps(stdin) if stdin else None)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def tries(self, *arguments: str, stdin: Json | None = None) -> "subprocess.CompletedProcess[str]":
        """The same, which may fail."""
        return self._sandbox.kubectl(*arguments, stdin=json.dumps(stdin) if stdin else None)

    def get(self, *what: str) -> Json:
        """`kubectl get -o json`."""
        found: Json = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def roles(self, *names: str) -> list[Json]:
        """The chart's Roles and ClusterRoles of these names."""
        return [each for each in self.objects if each["kind"].endswith("Role") and each["metadata"]["name"] in names]

    def requests(self, account: str) -> set[Request]:
        """What the deviceshare of this account has asked of the API server, but for discovery, which all may use."""
        lines = (self._directory / f"{account}.requests").read_text().splitlines()
        asked = [json.loads(line) for line in lines]
        return {request(*each) for each in asked if each[1] not in DISCOVERY}

    def log(self, name: str) -> str:
        """What a process said."""
        return (self._directory / f"{name}.log").read_text()

    def become(self, account: str, *roles: tuple[str, str]) -> None:
        """Makes a ServiceAccount that has these roles, by kind and name, and nothing else; and its kubeconfig."""
        self.kubectl("create", "serviceaccount", account, "-n", NAMESPACE)
        for kind, name in roles:
            flag = f"--{kind.lower()}={name}"
            command = [f"{kind.lower()}binding", f"test-{account}-{name.replace(':', '-')}", flag]
            self.kubectl("create", *command, f"--serviceaccount={NAMESPACE}:{account}", "-n", NAMESPACE)
        ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        url = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        token = json.loads(self.kubectl("create", "--raw", url, "-f", "-", stdin=ask))["status"]["token"]
        kubeconfig = yaml.safe_load(self._sandbox.kubeconfig.read_text())
        kubeconfig["users"][0]["user"] = {"token": token}
        self._kubeconfig(account).write_text(yaml.safe_dump(kubeconfig))

    @contextlib.contextmanager
    def deviceshare(self, account: str, *roles: str) -> Iterator[None]:
        """Runs deviceshare with the chart's arguments, but for roles and addresses, until the block ends."""
        [probe] = free_ports(1)
        chosen = {
            "--roles": ",".join(roles),
            "--identity": f"system:serviceaccount:{NAMESPACE}:{account}",
            "--extender-bind": f"127.0.0.1:{self.extender}",
            "--webhook-bind": f"127.0.0.1:{self.webhook}",
            "--probe-bind": f"127.0.0.1:{probe}",
            "--ui-bind": "off",
        }
        arguments = dict(argument.split("=", 1) for argument in self._container("deviceshare")["args"][1:]) | chosen
        command = [sys.executable, RECORDER, str(self._directory / f"{account}.requests"), "run"]
        command += ["--kubeconfig", str(self._kubeconfig(account)), "--instance", account]
        command += [f"{flag}={value}" for flag, value in arguments.items()]
        with self._running(account, command):
            self.until(lambda: _ready(probe), account)
            yield

    @contextlib.contextmanager
    def kube_scheduler(self, account: str) -> Iterator[None]:
        """Runs kube-scheduler with the chart's arguments and configuration, but for addresses, until the block ends."""
        [config_map] = [each for each in self.objects if each["kind"] == "ConfigMap" and "config.yaml" in each["data"]]
        config = yaml.safe_load(config_map["data"]["config.yaml"])
        config["clientConnection"]["kubeconfig"] = str(self._kubeconfig(account))
        config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{self.extender}"
        for old in ("healthzBindAddress", "metricsBindAddress"):
            if old in config:
                config[old] = f"127.0.0.1:{self._plain}"
        file = self._directory / "scheduler-config.yaml"
        file.write_text(yaml.safe_dump(config))
        chosen = {"--config": str(file), "--secure-port": str(self._secure), "--bind-address": "127.0.0.1"}
        arguments = dict(argument.split("=", 1) for argument in self._container("kube-scheduler")["args"]) | chosen
        command = [
            self._sandbox.plan.binaries.kube_scheduler,
            *(f"{flag}={value}" for flag, value in arguments.items()),
        ]
        with self._running(account, command):
            yield

    def until(self, question: Any, about: str = "") -> Any:
        """Asks until the answer is true, and returns it; fails after a while, with what a process said last."""
        deadline = time.monotonic() + 90
        while not (answer := question()):
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
            assert time.monotonic() < deadline, f"still {answer!r}; {self.log(about)[-3000:] if about else ''}"
            time.sleep(0.2)
        return answer

    def _kubeconfig(self, account: str) -> Path:
        return self._directory / f"{account}.yaml"

    def _container(self, name: str) -> Json:
        [deployment] = [each for each in self.objects if each["kind"] == "Deployment"]
        [found] = [each for each in deployment["spec"]["template"]["spec"]["containers"] if each["name"] == name]
        container: Json = found
        return container

    @contextlib.contextmanager
    def _running(self, name: str, command: Sequence[str]) -> Iterator[None]:
        with (self._directory / f"{name}.log").open("ab") as log:
            # It finds modules as this process does: the wheel's before the checkout's.
            modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=modules)
        self._processes[name] = process
        try:
            yield
        finally:
            del self._processes[name]
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
