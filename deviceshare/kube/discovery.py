"""Discovery: what an API server says of its version, its API groups and its resources.

https://kubernetes.io/docs/concepts/overview/kubernetes-api/#unaggregated-discovery
"""

from msgspec import Struct


class Version(Struct, frozen=True, rename="camel"):
    major: str
    minor: str
    git_version: str


class Resource(Struct, frozen=True):
    """What discovery says about a resource whose objects are of another API group's kind."""

    name: str
    group: str = ""
    version: str = ""


class Resources(Struct, frozen=True):
    resources: list[Resource]


class GroupVersion(Struct, frozen=True):
    version: str


class ApiGroup(Struct, frozen=True):
    name: str
    versions: list[GroupVersion]


class ApiGroups(Struct, frozen=True):
    """What discovery says of all API groups but the core."""

    groups: list[ApiGroup]
