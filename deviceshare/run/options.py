"""The flags of `deviceshare run`, from which its settings come: the only reader of them and of the environment.

Each flag `--some-name` may also be set as `DEVICESHARE_SOME_NAME`; the flag wins.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from deviceshare.domain import contract
from deviceshare.domain.admission import bypasses, settings
from deviceshare.domain.admission.dialects import OPT_IN, UNSUPPORTED, WARN
from deviceshare.domain.objects.groups import AFTER_LAST_POD, DELETION_POLICIES, NEVER, LabelRequirement, LabelSelector
from deviceshare.domain.objects.hardware import LIMIT_MODES, NO_LIMITS
from deviceshare.domain.objects.nodes import is_label
from deviceshare.domain.objects.share_wishes import ISOLATIONS, PREFERRED
from deviceshare.domain.objects.shares import SYSTEMS
from deviceshare.domain.placement.handover import AUTO, STYLES
from deviceshare.flags import (
    FILE,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    NAMESPACES,
    AddressType,
    OptionalAddressType,
    Words,
    flag,
    options_of,
)
from deviceshare.run.settings import OFF, ON, RECREATE, UNINJECTED_MODES

ROLES: Final = ("controller", "extender", "webhook")
_ROLES: Final = Words("ROLE[,ROLE…]", lambda word: word in ROLES, f"name some of {', '.join(ROLES)}", empty=False)
_SYSTEMS: Final = (*SYSTEMS, *OPT_IN)
SYSTEM_NAMES: Final = Words(
    "SYSTEM[,SYSTEM…]", lambda word: word in _SYSTEMS, f"name some of {', '.join(_SYSTEMS)}, or none"
)
_SCHEDULERS: Final = Words(
    "SCHEDULER[,SCHEDULER…]",
    re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?").fullmatch,
    "not a scheduler's name, such as ack-co-scheduler",
)


class Expressions(click.ParamType[LabelSelector]):
    """The matchExpressions of a label selector, as JSON."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LabelSelector:
        if isinstance(value, LabelSelector):
            return value
        try:
            expressions = msgspec.json.decode(value, type=list[LabelRequirement]) if value else []
        except msgspec.DecodeError as error:
            self.fail(f"{value!r} is not a list of matchExpressions: {error}", param, ctx)
        selector = LabelSelector(match_expressions=expressions)
        if faults := selector.faults(""):
            self.fail(faults[0].lstrip("."), param, ctx)
        return selector


_LABELS: Final = Words("LABEL=VALUE[,LABEL=VALUE…]", is_label, "not another system's label, such as gpushare=true")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `Settings` to a click command, which receives them as keyword arguments."""
    flags = [
        flag("--roles", type=_ROLES, default=",".join(ROLES), help="What this process does."),
        flag(
            "--admission",
            type=click.Choice(settings.MODES),
            default=settings.WEBHOOKS,
            help="Who injects and validates: this process, or the API server by the chart's admission policies.",
        ),
        flag(
            "--placement",
            type=click.Choice(settings.PLACEMENTS),
            default=settings.EXTENDER,
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
            "--namespace-selector",
            type=Expressions(),
            default="",
            help="The matchExpressions by which admission selects namespaces; pods elsewhere are never recreated.",
        ),
        flag(
            "--dialects",
            type=SYSTEM_NAMES,
            default=",".join(SYSTEMS),
            help="The other systems in whose words pods may ask for a share of a device: gpushare, metagpu, hami, kai.",
        ),
        flag(
            "--unsupported",
            type=click.Choice(UNSUPPORTED),
            default=WARN,
            help="What becomes of pods that ask for what deviceshare doesn't have, such as cores.",
        ),
        flag(
            "--replaced-schedulers",
            type=_SCHEDULERS,
            default=",".join(sorted(settings.OTHER_SCHEDULERS)),
            help="The schedulers, besides the default one, that pods with a share are taken from.",
        ),
        flag(
            "--framework-limits",
            type=click.Choice([ON, OFF]),
            default=ON,
            help="Whether containers with a share get the variables by which JAX, PyTorch and TensorFlow keep to it.",
        ),
        flag(
            "--isolation",
            type=click.Choice(ISOLATIONS),
            default=PREFERRED,
            help=f"Where shares go whose pods don't say ({contract.ISOLATION}): only where the node enforces limits of"
            " device memory, or also where it only counts.",
        ),
        flag(
            "--memory-limits",
            type=click.Choice(LIMIT_MODES),
            default=NO_LIMITS,
            help="Who limits the device memory of containers with a share: but for none, they get the variables that"
            " HAMi-core reads where it is loaded, and with hook those of NVIDIA's container toolkit.",
        ),
        flag(
            "--group-memory",
            type=click.Choice(settings.MEMORY_MODES),
            default=settings.GROW,
            help="Whether frameworks in pods of groups take device memory as they need it, or as they are set.",
        ),
        flag(
            "--tolerations",
            type=click.Choice([ON, OFF]),
            default=ON,
            help="Whether pods tolerate taints that are named after vendors' devices, as managed clusters have them.",
        ),
        flag(
            "--release-after",
            default=NEVER,
            metavar="DURATION|never",
            help="How long a bound group without pods keeps its devices, such as 12h, unless its spec says so.",
        ),
        flag(
            "--deletion-policy",
            type=click.Choice(DELETION_POLICIES),
            default=AFTER_LAST_POD,
            help="Whether a deleted group ends after its pods or can't be deleted before, unless its spec says so.",
        ),
        flag(
            "--uninjected-pods",
            type=click.Choice(UNINJECTED_MODES),
            default=RECREATE,
            help="Whether pods created while admission was away are deleted, for their controllers to recreate.",
        ),
        flag(
            "--preemption",
            type=click.Choice([ON, OFF]),
            default=ON,
            help="Whether pods with shares make room for waiting pods of higher priority.",
        ),
        flag(
            "--keep-nodes",
            type=click.Choice([ON, OFF]),
            default=OFF,
            help="Whether bound pods are annotated so that autoscalers don't remove their nodes.",
        ),
        flag(
            "--scaling-pods",
            type=click.Choice([ON, OFF]),
            default=OFF,
            help="Whether autoscalers are shown pods that request devices for those that wait.",
        ),
        flag(
            "--dra-holds",
            type=click.Choice([ON, OFF]),
            default=OFF,
            help="Whether ResourceClaims of deviceshare's own keep DRA from the devices of groups and shares.",
        ),
        flag(
            "--dra-handover",
            type=click.Choice([ON, OFF]),
            default=OFF,
            help="Whether groups may hand devices over by a ResourceClaim (spec.handover: claim); with --dra-holds.",
        ),
        flag("--ca-secret", default="", help="Make the webhooks' certificates; this Secret keeps the CA."),
        flag("--tls-cert", type=FILE, help="Or bring them: a certificate, PEM; read again when it changes."),
        flag("--tls-key", type=FILE, help="Its private key, PEM."),
        flag("--probe-bind", type=AddressType(), default=":8080", help="/livez, /readyz and /metrics."),
        flag("--ui-bind", type=OptionalAddressType(), default="127.0.0.1:8088", help="The page /ui, or off; HTTP."),
        flag(
            "--group-metrics",
            type=click.IntRange(0),
            default=500,
            help="Of how many groups the leader has metrics of their own; 0 for none.",
        ),
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
