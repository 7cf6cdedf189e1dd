"""Settings of a process, as flags and environment say, checked against each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deviceshare.domain.admission import settings
from deviceshare.domain.admission.settings import InjectionSettings, template_fault
from deviceshare.domain.objects.groups import GroupLife, LabelSelector, release_fault
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DEVICE_COUNT, DIALECTS
from deviceshare.domain.placement.handover import HandoverSetting, is_kind
from deviceshare.flags import Address, Tls
from deviceshare.loops import leadership
from deviceshare.loops.leader.uninjected_pods import uninjected

# The extender's exposure: who can reach it can bind pods, so beyond loopback it demands client certificates.


def extender_fault(bind: Address, files: Sequence[Path | None]) -> str:
    """What is wrong with the extender's address and its three TLS files, and what to do, or ""."""
    if any(files) and not all(files):
        return (
            "--extender-tls-cert, --extender-tls-key and --extender-client-ca go together: an extender over TLS"
            " lets in only who shows a client certificate"
        )
    if bind.is_loopback or all(files):
        return ""
    return (
        f"--extender-bind {bind.host}:{bind.port}: who can reach the extender can"
        " bind pods, so beyond loopback it demands client certificates: name --extender-tls-cert,"
        " --extender-tls-key and --extender-client-ca, or bind it to 127.0.0.1, beside its kube-scheduler"
    )


# The settings of `deviceshare run`, and which of them contradict each other.

ON, OFF = "on", "off"
RECREATE = "recreate"
UNINJECTED_MODES = (RECREATE, "leave")
"""What becomes of pods that were created while admission was away."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one process does and with what; see the flags' help for each. Contradictions raise click.UsageError."""

    roles: frozenset[str]
    admission: str
    placement: str
    kubeconfig: Path | None
    identity: str
    agent_identity: str
    instance: str
    namespace: str
    extender_bind: Address
    extender_tls_cert: Path | None
    extender_tls_key: Path | None
    extender_client_ca: Path | None
    webhook_bind: Address
    webhook_client_ca: Path | None
    webhook_service: str
    webhook_config: str
    bypasses: str
    dialects: frozenset[str]
    replaced_schedulers: frozenset[str]
    unsupported: str
    framework_limits: str
    isolation: str
    memory_limits: str
    group_memory: str
    tolerations: str
    release_after: str
    deletion_policy: str
    uninjected_pods: str
    preemption: str
    keep_nodes: str
    scaling_pods: str
    dra_holds: str
    dra_handover: str
    excluded_namespaces: frozenset[str]
    namespace_selector: LabelSelector
    ca_secret: str
    tls_cert: Path | None
    tls_key: Path | None
    probe_bind: Address
    ui_bind: Address | None
    group_metrics: int
    handover: str
    cdi_kind: str
    runtime_class: str
    agent_url: str
    shared_node_labels: frozenset[str]
    lease_duration: int
    renew_deadline: float
    retry_period: float
    log_format: Any
    log_level: Any

    def __post_init__(self) -> None:
        self._check_lease()
        self._check_handover()
        self._check_agent_url()
        if fault := release_fault(self.release_after):
            raise click.UsageError(f"--release-after: {fault}")
        if self.serves_webhooks:
            self._check_webhook()
        elif self.roles == {"webhook"}:
            raise click.UsageError("--roles webhook with --admission policies leaves nothing to do: name other roles")
        if self.serves_extender:
            files = (self.extender_tls_cert, self.extender_tls_key, self.extender_client_ca)
            if fault := extender_fault(self.extender_bind, files):
                raise click.UsageError(fault)

    @property
    def serves_webhooks(self) -> bool:
        """Whether the API server calls this process at admission; with policies it decides by itself."""
        return "webhook" in self.roles and self.admission == settings.WEBHOOKS

    @property
    def webhook_tls(self) -> Tls | None:
        """The webhooks' files; None where deviceshare makes its certificates itself."""
        return Tls(self.tls_cert, self.tls_key, self.webhook_client_ca) if self.tls_cert and self.tls_key else None

    @property
    def extender_tls(self) -> Tls | None:
        """The extender's files; None for plain HTTP."""
        if self.extender_tls_cert and self.extender_tls_key and self.extender_client_ca:
            return Tls(self.extender_tls_cert, self.extender_tls_key, self.extender_client_ca)
        return None

    @property
    def left_out(self) -> frozenset[str]:
        """The namespaces that admission leaves out."""
        return self.excluded_namespaces | {self.namespace}

    @property
    def webhook_names(self) -> tuple[str, ...]:
        """What the webhooks' Service is called in the cluster; the API server asks for the first."""
        name = f"{self.webhook_service}.{self.namespace}"
        return f"{name}.svc", name, f"{name}.svc.cluster.local"

    @property
    def webhook_addresses(self) -> tuple[str, ...]:
        """The address on which the webhooks listen, where it is one: configurations may name it in a `url`."""
        address = self.webhook_bind.ip
        return () if address is None or address.is_unspecified else (str(address),)

    @property
    def handover_setting(self) -> HandoverSetting:
        """How devices are handed over to containers."""
        return HandoverSetting(self.handover, self.cdi_kind, self.runtime_class)

    @property
    def injection(self) -> InjectionSettings:
        """Which pods are injected, and with what."""
        return InjectionSettings(
            self.runtime_class,
            self.dialects,
            self.framework_limits == ON,
            self.replaced_schedulers,
            self.group_memory,
            self.agent_url,
            self.placement,
            self.unsupported,
            self.tolerations == ON,
            self.isolation,
            self.memory_limits,
        )

    @property
    def life(self) -> GroupLife:
        """What becomes of idle and of deleted groups whose spec doesn't say."""
        return GroupLife(self.release_after, self.deletion_policy)

    @property
    def uninjected(self) -> Callable[[Pod], bool] | None:
        """Which pods the leader deletes for their controllers to recreate; None where it deletes none."""
        if self.uninjected_pods != RECREATE or "controller" not in self.roles:
            return None
        return uninjected(self.dialects)

    @property
    def serves_extender(self) -> bool:
        """Whether a kube-scheduler of ours asks this process."""
        return "extender" in self.roles and self.placement == settings.EXTENDER

    @property
    def share_resources(self) -> frozenset[str]:
        """The resources by which pods may ask for shares."""
        served = {r for r, each in DIALECTS.items() if not each.system or each.system in self.dialects}
        return frozenset({DEVICE_COUNT, *served})

    @property
    def sharing_labels(self) -> SharingLabels:
        """By which nodes are shared, besides our own."""
        return SharingLabels(self.shared_node_labels)

    @property
    def lease(self) -> leadership.Timing:
        """How the leader is elected."""
        return leadership.Timing(self.lease_duration, self.renew_deadline, self.retry_period)

    def _check_lease(self) -> None:
        if not self.lease_duration > self.renew_deadline > leadership.JITTER * self.retry_period > 0:
            raise click.UsageError(
                f"--lease-duration {self.lease_duration}, --renew-deadline {self.renew_deadline:g}, --retry-period"
                f" {self.retry_period:g}: each must be longer than the next, and the deadline longer than"
                f" {leadership.JITTER:g} periods, such as 15, 10 and 2 seconds: a leader must have tried more than once"
                " before it gives up, and have stopped before another begins"
            )

    def _check_handover(self) -> None:
        if self.cdi_kind and not is_kind(self.cdi_kind):
            raise click.UsageError(
                f"--cdi-kind {self.cdi_kind}: a CDI kind is VENDOR/CLASS, such as k8s.device-plugin.nvidia.com/gpu"
            )

    def _check_agent_url(self) -> None:
        if fault := template_fault(self.agent_url):
            raise click.UsageError(f"--agent-url {self.agent_url}: {fault}")

    def _check_webhook(self) -> None:
        files = (self.tls_cert, self.tls_key)
        if self.ca_secret and any(files):
            raise click.UsageError(
                "--ca-secret and --tls-cert, --tls-key exclude each other: either deviceshare makes its certificates"
                " itself, or you do"
            )
        if not self.ca_secret and not all(files):
            raise click.UsageError(
                "the role webhook needs a certificate, since the API server calls webhooks over TLS only: let"
                " deviceshare make it with --ca-secret NAME, or bring your own with --tls-cert FILE and --tls-key FILE,"
                " or leave the role out with --roles controller,extender"
            )
