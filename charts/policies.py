"""What the admission policies take from deviceshare's tables: variables of CEL, as files that their templates include.

A policy can't call Python, so vendors, dialects and the variables of containers are written out for it as literals.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#variable-composition
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission import bypasses, pod_review
from deviceshare.domain.admission.drafts import OF_OTHERS
from deviceshare.domain.admission.pod_injection import CUDA_ORDER, GROWTH, JAX_GROWS, ShareOf, Variable
from deviceshare.domain.admission.settings import DEFAULTS
from deviceshare.domain.objects import groups, share_wishes, shares
from deviceshare.domain.objects.hardware import HOOK, INTERCEPT, NO_LIMITS
from deviceshare.domain.objects.shares import DIALECTS, ShareRequest

Variables = Mapping[str, Any]

_HEAD: Final = "# Generated from deviceshare's tables: python -m charts.generate\n"
_CONTAINER: Final = "CONTAINER"
_LINE: Final = 110
"""Characters of a line, where a table is longer."""


def tables() -> Iterator[tuple[str, str]]:
    """The generated files, by name, each a list of variables of a policy."""
    yield "devices.yaml", _file(_devices())
    yield "shares.yaml", _file(_shares())
    yield "injection.yaml", _file(_injection())
    yield "ways.yaml", _file(_ways())


def _file(variables: Variables) -> str:
    return _HEAD + "".join(_variable(name, _literal(value)) for name, value in variables.items())


def _variable(name: str, expression: str) -> str:
    indented = expression.replace("\n", "\n    ")
    return f"- name: {name}\n  expression: >-\n    {indented}\n"


def _devices() -> Variables:
    """Which resources are devices, and which vendor's."""
    exact = [each.resource for each in vendors.VENDORS if not each.resource.endswith(vendors.ANY)]
    begin = [each.resource.removesuffix(vendors.ANY) for each in vendors.VENDORS if each.resource.endswith(vendors.ANY)]
    return {
        "deviceResources": exact,
        "deviceResourcePrefixes": begin,
        "pluginPrefixes": sorted({*begin, *(prefix for each in vendors.VENDORS for prefix in each.plugin_prefixes)}),
        "vendorDomains": [each.domain for each in vendors.VENDORS],
        "vendorVariables": {each.name: each.env for each in vendors.VENDORS},
        "vendorNames": [each.name for each in vendors.VENDORS],
        "vendorResources": {each.resource.removesuffix(vendors.ANY): each.env for each in vendors.VENDORS},
        "knownResources": ", ".join(vendors.known_resources()[:-1]) + f" and {vendors.known_resources()[-1]}",
        "cdiDomains": [each.cdi_annotation.partition("/")[0] for each in vendors.VENDORS if each.cdi_annotation],
        "largestCount": groups.MAX_COUNT,
    }


def _shares() -> Variables:
    """By which limits containers ask for shares."""
    serving = {
        name: [each.name for each in vendors.VENDORS if each.resource in row.devices] for name, row in DIALECTS.items()
    }
    return {
        "shareResources": sorted(DIALECTS),
        "shareFamilies": {name: DIALECTS[name].family for name in sorted(DIALECTS)},
        "otherResources": list(OF_OTHERS),
        "shareSystems": {name: DIALECTS[name].system for name in sorted(DIALECTS)},
        "shareMib": {name: DIALECTS[name].mib for name in sorted(DIALECTS)},
        "shareUnits": {name: DIALECTS[name].unit for name in sorted(DIALECTS)},
        "dividedResources": [name for name in sorted(DIALECTS) if DIALECTS[name].divided],
        "countResource": shares.DEVICE_COUNT,
        "shareVendors": {name: serving[name] for name in sorted(DIALECTS)},
        "mostShares": shares.MAX_DEVICES,
        "mostGib": shares.MAX_GIB,
        "strategies": list(share_wishes.STRATEGIES),
        "isolations": list(share_wishes.ISOLATIONS),
        "usersAnnotations": sorted(contract.USERS),
        "podAnnotations": sorted({*contract.ON_PODS, *(each.annotation for each in vendors.VENDORS)}),
        "containerAnnotations": list(shares.OF_CONTAINERS),
        "mostAnnotations": pod_review.MAX_ANNOTATIONS,
        "longestContainerName": shares.LONGEST,
        "rebindToken": f"^{shares.PATTERN}$",
        "rebindCure": shares.CURE,
        "resizePattern": f"^{share_wishes.RESIZE_PATTERN}$",
        "resizeCure": share_wishes.RESIZE_CURE,
    }


def _injection() -> Variables:
    """The variables of an injected container."""
    return {
        "vendorReferences": [
            {"vendor": each.name, "name": each.env, "path": each.field_path} for each in vendors.VENDORS
        ],
        "vendorTaints": [
            {"vendor": each.name, "key": each.resource} for each in vendors.VENDORS if each.resource in vendors.TAINTS
        ],
        "deviceOrder": _setting(CUDA_ORDER),
        "jaxGrows": _setting(JAX_GROWS),
        "growth": _setting(GROWTH),
        "shareReferences": {resource: list(_references(resource)) for resource in sorted(DIALECTS)},
    }


def _setting(setting: Variable) -> Mapping[str, str]:
    return {"name": setting.name, "value": setting.value}


def _references(resource: str) -> Iterator[Mapping[str, str]]:
    """What refers to the share of a container that asks by this resource; `path` lacks the container's name."""
    plain, with_env_from = (_late(resource, has_env_from=has) for has in (False, True))
    always = set(_late(resource, framework_limits=False))
    unlimited, intercepted = ({each.name for each in _late(resource, limits=by)} for by in (NO_LIMITS, INTERCEPT))
    by_variable = {each.env: each.name for each in vendors.VENDORS}
    for each, other in zip(plain, with_env_from, strict=True):
        yield {
            "name": each.name,
            "path": each.path.removesuffix(f"{_CONTAINER}']"),
            "vendor": by_variable.get(each.name, ""),
            "owned": _flag(each.owned),
            "givesWayTo": ",".join(each.gives_way_to),
            "ofFrameworks": _flag(each not in always),
            "ofLimits": "" if each.name in unlimited else "any" if each.name in intercepted else HOOK,
            "notBesideEnvFrom": _flag(other.withheld),
        }


def _late(
    resource: str, *, has_env_from: bool = False, framework_limits: bool = True, limits: str = HOOK
) -> list[Variable]:
    share = ShareOf(_CONTAINER, resource, ShareRequest((), (resource,)), has_env_from)
    variables = share.variables(DEFAULTS._replace(framework_limits=framework_limits, memory_limits=limits))
    return [each for each in variables if each.path]


def _flag(holds: bool) -> str:
    # Maps in CEL have values of one type.
    return "yes" if holds else ""


def _ways() -> Variables:
    """The ways around the hand-over, as bypasses.py has them."""
    effects = bypasses.effects()
    lists = [each.device_list for each in vendors.VENDORS if each.device_list]
    names = ["privileged", "sysAdmin", "hostPID", *lists, "annotations", "hostPaths", "claims", "limits"]
    # What a variable gives is replaced in pods that get devices from deviceshare, and advised against in others.
    return {
        "bypasses": names,
        "effects": {**dict(zip(names, effects, strict=True)), "environment": effects[names.index("annotations")]},
        "deviceLists": lists,
        "powers": list(bypasses.POWERS),
        "nodePaths": [*bypasses.NODE_PATHS, *(path for each in vendors.VENDORS for path in each.node_paths)],
        "harmlessPaths": list(bypasses.HARMLESS),
        "deviceAnnotations": list(bypasses.ANNOTATIONS),
        "deviceClass": bypasses.CLASS,
        "mostWaysListed": bypasses.LISTED,
    }


def _literal(value: Any) -> str:
    """A value as CEL writes it, which is JSON; tables have a line for each row."""
    if isinstance(value, Mapping):
        return _bracketed("{}", [f"{json.dumps(key)}: {_literal(each)}" for key, each in value.items()])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _bracketed("[]", [_literal(each) for each in value])
    return json.dumps(value, ensure_ascii=False)


def _bracketed(brackets: str, items: Sequence[str]) -> str:
    line = f"{brackets[0]}{', '.join(items)}{brackets[1]}"
    if len(line) <= _LINE or not any(each.endswith(("}", "]")) for each in items):
        return line
    rows = ",\n".join(items).replace("\n", "\n  ")
    return f"{brackets[0]}\n  {rows}\n{brackets[1]}"
