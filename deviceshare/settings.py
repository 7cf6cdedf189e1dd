"""The settings of `deviceshare run`: the only reader of its flags and environment.

Each flag `--some-name` may also be set as `DEVICESHARE_SOME_NAME`; the flag wins.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from deviceshare.domain import contract

ROLES: Final = ("controller", "extender", "webhook")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one process does and with what; see the flags' help for each."""

    roles: frozenset[str]
    kubeconfig: Path | None
    identity: str
    instance: str
    namespace: str
    extender_bind: Address
    webhook_bind: Address
    probe_bind: Address
    tls_cert: Path | None
    tls_key: Path | None
    log_format: Any
    log_level: Any

    def __post_init__(self) -> None:
        if "webhook" in self.roles and not (self.tls_cert and self.tls_key):
            raise click.UsageError(
                "the role webhook needs --tls-cert and --tls-key, since the API server calls webhooks over TLS only;"
                " leave it out with --roles controller,extender"
            )


class _Roles(click.ParamType[frozenset[str]]):
    name = "ROLE[,ROLE…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        roles = frozenset(part.strip() for part in str(value).split(",") if part.strip())
        unknown = sorted(roles - set(ROLES))
        if unknown or not roles:
            self.fail(f"{value!r}: name some of {', '.join(ROLES)}", param, ctx)
        return roles


class _Address(click.ParamType[Address]):
    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:8888 or :9443", param, ctx)
        return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104  who leaves the host out means all


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `Settings` to a click command, which receives them as keyword arguments."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    flags = [
        _flag("--roles", type=_Roles(), default=",".join(ROLES), help="What this process does."),
        _flag("--kubeconfig", type=file, help="How to reach the API server; in a pod its service account is used."),
        _flag("--identity", default=contract.IDENTITY, help="The user name under which deviceshare reaches the API."),
        _flag("--instance", default="", help="This process's name in leases and events.  [default: the host's name]"),
        _flag("--namespace", default=contract.NAMESPACE, help="Where the leader's Lease is kept."),
        _flag("--extender-bind", type=_Address(), default="127.0.0.1:8888", help="Plain HTTP, for kube-scheduler."),
        _flag("--webhook-bind", type=_Address(), default=":9443", help="HTTPS, for the API server."),
        _flag("--probe-bind", type=_Address(), default=":8080", help="/livez, /readyz and /metrics."),
        _flag("--tls-cert", type=file, help="The webhooks' certificate, PEM; read again when it changes."),
        _flag("--tls-key", type=file, help="Its private key, PEM."),
        _flag("--log-format", type=click.Choice(["auto", "json", "console"]), default="auto"),
        _flag("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command


def _flag(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    variable = "DEVICESHARE_" + name.removeprefix("--").replace("-", "_").upper()
    shown = bool(attributes.get("default"))
    return click.option(name, envvar=variable, show_envvar=True, show_default=shown, **attributes)
