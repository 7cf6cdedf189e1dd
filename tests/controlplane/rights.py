"""Which rights a role grants, and which of them a process's requests need.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Request(NamedTuple):
    """What one request asks of RBAC."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str


class Right(NamedTuple):
    """What one word of a rule allows; an empty namespace or name stands for all."""

    role: str
    namespace: str
    group: str
    resource: str
    verb: str
    name: str

    def allows(self, request: Request) -> bool:
        """Whether this right alone is enough for the request."""
        return (
            (self.group, self.resource, self.verb) == (request.group, request.resource, request.verb)
            and self.namespace in ("", request.namespace)
            and self.name in ("", request.name)
        )


def request(method: str, path: str, query: Json) -> Request:
    """A request to the API server, seen as its authorizer sees it.

    https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb
    """
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    reading = "watch" if query.get("watch") else "get" if name else "list"
    chosen = str(query.get("fieldSelector", ""))
    if chosen.startswith("metadata.name="):
        name = chosen.removeprefix("metadata.name=")  # The right to that one object is enough.
    return Request(
        namespace, group, f"{resource}/{subresource}" if subresource else resource, _VERBS.get(method, reading), name
    )


def granted(roles: Iterable[Json]) -> Iterator[Right]:
    """Every right in these Roles and ClusterRoles."""
    for role in roles:
        meta = role["metadata"]
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            yield Right(meta["name"], meta.get("namespace", ""), group, resource, verb, name)


def missing(rights: Iterable[Right], requests: Iterable[Request]) -> set[Request]:
    """The requests that no right allows."""
    held = list(rights)
    return {each for each in requests if not any(right.allows(each) for right in held)}


def spare(rights: Iterable[Right], requests: Iterable[Request]) -> set[Right]:
    """The rights that can be taken away, one at a time, and still every request is allowed."""
    held, made = list(rights), set(requests)
    return {right for right in held if not missing([each for each in held if each != right], made)}
