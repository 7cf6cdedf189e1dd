"""A headless Chromium, Debian's own: installed where it is missing, since a test that can't look must not pass."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

from deviceshare_sandbox import debian
from deviceshare_sandbox.reports import Progress

PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, for the length of a block in which no event loop of ours runs: it brings its own."""
    if shutil.which("chromium") is None:
        debian.install(["chromium"], Progress())
    # Chromium's sandbox refuses root; what it opens here is ours.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """What went wrong on a page, and whom it asked for anything."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.asked: set[str] = set()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self.asked.add("/".join(request.url.split("/")[:3])))
