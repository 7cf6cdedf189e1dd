// The page's state and the chosen group, and the redrawing of the page when either changes.

import { updateAges } from "./ages.js";
import { assignColours } from "./colour.js";
import { closeDevice, drawDevice, focusDevice, toggleDevice } from "./device.js";
import { makeStop, onArrow, plural, text } from "./dom.js";
import { drawGroups, groupText, markGroups } from "./groups.js";
import { markHits } from "./hits.js";
import { follow } from "./live.js";
import { announceChanges } from "./news.js";
import { drawNamespaces, namespacesOf, within } from "./namespaces.js";
import { drawNodes, nodeText, tileButtons } from "./nodes.js";
import { readRoute, writeRoute } from "./route.js";
import { drawTotals } from "./totals.js";
import { followUse, markUse } from "./use.js";
import { drawWaiting, waitingText } from "./waiting.js";
import { setLabels } from "./words.js";

const find = (id) => document.getElementById(id);
const [totals, nodes, groups, waiting] = ["totals", "nodes", "groups", "waiting"].map(find);
const [namespaces, panel] = ["namespaces", "device"].map(find);
const [filter, namespace, order] = ["filter", "namespace", "order"].map(find);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// How long after its load the page may still move to where its address leads.
const SETTLING_MS = 6000;

let state = null;
let route = readRoute();
let toReveal = Boolean(route.kind);
let asOf = "";

function draw() {
  if (!state) return;
  const { cluster } = state;
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const passes = (toText) => (item) => !words.length || words.every((word) => toText(item).includes(word));
  const inside = within(namespace.value, cluster);
  const idle = idleGroups();
  const isIdle = (node) => (node.devices ?? []).some((device) => idle.has(device.group));
  const shown = {
    nodes: cluster.nodes.filter(inside.node).filter(passes((node) => `${nodeText(node)}${isIdle(node) ? " idle" : ""}`)),
    groups: cluster.groups.filter(inside.group).filter(passes(groupText)),
    waiting: cluster.waiting.filter(inside.waiting).filter(passes(waitingText)),
  };
  const spaces = namespacesOf(cluster);
  assignColours([...cluster.groups.map((group) => group.name), ...spaces.map(({ name }) => `${name}/`)]);
  const focused = focusedTile();
  drawNodes(nodes, shown.nodes, order.value);
  const tiles = tileButtons(nodes);
  if (focused) tileOf(focused)?.focus({ preventScroll: true });
  makeStop(tiles, tiles.find((tile) => tile === document.activeElement) ?? tiles[0]);
  drawDevice(panel, cluster.nodes);
  drawNamespaces(namespaces, namespace, spaces);
  text("namespaces-count", String(spaces.length));
  find("namespaces-section").hidden = !spaces.length;
  drawGroups(groups, shown.groups);
  drawWaiting(waiting, shown.waiting);
  for (const kind of ["nodes", "groups", "waiting"]) {
    const all = cluster[kind].length;
    text(`${kind}-count`, shown[kind].length === all ? String(all) : `${shown[kind].length} of ${all}`);
  }
  const narrowed = words.length || namespace.value;
  text("shown", narrowed ? `${plural(shown.nodes.length, "node")}, ${plural(shown.groups.length, "group")}` : "");
  markHits([nodes, groups, waiting], words);
  find("waiting-section").hidden = !cluster.waiting.length;
  find("groups-hint").hidden = !shown.groups.length;
  mark();
}

// The tile that has the focus, which a redrawn card would lose.
function focusedTile() {
  const tile = document.activeElement?.closest(".device");
  return tile && nodes.contains(tile) ? { node: tile.closest(".node").dataset.key, key: tile.dataset.key } : null;
}

function tileOf({ node, key }) {
  const tile = [...nodes.querySelectorAll(".device")].find((each) => each.dataset.key === key && each.closest(".node").dataset.key === node);
  return tile?.querySelector("button");
}

function leaveDevice() {
  const before = closeDevice(panel);
  if (before) tileOf(before)?.focus({ preventScroll: true });
}

function idleGroups() {
  return new Set(state.cluster.groups.filter((group) => group.idleSince).map((group) => group.name));
}

function mark() {
  const there = { group: state.cluster.groups, node: state.cluster.nodes }[route.kind] ?? [];
  const found = there.some((each) => each.name === route.name);
  const chosen = found && route.kind === "group" ? route.name : "";
  const idle = idleGroups();
  nodes.toggleAttribute("data-choosing", Boolean(chosen));
  for (const each of nodes.querySelectorAll("[data-group]")) {
    each.classList.toggle("chosen", Boolean(chosen) && each.dataset.group === chosen);
    each.classList.toggle("idle", each.dataset.use !== "former" && idle.has(each.dataset.group));
  }
  for (const each of nodes.children) {
    each.classList.toggle("has-chosen", each.querySelector(".chosen") !== null);
    each.classList.toggle("target", found && route.kind === "node" && each.dataset.key === route.name);
  }
  markGroups(groups, chosen);
  markUse(nodes);
  for (const list of [waiting, groups, namespaces]) markMore(list);
  text("missing", route.kind && !found ? `There is no ${route.kind} ${route.name}.` : "");
  find("missing").hidden = !route.kind || found;
  if (found && toReveal) revealRoute();
}

function revealRoute() {
  toReveal = false;
  const shown = { node: [".target"], group: [".has-chosen", "[aria-pressed=true]"] }[route.kind];
  for (const each of shown) reveal(nodes.querySelector(each) ?? groups.querySelector(each), "center");
}

// Goes to a group or node; chosen twice, back to all.
function choose(kind, name) {
  const same = route.kind === kind && route.name === name;
  writeRoute(same ? "" : kind, name);
  route = readRoute();
  mark();
}

function onAddress() {
  const now = readRoute();
  // "Skip to the nodes" is an address, too, and leaves the choice.
  if (!now.kind && location.hash) return;
  route = now;
  toReveal = Boolean(now.kind);
  if (state) mark();
}

function reveal(target, block = "nearest") {
  // To the middle without a motion: it is where an address leads, and another motion would end the first one.
  target?.scrollIntoView({ block, behavior: calm.matches || block === "center" ? "auto" : "smooth" });
}

// Shows that a list goes on below.
function markMore(list) {
  list.toggleAttribute("data-more", list.scrollTop + list.clientHeight < list.scrollHeight - 8);
}

function showReplica({ instance, version, leading, faults }) {
  const stale = Object.entries(faults);
  text("replica", `${instance} · ${leading ? "leader" : "follower"} · ${version} · ${stale.length ? "caches not synced" : "caches synced"}`);
  banner(stale.length ? `This replica may be out of date. ${stale.map(([name, why]) => `${name}: ${why}`).join("; ")}.` : "");
}

function banner(words) {
  text("banner", words);
  find("banner").hidden = !words;
}

function onState(newest) {
  state = newest;
  setLabels(state.labels);
  asOf = new Date().toLocaleTimeString();
  drawTotals(totals, state.cluster);
  showReplica(state.replica);
  draw();
  announceChanges(find("news"), state.cluster);
}

function onUse(agents, answered) {
  text("agents", agents > answered ? `${answered} of ${plural(agents, "agent")} answered` : "");
  if (!state) return;
  markUse(nodes);
  // The tiles have grown under what the address leads to.
  if (route.kind && performance.now() < SETTLING_MS) revealRoute();
}

function onLink(link) {
  find("link").dataset.state = link;
  text("link", { live: "Live", slow: "Refreshing every few seconds", lost: "Disconnected" }[link]);
  if (link === "lost") banner(`Connection lost${asOf ? `: this page shows the state at ${asOf}` : ""}. Retrying every few seconds.`);
}

filter.addEventListener("input", draw);
for (const each of [namespace, order]) each.addEventListener("change", draw);
find("tools").addEventListener("submit", (event) => event.preventDefault());
for (const list of [groups, namespaces]) list.addEventListener("keydown", (event) => onArrow([...list.querySelectorAll("button")], event));
for (const list of [waiting, groups, namespaces]) list.addEventListener("scroll", () => markMore(list), { passive: true });
waiting.addEventListener("toggle", () => markMore(waiting), { capture: true });
nodes.addEventListener("keydown", (event) => onArrow(tileButtons(nodes), event));
namespaces.addEventListener("click", (event) => {
  const name = event.target.closest("button")?.dataset.namespace;
  if (!name) return;
  namespace.value = namespace.value === name ? "" : name;
  draw();
});
groups.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  choose("group", button.dataset.group);
  if (route.kind) reveal(nodes.querySelector(".has-chosen"));
});
nodes.addEventListener("click", (event) => {
  const tile = event.target.closest(".device");
  const group = event.target.closest("[data-group]")?.dataset.group;
  if (tile) {
    toggleDevice(panel, tile.closest(".node").dataset.key, tile.dataset.key);
    drawDevice(panel, state.cluster.nodes);
    // By keyboard, on to what was opened; a finger or a mouse stays where it is.
    if (event.detail === 0 && !panel.hidden) focusDevice(panel);
  }
  if (!group || (route.kind === "group" && route.name === group && tile && !panel.hidden)) return;
  choose("group", group);
  if (route.kind) reveal(groups.querySelector("[aria-pressed=true]"));
});
panel.addEventListener("click", (event) => {
  if (event.target.closest(".close")) leaveDevice();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (!panel.hidden) leaveDevice();
  else if (route.kind) choose(route.kind, route.name);
});
addEventListener("popstate", onAddress);
setInterval(() => updateAges(document), 20000);

follow(onState, onLink);
followUse(onUse);
