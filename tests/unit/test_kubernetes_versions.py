"""Which tests are collected on which version of Kubernetes, and that the table of versions is whole."""

import pytest

from docs.kubernetes_versions import NEWEST, OLDEST
from tests.kubernetes_versions import before, holds, minor_of, since


@pytest.mark.parametrize(("version", "minor"), [("v1.20.2", 20), ("v1.36.3", 36), ("1.34.2-gke.100", 34)])
def test_the_minor_version(version: str, minor: int) -> None:
    """Also with a vendor's suffix."""
    assert minor_of(version) == minor


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_of_two_tests_for_two_sides_one_is_collected(request: pytest.FixtureRequest, minor: int) -> None:
    """So a behaviour that changed with a version is tested on each."""
    sides = [collected(request, mark, minor) for mark in (since(28), before(28))]
    assert sorted(sides) == [False, True]
    assert collected(request, None, minor)


def collected(request: pytest.FixtureRequest, mark: pytest.MarkDecorator | None, minor: int) -> bool:
    """Whether a test with this mark is collected."""
    item = pytest.Function.from_parent(request.node.parent, name="a_test", callobj=lambda: None)
    if mark:
        item.add_marker(mark)
    return holds(item, minor)
