"""The chart's ClusterRoles for people."""

import pytest

from charts import helm

ROLES = {"deviceshare-view", "deviceshare-edit", "deviceshare-recover", "deviceshare-top"}
AGGREGATED = {"deviceshare-view", "deviceshare-edit"}


@pytest.mark.parametrize(
    ("create", "aggregate", "there", "aggregated"),
    [(True, True, ROLES, AGGREGATED), (True, False, ROLES, set()), (False, False, set(), set())],
)
def test_the_roles_for_people_exist_without_aggregation_too(
    create: bool, aggregate: bool, there: set[str], aggregated: set[str]
) -> None:
    """Then they are for bindings of the cluster's administrator; without rbac.create the roles are, too."""
    objects = helm.render({"rbac": {"create": create, "aggregate": aggregate}})
    roles = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ClusterRole"}
    found = {name: roles[name] for name in ROLES if name in roles}
    labelled = {
        name for name, each in found.items() if any("aggregate-to" in key for key in each["metadata"]["labels"])
    }
    assert (set(found), labelled) == (there, aggregated)


def test_no_role_for_people_writes_claims() -> None:
    """They are in the spec of NodeDevices; who may write that may give anybody's devices to anybody."""
    roles = [each for each in helm.render({}) if each["kind"] == "ClusterRole" and each["metadata"]["name"] in ROLES]
    writes = [rule for each in roles for rule in each["rules"] if set(rule["verbs"]) - {"get", "list", "watch"}]
    assert writes and all("nodedevices" not in rule["resources"] for rule in writes)
