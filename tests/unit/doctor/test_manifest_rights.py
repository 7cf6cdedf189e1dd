"""The rights in manifests/rbac.yaml, which the sandbox's deviceshare has, against what the doctor and the chart say."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from charts import helm
from deviceshare import assets
from deviceshare.doctor import rights
from deviceshare.domain import contract

Json = dict[str, Any]
PEOPLE: Final = ("deviceshare-view", "deviceshare-edit", "deviceshare-recover", "deviceshare-top")


def roles(objects: list[Json]) -> dict[str, list[Json]]:
    """The rules of each role by its name."""
    return {each["metadata"]["name"]: each["rules"] for each in objects if each["kind"] in ("ClusterRole", "Role")}


def manifests() -> dict[str, list[Json]]:
    return roles([each for each in yaml.safe_load_all((assets.manifests() / "rbac.yaml").read_text()) if each])


def words(rules: list[Json]) -> Iterator[tuple[str, str, str]]:
    """Verb, group and resource with its subresource of everything that is granted."""
    for rule in rules:
        for group in rule["apiGroups"]:
            yield from ((verb, group, resource) for verb in rule["verbs"] for resource in rule["resources"])


def test_the_manifests_grant_deviceshare_all_that_it_needs() -> None:
    """What it reads of DRA it may as a kube-scheduler, which has the same identity there."""
    ours = [rule for name, rules in manifests().items() if name not in PEOPLE for rule in rules]
    granted = set(words(ours))
    needed = {
        (each.verb, each.group, f"{each.resource}/{each.subresource}" if each.subresource else each.resource)
        for each in rights.needed(contract.NAMESPACE)
    }
    assert needed - granted == set()


def test_the_roles_for_people_are_those_of_the_chart() -> None:
    chart, written = roles(helm.render({})), manifests()
    assert {name: set(words(written[name])) for name in PEOPLE} == {name: set(words(chart[name])) for name in PEOPLE}
