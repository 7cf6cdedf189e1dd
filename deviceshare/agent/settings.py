"""The flags and environment of `deviceshare agent`, read nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from deviceshare.agent.violations import CAUSES, TRESPASS
from deviceshare.domain import contract, vendors
from deviceshare.domain.device_health.violations import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_TOLERANCE_PERCENT,
    LEAST_TOLERANCE_MIB,
)
from deviceshare.domain.objects.hardware import LIMIT_MODES, NO_LIMITS
from deviceshare.flags import (
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    NAMESPACES,
    Address,
    AddressType,
    OptionalAddressType,
    flag,
    options_of,
)

_TRESPASSERS: Final = "evict-trespassers"
_ENFORCED: Final = {"report": (), "evict": CAUSES, _TRESPASSERS: (TRESPASS,)}
"""For what pods are evicted, by the setting."""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings of one agent; the flags' help explains each."""

    node_name: str
    kubeconfig: Path | None
    bind: Address
    serve_pods: Address | None
    turns_directory: str
    proc_root: Path
    sys_root: Path
    cdi_specs: str
    visible_devices: str | None
    pod_resources: str
    placeholders: str
    excluded_namespaces: frozenset[str]
    memory_limits: str
    cgroup_root: Path
    enforce: str
    overuse_tolerance: int
    overuse_grace: int
    log_format: Any
    log_level: Any

    @property
    def enforced(self) -> tuple[str, ...]:
        return _ENFORCED[self.enforce]

    @property
    def cdi_directories(self) -> list[Path]:
        """Where the node's CDI specifications are; later directories take precedence."""
        return [Path(directory) for directory in self.cdi_specs.split(",") if directory]


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `AgentSettings` to a click command, which receives them as keyword arguments."""
    directory = click.Path(exists=True, file_okay=False, path_type=Path)
    flags: list[Callable[..., Any]] = [
        flag("--node-name", required=True, help="The node that this agent runs on, as Kubernetes calls it."),
        KUBECONFIG,
        flag(
            "--bind", type=AddressType(), default=f":{contract.AGENT_PORT}", help="Probes, /metrics, /usage and /use."
        ),
        flag(
            "--serve-pods",
            type=OptionalAddressType(),
            default="",
            help="Where containers of the node's pods ask for their own devices (docs/inside.md); empty: nowhere.",
        ),
        flag(
            "--turns-directory",
            default="",
            help="The node's directory for the record of who has a turn (docs/turns.md). Without one, turns are given"
            " late after each start of an agent.",
        ),
        flag("--proc-root", type=directory, default="/proc", help="Where the node's processes are shown."),
        flag("--sys-root", type=directory, default="/sys", help="Where the node's PCI devices are shown."),
        flag(
            "--cdi-specs",
            metavar="DIRECTORY[,…]",
            default="",
            help="Where the node's CDI specifications are; later directories take precedence.",
        ),
        click.option("--visible-devices", envvar=vendors.NVIDIA.env, hidden=True),
        flag("--pod-resources", default="", help="The kubelet's socket that lists device plugins' allocations."),
        flag(
            "--placeholders",
            metavar="NAMESPACE",
            default="",
            help=f"Groups get only devices of pods in this namespace with the label {contract.PLACEHOLDER}.",
        ),
        flag(
            "--excluded-namespaces",
            type=NAMESPACES,
            default=f"kube-system,{contract.NAMESPACE}",
            help="Namespaces excluded from the webhooks: pods there are of no group, whatever their annotations say.",
        ),
        flag(
            "--memory-limits",
            type=click.Choice(LIMIT_MODES),
            default=NO_LIMITS,
            help="Who limits the memory of containers with shares: nobody; HAMi-core, where it is loaded; where the"
            " driver can, the agent, or the hook of NVIDIA's container toolkit, whose work the agent audits: these take"
            " root and CAP_SYS_ADMIN, and elsewhere it is HAMi-core, too. With both the kernel limits AMD's"
            " GPUs.",
        ),
        flag(
            "--cgroup-root",
            type=directory,
            default="/sys/fs/cgroup",
            help="Where the node's control groups are mounted, version 2.",
        ),
        flag(
            "--enforce",
            type=click.Choice(list(_ENFORCED)),
            default="report",
            help="What to do about pods that use a group's or others' device, or more memory than their share;"
            f" {_TRESPASSERS}: evict the former and report the latter.",
        ),
        flag(
            "--overuse-tolerance",
            type=click.IntRange(0, 1000),
            metavar="PERCENT",
            default=DEFAULT_TOLERANCE_PERCENT,
            help=f"How much of its share a container may use beside it; at least {LEAST_TOLERANCE_MIB} MiB.",
        ),
        flag(
            "--overuse-grace",
            type=click.IntRange(10, 86400),
            metavar="SECONDS",
            default=DEFAULT_GRACE_SECONDS,
            help="How long a container may exceed its share and the tolerance until its pod is evicted.",
        ),
        LOG_FORMAT,
        LOG_LEVEL,
    ]
    return options_of(flags, command)
