// The page's state and the chosen group, and the redrawing of the page when either changes.

import { updateAges } from "./ages.js";
import { plural, text } from "./dom.js";
import { drawGroups, groupText, markGroups, onKey } from "./groups.js";
import { follow } from "./live.js";
import { announceChanges } from "./news.js";
import { drawNodes, nodeText } from "./nodes.js";
import { drawTotals } from "./totals.js";
import { drawWaiting, waitingText } from "./waiting.js";
import { setLabels } from "./words.js";

const find = (id) => document.getElementById(id);
const [totals, nodes, groups, waiting, filter, order] = ["totals", "nodes", "groups", "waiting", "filter", "order"].map(find);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let state = null;
let chosen = "";
let asOf = "";

function draw() {
  if (!state) return;
  const { cluster } = state;
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const passes = (toText) => (item) => !words.length || words.every((word) => toText(item).includes(word));
  const shown = {
    nodes: cluster.nodes.filter(passes(nodeText)),
    groups: cluster.groups.filter(passes(groupText)),
    waiting: cluster.waiting.filter(passes(waitingText)),
  };
  drawNodes(nodes, shown.nodes, order.value);
  drawGroups(groups, shown.groups);
  drawWaiting(waiting, shown.waiting);
  for (const kind of ["nodes", "groups", "waiting"]) {
    const all = cluster[kind].length;
    text(`${kind}-count`, shown[kind].length === all ? String(all) : `${shown[kind].length} of ${all}`);
  }
  text("shown", words.length ? `${plural(shown.nodes.length, "node")}, ${plural(shown.groups.length, "group")}` : "");
  find("waiting-section").hidden = !cluster.waiting.length;
  find("groups-hint").hidden = !shown.groups.length;
  mark();
}

function mark() {
  if (chosen && !state.cluster.groups.some((group) => group.name === chosen)) chosen = "";
  nodes.toggleAttribute("data-choosing", Boolean(chosen));
  for (const each of nodes.querySelectorAll("[data-group]")) {
    each.classList.toggle("chosen", Boolean(chosen) && each.dataset.group === chosen);
  }
  for (const each of nodes.children) each.classList.toggle("has-chosen", each.querySelector(".chosen") !== null);
  markGroups(groups, chosen);
}

function choose(group) {
  chosen = chosen === group ? "" : group;
  mark();
}

function reveal(target) {
  target?.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
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

function onLink(link) {
  find("link").dataset.state = link;
  text("link", { live: "Live", slow: "Refreshing every few seconds", lost: "Disconnected" }[link]);
  if (link === "lost") banner(`Connection lost${asOf ? `: this page shows the state at ${asOf}` : ""}. Retrying every few seconds.`);
}

filter.addEventListener("input", draw);
order.addEventListener("change", draw);
find("tools").addEventListener("submit", (event) => event.preventDefault());
groups.addEventListener("keydown", (event) => onKey(groups, event));
groups.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  choose(button.dataset.group);
  if (chosen) reveal(nodes.querySelector(".has-chosen"));
});
nodes.addEventListener("click", (event) => {
  const group = event.target.closest("[data-group]")?.dataset.group;
  if (!group) return;
  choose(group);
  if (chosen) reveal(groups.querySelector("[aria-pressed=true]"));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen) choose(chosen);
});
setInterval(() => updateAges(document), 20000);

follow(onState, onLink);
