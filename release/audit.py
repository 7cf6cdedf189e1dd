"""Asks whether advisories are known against the packages that deviceshare ships and is tested with.

    python -m release.audit [--service pypi|osv]

By pip-audit, configured as pip is on this machine. Exits with 1 where an advisory is known, and with 2 where advisories
couldn't be had: pip-audit itself exits with 0 when its service doesn't know a package.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from release.closure import closure
from release.licences import normalized
from release.wheels import ROOT

_SECONDS: Final = 900.0
_PIN: Final = re.compile(r"^([^#\s=]+==\S+)$", re.MULTILINE)


class Audit(NamedTuple):
    """What was found out about a set of packages."""

    advisories: list[str]
    """Each with the package, and the versions that don't have the fault."""
    unasked: list[str]
    """Packages of which nothing could be had, and why."""
    asked: int


@click.command(help=__doc__)
@click.option("--service", type=click.Choice(["pypi", "osv"]), default="pypi", show_default=True)
def main(service: str) -> None:
    shipped = [f"{each.name}=={each.version}" for each in closure("deviceshare") if each.name != "deviceshare"]
    sets = {"the image's packages": shipped, "constraints.txt": _PIN.findall((ROOT / "constraints.txt").read_text())}
    status = 0
    for name, pins in sets.items():
        found = judge(pins, _pip_audit(pins, service))
        click.echo(f"{name}: {found.asked} of {len(pins)} asked about, {len(found.advisories)} advisories")
        for line in (*found.advisories, *found.unasked):
            click.echo(f"  {line}")
        status = max(status, 1 if found.advisories else 0, 2 if found.unasked else 0)
    if status == 2:
        click.echo(
            "Nothing is known about the packages named above, so this is no pass. Run it where pip-audit reaches its"
            " service, or ask the other one: tox run -e audit -- --service osv",
            err=True,
        )
    sys.exit(status)


def judge(pins: Iterable[str], said: Mapping[str, Any] | str) -> Audit:
    """What pip-audit's JSON, or its error, says about exactly these requirements."""
    wanted = {normalized(pin.partition("==")[0]): pin for pin in pins}
    if isinstance(said, str):
        return Audit([], [f"pip-audit failed: {said}"], 0)
    advisories, unasked, asked = [], [], set()
    for each in said.get("dependencies", ()):
        name = normalized(each["name"])
        if reason := each.get("skip_reason"):
            unasked.append(str(reason))
            wanted.pop(name, None)
            continue
        asked.add(name)
        for fault in each.get("vulns", ()):
            fixed = ", ".join(fault.get("fix_versions", ())) or "none yet"
            advisories.append(f"{each['name']} {each['version']}: {fault['id']}; fixed in: {fixed}")
    unasked += [f"{pin}: pip-audit didn't mention it" for name, pin in wanted.items() if name not in asked]
    return Audit(advisories, unasked, len(asked))


def _pip_audit(pins: Iterable[str], service: str) -> Mapping[str, Any] | str:
    """Its JSON, or what it said instead."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "requirements.txt"
        file.write_text("\n".join(pins))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(file), "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--progress-spinner", "off", "--vulnerability-service", service]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"it took more than {_SECONDS:.0f} s"
    try:
        said: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return said


if __name__ == "__main__":
    main()
