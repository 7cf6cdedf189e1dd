"""Command lines and configuration files of the control plane's processes, as their Kubernetes release reads them.

Flags are those of the components' reference pages (https://kubernetes.io/docs/reference/command-line-tools-reference/).
Client-side rate limits are raised: measured with the defaults, a test measures the limiter.
"""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare.domain.contract import DEFAULT_SCHEDULER_NAME, IDENTITY, SCHEDULER_NAME
from deviceshare.domain.objects.shares import DEVICE_COUNT, DIALECTS
from deviceshare_sandbox.network import HOST, SERVICES, free_ports
from deviceshare_sandbox.simulated_network import egress_configuration
from deviceshare_sandbox.state import Layout, Ports, SandboxPlan

_SIMULATED_PODS = [
    # Pods that are simulated need no credentials; with this plugin a pod is refused until its namespace's
    # ServiceAccount exists, which every script that creates a namespace and a pod would have to wait for. envtest
    # leaves it out too.
    "--disable-admission-plugins=ServiceAccount",
    # A loopback address can't be advertised as the kubernetes Service's endpoint.
    "--endpoint-reconciler-type=none",
    # Their kubelet is found by name: no simulated node has its address.
    "--kubelet-preferred-address-types=InternalDNS",
]


class Component(msgspec.Struct, frozen=True):
    """One process: how it is started, and where it says that it is healthy."""

    name: str
    command: list[str]
    probe: str
    files: dict[Path, str] = {}
    """Its configuration, written before it is started."""


def choose_ports() -> Ports:
    """Ports that are free now."""
    return Ports(*free_ports(len(Ports.__struct_fields__)))


class Components:
    """Every process of one sandbox's control plane, and the kubelet of its simulated nodes."""

    def __init__(self, layout: Layout, plan: SandboxPlan, ports: Ports) -> None:
        self._layout = layout
        self._options = plan.options
        self._admission = plan.admission
        self._binaries = plan.binaries
        self._ports = ports
        # A real node can't reach loopback; nothing beyond that node may reach the API server.
        self._host = HOST if plan.options.real_node else "127.0.0.1"
        self.server = f"https://{self._host}:{ports.apiserver}"

    @property
    def etcd(self) -> Component:
        """The store."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._ports.etcd, self._ports.etcd_peer))
        command = [
            self._binaries.etcd,
            f"--data-dir={self._layout.data / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            *([] if self._options.durable else ["--unsafe-no-fsync"]),
            "--logger=zap",
            "--log-level=warn",
        ]
        return Component("etcd", command, f"{client}/health")

    def apiserver(self, tokens: Path) -> Component:
        """`tokens` is the static token file."""
        pki = self._layout.pki
        command = [
            self._binaries.kube_apiserver,
            f"--etcd-servers=http://127.0.0.1:{self._ports.etcd}",
            f"--bind-address={self._host}",
            f"--secure-port={self._ports.apiserver}",
            *self._tls("kube-apiserver"),
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--service-account-key-file={pki / 'service-accounts.key'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
        ]
        command += self._real_pods() if self._options.real_node else _SIMULATED_PODS
        if self._binaries.minor < 23:
            command.append("--feature-gates=EphemeralContainers=true")
        files = {}
        if self._options.agents:
            egress = self._layout.config / "egress.yaml"
            files[egress] = yaml.safe_dump(egress_configuration(self._layout.egress), sort_keys=False)
            command.append(f"--egress-selector-config-file={egress}")
        return Component("kube-apiserver", command, f"{self.server}/readyz", files)

    @property
    def controller_manager(self) -> Component:
        """The controllers, each under its own ServiceAccount as in a real cluster: webhooks see who asks."""
        pki, port = self._layout.pki, self._ports.controller_manager
        command = [
            self._binaries.kube_controller_manager,
            f"--kubeconfig={self._layout.kubeconfig_of('kube-controller-manager')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            *self._tls("loopback"),
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
            # Heartbeats come every 20 s. A laptop that slept for a minute must not find its nodes lost.
            "--node-monitor-grace-period=120s",
        ]
        if self._binaries.minor < 24:
            command.append("--port=0")
        return Component("kube-controller-manager", command, f"https://127.0.0.1:{port}/healthz")

    @property
    def scheduler(self) -> Component:
        """The plain scheduler that every cluster has."""
        config = self._scheduler_config(DEFAULT_SCHEDULER_NAME, "kube-scheduler", self._ports.scheduler_plain)
        return self._scheduler("kube-scheduler", config, self._ports.scheduler)

    @property
    def deviceshare_scheduler(self) -> Component:
        """deviceshare's own kube-scheduler, which asks the extender."""
        config = self._scheduler_config(SCHEDULER_NAME, "deviceshare", self._ports.deviceshare_scheduler_plain)
        # Sampling could hide the one node that a group lives on from the extender.
        config["percentageOfNodesToScore"] = 100
        # A pod that waits for devices must be retried soon after it was touched, however often it failed before.
        config["podInitialBackoffSeconds"] = 1
        config["podMaxBackoffSeconds"] = 1
        # No node advertises what pods ask for as a share: the extender alone knows what is free.
        fit = {"name": "NodeResourcesFit", "args": {"ignoredResources": sorted({*DIALECTS, DEVICE_COUNT})}}
        config["profiles"][0]["pluginConfig"] = [fit]
        if not asks_before_evicting(self._binaries.version):
            # Otherwise it would evict pods for devices that would not be free afterwards.
            config["profiles"][0]["plugins"] = {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}
        config["extenders"] = [self._options.extender or self._extender()]
        return self._scheduler("deviceshare-scheduler", config, self._ports.deviceshare_scheduler)

    @property
    def deviceshare(self) -> Component:
        """deviceshare itself, all roles in one process."""
        pki, probe = self._layout.pki, f"127.0.0.1:{self._ports.probe}"
        program = [self._options.program] if self._options.program else ["-m", "deviceshare"]
        command = [sys.executable, *program, "run"]
        command += ["--roles", "controller,extender,webhook", "--identity", IDENTITY]
        command += ["--placement", self._options.placement, "--dialects", ",".join(self._options.dialects)]
        command += ["--scaling-pods", "on" if self._options.scaling_pods else "off"]
        command += [f"--dra-{each}={'on' if self._options.dra_holds else 'off'}" for each in ("holds", "handover")]
        command += ["--kubeconfig", str(self._layout.kubeconfig_of("deviceshare"))]
        command += ["--extender-bind", f"127.0.0.1:{self._ports.extender}"]
        command += ["--ui-bind", f"127.0.0.1:{self._ports.ui}", "--probe-bind", probe]
        command += ["--admission", self._admission]
        if self._admission == WEBHOOKS:
            command += ["--webhook-bind", f"127.0.0.1:{self._ports.webhook}"]
            command += ["--tls-cert", str(pki / "webhook.crt"), "--tls-key", str(pki / "webhook.key")]
        return Component("deviceshare", command, f"http://{probe}/readyz")

    @property
    def kubelet(self) -> Component:
        """One process for the kubelets of all simulated nodes."""
        pair = self._layout.pki / "loopback"
        command = [sys.executable, "-m", "deviceshare_sandbox.simulated_nodes"]
        command += [str(self._layout.directory), str(self._ports.kubelet), f"{pair}.crt", f"{pair}.key"]
        return Component("kubelet", command, f"https://127.0.0.1:{self._ports.kubelet}/healthz")

    def _real_pods(self) -> list[str]:
        """Flags of an API server whose pods speak to it, and which speaks to their kubelet for `kubectl logs`."""
        pki = self._layout.pki
        return [
            f"--advertise-address={self._host}",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        ]

    def _tls(self, name: str) -> list[str]:
        """The flags for a serving certificate."""
        pair = self._layout.pki / name
        return [f"--tls-cert-file={pair}.crt", f"--tls-private-key-file={pair}.key"]

    def _scheduler(self, name: str, config: dict[str, Any], port: int) -> Component:
        file = self._layout.config / f"{name}.yaml"
        command = [
            self._binaries.kube_scheduler,
            f"--config={file}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            *self._tls("loopback"),
        ]
        files = {file: yaml.safe_dump(config, sort_keys=False)}
        return Component(name, command, f"https://127.0.0.1:{port}/healthz", files)

    def _scheduler_config(self, profile: str, identity: str, plain_port: int) -> dict[str, Any]:
        config = {
            "apiVersion": f"kubescheduler.config.k8s.io/{scheduler_config_version(self._binaries.minor)}",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self._layout.kubeconfig_of(identity)), "qps": 1000, "burst": 1000},
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": profile}],
        }
        if self._binaries.minor < 22:
            # Old releases also listen on plain HTTP, which can't be turned off; two on one machine need two ports.
            config |= dict.fromkeys(("healthzBindAddress", "metricsBindAddress"), f"127.0.0.1:{plain_port}")
        elif self._binaries.minor == 22:
            config |= dict.fromkeys(("healthzBindAddress", "metricsBindAddress"), "127.0.0.1:0")
        return config

    def _extender(self) -> dict[str, Any]:
        return {
            "urlPrefix": f"http://127.0.0.1:{self._ports.extender}",
            "filterVerb": "filter-best",
            "preemptVerb": "preempt",
            "bindVerb": "bind",
            "enableHTTPS": False,
            "nodeCacheCapable": True,
            "ignorable": False,
            "httpTimeout": "15s",
        }


def scheduler_config_version(minor: int) -> str:
    """The newest `kubescheduler.config.k8s.io` version that Kubernetes 1.`minor` reads."""
    for since, version in ((25, "v1"), (23, "v1beta3"), (22, "v1beta2")):
        if minor >= since:
            return version
    return "v1beta1"


def asks_before_evicting(version: str) -> bool:
    """Whether this kube-scheduler asks extenders before it evicts pods: from 1.20.10, 1.21.4 and 1.22 on.

    https://github.com/kubernetes/kubernetes/pull/103019
    """
    major, minor, patch = (int(part) for part in re.findall(r"\d+", f"{version}.0")[:3])
    fixed = {20: 10, 21: 4}
    return (major, minor) >= (1, 22) or (minor in fixed and patch >= fixed[minor])
