"""A control plane for tests that kill its deviceshare, hang it, take its admission away, or need all its nodes.

They follow one another.
"""

from collections.abc import Iterator

import pytest

from deviceshare_sandbox import Sandbox, running
from tests.controlplane.conftest import OPTIONS


@pytest.fixture(scope="session")
def shared() -> Iterator[Sandbox]:
    """Of these tests alone."""
    with running(OPTIONS) as started:
        yield started
