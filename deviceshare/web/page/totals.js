// The row of totals: devices in use, free and unhealthy, nodes, groups, waiting pods.

import { element, plural } from "./dom.js";
import { gib, isUnhealthy, shortName } from "./words.js";

export function drawTotals(list, { nodes, groups, waiting, total }) {
  const unhealthy = total.reduce((sum, count) => sum + count.unhealthy, 0);
  const degraded = groups.filter((group) => group.phase === "Degraded").length;
  const blocked = nodes.filter((node) => node.obstacle).length;
  const several = total.length > 1;
  const open = openForShares(nodes);
  list.replaceChildren(
    ...total.map((count) => devices(count, several)),
    card("Free", sum(total, "free") + sum(total, "forShares"), `whole devices${open ? `; ${gib(open)} GiB more for shares` : " now"}`),
    card("Unhealthy", unhealthy, unhealthy ? "not allocated" : "none", unhealthy ? "bad" : ""),
    card("Nodes", nodes.length, blocked ? `${blocked} not usable` : "all usable", blocked ? "bad" : ""),
    card("Groups", groups.length, degraded ? `${degraded} degraded` : "none degraded", degraded ? "bad" : ""),
    card("Waiting", waiting.length, waiting.length ? waitsFor(waiting) : "no pods", waiting.length ? "wait" : ""),
  );
}

// The memory, in MiB, that shares could still get of devices of which pods have parts.
function openForShares(nodes) {
  const there = nodes.filter((node) => !node.obstacle).flatMap((node) => node.devices ?? []);
  const shared = there.filter((device) => device.use === "shared" && !isUnhealthy(device));
  return shared.reduce((all, device) => all + Math.max((device.memoryMib ?? 0) - (device.allocatedMib ?? 0), 0), 0);
}

// "2 groups, 5 pods for shares".
function waitsFor(waiting) {
  const groups = new Set(waiting.map((pod) => pod.group).filter(Boolean)).size;
  const shares = waiting.filter((pod) => !pod.group).length;
  return [groups ? plural(groups, "group") : "", shares ? `${shares} for shares` : ""].filter(Boolean).join(", ");
}

function devices(count, several) {
  const part = (kind, number) => {
    const piece = element("i", { class: kind });
    piece.style.flexGrow = number;
    return number > 0 ? piece : "";
  };
  const open = count.free + (count.forShares ?? 0);
  const other = Math.max(0, count.total - count.allocated - open);
  return element(
    "div",
    { class: "card wide" },
    element("dt", {}, several ? `${shortName(count.resource)} in use` : "Devices in use"),
    element("dd", {}, element("b", {}, count.allocated.toLocaleString("en")), ` of ${count.total.toLocaleString("en")}${memory(count)}`),
    element("div", { class: "bar", "aria-hidden": "true" }, part("taken", count.allocated), part("open", open), part("shut", other)),
  );
}

// How much memory is allocated, where pods have parts of devices.
function memory(count) {
  if (!count.shared || !count.memoryMib) return "";
  return `; ${gib(count.allocatedMib)} of ${gib(count.memoryMib)} GiB`;
}

function card(title, number, note, mood = "") {
  return element(
    "div",
    { class: "card", data: { mood } },
    element("dt", {}, title),
    element("dd", {}, element("b", {}, number.toLocaleString("en")), element("small", {}, note)),
  );
}

function sum(counts, name) {
  return counts.reduce((all, count) => all + (count[name] ?? 0), 0);
}
