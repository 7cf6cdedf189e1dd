"""The page in a browser, opened for a test, and states that no real cluster should have."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from deviceshare_sandbox import Sandbox
from tests.controlplane.browser import PATIENCE_MS, WatchedPage, chromium
from tests.controlplane.pool import GPU, Json

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests; each opens pages of its own."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, sandbox: Sandbox) -> Iterator[Open]:
    """`open_page(state=…, use=…, address="#…", **how)`: the page, with the cluster's state and use or given ones.

    No page may have loaded anything from elsewhere, nor have failed, nor have met its own Content-Security-Policy.
    """
    contexts, watched = [], []

    def open_it(state: Json | None = None, use: Json | None = None, address: str = "", **how: Any) -> Page:
        contexts.append(context := browser.new_context(**how))
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watched.append(WatchedPage(page))
        if state is not None:
            page.route("**/ui/state", lambda route: route.fulfill(json=state))
        if use is not None:
            page.route("**/ui/use", lambda route: route.fulfill(json=use))
        page.goto(sandbox.ui_url + address)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        return page

    yield open_it
    for context in contexts:
        context.close()
    for each in watched:
        assert (each.errors, each.asked) == ([], {sandbox.ui_url.removesuffix("/ui")})


def devices(page: Page, node: str) -> Locator:
    """The tiles of a node, as a screen reader finds them."""
    return page.get_by_role("list", name=f"{GPU} of {node}").get_by_role("listitem")


def group_button(page: Page, group: str) -> Locator:
    return page.get_by_role("list", name="Groups").get_by_role("button", name=re.compile(rf"^{re.escape(group)} "))


def a_state(*nodes: Json, groups: tuple[Json, ...] = (), waiting: tuple[Json, ...] = ()) -> Json:
    """What `/ui/state` could say."""
    replica = {"instance": "replica", "version": "1", "leading": True, "faults": {}}
    return {
        "replica": replica,
        "labels": {GPU: "NVIDIA GPU"},
        "cluster": {"nodes": nodes, "groups": groups, "waiting": waiting, "total": []},
    }


def a_node(name: str, *tiles: Json) -> Json:
    return {"name": name, "devices": [{"resource": GPU, "index": at, **tile} for at, tile in enumerate(tiles)]}


def a_group(name: str, **more: Any) -> Json:
    return {"name": name, "phase": "Bound", "wants": {GPU: 1}, **more}


FREE: Json = {"use": "free"}


def held(group: str, **more: Any) -> Json:
    return {"use": "held", "group": group, **more}


def a_use(*nodes: Json, agents: int = 1) -> Json:
    """What `/ui/use` could say."""
    return {"seconds": 60.0, "agents": agents, "nodes": nodes}
