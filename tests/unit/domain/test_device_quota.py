"""What a DeviceQuota allows, what it says where it doesn't, and what is written into it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.census import measure
from deviceshare.domain.objects.device_quota import DeviceQuota, counted, quota_patch, reservation_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import ObjectMeta, decoder_of
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.metrics import Metrics
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, a_pod

VISION = {"team": "vision"}


def labelled(name: str = "c", count: int = 4, labels: Mapping[str, str] = VISION, node: str = "") -> Group:
    group = a_group(name, count, node=node)
    return msgspec.structs.replace(group, metadata=msgspec.structs.replace(group.metadata, labels=dict(labels)))


def a_quota(name: str = "team", hard: int = 8, selector: Any = None, **held: int) -> DeviceQuota:
    """A quota of GPUs of which groups by these names hold so many."""
    reservations = {f"uid-of-{each}": {"name": each, "devices": {GPU: many}} for each, many in held.items()}
    body = {
        "metadata": {"name": name, "resourceVersion": "9"},
        "spec": {"groupSelector": {"matchLabels": VISION} if selector is None else selector, "hard": {GPU: hard}},
        "status": {"reservations": reservations},
    }
    return msgspec.convert(body, DeviceQuota)


def with_quotas(*quotas: DeviceQuota) -> Fleet:
    """A fleet of one free node, and these quotas."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    for quota in quotas:
        fleet.quotas.put(quota.name, quota)
    return fleet


def beyond(group: Group, *quotas: DeviceQuota) -> str:
    """Why no node fits the group."""
    found = with_quotas(*quotas).filter(group.request, ["n1"])
    return str(next(iter(found.refused), ""))


def test_a_group_within_its_quota_fits() -> None:
    """Also where it exactly fills it, and where its own reservation is there already."""
    assert beyond(labelled(), a_quota(a=2, b=2)) == ""
    assert beyond(labelled(), a_quota(a=4, c=4)) == ""


def test_a_group_beyond_its_quota_is_told_who_holds_what() -> None:
    """The quota, what is held, by whom, what is wanted, and the way out."""
    text = beyond(labelled(), a_quota(a=4, b=2))
    assert text.startswith(f"quota team: 6 of 8 {GPU} are held by groups a and b; group c wants 4: ")
    assert "kubectl edit dq team" in text
    assert "held by group a; group c wants 4" in beyond(labelled(), a_quota(a=5))
    many = {f"g{number:02}": 1 for number in range(40)}
    assert "groups g00, g01, g02, g03, g04 and 35 more; group c" in beyond(
        labelled(), a_quota("team", 40, None, **many)
    )


def test_what_a_group_holds_counts_beside_what_its_namesake_holds() -> None:
    """A group that was deleted by force and created again has another UID; the first one's pods still have devices."""
    quota = msgspec.convert(
        {
            "metadata": {"name": "team"},
            "spec": {"groupSelector": {"matchLabels": VISION}, "hard": {GPU: 8}},
            "status": {"reservations": {uid: {"name": "a", "devices": {GPU: 3}} for uid in ("first", "second")}},
        },
        DeviceQuota,
    )
    assert beyond(labelled(), quota).startswith(f"quota team: 6 of 8 {GPU} are held by group a; group c wants 4: ")


def test_a_group_that_alone_exceeds_its_quota_is_told_so() -> None:
    """Whoever else holds devices: waiting is in vain."""
    text = beyond(labelled(count=9), a_quota(a=4))
    assert text.startswith(f"quota team allows 8 {GPU} in all; group c wants 9: request fewer, or ")


def test_a_quota_that_was_not_counted_yet_lets_no_group_have_what_it_limits() -> None:
    """It may be created, unless it is too large in any case; a plan counts by itself."""
    new = msgspec.structs.replace(a_quota(), metadata=ObjectMeta(name="team", generation=3))
    text = "quota team has not been counted since it was created or changed: until the leader does, it lets no group "
    assert beyond(labelled(), new) == f"{text}have {GPU}"
    assert beyond(labelled(labels={}), new) == ""
    quotas = with_quotas(new).quotas
    assert quotas.obstacle(labelled().request._replace(resources={AMD: 1})) is None
    assert quotas.refusal(labelled()) is None
    assert "allows 8" in str(quotas.refusal(labelled(count=9)))
    quotas.apply(new, [labelled("old", 6, node="n1")])
    assert "6 of 8" in str(quotas.obstacle(labelled().request))


@pytest.mark.parametrize(
    ("selector", "labels", "counts"),
    [
        ({}, {}, True),
        ({}, VISION, True),
        ({"matchLabels": VISION}, {"team": "speech"}, False),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, VISION, False),
    ],
)
def test_a_quota_counts_the_groups_that_its_selector_matches(
    selector: Any, labels: Mapping[str, str], counts: bool
) -> None:
    """An empty one counts all, and one by DoesNotExist with 0 catches groups without the label."""
    assert bool(beyond(labelled(labels=labels), a_quota(hard=0, selector=selector))) is counts


def test_every_quota_that_matches_must_allow_a_group() -> None:
    """The first that doesn't, by name, is the one that is told; other resources aren't counted."""
    assert "quota b:" in beyond(labelled(), a_quota("a"), a_quota("b", a=8), a_quota("z", a=8))
    amd = msgspec.structs.replace(labelled(), spec=msgspec.structs.replace(labelled().spec, resources={AMD: 9}))
    assert with_quotas(a_quota(hard=0)).quotas.obstacle(amd.request) is None


def test_a_bound_group_is_asked_nothing() -> None:
    """Its further pods join, whatever has become of the quota."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(c=(a_ledger().devices[0],)),))
    fleet.quotas.put("team", a_quota(hard=0))
    assert fleet.filter(labelled(count=1, node="n1").request, ["n1"]).fits == ["n1"]


def test_a_quota_that_cannot_be_read_lets_nobody_be_bound() -> None:
    """Which groups it counts isn't known."""
    odd = decoder_of(DeviceQuota).salvage(b'{"metadata": {"name": "odd"}, "spec": {"hard": 3}}')
    assert "quota odd can't be applied (" in beyond(labelled(labels={}), odd)
    assert with_quotas(odd).quotas.refusal(labelled()) is None


def test_a_condition_says_which_quota_a_group_waits_for() -> None:
    """With a reason of its own."""
    reason = group_status.bound(labelled(), with_quotas(a_quota(a=6)), [a_pod("p", "c")])
    assert reason.kind is ReasonKind.QUOTA
    assert f"6 of 8 {GPU} are held" in str(reason)


def test_a_plan_counts_what_it_places() -> None:
    """A second group of the same manifest waits as it would then."""
    quotas = with_quotas(a_quota(hard=5)).quotas
    quotas.reserve(labelled("a").request)
    assert "held by group a; group c wants 4" in str(quotas.obstacle(labelled().request))


def applied(quota: DeviceQuota, patch: Mapping[str, Any]) -> DeviceQuota:
    """The quota after the merge patch (RFC 7386)."""

    def merge(target: Any, change: Any) -> Any:
        if not isinstance(change, Mapping):
            return change
        kept = dict(target) if isinstance(target, dict) else {}
        for key, value in change.items():
            kept[key] = merge(kept.get(key), value)
        return {key: value for key, value in kept.items() if value is not None}

    return msgspec.convert(merge(msgspec.to_builtins(quota), patch), DeviceQuota)


def test_a_patch_makes_the_quota_what_it_should_be() -> None:
    """By its version; what is dropped goes, and so does a resource that a group no longer wants."""
    before = a_quota(a=2, b=2, c=1)
    before.status.reservations["uid-of-c"].devices[AMD] = 3
    mine = {"uid-of-c": reservation_of(labelled())}
    patch = quota_patch(before, add=mine, drop=["uid-of-a"])
    assert patch["metadata"] == {"resourceVersion": "9"}
    after = applied(before, patch).status
    assert after == counted(before, {"uid-of-b": before.status.reservations["uid-of-b"], **mine})
    assert (after.used, after.summary, after.groups) == ({GPU: 6}, f"{GPU}: 6/8", 2)
    assert quota_patch(msgspec.structs.replace(before, status=after), add=mine) == {}


FAULTY: list[tuple[Any, str]] = [
    ({"matchExpressions": [{"key": "team", "operator": "In"}]}, "spec.groupSelector.matchExpressions: In needs values"),
    ({"matchLabels": {"team": "a b"}}, "spec.groupSelector.matchLabels: 'a b' can't be a label's value"),
    ({"matchExpressions": [{"key": "x", "operator": "exists"}]}, "'exists' is no operator"),
]


@pytest.mark.parametrize(("selector", "fault"), FAULTY)
def test_a_quota_whose_selector_is_faulty_lets_no_group_be_bound(selector: Any, fault: str) -> None:
    """It would count nobody. The refused group's text and the quota's status name the field."""
    quota = a_quota(hard=100, selector=selector)
    for labels in (VISION, {}):
        text = beyond(labelled(labels=labels), quota)
        assert text.startswith("quota team can't be applied (")
        assert fault in text
        assert "), and until it can no group is bound: change the quota (kubectl edit dq team)" in text
    assert fault in counted(quota, {}).summary
    assert with_quotas(quota).quotas.refusal(labelled()) is None  # it may be created, and waits


def test_a_quota_of_an_unknown_resource_lets_no_group_be_bound_that_it_counts() -> None:
    """It limits nothing, and most likely it was meant to."""
    quota = msgspec.structs.replace(a_quota(), spec=msgspec.structs.replace(a_quota().spec, hard={"gpu": 3}))
    text = beyond(labelled(), quota)
    assert text.startswith("quota team can't be applied (spec.hard: unknown resource 'gpu'; known are ")
    assert "no group that it counts is bound" in text
    assert beyond(labelled(labels={}), quota) == ""
    assert counted(quota, {}).summary.startswith("invalid, so no group is bound: spec.hard: unknown resource 'gpu'")


def test_the_leader_exports_what_quotas_allow_and_count() -> None:
    """And which can't be applied; nothing is left of one that is gone."""
    quotas = [a_quota(a=2, b=2), a_quota("odd", selector=FAULTY[0][0])]

    def exported(*, leads: bool = True) -> dict[tuple[str, ...], float]:
        metrics = Metrics()
        metrics.watch(lambda: measure(Fleet(), [], [], quotas, leads=leads, most_groups=0, now=""))
        found = [family for family in metrics.registry.collect() if family.name.startswith("deviceshare_quota")]
        return {(each.name, *sample.labels.values()): sample.value for each in found for sample in each.samples}

    assert exported() == {
        ("deviceshare_quota_hard", "team", GPU): 8,
        ("deviceshare_quota_used", "team", GPU): 4,
        ("deviceshare_quota_invalid", "team"): 0,
        ("deviceshare_quota_hard", "odd", GPU): 8,
        ("deviceshare_quota_used", "odd", GPU): 0,
        ("deviceshare_quota_invalid", "odd"): 1,
    }
    assert exported(leads=False) == {}
    quotas.clear()
    assert exported() == {}
