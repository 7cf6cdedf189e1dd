"""Fit, choice and score."""

from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.placement.allocation import MAX_SCORE, Available, choose, meets, scores, shortage
from tests.unit.domain.objects import a_group

RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
WANTS = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 4), min_size=1)
FREE = st.sets(st.builds(Device, st.sampled_from(RESOURCES), st.integers(0, 7)))


def count(devices: set[Device]) -> dict[str, int]:
    return {resource: sum(d.resource == resource for d in devices) for resource in RESOURCES}


def chosen_of(wants: dict[str, int], free: set[Device]) -> Devices | None:
    return choose(a_group(resources=wants).request, Available(tuple(free), []))


@given(WANTS, FREE)
def test_a_group_gets_all_it_wants_or_nothing(wants: dict[str, int], free: set[Device]) -> None:
    """Of every resource, and only of those."""
    chosen = chosen_of(wants, free)
    fits = all(count(free)[resource] >= number for resource, number in wants.items())
    assert (chosen is not None) == fits
    if chosen is not None:
        assert {r: n for r, n in count(set(chosen)).items() if n} == wants
        assert len(chosen) == len(set(chosen))
        assert meets(a_group(resources=wants).request, chosen)
        assert not meets(a_group(resources=wants).request, chosen[1:])


@given(WANTS, FREE)
def test_the_lowest_free_indices_come_first(wants: dict[str, int], free: set[Device]) -> None:
    """Nothing lower is left over."""
    chosen = chosen_of(wants, free) or ()
    for device in chosen:
        assert device in free
        lower = {other for other in free if other.resource == device.resource and other.index < device.index}
        assert lower <= set(chosen)


@given(WANTS, FREE)
def test_there_is_a_shortage_exactly_where_nothing_can_be_chosen(wants: dict[str, int], free: set[Device]) -> None:
    """Filter and bind judge alike, and the text names what is missing."""
    text = shortage(a_group(resources=wants).request, count(free), count(free))
    assert bool(text) == (chosen_of(wants, free) is None)
    for resource, number in wants.items():
        have = count(free)[resource]
        assert (f"{number} {resource} ({have} of {have} free)" in text) == (have < number)


NODES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 16))


@given(NODES, st.sampled_from(["binpack", "spread"]))
def test_scores_follow_the_strategy(free: dict[str, int], strategy: str) -> None:
    """Monotone in the number of free devices, within the scheduler's range, equal for equal nodes."""
    given_scores = scores(strategy, {node: (number, 0) for node, number in free.items()})
    assert given_scores.keys() == free.keys()
    assert all(0 <= score <= MAX_SCORE for score in given_scores.values())
    sign = 1 if strategy == "spread" else -1
    for a, more in free.items():
        for b, less in free.items():
            if more == less:
                assert given_scores[a] == given_scores[b]
            elif more > less:
                assert sign * (given_scores[a] - given_scores[b]) >= 0


@given(st.sets(st.integers(0, 64), min_size=2, max_size=11))
def test_up_to_eleven_situations_are_told_apart(numbers: set[int]) -> None:
    """Any difference shows, whatever the nodes' sizes; the best gets the full score."""
    free = {f"n{number}": (number, 0) for number in numbers}
    assert len(set(scores("spread", free).values())) == len(numbers)
    assert scores("spread", free)[f"n{max(numbers)}"] == MAX_SCORE
    assert scores("binpack", free)[f"n{min(numbers)}"] == MAX_SCORE


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.tuples(st.integers(0, 30), st.integers(0, 8)), min_size=1))
def test_the_best_node_shares_its_score_with_its_equals_alone(preferences: dict[str, tuple[int, int]]) -> None:
    """However many situations there are: else kube-scheduler's own scores choose a worse one."""
    for strategy, best in (("binpack", min(preferences.values())), ("spread", max(preferences.values()))):
        given_scores = scores(strategy, preferences)
        assert {node for node, score in given_scores.items() if score == MAX_SCORE} == {
            node for node, preference in preferences.items() if preference == best
        }
