"""What the page in a real browser draws of a state: it must stay text, and everybody can read it."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from deviceshare.timestamps import timestamp
from tests.controlplane.page import (
    FREE,
    Open,
    a_group,
    a_node,
    a_state,
    a_use,
    browser,
    devices,
    group_button,
    held,
    open_page,
)
from tests.controlplane.pool import GPU, Pool

__all__ = ["browser", "open_page"]  # fixtures


def test_no_name_can_turn_into_markup(open_page: Open) -> None:
    """Whoever may name a thing in the cluster would else act in the name of whoever looks."""
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    node = a_node(
        evil, held(evil, health="unhealthy", unhealthy=evil, model=evil), {"use": "plugin", "pod": f"ns/{evil}"}
    )
    why = {"kind": evil, "text": evil, "cure": evil, "details": [evil]}
    node |= {"obstacle": evil, "reasons": [why]}
    waiting = {"pod": evil, "group": evil, "since": evil, "reason": evil, "why": why}
    player = {"pod": evil, "since": evil, "priority": evil, "gone": True, "lostSince": evil}
    turn = {"resource": evil, "index": evil, "reported": evil, "holder": player, "waiting": [player], "waitingCount": 1}
    node["turns"] = [turn]
    group = a_group(evil, phase=evil, node=evil, pods=[evil], message=evil, why=why, ailment=evil, devices={GPU: evil})
    group["turn"] = {**turn, "group": evil}
    state = a_state(node, groups=(group,), waiting=(waiting,))
    state["replica"] |= {"instance": evil, "faults": {evil: evil}}
    group["idleSince"] = evil
    used = {"resource": GPU, "index": 0, "uuid": evil, "utilization": evil, "memoryTotalMib": 1, "hour": [evil, 1, 2]}
    use = {"seconds": 60, "agents": evil, "nodes": [{"node": evil, "hour": [1, 2, evil], "devices": [used]}]}
    page = open_page(state, use)

    expect(page.get_by_role("heading", level=3)).to_have_text(evil)
    expect(page.locator("#replica")).to_contain_text(evil)
    page.locator("#groups button").click()
    expect(page.locator(".more")).to_contain_text(evil)
    assert page.locator("img, script:not([src='ui/app.js'])").count() == 0
    expect(page).to_have_title("deviceshare")


def test_the_parts_of_a_device_are_drawn_and_named(open_page: Open) -> None:
    """A segment for each pod, as wide as its part, and the rest; a waiting pod says what it asks for and why."""
    parts = [{"pod": "ns/a", "asked": "8 GiB", "percent": 50.0}, {"pod": "ns/b", "asked": "25%", "percent": 25.0}]
    tile = {"use": "shared", "memoryMib": 16384, "allocatedMib": 12288, "allocatedPercent": 75.0, "parts": parts}
    many = {
        "use": "shared",
        "allocatedPercent": 60.0,
        "parts": [{"pod": f"ns/p{n}", "percent": 1.0} for n in range(60)],
    }
    reserved = {**FREE, "serves": "shares"}
    why = {"kind": "Waiting", "text": "waiting for 8 GiB of a GPU", "details": ["n1: at most 4 of 16 GiB of one free"]}
    waiting = {"pod": "ns/w", "group": "", "share": "8 GiB of a GPU", "since": "", "reason": "why", "why": why}
    page = open_page(a_state(a_node("n1", tile, many, reserved), waiting=(waiting,)))
    shared, crowded, free = devices(page, "n1").all()
    expect(shared).to_contain_text(
        "NVIDIA GPU 0: 2 pods with parts of it, 12/16 GiB allocated; ns/a has 8 GiB; ns/b has 25%; 16 GiB"
    )
    expect(crowded).to_contain_text("60 pods with parts of it, 60% allocated")
    expect(crowded).to_contain_text("and 48 more pods")
    expect(free).to_contain_text("free for shares")
    widths = shared.locator(".parts i").evaluate_all(
        "pieces => pieces.map((each) => each.getBoundingClientRect().width)"
    )
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.1) and widths[1] == pytest.approx(widths[2], rel=0.1)
    open_end = crowded.locator(".parts .open").evaluate("piece => piece.getBoundingClientRect().width")
    whole = crowded.locator(".parts").evaluate("bar => bar.getBoundingClientRect().width")
    assert open_end == pytest.approx(0.4 * whole, rel=0.1)
    entry = page.get_by_role("list", name="Waiting pods").get_by_role("listitem").first
    expect(entry).to_contain_text("8 GiB of a GPU")
    expect(entry).to_contain_text("n1: at most 4 of 16 GiB of one free")
    page.get_by_role("searchbox").fill("ns/b")
    expect(devices(page, "n1")).to_have_count(3)
    page.get_by_role("searchbox").fill("ns/nobody")
    expect(devices(page, "n1")).to_have_count(0)


def test_waiting_pods_of_one_workload_are_named_by_it_and_found_by_it(open_page: Open) -> None:
    """Not by what a reason says of others."""
    why = {
        "kind": "Waiting",
        "text": "waiting for 2 nvidia.com/gpu, which no shared node has free",
        "details": ["n1: a"],
    }
    pod = {"group": "team", "since": "2026-01-01T00:00:00Z", "reason": f"{why['text']}; n1: a", "why": why}
    made = [{**pod, "pod": f"ns/infer-{each}", "workload": "Deployment ns/infer"} for each in range(3)]
    page = open_page(a_state(a_node("n1"), groups=(a_group("team"),), waiting=tuple(made)))
    entries = page.get_by_role("list", name="Waiting pods").get_by_role("listitem")
    expect(entries.first).to_contain_text("3 pods of Deployment ns/infer")
    expect(page.get_by_text("ns/infer-2")).to_be_hidden()
    page.get_by_text("3 pods of Deployment ns/infer").click()
    expect(page.get_by_text("ns/infer-2")).to_be_visible()
    page.get_by_role("searchbox").fill("deployment ns/infer")
    expect(entries.first).to_contain_text("3 pods of Deployment ns/infer")
    page.get_by_role("searchbox").fill("no shared node")
    expect(page.get_by_text("3 pods of Deployment ns/infer")).to_have_count(0)


def test_four_groups_have_four_hues(open_page: Open, pool: Pool) -> None:
    """At least 60 degrees apart, whatever their names; a new one leaves those of the others."""
    names = ["team-1", "team-2", "team-3", "team-4"]
    state = a_state(a_node("n1", *map(held, names)), groups=tuple(map(a_group, names)))
    page = open_page(state)
    hue = "tiles => Object.fromEntries(tiles.map(each => [each.dataset.group, +each.style.getPropertyValue('--hue')]))"
    hues = page.locator("#nodes .device").evaluate_all(hue)
    gaps = [abs(hues[one] - hues[two]) for one in names for two in names if one != two]
    assert min(min(gap, 360 - gap) for gap in gaps) >= 60
    state["cluster"]["nodes"][0]["devices"].append({"resource": GPU, "index": 4, **held("a-fifth")})
    pool.node()  # the page looks again when anything changes
    expect(devices(page, "n1")).to_have_count(5)
    now = page.locator("#nodes .device").evaluate_all(hue)
    assert {name: now[name] for name in names} == hues


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(open_page: Open, scheme: str, width: int) -> None:
    """The rules of https://github.com/dequelabs/axe-core, on a page that has everything, its panel open."""
    why = {"kind": "Waiting", "text": "none free", "details": ["n1: none"]}
    pod = {"group": "", "share": "8 GiB", "since": "2026-01-01T00:00:00Z", "reason": "none free", "why": why}
    waiting = tuple({**pod, "pod": f"ns/w-{each}", "workload": "Deployment ns/w"} for each in range(3))
    parts = [{"pod": f"ns/p-{each}", "asked": "2 GiB", "percent": 12.5, "limits": "counted"} for each in range(5)]
    tiles = [
        {"use": "shared", "memoryMib": 16384, "allocatedMib": 10240, "parts": parts},
        held("a", health="unhealthy", unhealthy="Xid 79"),
        {"use": "unusable", "health": "lost", "lost": True},
        {"use": "former", "group": "a"},
        {"use": "plugin", "pod": "ns/jupyter"},
        {"use": "withheld", "withheld": "by the node's annotation"},
        {"use": "releasing", "group": "gone"},
        FREE,
    ]
    node = a_node("n1", *tiles) | {"reasons": [why], "obstacle": "none free"}
    groups = (a_group("a", pods=["ns/a"], idleSince="2026-01-01T00:00:00Z"), a_group("b", phase="Pending", why=why))
    state = a_state(node, groups=groups, waiting=waiting)
    state["cluster"]["total"] = [{"resource": GPU, "total": 8, "allocated": 3, "free": 1, "unhealthy": 2, "shared": 1}]
    page = open_page(state, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce")
    devices(page, "n1").first.click()
    expect(page.get_by_role("region", name="NVIDIA GPU 0 of n1")).to_be_visible()
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []


def test_turns_are_told_with_their_group_or_their_node(open_page: Open) -> None:
    """The turn's holder and the waiting programs, with marks on what is lost, deleted or outdated."""
    now, long_ago = datetime.now(UTC), "2026-01-01T00:00:00Z"
    fresh, then = (timestamp(now - timedelta(minutes=minutes)) for minutes in (1, 14))
    waiting = [{"pod": "ns/b", "since": then, "priority": 10}, {"pod": "ns/c", "gone": True, "since": "no time"}]
    team = {"group": "team", "reported": fresh, "holder": {"pod": "ns/a", "since": then}, "waiting": waiting}
    lost = {"pod": "ns/x", "since": then, "lostSince": fresh, "asked": True}
    shared = {"resource": GPU, "index": 1, "reported": long_ago, "holder": lost, "waitingCount": 1}
    shared["waiting"] = [{"pod": "ns/y", "since": then}]
    over = [{"resource": GPU, "index": 1, "pod": "ns/x", "container": "main", "usedMib": 20480, "limitMib": 8192}]
    none = {"resource": GPU, "index": 2, "reported": fresh, "waiting": [], "waitingCount": 0}
    node = a_node("n1", held("team"), {"use": "shared", "overuses": over}, FREE)
    node |= {"turns": [{**team, "waitingCount": 5}, shared, none], "moreTurns": 1}
    page = open_page(a_state(node, groups=(a_group("team", turn={**team, "waitingCount": 5}), a_group("other"))))

    [line] = page.locator(".group .turn").all()
    expect(line).to_have_text("ns/a has the turn for 14 min · 5 wait for it", use_inner_text=True)
    group_button(page, "team").click()
    queue = page.get_by_role("list", name="Waiting for the turn of team").get_by_role("listitem")
    expect(queue).to_have_text(
        ["ns/b waits for 14 min, priority 10", re.compile("ns/c .no such pod. waits"), "and 3 more"]
    )
    on_node = page.get_by_role("list", name="Turns on n1")
    expect(on_node).to_contain_text(
        "NVIDIA GPU 1:ns/x has the turn for 14 min, was asked to end, lost contact for 1 min"
    )
    expect(on_node.locator(".stale").first).to_be_visible()
    expect(on_node).to_contain_text("no turn is given: a former agent's may not have ended")
    expect(on_node).to_contain_text("and 1 more queue of turns")
    expect(page.get_by_text("ns/y waits")).to_be_hidden()
    on_node.locator("summary").click()
    expect(page.get_by_text("ns/y waits")).to_be_visible()
    tile = devices(page, "n1").nth(1)
    expect(tile).to_contain_text("ns/x, container main, uses 20 GiB, its share is 8 GiB")
    assert tile.evaluate("tile => getComputedStyle(tile, '::after').content") == '"+"'
    for word in ("overuse", "ns/y", "turn"):
        page.get_by_role("searchbox").fill(word)
        expect(devices(page, "n1")).to_have_count(3)
    page.get_by_role("searchbox").fill("ns/b")
    expect(page.locator("#groups button")).to_have_count(1)


def test_every_trouble_is_marked_by_more_than_colour(open_page: Open) -> None:
    """With a sign on the tile, and in words."""
    trespass = [{"resource": GPU, "index": 2, "process": "miner"}]
    tiles = [
        held("a", health="unhealthy", unhealthy="Xid 79", since="2026-01-01T00:00:00Z"),
        {"use": "unusable", "health": "lost", "lost": True},
        held("a", trespasses=trespass),
        {"use": "former", "group": "a"},
        {"use": "plugin", "pod": "ns/jupyter"},
        {"use": "releasing", "group": "gone"},
        {"use": "left"},
    ]
    page = open_page(a_state(a_node("n1", *tiles)))
    shown = devices(page, "n1")

    signs = shown.evaluate_all("tiles => tiles.map(tile => getComputedStyle(tile, '::after').content)")
    assert signs == ['"!"', '"×"', '"?"', "none", "none", "none", "none"]
    words = ["unhealthy: Xid 79, since 2026", "lost:", "process miner", "was a", "plugin: jupyter", "gone (releasing)"]
    words.append("plugin's")
    for tile, said in zip(shown.all(), words, strict=True):
        expect(tile).to_contain_text(said)


CONTRASTS = """() => {
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...brush.getImageData(0, 0, 1, 1).data].map((part) => {
      const each = part / 255;
      return each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll("#nodes .device")].map((tile) => {
    const style = getComputedStyle(tile);
    const [low, high] = [light(style.color), light(style.backgroundColor)].sort((a, b) => a - b);
    return [`${tile.style.getPropertyValue("--hue")} ${tile.dataset.tone}`, (high + 0.05) / (low + 0.05)];
  });
}"""
"""The WCAG contrast of each tile's text: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_that_a_group_may_have_can_be_read(open_page: Open, scheme: str) -> None:
    """By people with weak eyes, too: WCAG AA asks for 4.5."""
    page = open_page(a_state(a_node("n1", *(held(f"group-{number}") for number in range(500)))), color_scheme=scheme)
    expect(devices(page, "n1")).to_have_count(500)
    found = dict(page.evaluate(CONTRASTS))

    assert len(found) == 36, "every hue in every tone"
    assert {colour: ratio for colour, ratio in found.items() if ratio < 4.5} == {}


def test_the_scheme_follows_the_system(open_page: Open) -> None:
    """Nobody is blinded at night."""
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(a_state(), color_scheme=scheme).evaluate(background) for scheme in ("light", "dark"))
    assert light != dark


def test_nothing_moves_for_who_asked_for_calm(open_page: Open) -> None:
    """Not even the light that says Live."""
    moves = "getComputedStyle(document.getElementById('link'), '::before').animationName"
    assert open_page(a_state(), reduced_motion="reduce").evaluate(moves) == "none"
    assert open_page(a_state(), reduced_motion="no-preference").evaluate(moves) != "none"


def test_a_phone_is_wide_enough(open_page: Open) -> None:
    """Nothing sticks out at 360 pixels, however long the names."""
    long = "a-group-with-quite-a-long-name-that-has-sixty-three-characters-x"
    state = a_state(a_node(f"{long}.example", *[held(long)] * 8), groups=(a_group(long, pods=[f"ns/{long}"]),))
    page = open_page(state, viewport={"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_use_of_devices_is_drawn_and_told(open_page: Open) -> None:
    """On each tile and for the node, with the last hour; a device is found by its UUID, whatever its number."""
    tiles = (held("a", uuid="GPU-a"), {**FREE, "uuid": "GPU-b"}, {"use": "unusable", "health": "lost", "uuid": "GPU-c"})
    memory = {"memoryUsedMib": 31 << 10, "memoryTotalMib": 80 << 10}
    used = {"resource": GPU, "index": 1, "uuid": "GPU-a", "utilization": 73, "hour": [0, -1, 50, 100], **memory}
    other = {"resource": GPU, "index": 2, "uuid": "GPU-b", "memoryUsedMib": 1 << 10, "memoryTotalMib": 80 << 10}
    use = a_use({"node": "n1", "hour": [10, 20], "devices": [used, other]}, agents=3)
    page = open_page(a_state(a_node("n1", *tiles), a_node("n2", FREE)), use)
    first, second, lost = devices(page, "n1").all()

    expect(first).to_contain_text("busy 73%, 31 of 80 GiB of memory in use")
    assert first.locator(".spark path").get_attribute("d") == "M56 19.0M58 10.0L59 1.0"
    expect(second).to_contain_text("1 of 80 GiB of memory in use")
    expect(second.locator(".spark")).to_have_count(0)
    expect(lost).not_to_contain_text("GiB")
    expect(page.locator(".node-use").first).to_have_text("73% busy · 32/160 GiB")
    expect(page.locator(".node-use").nth(1)).to_be_hidden()
    expect(page.get_by_text("1 of 3 agents answered")).to_be_visible()


def test_an_idle_group_is_marked(open_page: Open) -> None:
    """On its devices and in the list, and found by that word."""
    groups = (a_group("a", node="n1", idleSince="2026-01-01T00:00:00Z"), a_group("b", node="n2", pods=["ns/p"]))
    page = open_page(a_state(a_node("n1", held("a")), a_node("n2", held("b")), groups=groups))
    mark = "tile => getComputedStyle(tile.querySelector('.index'), '::after').content"
    assert devices(page, "n1").first.evaluate(mark) == '" · idle"'
    assert devices(page, "n2").first.evaluate(mark) == "none"
    expect(page.locator(".group .idle-since")).to_contain_text("idle for")
    page.get_by_role("searchbox").fill("idle")
    expect(page.locator("#nodes > li h3")).to_have_text(["n1"])
    expect(page.locator("#groups .name")).to_have_text(["a"])
