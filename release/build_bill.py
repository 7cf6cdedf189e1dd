"""The bills of materials that each build makes: the image's, of what is installed in it; and the wheel's.

    python -m release.build_bill SITE_PACKAGES FILE

CycloneDX JSON by the standard library alone: a build has nothing else. The release's own bill, of all that pip installs
with the wheel, is bill_of_materials.py's.
https://cyclonedx.org/docs/1.6/json/
"""

import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from release.licences import licence_of, normalized

SUBJECT: Final = "deviceshare"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def of_environment(site_packages: Path, system: Path = Path("/")) -> str:
    """Of everything that is installed there and on the system; raises ValueError where deviceshare isn't."""
    parts = sorted(distributions(path=[str(site_packages)]), key=lambda part: part.name.lower())
    subject = [part for part in parts if normalized(part.name) == SUBJECT]
    if len(subject) != 1:
        raise ValueError(
            f"{site_packages} has no {SUBJECT}; it has {', '.join(part.name for part in parts) or 'nothing'}"
        )
    others = [_installed(part) for part in parts if part is not subject[0]]
    return _bill(_installed(subject[0], type_="application"), [*others, *_packages(system)])


def _packages(system: Path) -> Iterator[dict[str, Any]]:
    """The packages of a Debian or its kin, by the file in which dpkg keeps them; nothing where there is none.

    https://github.com/package-url/purl-spec/blob/main/types-doc/deb-definition.md
    """
    status = system / "var/lib/dpkg/status"
    if not status.exists():
        return
    [kin] = re.findall(r"^ID=(\w+)", (system / "etc/os-release").read_text(), re.MULTILINE)
    for package in status.read_text().split("\n\n"):
        said = dict(re.findall(r"^(Package|Version|Architecture|Status): (.+)$", package, re.MULTILINE))
        if said.get("Status", "").endswith(" installed"):
            name, version = said["Package"], said["Version"]
            purl = f"pkg:deb/{kin}/{name}@{quote(version)}?arch={said['Architecture']}"
            yield {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "version": version}


def of_wheel(version: str, licence: str, requirements: Iterable[str], constraints: str) -> str:
    """Of a wheel, which has no code of others in it: what it requires, in the versions that it was tested with."""
    tested = dict(re.findall(r"^([^#\s=]+)==(\S+)$", constraints, re.MULTILINE))
    versions = {normalized(name): number for name, number in tested.items()}
    named = [match[0] for match in map(_NAME.match, requirements) if match]
    others = [_component(name, versions.get(normalized(name), "")) for name in sorted(set(named), key=str.lower)]
    return _bill(_component(SUBJECT, version, licence, type_="application"), others)


def _bill(subject: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    # The same content has the same serial number, and no time, so that builds stay reproducible.
    content = json.dumps([subject, others], sort_keys=True)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": subject},
        "components": others,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": [each["bom-ref"] for each in others]}],
    }
    return json.dumps(bill, indent=2) + "\n"


def _installed(part: Distribution, type_: str = "library") -> dict[str, Any]:
    return _component(part.name, part.version, licence_of(part), type_=type_)


def _component(name: str, version: str, licence: str = "", type_: str = "library") -> dict[str, Any]:
    purl = f"pkg:pypi/{normalized(name)}" + (f"@{version}" if version else "")
    known = {"version": version} if version else {}
    licensed = {"licenses": [{"expression": licence}]} if licence else {}
    return {"type": type_, "bom-ref": purl, "name": name, "purl": purl, **known, **licensed}


if __name__ == "__main__":
    [site_packages, file] = map(Path, sys.argv[1:])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(of_environment(site_packages))
