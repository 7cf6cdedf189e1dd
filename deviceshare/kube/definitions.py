"""The CRDs: whether the API server keeps every field that this release writes.

Where a CRD is of an older release, the API server drops the fields that it lacks from each object that is written, and
says nothing of it. A process that writes then takes from claims and groups what others, or it itself, wrote before.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import structlog
from msgspec import Struct, field

from deviceshare import assets
from deviceshare.domain.contract import API_GROUP, API_VERSION
from deviceshare.domain.objects.object_decoder import Condition, ObjectMeta
from deviceshare.domain.wording import listed
from deviceshare.kube.api import Api
from deviceshare.kube.mirrors import REFUSED_SECONDS, OptionalMirror
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES
from deviceshare.loops.ports import Kind, ObjectChange

log = structlog.get_logger(__name__)

ASK_AGAIN_SECONDS: Final = 60.0
"""Between two questions whether CRDs may be read by now: an older role doesn't let us."""
CURE: Final = "apply the CRDs of this release (deviceshare doctor)"


class Schema(Struct, frozen=True, rename="camel"):
    """Which fields a part of an object may have."""

    properties: dict[str, "Schema"] = field(default_factory=dict)
    items: "Schema | None" = None
    additional_properties: "Schema | bool | None" = None
    keeps_unknown: bool = field(default=False, name="x-kubernetes-preserve-unknown-fields")

    def lacking(self, wanted: "Schema", prefix: str = "") -> Iterator[str]:
        """What of `wanted` would be dropped, as `status.hardware`; not what is within it."""
        for name, inner in wanted.properties.items():
            if name in self.properties:
                yield from self.properties[name].lacking(inner, f"{prefix}{name}.")
            elif not self.keeps_unknown:
                yield f"{prefix}{name}"
        for mine, theirs in ((self.items, wanted.items), (self.additional_properties, wanted.additional_properties)):
            if isinstance(theirs, Schema) and isinstance(mine, Schema):
                yield from mine.lacking(theirs, prefix)


class CrdVersion(Struct, frozen=True):
    name: str
    served: bool = False
    schema: dict[str, Schema] = field(default_factory=dict)


class CrdSpec(Struct, frozen=True):
    names: dict[str, str | list[str]] = field(default_factory=dict)
    versions: list[CrdVersion] = field(default_factory=list)


class CrdStatus(Struct, frozen=True):
    conditions: list[Condition] = field(default_factory=list)


class Crd(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/extend-resources/custom-resource-definition-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: CrdSpec = CrdSpec()
    status: CrdStatus = CrdStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def established(self) -> bool:
        return any((each.type, each.status) == ("Established", "True") for each in self.status.conditions)

    @property
    def ours(self) -> Schema | None:
        """What is served at our version; None where nothing is."""
        found = (each.schema for each in self.spec.versions if each.name == API_VERSION and each.served)
        return next((schema.get("openAPIV3Schema", Schema()) for schema in found), None)

    def lacking(self, shipped: "Crd") -> list[str]:
        """The fields of the shipped CRD that the API server drops by this one; all of it where none is served."""
        mine, wanted = self.ours, shipped.ours
        return sorted((mine or Schema()).lacking(wanted)) if wanted else []


CRD_GROUP: Final = "apiextensions.k8s.io"
CRDS: Final = Kind(f"{CRD_GROUP}/v1", "CustomResourceDefinition", "customresourcedefinitions", Crd, namespaced=False)
DEFINITIONS: Final = tuple(f"{kind.plural}.{API_GROUP}" for kind in (GROUPS, NODE_DEVICES, DEVICE_QUOTAS))
"""The names of ours."""


def shipped_definitions() -> list[Crd]:
    """The CRDs of this release."""
    files = sorted((assets.manifests() / "crds").glob("*.yaml"))
    return [msgspec.yaml.decode(file.read_bytes(), type=Crd) for file in files]


class Definitions:
    """The CRDs as the API server has them now, beside those of this release."""

    def __init__(self, api: Api, on_fault: Callable[[], object] = lambda: None) -> None:
        """`on_fault` is called when a CRD is found that lacks fields."""
        self._on_fault = on_fault
        self._shipped = {crd.name: crd for crd in shipped_definitions()}
        self._mirrors: list[OptionalMirror[Crd]] = []
        for name in DEFINITIONS:
            mirror = OptionalMirror(
                api, [CRDS], field_selector=f"metadata.name={name}", rarely=ASK_AGAIN_SECONDS, refused=REFUSED_SECONDS
            )
            mirror.subscribe(self._change)
            self._mirrors.append(mirror)
        self._lacking: dict[str, list[str]] = {}
        self._complete = asyncio.Event()
        self._complete.set()

    async def run(self) -> None:
        """Follows them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors:
                tasks.create_task(mirror.run(), name="mirror-crds")

    async def wait_complete(self) -> None:
        """Returns once all have been read and lack no field. One that may not be read counts as complete."""
        for mirror in self._mirrors:
            await mirror.wait_listed()
        await self._complete.wait()

    def fault(self) -> str:
        """Why nothing may be written, and what to do; or ""."""
        faults = [f"CRD {name} lacks {listed(fields, most=3)}" for name, fields in sorted(self._lacking.items())]
        return f"{'; '.join(faults)}: {CURE}" if faults else ""

    def dropped(self) -> dict[str, int]:
        """By CRD, how many fields of this release it lacks."""
        return {name: len(self._lacking.get(name, ())) for name in self._shipped}

    def _change(self, change: ObjectChange[Crd]) -> None:
        self._lacking.pop(change.key, None)
        if change.new and (fields := change.new.lacking(self._shipped[change.key])):
            self._lacking[change.key] = fields
            log.error("CRD lacks fields of this release", crd=change.key, fields=fields, cure=CURE)
            self._complete.clear()
            self._on_fault()
        elif not self._lacking and not self._complete.is_set():
            log.info("CRDs have every field of this release", crd=change.key)
            self._complete.set()
