"""Evaluation of the chart's admission policies, as the API server evaluates them.

https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/ and …/mutating-admission-policy/
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from charts import helm
from charts.policies import tables
from tests.unit.domain.jsonpatch import applied
from tests.unit.policies.kubernetes_cel import evaluate

Json = dict[str, Any]

_MAY_PATCH: Final = "authorizer.group('deviceshare.io').resource('nodedevices').check('patch').allowed()"
_VARIABLE: Final = re.compile(r"\bvariables\.(\w+)")


class PolicyError(Exception):
    """An expression failed: the API server refuses the request with a text that helps nobody."""


class Policy:
    """One policy and its binding."""

    def __init__(self, policy: Json, binding: Json) -> None:
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        self.spec = policy["spec"]
        self.variables = {each["name"]: each["expression"] for each in self.spec.get("variables", ())}
        self.actions = binding["spec"].get("validationActions", [])

    def patched(self, request: Json) -> Json:
        """The object of a request as a mutating policy leaves it."""
        [mutation] = self.spec["mutations"]
        if not self.is_called(request):
            unchanged: Json = request["object"]
            return unchanged
        patch = self._value(mutation["jsonPatch"]["expression"], self._data(request))
        result: Json = applied(request["object"], patch)
        return result

    def refusals(self, request: Json) -> list[str]:
        """The texts of the validations that fail, in their order; the first is what users see."""
        if not self.is_called(request):
            return []
        data = self._data(request)
        return [
            self._value(each["messageExpression"], data)
            for each in self.spec["validations"]
            if not self._value(each["expression"], data)
        ]

    def refusal(self, request: Json) -> str:
        """What the user sees, or ""."""
        return next(iter(self.refusals(request)), "")

    def is_called(self, request: Json) -> bool:
        """Whether the request is one that its constraints and conditions select."""
        sub = request["request"].get("subResource", "")
        rules = self.spec["matchConstraints"]["resourceRules"]
        if not any(
            request["request"]["operation"] in rule["operations"]
            and any(resource.partition("/")[2] == sub for resource in rule["resources"])
            for rule in rules
        ):
            return False
        conditions = (each["expression"] for each in self.spec.get("matchConditions", ()))
        may = str(request["mayPatchLedgers"]).lower()
        return all(self._value(each.replace(_MAY_PATCH, may), request) for each in conditions)

    def _data(self, request: Json) -> Json:
        """With the variables, which are evaluated when they are asked for, as by the API server."""
        return {**request, "variables": {}}

    def _value(self, expression: str, data: Json) -> Any:
        known = data.get("variables", {})
        used = set(_VARIABLE.findall(expression))
        for name in used - known.keys():
            known[name] = self._value(self.variables[name], data)
        try:
            return evaluate(expression, {**data, "variables": {name: known[name] for name in used}})
        except ValueError as error:
            raise PolicyError(str(error)) from error


def policies(**values: Any) -> Mapping[str, Policy]:
    """The chart's policies by name, with these values."""
    return _policies(json.dumps(values, sort_keys=True))


@functools.cache
def _policies(values: str) -> Mapping[str, Policy]:
    objects = helm.render({"admission": "policies", **json.loads(values)}, helm.WITH_POLICIES)
    found = dict(_of(objects))
    for policy in found.values():
        policy.variables |= {name: text for name, text in _tables().items() if name in policy.variables}
    return found


@functools.cache
def _tables() -> Mapping[str, str]:
    """As they follow from the code now. That the chart's are stale is said by one test, which names the generator."""
    files = (yaml.safe_load(text) for _, text in tables())
    return {each["name"]: each["expression"] for variables in files for each in variables}


def _of(objects: list[Json]) -> Iterator[tuple[str, Policy]]:
    bindings = {each["metadata"]["name"]: each for each in objects if each["kind"].endswith("PolicyBinding")}
    for each in objects:
        if each["kind"].endswith("AdmissionPolicy"):
            yield each["metadata"]["name"], Policy(each, bindings.pop(each["metadata"]["name"]))
    assert not bindings


def a_request(operation: str = "CREATE", sub_resource: str = "", **of: Any) -> Json:
    """What a policy sees of a request: `object`, `oldObject` and `request`."""
    user = of.pop("user", "alice")
    extra = of.pop("extra", {})
    what: Json = {"operation": operation, "userInfo": {"username": user}}
    if sub_resource:  # what is empty isn't there
        what["subResource"] = sub_resource
    if extra:
        what["userInfo"]["extra"] = extra
    may = of.pop("may_patch_ledgers", False)
    return {"object": of.get("new"), "oldObject": of.get("old"), "request": what, "mayPatchLedgers": may}
