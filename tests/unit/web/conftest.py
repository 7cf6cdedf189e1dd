"""The webhooks for tests of the web, with settings where a test gives some."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.web.webhooks import Webhooks


@pytest.fixture
async def webhooks(request: pytest.FixtureRequest) -> AsyncIterator[Webhooks]:
    """Settings may be given by an indirect parameter; a word is what is done about ways around the hand-over."""
    given = getattr(request, "param", {})
    async with Webhooks(**(given if isinstance(given, dict) else {"bypasses": given})) as served:
        yield served
