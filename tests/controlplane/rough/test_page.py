"""The page where nobody else changes the cluster, and while its replica is away."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import expect

from deviceshare_sandbox import Sandbox
from tests.controlplane.browser import chromium
from tests.controlplane.kills import LEASE_SECONDS, leads
from tests.controlplane.pool import Pool, pod


def test_changes_are_announced_to_those_who_cannot_see_them(sandbox: Sandbox, pool: Pool) -> None:
    """A burst of changes becomes one announcement, of at most three of them: so nobody else's are among them here."""
    pool.node(devices=1)
    with chromium() as browser:
        page = browser.new_page()
        page.goto(sandbox.ui_url)
        expect(page.locator("#link")).to_have_text("Live")
        group = pool.group("announced")
        pool.apply(pod("runs", group))
        expect(page.locator("[aria-live=polite]")).to_contain_text(group)
        page.close()


def test_the_page_comes_back_with_the_replica(sandbox: Sandbox) -> None:
    """It says since when it shows the past, and needs nobody to reload it."""
    with chromium() as browser:
        page = browser.new_page()
        page.goto(sandbox.ui_url)
        link = page.locator("#link")
        expect(link).to_have_text("Live")
        with unsupervised(sandbox):  # so that it stays away until the page was looked at
            os.kill(sandbox.pid("deviceshare"), signal.SIGKILL)
            expect(link).to_have_text("Disconnected")
            expect(page.get_by_text("Connection lost: this page shows the state at")).to_be_visible()
        expect(link).to_have_text("Live")
        expect(page.get_by_text("Connection lost")).to_be_hidden()
        page.close()
    deadline = time.monotonic() + LEASE_SECONDS
    while not leads(sandbox):  # the tests that follow need a leader
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def unsupervised(sandbox: Sandbox) -> Iterator[None]:
    """Within the block nobody starts again what is killed."""
    state = sandbox.layout.state()
    assert state is not None
    os.kill(state.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(state.pid, signal.SIGCONT)
