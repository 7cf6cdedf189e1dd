// The nodes: a card for each, with a tile for each of its devices.

import { ofNamespace, paint } from "./colour.js";
import { keyOf } from "./device.js";
import { element, reconcile } from "./dom.js";
import { linkTo } from "./route.js";
import { nodeTurns, turnText } from "./turns.js";
import { byName, isUnhealthy, label, lines, partText, sentence, shortName } from "./words.js";

// When more nodes than this are shown, the tiles shrink and the names stand below them.
const LARGE_TILES = 24;

// With more parts than this, they touch each other.
const MANY_PARTS = 12;

const sum = (node, name) => (node.counts ?? []).reduce((all, count) => all + count[name], 0);
const fullness = (node) => sum(node, "allocated") / sum(node, "total");
const inTrouble = (device) => isUnhealthy(device) || device.trespasses?.length || device.overuses?.length;
const trouble = (node) => (node.reasons ? 1 : 0) + (node.devices ?? []).filter(inTrouble).length;
const ORDERS = {
  name: () => 0,
  trouble: (a, b) => trouble(b) - trouble(a),
  full: (a, b) => fullness(b) - fullness(a) || sum(b, "total") - sum(a, "total"),
  free: (a, b) => sum(b, "free") - sum(a, "free"),
};

export function drawNodes(list, nodes, order) {
  const sorted = [...nodes].sort((a, b) => ORDERS[order](a, b) || byName(a.name, b.name));
  list.dataset.density = sorted.length > LARGE_TILES ? "compact" : "large";
  reconcile(list, sorted, (node) => node.name, drawNode);
}

// What the filter finds a node by. Not its reasons, which name groups and nodes that have nothing of what is looked for.
export function nodeText(node) {
  const states = new Set((node.devices ?? []).flatMap(deviceStates));
  return [node.name, ...(node.turns ?? []).map(turnText), ...states].join(" ").toLowerCase();
}

function deviceStates(device) {
  const found = [
    device.group,
    device.pod,
    device.use,
    device.model,
    device.uuid,
    device.health,
    device.trespasses?.length && "trespass",
    device.overuses?.length && "overuse",
    ...(device.parts ?? []).map((part) => part.pod),
  ];
  return found.filter(Boolean);
}

// The buttons of the tiles, in their order.
export function tileButtons(list) {
  return [...list.querySelectorAll(".device > button")];
}

function drawNode(node, old) {
  const devices = node.devices ?? [];
  const kinds = [...new Set(devices.map((device) => device.resource))];
  const before = new Map([...(old?.querySelectorAll(".device") ?? [])].map((tile) => [tile.dataset.key, tile.dataset.look]));
  return element(
    "li",
    { class: "node", data: { obstacle: node.obstacle ? "yes" : "" } },
    element(
      "div",
      { class: "node-head" },
      element("h3", {}, element("a", { href: linkTo("node", node.name) }, node.name)),
      element("p", { class: "node-count" }, summary(node)),
    ),
    (node.reasons ?? []).flatMap(lines).map((line) => element("p", { class: "obstacle" }, line)),
    kinds.map((kind) => [
      kinds.length > 1 ? element("p", { class: "kind" }, kind) : "",
      element(
        "ul",
        { class: "devices", "aria-label": `${kind} of ${node.name}` },
        devices.filter((device) => device.resource === kind).map((device) => drawDevice(device, before)),
      ),
    ]),
    element("p", { class: "node-use" }),
    element("ul", { class: "holders", "aria-hidden": "true" }, holders(devices)),
    nodeTurns(node, shortName, old),
  );
}

function summary(node) {
  const counts = node.counts ?? [];
  const parts = counts.map((count) => {
    const unit = counts.length > 1 ? ` ${shortName(count.resource)}` : "";
    return `${count.allocated}/${count.total}${unit} in use`;
  });
  return parts.join(", ") || "no devices";
}

function drawDevice(device, before) {
  const { resource, index, use, group = "", uuid = "" } = device;
  const key = keyOf(device);
  const fault = isUnhealthy(device) ? device.health : device.trespasses ? "trespass" : device.overuses ? "overuse" : "";
  const look = `${use} ${group} ${fault} ${device.allocatedPercent ?? 0}`;
  const words = sentence(device);
  const tile = element(
    "li",
    { class: "device", title: words, data: { key, look, use, fault, group, uuid, number: `${resource} ${index}` } },
    element("span", { class: "index", "aria-hidden": "true" }, String(index)),
    element("span", { class: "holder", "aria-hidden": "true" }, label(device)),
    use === "shared" ? drawParts(device) : "",
    element("button", { type: "button", tabindex: "-1" }, element("span", { class: "hidden" }, words)),
  );
  tile.states = deviceStates(device).join(" ").toLowerCase();
  if (before.size && before.get(key) !== look) tile.classList.add("fresh");
  return group ? paint(tile, group) : tile;
}

// A bar as long as the device: a segment for each pod, as wide as its part and in its namespace's colour, and what is free.
function drawParts(device) {
  const parts = device.parts ?? [];
  const bar = element("span", { class: "parts", "aria-hidden": "true", data: { many: parts.length > MANY_PARTS ? "yes" : "" } });
  let rest = 100;
  for (const part of parts) {
    const percent = Math.min(part.percent ?? 0, rest);
    rest -= percent;
    const piece = paint(element("i", { title: partText(part) }), ofNamespace(part.pod));
    piece.style.flexGrow = percent;
    bar.append(piece);
  }
  const open = element("i", { class: "open" });
  open.style.flexGrow = rest;
  if (rest > 0) bar.append(open);
  return bar;
}

// The groups of a node, for small tiles, which have no room for a name.
function holders(devices) {
  const counts = new Map();
  for (const { group } of devices) if (group) counts.set(group, (counts.get(group) ?? 0) + 1);
  return [...counts].map(([group, count]) =>
    paint(element("li", { data: { group } }, `${group}${count > 1 ? ` ×${count}` : ""}`), group),
  );
}
