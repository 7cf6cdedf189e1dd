"""Which node a group gets: by its strategy, its selector, all of its resources, and what others took."""

import pytest

from tests.controlplane.pool import AMD, GPU, VISIBLE, Pool, pod, refers


@pytest.mark.parametrize(("strategy", "beside"), [("binpack", True), ("spread", False)])
def test_the_strategy_decides_between_nodes_that_fit(pool: Pool, strategy: str, beside: bool) -> None:
    """binpack fills the node in use, spread opens the other one."""
    pool.node()
    pool.node()
    pool.apply(pod("first", pool.group("first", 1)))
    pool.running("first")
    pool.apply(pod("second", pool.group("second", 1, schedulingStrategy=strategy)))
    pool.running("second")
    assert (pool.placed("first") == pool.placed("second")) == beside


def test_a_groups_selector_is_kept(pool: Pool) -> None:
    """Even if the group came after its pod."""
    pool.node(zone="a")
    chosen = pool.node(zone="b")
    pool.apply(pod("early", f"{pool.name}-picky"))
    pool.group("picky", nodeSelector={"zone": "b"})
    pool.apply(pod("late", f"{pool.name}-picky"))
    pool.running("early", "late")
    assert {pool.placed("early"), pool.placed("late")} == {chosen}


def test_several_resources_are_had_all_on_one_node_or_not_at_all(pool: Pool) -> None:
    """One node lacks the second resource, the other has too little of the first."""
    pool.node(4)
    pool.node(0, inventory=f"{GPU}=1,{AMD}=2")
    group = pool.group("both", resources={GPU: 2, AMD: 1})
    pool.apply(pod("both", group))
    why = pool.eventually(lambda: pool.reason("both"), bool)
    assert f"1 {AMD} (0 of 0 free)" in why
    assert f"2 {GPU} (1 of 1 free)" in why
    claims = [each["spec"].get("claims") for each in pool.get("ndev") if pool.name in each["metadata"]["name"]]
    assert not any(claims)

    whole = pool.node(0, inventory=f"{GPU}=3,{AMD}=1")
    (seen,) = pool.environments(pool.running("both"))
    assert (seen[VISIBLE], seen["AMD_VISIBLE_DEVICES"], seen["ASCEND_VISIBLE_DEVICES"]) == ("0,1", "0", "")
    assert pool.status(group)["selectedDevices"] == {GPU: "0,1", AMD: "0"}
    assert pool.placed("both") == whole


def test_a_node_whose_device_plugin_handed_out_devices_is_not_offered(pool: Pool) -> None:
    """Nobody knows which ones that pod holds. When it ends, the node is offered again and who waited gets it."""
    node = pool.node()
    limits = {"limits": {GPU: "1"}}
    container = {"name": "main", "image": "busybox", "resources": limits}
    pool.apply(pod("plugin", scheduler="default-scheduler", nodeSelector={"pool": pool.name}, containers=[container]))
    pool.running("plugin")
    assert pool.placed("plugin") == node
    pool.apply(pod("waits", pool.group()))
    pool.eventually(lambda: pool.reason("waits"), refers(f"hold {GPU} through the device plugin"))
    pool.kubectl("delete", "pod", "plugin", "-n", pool.name)
    pool.running("waits")


def test_a_node_that_is_not_shared_is_not_offered(pool: Pool) -> None:
    """Its owner decides, by the label."""
    node = pool.node()
    pool.kubectl("label", "node", node, "deviceshare.io/mode-")
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--ignore-not-found", node) == "")  # deviceshare has seen it
    pool.apply(pod("waits", pool.group()))
    pool.eventually(lambda: pool.reason("waits"), bool)
    assert pool.placed("waits") == ""
    pool.kubectl("label", "node", node, "deviceshare.io/mode=shared")
    pool.running("waits")


def test_later_pods_of_a_group_go_to_its_node_though_others_have_more_room(pool: Pool) -> None:
    """And wait there rather than go elsewhere."""
    home = pool.node()
    group = pool.group("home", 4)
    pool.apply(pod("first", group))
    pool.running("first")
    pool.node(8)
    pool.kubectl("cordon", home)
    pool.apply(pod("second", group))
    pool.eventually(lambda: pool.reason("second"), bool)
    assert pool.placed("second") == ""
    pool.kubectl("uncordon", home)
    pool.running("second")
    assert pool.placed("second") == home
