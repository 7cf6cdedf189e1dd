"""The page in a real browser: on a real cluster, by keyboard, and what is looked for on it."""

import json
import re

from playwright.sync_api import expect

from tests.controlplane.page import (
    FREE,
    Open,
    a_group,
    a_node,
    a_state,
    browser,
    devices,
    group_button,
    held,
    open_page,
)
from tests.controlplane.pool import GPU, Pool, pod

__all__ = ["browser", "open_page"]  # fixtures

# On the cluster.


def test_the_page_shows_who_holds_which_device(pool: Pool, open_page: Open) -> None:
    """In words, too, and with the pods that share them."""
    node, group = pool.node(), pool.group()
    pool.apply(pod("one", group), pod("two", group))
    pool.running("one", "two")
    page = open_page()

    expect(devices(page, node)).to_have_count(4)
    for index in (0, 1):
        expect(devices(page, node).nth(index)).to_contain_text(f"GPU {index}: held by group {group}")
    expect(devices(page, node).nth(2)).to_contain_text("NVIDIA GPU 2: free")
    group_button(page, group).click()
    expect(page.get_by_role("list", name=f"Pods of {group}")).to_contain_text(f"{pool.name}/one")
    expect(page.locator(".replica")).to_contain_text("leader")
    expect(page.locator(".replica")).to_contain_text("caches synced")


def test_the_page_follows_the_cluster_by_itself(pool: Pool, open_page: Open) -> None:
    """From waiting to held to free, without a hand on the browser."""
    node, big = pool.node(devices=2), pool.group("big", count=3)
    page = open_page()
    expect(devices(page, node).first).to_contain_text("free")

    pool.apply(pod("waits", big))
    waiting = page.get_by_role("list", name="Waiting pods").get_by_role("listitem").filter(has_text=big).first
    expect(waiting).to_contain_text(f"waiting for 3 {GPU}")
    expect(waiting).to_contain_text(f"{pool.name}/waits")

    group = pool.group("fits")
    pool.apply(pod("runs", group))
    expect(devices(page, node).first).to_contain_text(f"held by group {group}")

    pool.kubectl("delete", "pod", "runs", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group).returncode == 0)
    expect(devices(page, node).first).to_contain_text("free")
    expect(group_button(page, group)).to_have_count(0)


# By keyboard.


def test_a_group_is_chosen_by_keyboard_and_its_devices_stand_out(open_page: Open) -> None:
    """One stop for the tab key, arrows inside, Enter to choose, Escape to leave."""
    node = a_node("n1", held("a"), held("b"), FREE)
    page = open_page(a_state(node, groups=(a_group("a"), a_group("b"), a_group("c"))))
    page.get_by_role("searchbox", name="Filter").focus()
    for _ in ("namespace", "order", "groups"):
        page.keyboard.press("Tab")
    expect(group_button(page, "a")).to_be_focused()

    page.keyboard.press("ArrowDown")
    expect(group_button(page, "b")).to_be_focused()
    page.keyboard.press("Enter")
    expect(group_button(page, "b")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".device.chosen")).to_have_text(["1bNVIDIA GPU 1: held by group b"])

    page.keyboard.press("End")
    expect(group_button(page, "c")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".device.chosen")).to_have_count(0)
    expect(group_button(page, "b")).to_have_attribute("aria-pressed", "false")


def test_the_focus_can_be_seen(open_page: Open) -> None:
    """On every stop of the tab key."""
    page = open_page(a_state(a_node("n1", held("a")), groups=(a_group("a"),)))
    stops = []
    for _ in range(5):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", stops
    assert stops[1:4] == ["filter", "namespace", "order"]


def test_a_screen_reader_finds_its_way(open_page: Open) -> None:
    """Landmarks, headings and lists, each with a name."""
    why = {"kind": "Waiting", "text": "none free"}
    waiting = {"pod": "ns/p", "group": "b", "since": "2026-01-01T00:00:00Z", "reason": "none free", "why": why}
    page = open_page(a_state(a_node("n1", held("a")), groups=(a_group("a"),), waiting=(waiting,)))
    expect(page.locator("body")).to_match_aria_snapshot(
        """
        - banner:
          - heading "deviceshare" [level=1]
        - main:
          - region "The cluster in numbers"
          - search "What is shown"
          - region "Groups and waiting pods":
            - region "Waiting pods"
            - region "Groups"
          - region "Nodes":
            - list "Nodes":
              - listitem:
                - heading "n1" [level=3]
                - list "nvidia.com/gpu of n1":
                  - listitem:
                    - 'button "NVIDIA GPU 0: held by group a"'
        """
    )


def test_a_tile_keeps_the_focus_while_its_node_changes(open_page: Open, pool: Pool) -> None:
    """The page is drawn anew at each change of the cluster."""
    state = a_state(a_node("n1", FREE, FREE))
    page = open_page(state)
    devices(page, "n1").nth(1).get_by_role("button").focus()
    state["cluster"]["nodes"][0]["devices"][0] |= held("a")
    pool.node()  # the page looks again when anything changes
    expect(devices(page, "n1").first).to_contain_text("held by group a")
    expect(devices(page, "n1").nth(1).get_by_role("button")).to_be_focused()


def test_a_devices_panel_says_who_has_which_part(open_page: Open) -> None:
    """By mouse, finger and keyboard: a hover title is nothing for two of them."""
    parts = [
        {"pod": "ns/small", "asked": "25%", "percent": 25.0},
        {"pod": "other/large", "asked": "8 GiB", "percent": 50.0, "limits": "counted"},
    ]
    over = [{"resource": GPU, "index": 0, "pod": "ns/small", "container": "", "usedMib": 8192, "limitMib": 4096}]
    shared = {
        "use": "shared",
        "model": "T4",
        "memoryMib": 16384,
        "allocatedMib": 12288,
        "parts": parts,
        "overuses": over,
    }
    state = a_state(a_node("n1", shared, held("a")), groups=(a_group("a"),))
    page = open_page(state)
    panel = page.get_by_role("region", name="NVIDIA GPU 0 of n1")
    devices(page, "n1").first.click()
    expect(panel.get_by_role("list", name="Who has which part").get_by_role("listitem")).to_have_text(
        ["other/large8 GiB, counted", "ns/small25%ns/small uses 8 GiB, its share is 4 GiB"]
    )
    expect(panel).to_contain_text("T4, 16 GiB")
    devices(page, "n1").first.click()
    expect(panel).to_be_hidden()

    page.locator("#nodes-head").focus()
    for _ in ("the node's name", "its tiles"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("heading", name="NVIDIA GPU 0 of n1")).to_be_focused()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(devices(page, "n1").first.get_by_role("button")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="NVIDIA GPU 1 of n1")).to_contain_text("held by group a")
    expect(group_button(page, "a")).to_have_attribute("aria-pressed", "true")

    touched = open_page(state, has_touch=True, viewport={"width": 390, "height": 800})
    devices(touched, "n1").first.tap()
    expect(touched.get_by_role("region", name="NVIDIA GPU 0 of n1")).to_be_in_viewport(ratio=0.9)
    touched.get_by_role("button", name="Close").tap()
    expect(touched.get_by_role("region", name="NVIDIA GPU 0 of n1")).to_be_hidden()


# What is looked for, in a large cluster, too.


def test_what_the_filter_finds_is_marked(open_page: Open) -> None:
    """Tiles and names; a reason that speaks of others is none."""
    why = {"kind": "Cordoned", "text": "cordoned; group wanted is elsewhere"}
    mute = a_node("n2", FREE) | {"reasons": [why], "obstacle": "cordoned"}
    nodes = (a_node("n1", held("wanted"), held("other")), mute)
    page = open_page(a_state(*nodes, groups=(a_group("wanted"), a_group("other", message="as wanted"))))
    page.get_by_role("searchbox").fill("wanted")
    expect(page.get_by_role("heading", level=3)).to_have_text(["n1"])
    expect(page.locator(".device.hit")).to_have_text([re.compile("held by group wanted")])
    expect(page.locator("#groups button")).to_have_count(1)
    assert page.evaluate("[...CSS.highlights.get('hit')].map(String)") == ["wanted"]


def test_namespaces_are_listed_with_what_they_have(open_page: Open) -> None:
    """In the colour of their parts; one that is chosen leaves only what is its own."""
    parts = [{"pod": f"{name}/p", "asked": "4 GiB", "percent": 25.0} for name in ("left", "right")]
    shared = {"use": "shared", "memoryMib": 16384, "parts": parts}
    why = {"kind": "Waiting", "text": "none free"}
    waiting = {"pod": "right/w", "group": "", "share": "8 GiB", "since": "", "reason": "none free", "why": why}
    nodes = (a_node("n1", shared), a_node("n2", held("a"), held("a")))
    page = open_page(a_state(*nodes, groups=(a_group("a", pods=["left/a-0"]),), waiting=(waiting,)))
    listed = page.get_by_role("list", name="Namespaces")
    expect(listed.get_by_role("listitem")).to_have_text(
        ["left2 devices · 4 GiB in shares · 2 pods", "right4 GiB in shares · 1 pod · 1 waiting"]
    )
    hue = "each => each.style.getPropertyValue('--hue') + each.dataset.tone"
    colours = listed.locator(".swatch").evaluate_all(f"all => all.map({hue})")
    assert page.locator(".parts i[data-tone]:not(.key i)").evaluate_all(f"all => all.map({hue})") == colours
    listed.get_by_role("button", name="right").click()
    expect(page.get_by_role("heading", level=3)).to_have_text(["n1"])
    expect(page.locator("#namespace")).to_have_value("right")
    listed.get_by_role("button", name="right").click()
    expect(page.get_by_role("heading", level=3)).to_have_text(["n1", "n2"])


def test_one_namespace_can_be_looked_at(open_page: Open) -> None:
    """What its pods have or wait for, and nothing else."""
    why = {"kind": "Waiting", "text": "none free"}
    waiting = {"pod": "team/w", "group": "c", "since": "", "reason": "none free", "why": why}
    groups = (a_group("a", pods=["team/p"]), a_group("b", pods=["other/p"]), a_group("c"))
    shared = {"use": "shared", "parts": [{"pod": "team/s", "percent": 50.0}]}
    nodes = (a_node("n1", held("a")), a_node("n2", held("b")), a_node("n3", shared), a_node("n4", FREE))
    page = open_page(a_state(*nodes, groups=groups, waiting=(waiting,)))
    choice = page.get_by_role("combobox", name="Namespace")
    expect(choice.locator("option")).to_have_text(["all", "other", "team"])
    choice.select_option("team")
    expect(page.locator("#nodes > li h3")).to_have_text(["n1", "n3"])
    expect(page.locator("#groups .name")).to_have_text(["a", "c"])
    choice.select_option("other")
    expect(page.locator("#nodes > li h3")).to_have_text(["n2"])
    expect(page.locator("#waiting > li")).to_have_count(0)


def test_an_address_leads_to_a_group_or_a_node(open_page: Open) -> None:
    """For a colleague, after a reload, and back again; one that leads nowhere says so."""
    nodes = [a_node(f"n{number}", held(f"g{number}")) for number in range(40)]
    state = a_state(*nodes, groups=tuple(a_group(f"g{number}", node=f"n{number}") for number in range(40)))
    page = open_page(state, address="#node/n35")
    expect(page.locator(".node.target h3")).to_have_text("n35")
    expect(page.locator(".node.target")).to_be_in_viewport()

    group_button(page, "g2").click()
    assert page.url.endswith("/ui#group/g2")
    page.reload()
    expect(group_button(page, "g2")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".device.chosen")).to_have_count(1)
    page.go_back()
    expect(page.locator(".node.target h3")).to_have_text("n35")
    page.get_by_role("link", name="n3", exact=True).first.click()
    expect(page.locator(".node.target h3")).to_have_text("n3")
    page.keyboard.press("Escape")
    expect(page.locator(".node.target")).to_have_count(0)
    assert "#" not in page.url
    lost = open_page(state, address="#group/%3Cb%3Egone")
    expect(lost.get_by_text("There is no group <b>gone.")).to_be_visible()


def test_three_hundred_nodes_stay_usable(open_page: Open) -> None:
    """Found by name, by group and by state; what is shown again in large is what is left."""
    groups = [f"group-{number}" for number in range(300)]
    nodes = [a_node(f"node-{number}", *[held(groups[number])] * 4, *[FREE] * 4) for number in range(300)]
    nodes[41]["devices"][7] |= {"health": "unhealthy", "unhealthy": "Xid 48"}
    page = open_page(json.loads(json.dumps(a_state(*nodes, groups=tuple(map(a_group, groups))))))
    shown, picture, filters = page.locator("#nodes > li h3"), page.locator("#nodes"), page.get_by_role("searchbox")

    expect(shown).to_have_count(300)
    expect(picture).to_have_attribute("data-density", "compact")
    assert shown.nth(2).text_content() == "node-2", "by number, not by letter"
    filters.fill("unhealthy")
    expect(shown).to_have_text(["node-41"])
    expect(picture).to_have_attribute("data-density", "large")
    expect(page.locator("#shown")).to_contain_text("1 node")
    filters.fill("group-299")
    expect(shown).to_have_text(["node-299"])
    filters.fill("")
    page.get_by_role("combobox", name="Nodes by").select_option("trouble first")
    expect(shown.first).to_have_text("node-41")
