"""The settings of `deviceshare run`: the only reader of its flags and environment.

Each flag `--some-name` may also be set as `DEVICESHARE_SOME_NAME`; the flag wins.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from deviceshare.domain import contract
from deviceshare.domain.admission import bypasses, injection_settings, modes
from deviceshare.domain.admission.agent_variables import template_fault
from deviceshare.domain.admission.injection_settings import InjectionSettings
from deviceshare.domain.objects.shares import DIALECTS, SYSTEMS
from deviceshare.domain.objects.sharing_labels import SharingLabels, is_label
from deviceshare.domain.placement.handover import AUTO, STYLES, HandoverSetting, is_kind
from deviceshare.flags import (
    FILE,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    NAMESPACES,
    Address,
    AddressType,
    OptionalAddressType,
    Tls,
    Words,
    flag,
    options_of,
)
from deviceshare.loops import leadership
from deviceshare.run.extender_exposure import extender_fault

ROLES: Final = ("controller", "extender", "webhook")
_ROLES: Final = Words("ROLE[,ROLE…]", lambda word: word in ROLES, f"name some of {', '.join(ROLES)}", empty=False)
_DIALECTS: Final = Words(
    "SYSTEM[,SYSTEM…]", lambda word: word in SYSTEMS, f"name some of {', '.join(SYSTEMS)}, or none"
)
_SCHEDULERS: Final = Words(
    "SCHEDULER[,SCHEDULER…]",
    re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?").fullmatch,
    "not a scheduler's name, such as ack-co-scheduler",
)
_LABELS: Final = Words("LABEL=VALUE[,LABEL=VALUE…]", is_label, "not another system's label, such as gpushare=true")
_ON, _OFF = "on", "off"


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
    framework_limits: str
    group_memory: str
    excluded_namespaces: frozenset[str]
    ca_secret: str
    tls_cert: Path | None
    tls_key: Path | None
    probe_bind: Address
    ui_bind: Address | None
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
        return "webhook" in self.roles and self.admission == modes.WEBHOOKS

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
            self.framework_limits == _ON,
            self.replaced_schedulers,
            self.group_memory,
            self.agent_url,
            self.placement,
        )

    @property
    def serves_extender(self) -> bool:
        """Whether a kube-scheduler of ours asks this process."""
        return "extender" in self.roles and self.placement == injection_settings.EXTENDER

    @property
    def share_resources(self) -> frozenset[str]:
        """The resources by which pods may ask for shares."""
        return frozenset(r for r, each in DIALECTS.items() if not each.system or each.system in self.dialects)

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


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `Settings` to a click command, which receives them as keyword arguments."""
    flags = [
        flag("--roles", type=_ROLES, default=",".join(ROLES), help="What this process does."),
        flag(
            "--admission",
            type=click.Choice(modes.MODES),
            default=modes.WEBHOOKS,
            help="Who injects and validates: this process, or the API server by the chart's admission policies.",
        ),
        flag(
            "--placement",
            type=click.Choice(injection_settings.PLACEMENTS),
            default=injection_settings.EXTENDER,
            help="Who chooses nodes: our kube-scheduler, by the extender, or the leader, behind scheduling gates.",
        ),
        KUBECONFIG,
        flag("--identity", default=contract.IDENTITY, help="The user name under which deviceshare reaches the API."),
        flag("--agent-identity", default=contract.AGENT_IDENTITY, help="And the one of its agents on nodes."),
        flag("--instance", default="", help="This process's name in leases and events.  [default: the host's name]"),
        flag("--namespace", default=contract.NAMESPACE, help="Where deviceshare's Lease, Secret and Service are."),
        flag("--extender-bind", type=AddressType(), default="127.0.0.1:8888", help="For kube-scheduler; plain HTTP."),
        flag("--extender-tls-cert", type=FILE, help="The extender's certificate, PEM: HTTPS, for known clients only."),
        flag("--extender-tls-key", type=FILE, help="Its private key, PEM."),
        flag("--extender-client-ca", type=FILE, help="The CAs whose clients may call the extender, PEM."),
        flag("--webhook-bind", type=AddressType(), default=":9443", help="HTTPS, for the API server."),
        flag("--webhook-client-ca", type=FILE, help="The CAs whose clients alone may call the webhooks, PEM."),
        flag("--webhook-service", default=contract.NAME, help="The Service by which the API server reaches it."),
        flag("--webhook-config", default=contract.NAME, help="The webhook configurations whose CA bundle is kept."),
        flag(
            "--bypasses",
            type=click.Choice(bypasses.MODES),
            default=bypasses.WARN,
            help="What is done about pods of groups that go around the hand-over, as by a hostPath of /dev.",
        ),
        flag(
            "--excluded-namespaces",
            type=NAMESPACES,
            default="kube-system",
            help="Those that admission leaves out, besides --namespace: no pod there joins a group or is believed.",
        ),
        flag(
            "--dialects",
            type=_DIALECTS,
            default=",".join(SYSTEMS),
            help="The other systems by whose resources pods may ask for a share of a device.",
        ),
        flag(
            "--replaced-schedulers",
            type=_SCHEDULERS,
            default=",".join(sorted(injection_settings.OTHER_SCHEDULERS)),
            help="The schedulers, besides the default one, that pods with a share are taken from.",
        ),
        flag(
            "--framework-limits",
            type=click.Choice([_ON, _OFF]),
            default=_ON,
            help="Whether containers with a share get the variables by which JAX, PyTorch and TensorFlow keep to it.",
        ),
        flag(
            "--group-memory",
            type=click.Choice(injection_settings.MEMORY_MODES),
            default=injection_settings.GROW,
            help="Whether frameworks in pods of groups take device memory as they need it, or as they are set.",
        ),
        flag("--ca-secret", default="", help="Make the webhooks' certificates; this Secret keeps the CA."),
        flag("--tls-cert", type=FILE, help="Or bring them: a certificate, PEM; read again when it changes."),
        flag("--tls-key", type=FILE, help="Its private key, PEM."),
        flag("--probe-bind", type=AddressType(), default=":8080", help="/livez, /readyz and /metrics."),
        flag("--ui-bind", type=OptionalAddressType(), default="127.0.0.1:8088", help="The page /ui, or off; HTTP."),
        flag("--handover", type=click.Choice(STYLES), default=AUTO, help="How a pod's devices are passed to runtimes."),
        flag("--cdi-kind", default="", help="The CDI kind of NVIDIA's devices.  [default: one that the node knows]"),
        flag(
            "--agent-url",
            default="",
            help="The URL that containers are told to ask their node's agent at, with {host} for the node's address.",
        ),
        flag(
            "--runtime-class", default="", help="The RuntimeClass of pods of groups, and with shares, that name none."
        ),
        flag(
            "--shared-node-labels",
            type=_LABELS,
            default="",
            help="Labels of others by which nodes are shared, too, as in gpushare=true; all nodes are watched then.",
        ),
        flag("--lease-duration", type=int, default=15, help="Seconds until the lease of a leader that died is taken."),
        flag("--renew-deadline", type=float, default=10.0, help="Seconds without a renewal until a leader stops."),
        flag("--retry-period", type=float, default=2.0, help="Seconds between two reads of the lease."),
        LOG_FORMAT,
        LOG_LEVEL,
    ]
    return options_of(flags, command)
