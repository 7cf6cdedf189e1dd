"""Flags of `deviceshare run` and `deviceshare agent`: each may also be set by its environment variable."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

Command = Callable[..., Any]


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @property
    def ip(self) -> IPv4Address | IPv6Address | None:
        """The host, where it is an address and no name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine, or this pod, reaches it."""
        return self.ip.is_loopback if self.ip else self.host == "localhost"


class Tls(NamedTuple):
    """PEM files of a server."""

    certificate: Path
    key: Path
    clients: Path | None = None
    """The CAs whose clients alone are let in."""


class AddressType(click.ParamType[Address]):
    """`HOST:PORT`, or `:PORT` for every address of the machine."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:8888 or :9443", param, ctx)
        return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104  who leaves the host out means all


class OptionalAddressType(AddressType):
    """HOST:PORT, or `off`: nowhere."""

    name = "HOST:PORT|off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value in ("", "off") else super().convert(value, param, ctx)


@dataclass(eq=False)
class Words(click.ParamType[frozenset[str]]):
    """Words between commas, each of which is accepted by a rule: `wanted` says what is, `empty` whether no word is."""

    name: str
    accepts: Callable[[str], object]
    wanted: str
    empty: bool = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        words = frozenset(part.strip() for part in str(value).split(",") if part.strip())
        refused = sorted(word for word in words if not self.accepts(word))
        if refused or not (words or self.empty):
            self.fail(f"{', '.join(map(repr, refused)) or repr(value)}: {self.wanted}", param, ctx)
        return words


def flag(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A click option that may also be set by its environment variable."""
    variable = "DEVICESHARE_" + name.removeprefix("--").replace("-", "_").upper()
    shown = bool(attributes.get("default"))
    return click.option(name, envvar=variable, show_envvar=True, show_default=shown, **attributes)


def setting(help_: str = "", default: Any = None, choices: Sequence[str] = (), **attributes: Any) -> Any:
    """A field of a dataclass of settings: `options_by` makes a flag of its name, with these attributes of click's."""
    given = {"help": help_, "default": default, "type": click.Choice(choices) if choices else None}
    return field(metadata={**{name: each for name, each in given.items() if each is not None}, **attributes})


def options_by(settings: type) -> Callable[[Command], Command]:
    """Adds a flag for each of the settings to a click command, which receives them as keyword arguments."""

    def add(command: Command) -> Command:
        for each in reversed(fields(settings)):
            option = each.metadata.get("flag") or flag(f"--{each.name.replace('_', '-')}", **each.metadata)
            command = option(command)
        return command

    return add


FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NAMESPACES: Final = Words(
    "NAMESPACE[,NAMESPACE…]",
    re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch,
    "not a namespace's name, such as kube-system",
)
KUBECONFIG: Final = flag(
    "--kubeconfig", type=FILE, help="How to reach the API server; in a pod its service account is used."
)
LOG_FORMAT: Final = flag("--log-format", type=click.Choice(["auto", "json", "console"]), default="auto")
LOG_LEVEL: Final = flag("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
