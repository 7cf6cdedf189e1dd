"""A real local control plane, for people and for tests.

etcd, kube-apiserver with RBAC, kube-controller-manager and two kube-schedulers are the real ones, and so is
deviceshare. The nodes are simulated: nothing runs in their pods, but an annotation of each records which environment
its containers would have. With `real_node` there is one that is real: containerd, kubelet, kube-proxy and containers.

    with running(Options(nodes=3, devices=4)) as sandbox:
        sandbox.kubectl("get", "nodes")
"""

from deviceshare_sandbox.lifecycle import Sandbox, SandboxStatus, running, start, status, stop
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.simulated_pods import ENV, RUN_FOR, SIMULATED
from deviceshare_sandbox.state import Layout, Options, ProcessState, default_directory

__all__ = [
    "ENV",
    "RUN_FOR",
    "SIMULATED",
    "Layout",
    "Options",
    "ProcessState",
    "Sandbox",
    "SandboxError",
    "SandboxStatus",
    "default_directory",
    "running",
    "start",
    "status",
    "stop",
]
