"""What every unit test is given, and gives back as it was."""

import logging
from collections.abc import Iterator, Mapping

import pytest
import structlog

from tests.unit.idle_time import IdleTime


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, type[IdleTime]]:
    """Small timeouts in coroutines say nothing about the machine."""
    return {"idle": IdleTime}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Logging is global to the process; each test gives it back as it found it."""
    loggers = [logging.getLogger(name) for name in (None, "deviceshare", "aiohttp.access")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers
    structlog.reset_defaults()
