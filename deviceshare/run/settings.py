"""The settings of `deviceshare run`: the only reader of its flags and of the environment.

Each flag `--some-name` may also be set as `DEVICESHARE_SOME_NAME`; the flag wins.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from deviceshare import flags
from deviceshare.domain import contract
from deviceshare.domain.admission import settings
from deviceshare.domain.admission.bypasses import MODES, WARN
from deviceshare.domain.admission.dialects import OPT_IN
from deviceshare.domain.admission.settings import InjectionSettings, template_fault
from deviceshare.domain.objects import groups
from deviceshare.domain.objects.groups import GroupLife, LabelRequirement, LabelSelector
from deviceshare.domain.objects.hardware import LIMIT_MODES, NO_LIMITS
from deviceshare.domain.objects.nodes import SharingLabels, is_label
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.share_wishes import ISOLATIONS, PREFERRED
from deviceshare.domain.objects.shares import DEVICE_COUNT, DIALECTS, SYSTEMS
from deviceshare.domain.placement.handover import AUTO, STYLES, HandoverSetting, is_kind
from deviceshare.flags import ADDRESS, FILE, OFF, ON, OPTIONAL_ADDRESS, Address, Read, Tls, setting, words
from deviceshare.loops import leadership
from deviceshare.loops.leader.uninjected_pods import uninjected

RECREATE = "recreate"
UNINJECTED_MODES = (RECREATE, "leave")
"""What becomes of pods that were created while admission was away."""
ROLES: Final = ("controller", "extender", "webhook")
_ROLES: Final = words("ROLE[,ROLE…]", lambda word: word in ROLES, f"name some of {', '.join(ROLES)}", empty=False)
_SYSTEMS: Final = (*SYSTEMS, *OPT_IN)
SYSTEM_NAMES: Final = words(
    "SYSTEM[,SYSTEM…]", lambda word: word in _SYSTEMS, f"name some of {', '.join(_SYSTEMS)}, or none"
)
_SCHEDULERS: Final = words(
    "SCHEDULER[,SCHEDULER…]",
    re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?").fullmatch,
    "not a scheduler's name, such as ack-co-scheduler",
)


def _selector(text: str) -> LabelSelector:
    """The matchExpressions of a label selector, as JSON."""
    try:
        expressions = msgspec.json.decode(text, type=list[LabelRequirement]) if text else []
    except msgspec.DecodeError as error:
        raise ValueError(f"{text!r} is not a list of matchExpressions: {error}") from error
    selector = LabelSelector(match_expressions=expressions)
    if faults := selector.faults(""):
        raise ValueError(faults[0].lstrip("."))
    return selector


_LABELS: Final = words("LABEL=VALUE[,LABEL=VALUE…]", is_label, "not another system's label, such as gpushare=true")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one process does and with what; see the flags' help for each. Contradictions raise click.UsageError."""

    roles: frozenset[str] = setting("What this process does.", ",".join(ROLES), type=_ROLES)
    admission: str = setting(
        "Who injects and validates: this process, or the API server by the chart's admission policies.",
        settings.WEBHOOKS,
        settings.MODES,
    )
    placement: str = setting(
        "Who chooses nodes: our kube-scheduler, by the extender, or the leader, behind scheduling gates.",
        settings.EXTENDER,
        settings.PLACEMENTS,
    )
    kubeconfig: Path | None = setting(**flags.KUBECONFIG)
    identity: str = setting("The user name under which deviceshare reaches the API.", contract.IDENTITY)
    agent_identity: str = setting("And the one of its agents on nodes.", contract.AGENT_IDENTITY)
    instance: str = setting("This process's name in leases and events.  [default: the host's name]", "")
    namespace: str = setting("Where deviceshare's Lease, Secret and Service are.", contract.NAMESPACE)
    extender_bind: Address = setting("For kube-scheduler; plain HTTP.", "127.0.0.1:8888", type=ADDRESS)
    extender_tls_cert: Path | None = setting(
        "The extender's certificate, PEM: HTTPS, for known clients only.", type=FILE
    )
    extender_tls_key: Path | None = setting("Its private key, PEM.", type=FILE)
    extender_client_ca: Path | None = setting("The CAs whose clients may call the extender, PEM.", type=FILE)
    webhook_bind: Address = setting("HTTPS, for the API server.", ":9443", type=ADDRESS)
    webhook_client_ca: Path | None = setting("The CAs whose clients alone may call the webhooks, PEM.", type=FILE)
    webhook_service: str = setting("The Service by which the API server reaches it.", contract.NAME)
    webhook_config: str = setting("The webhook configurations whose CA bundle is kept.", contract.NAME)
    bypasses: str = setting(
        "What is done about pods of groups that go around the hand-over, as by a hostPath of /dev.", WARN, MODES
    )
    excluded_namespaces: frozenset[str] = setting(
        "Those that admission leaves out, besides --namespace: no pod there joins a group or is believed.",
        "kube-system",
        type=flags.NAMESPACES,
    )
    namespace_selector: LabelSelector = setting(
        "The matchExpressions by which admission selects namespaces; pods elsewhere are never recreated.",
        "",
        type=Read("JSON", _selector),
    )
    dialects: frozenset[str] = setting(
        "The other systems in whose words pods may ask for a share of a device: gpushare, metagpu, hami, kai.",
        ",".join(SYSTEMS),
        type=SYSTEM_NAMES,
    )
    unsupported: str = setting(
        "What becomes of pods that ask for what deviceshare doesn't have, such as cores.", WARN, MODES
    )
    replaced_schedulers: frozenset[str] = setting(
        "The schedulers, besides the default one, that pods with a share are taken from.",
        ",".join(sorted(settings.OTHER_SCHEDULERS)),
        type=_SCHEDULERS,
    )
    framework_limits: bool = setting(
        "Whether containers with a share get the variables by which JAX, PyTorch and TensorFlow keep to it.", **ON
    )
    isolation: str = setting(
        f"Where shares go whose pods don't say ({contract.ISOLATION}): only where the node enforces limits of"
        " device memory, or also where it only counts.",
        PREFERRED,
        ISOLATIONS,
    )
    memory_limits: str = setting(
        "Who limits the device memory of containers with a share: but for none, they get the variables that"
        " HAMi-core reads where it is loaded, and with hook those of NVIDIA's container toolkit.",
        NO_LIMITS,
        LIMIT_MODES,
    )
    group_memory: str = setting(
        "Whether frameworks in pods of groups take device memory as they need it, or as they are set.",
        settings.GROW,
        settings.MEMORY_MODES,
    )
    tolerations: bool = setting(
        "Whether pods tolerate taints that are named after vendors' devices, as managed clusters have them.", **ON
    )
    release_after: str = setting(
        "How long a bound group without pods keeps its devices, such as 12h, unless its spec says so.",
        groups.NEVER,
        metavar="DURATION|never",
    )
    deletion_policy: str = setting(
        "Whether a deleted group ends after its pods or can't be deleted before, unless its spec says so.",
        groups.AFTER_LAST_POD,
        groups.DELETION_POLICIES,
    )
    uninjected_pods: str = setting(
        "Whether pods created while admission was away are deleted, for their controllers to recreate.",
        RECREATE,
        UNINJECTED_MODES,
    )
    preemption: bool = setting("Whether pods with shares make room for waiting pods of higher priority.", **ON)
    keep_nodes: bool = setting("Whether bound pods are annotated so that autoscalers don't remove their nodes.", **OFF)
    scaling_pods: bool = setting("Whether autoscalers are shown pods that request devices for those that wait.", **OFF)
    dra_holds: bool = setting(
        "Whether ResourceClaims of deviceshare's own keep DRA from the devices of groups and shares.", **OFF
    )
    dra_handover: bool = setting(
        "Whether groups may hand devices over by a ResourceClaim (spec.handover: claim); with --dra-holds.", **OFF
    )
    ca_secret: str = setting("Make the webhooks' certificates; this Secret keeps the CA.", "")
    tls_cert: Path | None = setting("Or bring them: a certificate, PEM; read again when it changes.", type=FILE)
    tls_key: Path | None = setting("Its private key, PEM.", type=FILE)
    probe_bind: Address = setting("/livez, /readyz and /metrics.", ":8080", type=ADDRESS)
    ui_bind: Address | None = setting("The page /ui, or off; HTTP.", "127.0.0.1:8088", type=OPTIONAL_ADDRESS)
    group_metrics: int = setting(
        "Of how many groups the leader has metrics of their own; 0 for none.", 500, type=click.IntRange(0)
    )
    handover: str = setting("How a pod's devices are passed to runtimes.", AUTO, STYLES)
    cdi_kind: str = setting("The CDI kind of NVIDIA's devices.  [default: one that the node knows]", "")
    agent_url: str = setting(
        "The URL that containers are told to ask their node's agent at, with {host} for the node's address.", ""
    )
    runtime_class: str = setting("The RuntimeClass of pods of groups, and with shares, that name none.", "")
    shared_node_labels: frozenset[str] = setting(
        "Labels of others by which nodes are shared, too, as in gpushare=true; all nodes are watched then.",
        "",
        type=_LABELS,
    )
    lease_duration: int = setting("Seconds until the lease of a leader that died is taken.", 15, type=int)
    renew_deadline: float = setting("Seconds without a renewal until a leader stops.", 10.0, type=float)
    retry_period: float = setting("Seconds between two reads of the lease.", 2.0, type=float)
    log_format: Any = setting(**flags.LOG_FORMAT)
    log_level: Any = setting(**flags.LOG_LEVEL)

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise click.UsageError(fault)

    def _faults(self) -> Iterator[str]:
        if not self.lease_duration > self.renew_deadline > leadership.JITTER * self.retry_period > 0:
            yield (
                f"--lease-duration {self.lease_duration}, --renew-deadline {self.renew_deadline:g}, --retry-period"
                f" {self.retry_period:g}: each must be longer than the next, and the deadline longer than"
                f" {leadership.JITTER:g} periods, such as 15, 10 and 2 seconds: a leader must have tried more than once"
                " before it gives up, and have stopped before another begins"
            )
        if self.cdi_kind and not is_kind(self.cdi_kind):
            yield f"--cdi-kind {self.cdi_kind}: a CDI kind is VENDOR/CLASS, such as k8s.device-plugin.nvidia.com/gpu"
        if fault := template_fault(self.agent_url):
            yield f"--agent-url {self.agent_url}: {fault}"
        if fault := groups.release_fault(self.release_after):
            yield f"--release-after: {fault}"
        if self.serves_webhooks:
            yield from self._webhook_faults()
        elif self.roles == {"webhook"}:
            yield "--roles webhook with --admission policies leaves nothing to do: name other roles"
        if self.serves_extender:
            yield from self._extender_faults()

    def _webhook_faults(self) -> Iterator[str]:
        files = (self.tls_cert, self.tls_key)
        if self.ca_secret and any(files):
            yield (
                "--ca-secret and --tls-cert, --tls-key exclude each other: either deviceshare makes its certificates"
                " itself, or you do"
            )
        if not self.ca_secret and not all(files):
            yield (
                "the role webhook needs a certificate, since the API server calls webhooks over TLS only: let"
                " deviceshare make it with --ca-secret NAME, or bring your own with --tls-cert FILE and --tls-key FILE,"
                " or leave the role out with --roles controller,extender"
            )

    def _extender_faults(self) -> Iterator[str]:
        """Who can reach the extender can bind pods, so beyond loopback it demands client certificates."""
        files, bind = (self.extender_tls_cert, self.extender_tls_key, self.extender_client_ca), self.extender_bind
        if any(files) and not all(files):
            yield (
                "--extender-tls-cert, --extender-tls-key and --extender-client-ca go together: an extender over TLS"
                " lets in only who shows a client certificate"
            )
        elif not (bind.is_loopback or all(files)):
            yield (
                f"--extender-bind {bind.host}:{bind.port}: who can reach the extender can"
                " bind pods, so beyond loopback it demands client certificates: name --extender-tls-cert,"
                " --extender-tls-key and --extender-client-ca, or bind it to 127.0.0.1, beside its kube-scheduler"
            )

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
        return InjectionSettings(**{name: getattr(self, name) for name in InjectionSettings._fields})

    @property
    def life(self) -> GroupLife:
        """What becomes of idle and of deleted groups whose spec doesn't say."""
        return GroupLife(self.release_after, self.deletion_policy)

    @property
    def uninjected(self) -> Callable[[Pod], bool] | None:
        """Which pods the leader deletes for their controllers to recreate; None where it deletes none."""
        if self.uninjected_pods != RECREATE or "controller" not in self.roles:
            return None
        return partial(uninjected, self.dialects)

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


options = flags.options_by(Settings)
"""Adds the flags of `Settings` to a click command, which receives them as keyword arguments."""
