"""The software bill of materials: the wheel's dependency closure with licences, as CycloneDX JSON.

https://cyclonedx.org/docs/1.6/json/
"""

import re
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release import archives
from release.closure import closure, normal, required

_CLASSIFIER: Final = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
_LONGEST_NAME: Final = 60


def bill(name: str, version: str) -> str:
    """The bill of an installed distribution, as this version of it, and of all that it requires here.

    Its serial number follows from its content, so that the same release has the same one.
    """
    parts = closure(name)
    components = {normal(each.name): _component(each, each.version) for each in parts}
    components[normal(name)] = subject = _component(distribution(name), version, ComponentType.APPLICATION)
    bom = Bom(
        components=[each for each in components.values() if each is not subject],
        metadata=BomMetaData(timestamp=archives.moment(), component=subject),
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, " ".join(str(each.purl) for each in components.values())),
    )
    for each in parts:
        # Of what it requires, only what applies on this platform is in the closure.
        needs = [components[other] for other in required(each) if other in components]
        bom.register_dependency(components[normal(each.name)], needs)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(each: Distribution, version: str, type_: ComponentType = ComponentType.LIBRARY) -> Component:
    purl = PackageURL("pypi", None, normal(each.name), version)
    return Component(
        name=each.name,
        version=version,
        type=type_,
        description=_said(each, "Summary"),
        licenses=_licences(each),
        purl=purl,
        bom_ref=str(purl),
    )


def _licences(each: Distribution) -> Iterable[License]:
    """What its metadata say: an SPDX expression, else a short name, else its classifiers."""
    made = LicenseFactory()
    if expression := _said(each, "License-Expression"):
        return [made.make_from_string(expression)]
    name = (_said(each, "License") or "").strip()
    if name and len(name) <= _LONGEST_NAME and "\n" not in name:
        return [made.make_from_string(name)]
    return [made.make_from_string(text) for text in _classified(each)]


def _classified(each: Distribution) -> Iterator[str]:
    for classifier in each.metadata.get_all("Classifier") or ():
        if found := _CLASSIFIER.fullmatch(classifier):
            yield found[1]


def _said(each: Distribution, field: str) -> str | None:
    said = each.metadata.get_all(field)
    return str(said[0]) if said else None
