// The texts about a device, its state and its resource, on tiles and for screen readers.

import { plural } from "./dom.js";

let labels = {};

// What devices are called, by resource, as the server says.
export function setLabels(named) {
  labels = named ?? {}; // a replica of an older version sends none
}

// node-2 before node-10.
export const byName = new Intl.Collator("en", { numeric: true }).compare;

export function shortName(resource) {
  return labels[resource] ?? resource;
}

// One or two words, for a device's tile.
export function label(device) {
  if (device.use === "held") return device.group;
  if (device.use === "shared") return amount(device);
  if (device.use === "releasing") return `${device.group} (releasing)`;
  if (device.use === "former") return `was ${device.group}`;
  if (device.use === "split") return "split by MIG";
  if (device.use === "left") return "plugin's";
  if (device.use === "plugin") return `plugin: ${device.pod.slice(device.pod.indexOf("/") + 1)}`;
  if (device.use === "claimed") return `claim: ${device.resourceClaim.slice(device.resourceClaim.indexOf("/") + 1)}`;
  if (device.use === "free" && device.serves) return `free for ${device.serves}`;
  return device.use === "unusable" && isUnhealthy(device) ? device.health : device.use;
}

// The whole state of a device, with its largest parts.
export function sentence(device) {
  const parts = [...state(device), ...(device.overuses ?? []).map(overuseText), ...shownParts(device).map(partText)];
  const hidden = (device.parts ?? []).length - shownParts(device).length;
  if (hidden > 0) parts.push(`and ${plural(hidden, "more pod")}`);
  return `${shortName(device.resource)} ${device.index}: ${parts.concat(hardware(device)).join("; ")}`;
}

// The same without its parts, one by one.
export function facts(device) {
  return [...state(device), ...hardware(device)];
}

function state(device) {
  const use = {
    held: `held by group ${device.group}`,
    shared: `${plural((device.parts ?? []).length, "pod")} with parts of it, ${amount(device)} allocated`,
    releasing: `still used by pods of group ${device.group}, which was deleted`,
    former: `replaced in group ${device.group}, whose old pods may still use it`,
    split: "split by MIG, so nobody gets it",
    left: "left to the device plugin, so nobody else gets it",
    withheld: `withheld: ${device.withheld}`,
    plugin: `allocated to pod ${device.pod} by the device plugin`,
    claimed: `held by ResourceClaim ${device.resourceClaim}`,
    unusable: "held by nobody, and nobody gets it",
    free: device.serves ? `free, for ${device.serves} only` : "free",
  }[device.use];
  const parts = [use];
  if (device.pod && device.use !== "plugin") parts.push(`also allocated to pod ${device.pod} by the device plugin`);
  if (device.resourceClaim && device.use !== "claimed") {
    parts.push(`also held by ResourceClaim ${device.resourceClaim}`);
  }
  if (device.withheld && device.use !== "withheld") parts.push(`withheld: ${device.withheld}`);
  if (device.placeholder) parts.push(`kept from the device plugin by pod ${device.placeholder}`);
  if (isUnhealthy(device)) {
    const why = device.unhealthy || "no longer on the node";
    parts.push(`${device.health}: ${why}${device.since ? `, since ${device.since}` : ""}`);
  }
  for (const each of device.trespasses ?? []) {
    parts.push(`used by another than its holder: process ${each.process}${each.pod ? ` of pod ${each.pod}` : ""}`);
  }
  return parts;
}

function hardware(device) {
  const known = [device.model, device.memoryMib ? `${Math.round(device.memoryMib / 1024)} GiB` : "", device.uuid].filter(Boolean);
  return known.length ? [known.join(", ")] : [];
}

const SHOWN_PARTS = 12;

// The largest parts of a device; a device may have a hundred.
export function shownParts(device) {
  return [...(device.parts ?? [])].sort((a, b) => (b.percent ?? 0) - (a.percent ?? 0)).slice(0, SHOWN_PARTS);
}

// "ns/web has 8 GiB, counted".
export function partText(part) {
  return part.former ? `${part.pod} may still use ${part.asked}` : `${part.pod} has ${part.asked}${part.limits ? `, ${part.limits}` : ""}`;
}

// "ns/web uses 19.5 GiB, its share is 8 GiB".
export function overuseText({ pod, container, usedMib = 0, limitMib = 0 }) {
  return `${pod}${container ? `, container ${container},` : ""} uses ${gib(usedMib)} GiB, its share is ${gib(limitMib)} GiB`;
}

// How much of a shared device is allocated: "11/16 GiB", or "70%" where its memory is unknown.
export function amount(device) {
  if (!device.memoryMib) return `${Math.floor(device.allocatedPercent ?? 0)}%`;
  return `${gib(device.allocatedMib ?? 0)}/${gib(device.memoryMib)} GiB`;
}

export function gib(mib, digits = 1) {
  return (mib / 1024).toFixed(digits).replace(/\.0$/, "");
}

export function isUnhealthy(device) {
  return device.health === "unhealthy" || device.health === "lost";
}

export function selectedText(devices) {
  return Object.entries(devices ?? {})
    .map(([resource, indices]) => `${shortName(resource)} ${indices}`)
    .join(", ");
}

export function wantsText(wants) {
  return Object.entries(wants ?? {})
    .map(([resource, count]) => `${count} × ${shortName(resource)}`)
    .join(", ");
}

const UNITS = [
  ["day", 86400],
  ["h", 3600],
  ["min", 60],
];

// "for 5 min", by this browser's clock; "" for what is no time.
export function age(since) {
  const seconds = (Date.now() - Date.parse(since)) / 1000;
  if (Number.isNaN(seconds)) return "";
  for (const [unit, length] of UNITS) {
    const number = Math.floor(seconds / length);
    if (number >= 1) return `for ${number} ${unit}${unit === "day" && number > 1 ? "s" : ""}`;
  }
  return "just now";
}

// A reason as lines: what is so with the next step, and its particulars.
export function lines({ text, cure, details = [] }) {
  return [cure ? `${text}: ${cure}` : text, ...details];
}
