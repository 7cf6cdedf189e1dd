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


@dataclass(eq=False)
class Read(click.ParamType[Any]):
    """What a function reads in the text of a flag; it raises ValueError for any other text."""

    name: str
    read: Callable[[str], Any]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8888 or :9443")
    return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104  who leaves the host out means all


ADDRESS: Final = Read("HOST:PORT", _address)
"""Or `:PORT` for every address of the machine."""
OPTIONAL_ADDRESS: Final = Read("HOST:PORT|off", lambda text: None if text in ("", "off") else _address(text))
"""Or `off`: nowhere."""


def words(name: str, accepts: Callable[[str], object], wanted: str, *, empty: bool = True) -> Read:
    """Words between commas, each of which is accepted by a rule: `wanted` says what is, `empty` whether no word is."""

    def read(text: str) -> frozenset[str]:
        found = frozenset(part.strip() for part in text.split(",") if part.strip())
        refused = sorted(word for word in found if not accepts(word))
        if refused or not (found or empty):
            raise ValueError(f"{', '.join(map(repr, refused)) or repr(text)}: {wanted}")
        return found

    return Read(name, read)


class _Switch(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) == "on"


def setting(help_: str = "", default: Any = None, choices: Sequence[str] = (), **attributes: Any) -> Any:
    """A field of a dataclass of settings: `options_by` makes a flag of its name, with these attributes of click's."""
    given = {"help": help_, "default": default, "type": click.Choice(choices) if choices else None}
    return field(metadata={**{name: each for name, each in given.items() if each is not None}, **attributes})


def options_by(settings: type) -> Callable[[Command], Command]:
    """Adds a flag for each of the settings to a click command, which receives them as keyword arguments."""

    def add(command: Command) -> Command:
        for each in reversed(fields(settings)):
            shown = {"show_envvar": True, "show_default": bool(each.metadata.get("default"))}
            attributes = {"envvar": f"DEVICESHARE_{each.name.upper()}", **shown, **each.metadata}
            command = click.option(f"--{each.name.replace('_', '-')}", **attributes)(command)
        return command

    return add


ON: Final[dict[str, Any]] = {"default": "on", "type": _Switch(["on", "off"])}
"""A setting that is true unless it is `off`."""
OFF: Final[dict[str, Any]] = {**ON, "default": "off"}
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NAMESPACES: Final = words(
    "NAMESPACE[,NAMESPACE…]",
    re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch,
    "not a namespace's name, such as kube-system",
)
KUBECONFIG: Final[dict[str, Any]] = {
    "help_": "How to reach the API server; in a pod its service account is used.",
    "type": FILE,
}
LOG_FORMAT: Final[dict[str, Any]] = {"default": "auto", "choices": ["auto", "json", "console"]}
LOG_LEVEL: Final[dict[str, Any]] = {"default": "info", "choices": ["debug", "info", "warning", "error"]}
