"""The processes of one real node: containerd, kubelet and kube-proxy, all on a machine of their own.

Their configuration: https://github.com/containerd/containerd/blob/release/1.6/docs/cri/config.md,
https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/,
https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/, https://www.cni.dev/plugins/current/main/ptp/
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from deviceshare.domain.contract import MODE_LABEL, MODE_SHARED
from deviceshare_sandbox import images
from deviceshare_sandbox.binaries import PATH, Programs
from deviceshare_sandbox.components import Component
from deviceshare_sandbox.machine import CONTROL_GROUP, RUNTIME_SOCKET, booting, entering
from deviceshare_sandbox.network import NODE, PODS
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.state import Layout, SandboxPlan

NAME: Final = "node-1"
CGROUP_V1_FLAG: Final = 31
"""The minor version from which on a kubelet's configuration has `failCgroupV1`."""
_METRICS_PORT = 1338
_KUBELET_HEALTH_PORT = 10248
_PROXY_HEALTH_PORT = 10256
_IMPORT_SECONDS = 300
_ENVIRONMENT = ["env", f"PATH={PATH}"]
"""The node's processes must find runc and iptables, whatever the PATH of who started the sandbox."""


class RealNode:
    """The components of the node."""

    def __init__(self, layout: Layout, plan: SandboxPlan) -> None:
        if plan.programs is None:
            raise ValueError("a real node was not planned")
        self._layout = layout
        self._programs = plan.programs
        self._binaries = plan.binaries

    @property
    def containerd(self) -> Component:
        """The container runtime and, around it, the machine that the others enter."""
        network, config = self._layout.config / "cni", self._layout.config / "containerd.toml"
        files = {
            network / "10-ptp.conflist": json.dumps(_network()),
            config: _runtime(self._layout.data / "containerd", network, self._programs),
        }
        command = [*booting(self._layout, self._programs.ip), *_ENVIRONMENT]
        command += [self._programs.containerd, f"--config={config}"]
        return Component("containerd", command, f"http://{NODE}:{_METRICS_PORT}/v1/metrics", files)

    @property
    def kubelet(self) -> Component:
        """The real one."""
        resolver = self._layout.config / "resolv.conf"
        command = [self._binaries.kubelet, f"--kubeconfig={self._layout.kubeconfig_of(NAME)}"]
        command += [f"--hostname-override={NAME}", f"--node-ip={NODE}", f"--node-labels={MODE_LABEL}={MODE_SHARED}"]
        command += [f"--container-runtime-endpoint=unix://{RUNTIME_SOCKET}"]
        if self._binaries.minor < 24:
            command.append("--container-runtime=remote")
        # Nobody listens there: a look-up fails at once instead of after seconds.
        files = {resolver: "nameserver 127.0.0.1\n"}
        return self._component("kubelet", command, _KUBELET_HEALTH_PORT, self._kubelet_config(resolver), files)

    @property
    def proxy(self) -> Component:
        """Leads the addresses of Services to pods, by the node's own iptables."""
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self._layout.kubeconfig_of("kube-proxy"))},
            "hostnameOverride": NAME,
            "mode": "iptables",
            "clusterCIDR": PODS,
            "healthzBindAddress": f"{NODE}:{_PROXY_HEALTH_PORT}",
            # 0 leaves these as they are: they belong to the whole kernel.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        return self._component("kube-proxy", [self._binaries.kube_proxy], _PROXY_HEALTH_PORT, config, {})

    def import_own_images(self) -> None:
        """Gives the node the images that everything needs; raises SandboxError."""
        archive, busybox = self._layout.data / "image.tar", Path(self._programs.busybox)
        for write in (images.write_pause, images.write_busybox):
            write(archive, busybox)
            import_image(self._layout, self._programs, archive)
        archive.unlink()

    def _component(
        self, name: str, command: list[str], health_port: int, config: dict[str, Any], files: dict[Path, str]
    ) -> Component:
        file = self._layout.config / f"{name}.yaml"
        files = {file: yaml.safe_dump(config, sort_keys=False), **files}
        command = [*entering(self._layout), *_ENVIRONMENT, *command, f"--config={file}"]
        return Component(name, command, f"http://{NODE}:{health_port}/healthz", files)

    def _kubelet_config(self, resolver: Path) -> dict[str, Any]:
        pki = self._layout.pki
        # From 1.35 on a kubelet refuses to start where control groups are of version 1, unless it is told otherwise.
        # https://kubernetes.io/docs/concepts/architecture/cgroups/
        versions = {"failCgroupV1": False} if self._binaries.minor >= CGROUP_V1_FLAG else {}
        return {
            **versions,
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE,
            "healthzBindAddress": NODE,
            "healthzPort": _KUBELET_HEALTH_PORT,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet.key"),
            "resolvConf": str(resolver),
            "volumePluginDir": str(self._layout.data / "volume-plugins"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CONTROL_GROUP}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            # Report a change within a second, and no change as rarely as by default.
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "5m",
            # The disk is somebody's, and may be nearly full: no reason to evict pods or to drop images, which nobody
            # could pull again.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        }


def import_image(layout: Layout, found: Programs, archive: Path) -> None:
    """Gives the node the images of an archive, as `docker save` writes it; raises SandboxError."""
    command = [*entering(layout), *_ENVIRONMENT, found.ctr, f"--address={RUNTIME_SOCKET}", "--namespace=k8s.io"]
    command += ["images", "import", "--no-unpack", str(archive)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise SandboxError(f"The import of {archive} took longer than {_IMPORT_SECONDS} s.") from None
    if done.returncode != 0:
        raise SandboxError(f"{archive} can't be imported: {(done.stderr or done.stdout).strip()}")


def _network() -> dict[str, Any]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "ptp", "ipMasq": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "deviceshare-sandbox", "plugins": [plugin]}


def _runtime(root: Path, network: Path, found: Programs) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = {_toml(root)}
state = {_toml(Path(RUNTIME_SOCKET).parent)}
# It would make a directory /opt/containerd.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = {_toml(RUNTIME_SOCKET)}

[metrics]
address = "{NODE}:{_METRICS_PORT}"

[{cri}]
sandbox_image = {_toml(images.PAUSE)}
netns_mounts_under_state_dir = true
# Where this machine is itself a container, even root may not lower it.
restrict_oom_score_adj = true

[{cri}.cni]
bin_dir = {_toml(found.plugins)}
conf_dir = {_toml(network)}
"""


def _toml(text: str | Path) -> str:
    return json.dumps(str(text))  # JSON's strings are TOML's basic strings.
