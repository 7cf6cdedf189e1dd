"""The flags and environment of `deviceshare agent`, read nowhere else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from deviceshare import flags
from deviceshare.agent.violations import CAUSES, TRESPASS
from deviceshare.domain import contract, vendors
from deviceshare.domain.device_health.violations import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_TOLERANCE_PERCENT,
    LEAST_TOLERANCE_MIB,
)
from deviceshare.domain.objects.hardware import LIMIT_MODES, NO_LIMITS
from deviceshare.flags import ADDRESS, OPTIONAL_ADDRESS, Address, setting

_TRESPASSERS: Final = "evict-trespassers"
_ENFORCED: Final = {"report": (), "evict": CAUSES, _TRESPASSERS: (TRESPASS,)}
"""For what pods are evicted, by the setting."""
_DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings of one agent; the flags' help explains each."""

    node_name: str = setting("The node that this agent runs on, as Kubernetes calls it.", required=True)
    kubeconfig: Path | None = setting(**flags.KUBECONFIG)
    bind: Address = setting("Probes, /metrics, /usage and /use.", f":{contract.AGENT_PORT}", type=ADDRESS)
    serve_pods: Address | None = setting(
        "Where containers of the node's pods ask for their own devices (docs/inside.md); empty: nowhere.",
        "",
        type=OPTIONAL_ADDRESS,
    )
    turns_directory: str = setting(
        "The node's directory for the record of who has a turn (docs/turns.md). Without one, turns are given late after"
        " each start of an agent.",
        "",
    )
    proc_root: Path = setting("Where the node's processes are shown.", "/proc", type=_DIRECTORY)
    sys_root: Path = setting("Where the node's PCI devices are shown.", "/sys", type=_DIRECTORY)
    cdi_specs: str = setting(
        "Where the node's CDI specifications are; later directories take precedence.", "", metavar="DIRECTORY[,…]"
    )
    visible_devices: str | None = setting(envvar=vendors.NVIDIA.env, hidden=True)
    pod_resources: str = setting("The kubelet's socket that lists device plugins' allocations.", "")
    placeholders: str = setting(
        f"Groups get only devices of pods in this namespace with the label {contract.PLACEHOLDER}.",
        "",
        metavar="NAMESPACE",
    )
    excluded_namespaces: frozenset[str] = setting(
        "Namespaces excluded from the webhooks: pods there are of no group, whatever their annotations say.",
        f"kube-system,{contract.NAMESPACE}",
        type=flags.NAMESPACES,
    )
    memory_limits: str = setting(
        "Who limits the memory of containers with shares: nobody; HAMi-core, where it is loaded; where the driver can,"
        " the agent, or the hook of NVIDIA's container toolkit, whose work the agent audits: these take root and"
        " CAP_SYS_ADMIN, and elsewhere it is HAMi-core, too. With both the kernel limits AMD's GPUs.",
        NO_LIMITS,
        LIMIT_MODES,
    )
    cgroup_root: Path = setting(
        "Where the node's control groups are mounted, version 2.", "/sys/fs/cgroup", type=_DIRECTORY
    )
    enforce: str = setting(
        "What to do about pods that use a group's or others' device, or more memory than their share;"
        f" {_TRESPASSERS}: evict the former and report the latter.",
        "report",
        list(_ENFORCED),
    )
    overuse_tolerance: int = setting(
        f"How much of its share a container may use beside it; at least {LEAST_TOLERANCE_MIB} MiB.",
        DEFAULT_TOLERANCE_PERCENT,
        type=click.IntRange(0, 1000),
        metavar="PERCENT",
    )
    overuse_grace: int = setting(
        "How long a container may exceed its share and the tolerance until its pod is evicted.",
        DEFAULT_GRACE_SECONDS,
        type=click.IntRange(10, 86400),
        metavar="SECONDS",
    )
    log_format: Any = setting(**flags.LOG_FORMAT)
    log_level: Any = setting(**flags.LOG_LEVEL)

    @property
    def enforced(self) -> tuple[str, ...]:
        return _ENFORCED[self.enforce]

    @property
    def cdi_directories(self) -> list[Path]:
        """Where the node's CDI specifications are; later directories take precedence."""
        return [Path(directory) for directory in self.cdi_specs.split(",") if directory]


options = flags.options_by(AgentSettings)
"""Adds the flags of `AgentSettings` to a click command, which receives them as keyword arguments."""
