"""Deletion in the model: a finalizer keeps a group until its last pod has ended (deletionPolicy AfterLastPod)."""

from functools import partial

from tests.model.leaders import Begun, begin, idle_leaders, release_1, release_3_list
from tests.model.rules import Rule
from tests.model.world import ALIVE, DELETING, GONE, GROUPS, NOWHERE, Draft, ModelProcess, group_bit, step


def deletions(world: Draft) -> Begun:
    """Somebody deletes a group: it gets a deletionTimestamp, which is a write."""
    for number, group in enumerate(world.groups):
        if group.life == ALIVE:
            yield f"group {number} is deleted", partial(Draft.write_group, group=number, life=DELETING)


def finalizations(world: Draft) -> Begun:
    """Of a group that is being deleted: as Release, but that the group goes instead of leaving its node."""
    for leader in idle_leaders(world):
        for holder, group in enumerate(world.groups):
            if group.life == DELETING:
                yield (
                    f"leader {leader} finalizes {holder}: 1",
                    partial(begin, leader=leader, holder=holder, node=group.node, first=finalize_1),
                )


@step(GROUPS)
def finalize_1(world: Draft, me: ModelProcess) -> object:
    """Bound → as Release, whose step 1 marks the claim. Unbound → no bind can commit any more."""
    if me.node != NOWHERE and world.must(Rule.FINALIZE_AS_RELEASE):
        return release_1(world, me)
    me = me.saw(group_bit(me.holder))
    return world.go(me, finalize_4 if me.node == NOWHERE else release_3_list)


@step(GROUPS)
def finalize_4(world: Draft, me: ModelProcess) -> object:
    """CAS G without the finalizer, with the version of step 3. Collect has the claim."""
    if me.has(group_bit(me.holder)) and world.groups[me.holder].life != GONE:
        world.write_group(me.holder, life=GONE)
    return None
