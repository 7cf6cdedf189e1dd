"""Which devices belong together."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.devices import Devices
from deviceshare.domain.objects.hardware import NUMA, NVLINK, PROXIMITY, SWITCH, Link
from deviceshare.domain.placement import allocation
from tests.unit.domain.objects import GPU, gpus


def link(a: int, b: int, kind: str, lanes: int = 0) -> Link:
    """Two GPUs that are joined so."""
    return Link(GPU, a, b, kind, lanes)


PAIRED = [link(0, 3, NVLINK, 4), link(1, 2, NVLINK, 4), link(0, 1, SWITCH), link(2, 3, NUMA)]


def test_nvlink_comes_before_a_switch_and_a_switch_before_a_numa_node() -> None:
    """And anything before nothing; ties go to the lowest indices."""
    assert allocation.closest(gpus(0, 1, 2, 3), 2, PAIRED) == gpus(0, 3)
    assert allocation.closest(gpus(0, 1, 2), 2, PAIRED) == gpus(1, 2)
    assert allocation.closest(gpus(0, 1), 1, PAIRED) == gpus(0)
    assert allocation.closest(gpus(2, 3, 5), 2, PAIRED) == gpus(2, 3)
    assert allocation.closest(gpus(4, 5, 6), 2, PAIRED) == gpus(4, 5)


def test_more_nvlinks_between_a_pair_count() -> None:
    """Two GPUs may be joined by one or by several."""
    assert allocation.closest(gpus(0, 1, 2), 2, [link(0, 1, NVLINK, 1), link(1, 2, NVLINK, 2)]) == gpus(1, 2)


def test_what_a_group_keeps_draws_the_others_near() -> None:
    """A rebind replaces some devices of a group; the new ones should be close to the rest."""
    assert allocation.closest(gpus(0, 1, 2), 1, PAIRED, kept=gpus(3)) == gpus(0)


def test_links_of_another_resource_do_not_count() -> None:
    """Numbers of two vendors have nothing to do with one another."""
    foreign = [Link("amd.com/gpu", 1, 2, NVLINK, 4)]
    assert allocation.closest(gpus(0, 1, 2), 2, foreign) == gpus(0, 1)


LINKS = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]),
    st.tuples(st.sampled_from(PROXIMITY), st.integers(0, 4)),
).map(lambda pairs: [link(a, b, kind, lanes) for (a, b), (kind, lanes) in pairs.items()])


def closeness(devices: Devices, links: list[Link]) -> allocation.Closeness:
    """How well these are connected."""
    return allocation._closeness(devices, allocation._pairs(links, {GPU}))


@given(LINKS, st.sets(st.integers(0, 7), min_size=1), st.data())
def test_no_other_set_is_better_connected(links: list[Link], free: set[int], data: st.DataObject) -> None:
    """All sets compared; of equals the first by index is chosen."""
    candidates = gpus(*free)
    count = data.draw(st.integers(1, len(candidates)))
    chosen = allocation.closest(candidates, count, links)
    best = max(closeness(each, links) for each in combinations(candidates, count))
    assert closeness(chosen, links) == best
    assert chosen == next(each for each in combinations(candidates, count) if closeness(each, links) == best)


def test_of_very_many_devices_a_good_set_is_grown() -> None:
    """Sixteen GPUs in two islands of eight: eight are taken from one island."""
    islands: list[Devices] = [gpus(*range(1, 17, 2)), gpus(*range(0, 16, 2))]
    links = [link(a.index, b.index, NVLINK, 2) for island in islands for a, b in combinations(island, 2)]
    assert allocation.closest(gpus(*range(16)), 8, links[: len(links) // 2]) == islands[0]


def test_the_reason_is_told_in_words() -> None:
    """For `explain`; nothing is said where nothing is known."""
    assert allocation.topology_reason(gpus(0, 3), PAIRED) == "all joined by NVLink"
    assert allocation.topology_reason(gpus(0, 1), PAIRED) == "all behind one PCIe switch"
    assert allocation.topology_reason(gpus(2, 3), PAIRED) == "all on one NUMA node"
    assert allocation.topology_reason(gpus(0, 1, 2), PAIRED) == "of 3 pairs joined: 1 by NVLink, 1 by a PCIe switch"
    assert allocation.topology_reason(gpus(4, 5), PAIRED) == "not close to one another"
    assert allocation.topology_reason(gpus(0, 3), []) == allocation.topology_reason(gpus(0), PAIRED) == ""
