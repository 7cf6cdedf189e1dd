"""Sameness: what the domain decides of an object, the admission policies decide too, in the same words.

Warnings aren't compared: a policy that mutates has none.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.admission import drafts
from deviceshare.domain.admission.bypasses import REFUSE, bypasses, new_bypasses, refusal_or_warnings
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.own_resource_review import (
    new_group_patch,
    review_changed_group,
    review_deleted_group,
    review_deletion,
    review_new_group,
    review_repair,
    review_report,
)
from deviceshare.domain.admission.pod_injection import inject, inject_ephemeral
from deviceshare.domain.admission.pod_review import review_changed_pod, review_ephemeral_containers, review_new_pod
from deviceshare.domain.admission.settings import DEFAULTS, InjectionSettings
from deviceshare.domain.objects.groups import (
    ALL,
    DEFAULT_LIFE,
    DELETION_POLICIES,
    OPERATORS,
    SELECTOR,
    AllowedNamespaces,
    Group,
    GroupLife,
    users,
)
from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.domain.objects.pods import Pod
from tests.unit.domain.jsonpatch import applied
from tests.unit.policies.evaluation import Policy, a_request, policies
from tests.unit.policies.stored_form import Refused, stored_form

Json = dict[str, Any]
SHORTER = "choose a shorter name"
"""What only policies refuse: names that end in a digest in annotations."""
TRANSLATED = "is served by webhooks only"
"""ACK's label, which they refuse, too."""

_pods = ObjectDecoder(Pod)
_RELEASE_AFTER = re.compile(r"(never|([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?)")
"""As the CRD's schema has it."""


def chart_values(settings: InjectionSettings) -> Json:
    """The chart's values that stand for the settings."""
    answering = {"enabled": True, "pods": {"url": settings.agent_url}}
    return {
        "handover": {"runtimeClassName": settings.runtime_class, "tolerations": settings.tolerations},
        "shares": {
            "dialects": sorted(settings.dialects),
            "replacedSchedulers": sorted(settings.replaced_schedulers),
            "frameworkLimits": settings.framework_limits,
            "isolation": settings.isolation,
            "memoryLimits": settings.memory_limits,
        },
        "groups": {"memory": settings.group_memory},
        "placement": settings.placement,
        "agent": answering if settings.agent_url else {"enabled": True, "pods": {"enabled": False}},
        "webhooks": {"bypasses": REFUSE},
    }


def injected_the_same(pod: Json, settings: InjectionSettings = DEFAULTS) -> str:
    """Asserts that a new pod is injected or refused alike; returns the refusal."""
    try:
        pod = stored_form(pod)
    except Refused as refused:
        return str(refused)
    injection = inject(_draft(pod), None, settings=settings._replace(unsupported=REFUSE))
    wanted = without_warnings(pod, applied(pod, injection.patch))
    refusal = injection.refusal or review_new_pod(
        _pod(wanted), None, dialects=settings.dialects, placement=settings.placement
    )

    ours = policies(**chart_values(settings))
    result = ours["deviceshare-mutate-pods"].patched(a_request(new=pod))
    said = ours["deviceshare-pods"].refusal(a_request(new=result))

    if SHORTER in said:
        assert _long_names(pod)
        return said
    if TRANSLATED in said:
        assert drafts.SEVERAL in pod["metadata"]["labels"]
        return said
    assert said == refusal
    assert said or result == wanted
    around = refusal_or_warnings(bypasses(_draft(result)) if _is_ours(result) else [], REFUSE)[0]
    assert said or ours["deviceshare-bypasses"].refusal(a_request(new=result)) == around
    again = ours["deviceshare-mutate-pods"].patched(a_request(new=result))
    assert again == result  # invoked again, when another has changed the pod
    return said


def without_warnings(before: Json, pod: Json) -> Json:
    """The pod without the annotation that has the webhook's warnings, which policies can't write."""
    pod["metadata"].get("annotations", {}).pop(contract.WARNINGS, None)
    if "annotations" not in before["metadata"] and not pod["metadata"].get("annotations", True):
        del pod["metadata"]["annotations"]
    return pod


def reviewed_the_same(pod: Json) -> None:
    """Asserts that a pod as it is to be stored is admitted or refused alike, whoever injected it."""
    try:
        pod = stored_form(pod)
    except Refused:
        return
    said = _of("deviceshare-pods").refusal(a_request(new=pod))
    assert said == review_new_pod(_pod(pod), None) or SHORTER in said


def changed_the_same(before: Json, after: Json) -> str:
    """Asserts that changed metadata are judged alike, of a user and of deviceshare."""
    before, after = stored_form(before), stored_form(after)
    policy, refused = _of("deviceshare-pods"), ""
    for user in (contract.IDENTITY, "alice"):
        ours = user == contract.IDENTITY
        refused = review_changed_pod(_pod(before), _pod(after), by_deviceshare=ours)
        said = policy.refusal(a_request("UPDATE", old=before, new=after, user=user))
        assert (said, user) == (refused, user)
        around: list[str] = []
        if not ours and (_is_ours(before) or _is_ours(after)):
            around = new_bypasses(_annotations(before), _annotations(after))
        said = _of("deviceshare-bypasses").refusal(a_request("UPDATE", old=before, new=after, user=user))
        assert said == refusal_or_warnings(around, REFUSE)[0]
    return refused


def debugged_the_same(before: Json, after: Json) -> None:
    """Asserts that new ephemeral containers are injected and judged alike."""
    before, after = stored_form(before), stored_form(after)
    existing = {each["name"] for each in before["spec"].get("ephemeralContainers", [])}
    request = partial(a_request, "UPDATE", "ephemeralcontainers", old=before)

    wanted = applied(after, inject_ephemeral(_draft(after), existing).patch)
    assert _of("deviceshare-mutate-pods").patched(request(new=after)) == wanted
    for pod in (after, wanted):
        said = _of("deviceshare-pods").refusal(request(new=pod))
        assert said == review_ephemeral_containers(_draft(pod), existing, None)
        known = bypasses(_draft(before), existing)
        around = [way for way in bypasses(_draft(pod), existing) if way not in known and _is_ours(pod)]
        way = _of("deviceshare-bypasses").refusal(request(new=pod))
        assert way == refusal_or_warnings(around, REFUSE)[0]


def bypassing_the_same(pod: Json) -> None:
    """Asserts that the ways around in a pod are seen alike. The pod joins a group for that."""
    try:
        pod = stored_form(pod)
    except Refused:
        return
    pod["metadata"].setdefault("annotations", {})[contract.GROUP] = "team"
    wanted = bypasses(_draft(pod))

    refusing, warning = _of("deviceshare-bypasses"), policies()["deviceshare-bypasses"]
    assert refusing.refusal(a_request(new=pod)) == refusal_or_warnings(wanted, REFUSE)[0]
    assert warning.refusals(a_request(new=pod)) == refusal_or_warnings(wanted, "warn")[1]
    assert (refusing.actions, warning.actions) == (["Deny"], ["Warn"])


def grouped_the_same(old: Group | None, new: Group) -> None:
    """Asserts that a group that is created or changed is judged alike, as far as the CRD's schema admits it."""
    if len(new.name) > 63 or not all(1 <= count <= 1024 for count in new.spec.resources.values()):
        return
    life = new.spec.release_after, new.spec.deletion_policy
    if not _RELEASE_AFTER.fullmatch(life[0]) or life[1] not in ("", *DELETION_POLICIES):
        return
    if (allowed := new.spec.allowed_namespaces) and not _in_schema(allowed):
        return
    policy, form = _of("deviceshare-groups"), _json(new)
    if old is None:
        assert policy.refusal(a_request(new=form)) == review_new_group(new)
    else:
        said = policy.refusal(a_request("UPDATE", old=_json(old), new=form))
        assert said == review_changed_group(old, new)


def finalized_the_same(group: Json, life: GroupLife) -> Json:
    """Asserts that a new group gets the same finalizer; returns it as it is stored."""
    values = chart_values(DEFAULTS)
    values["groups"] |= {"deletionPolicy": life.deletion_policy}
    stored = policies(**values)["deviceshare-mutate-groups"].patched(a_request(new=group))
    assert stored == applied(group, new_group_patch(msgspec.convert(group, Group), life))
    return stored


def deleted_the_same(group: Group, pods: Iterable[Pod], life: GroupLife = DEFAULT_LIFE) -> str:
    """Asserts that a deletion of a group that these pods use is judged alike; returns the refusal."""
    pods = list(pods)
    shown = replace(group, status=replace(group.status, allocated_pods=users(group, pods)))
    values = chart_values(DEFAULTS)
    values["groups"] |= {"deletionPolicy": life.deletion_policy}
    said = policies(**values)["deviceshare-groups"].refusal(a_request("DELETE", old=_json(shown)))
    assert said == review_deleted_group(group, pods, life)
    return said


def _in_schema(allowed: AllowedNamespaces) -> bool:
    requirements = allowed.selector.match_expressions if allowed.selector else ()
    return allowed.from_ in (ALL, SELECTOR) and all(each.operator in OPERATORS for each in requirements)


def reported_the_same(old: Mapping[str, Any], new: Mapping[str, Any], node: str) -> None:
    """Asserts that a write of an agent is judged alike; of a token without a node, that the policy alone refuses it."""
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    request = a_request("UPDATE", "status", old=_plain(old), new=_plain(new), user=contract.AGENT_IDENTITY, extra=extra)
    unnamed = "an agent reports with the token of its pod, which names its node, and this token names none"
    expected = review_report(_plain(old), _plain(new), node) if node else unnamed
    assert _of("deviceshare-node-devices").refusal(request) == expected


def repaired_the_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Asserts that a write of somebody who may write the status alone is judged alike."""
    request = a_request("UPDATE", "status", old=_plain(old), new=_plain(new), user="alice")
    policy = _of("deviceshare-node-devices")
    assert policy.refusal(request) == review_repair(_plain(old), _plain(new))
    assert policy.refusal({**request, "mayPatchLedgers": True}) == ""


def deleted_ledger_the_same(old: Mapping[str, Any]) -> None:
    """Asserts that a deletion is judged alike."""
    request = a_request("DELETE", old=_plain(old))
    assert _of("deviceshare-ledger-deletions").refusal(request) == review_deletion(_plain(old))


def _of(name: str) -> Policy:
    return policies(**chart_values(DEFAULTS))[name]


def _draft(pod: Json) -> Draft:
    return msgspec.convert(pod, Draft)


def _pod(pod: Json) -> Pod:
    return _pods.decode(msgspec.json.encode(pod))


def _json(group: Group) -> Json:
    return _pruned(msgspec.to_builtins(group))


def _pruned(form: Json) -> Json:
    """Without nulls, which the API server drops."""
    return {
        key: _pruned(value) if isinstance(value, dict) else value for key, value in form.items() if value is not None
    }


def _plain(whole: Mapping[str, Any]) -> Json:
    return {key: value for key, value in whole.items() if value is not None}


def _is_ours(pod: Json) -> bool:
    """The webhook isn't asked about the others."""
    return any(contract.GROUP in pod["metadata"].get(field, {}) for field in ("labels", "annotations"))


def _annotations(pod: Json) -> Json:
    found: Json = pod["metadata"].get("annotations", {})
    return found


def _long_names(pod: Json) -> bool:
    spec = pod["spec"]
    lists = (spec.get("containers", []), spec.get("initContainers", []))
    return any(len(each["name"]) > 40 for containers in lists for each in containers)
