// The texts about a device, its state and its resource, on tiles and for screen readers.

const shortNames = { "nvidia.com/gpu": "GPU", "amd.com/gpu": "AMD GPU" };

// node-2 before node-10.
export const byName = new Intl.Collator("en", { numeric: true }).compare;

export function shortName(resource) {
  return shortNames[resource] ?? resource.slice(resource.indexOf("/") + 1);
}

// One or two words, for a device's tile.
export function label(device) {
  if (device.use === "held") return device.group;
  if (device.use === "releasing") return `${device.group} (releasing)`;
  if (device.use === "former") return `was ${device.group}`;
  if (device.use === "split") return "split by MIG";
  if (device.use === "withheld") return "withheld";
  if (device.use === "plugin") return `plugin: ${device.pod.slice(device.pod.indexOf("/") + 1)}`;
  if (device.lost || device.unhealthy) return device.lost ? "lost" : "unhealthy";
  return device.use === "left" ? "plugin's" : "free";
}

// The whole state of a device.
export function sentence(device) {
  const use = {
    held: `held by group ${device.group}`,
    releasing: `still used by pods of group ${device.group}, which was deleted`,
    former: `replaced in group ${device.group}, whose old pods may still use it`,
    split: "split by MIG, so no group gets it",
    left: "left to the device plugin, so no group gets it",
    withheld: `not for groups: ${device.withheld}`,
    plugin: `allocated to pod ${device.pod} by the device plugin`,
    free: device.lost || device.unhealthy ? "held by nobody" : "free",
  }[device.use];
  const parts = [`${shortName(device.resource)} ${device.index}: ${use}`];
  if (device.lost) parts.push("lost: the node no longer has it");
  if (device.unhealthy) parts.push(`unhealthy: ${device.unhealthy}${device.since ? `, since ${device.since}` : ""}`);
  for (const each of device.trespasses ?? []) {
    parts.push(`used by another than its group: process ${each.process}${each.pod ? ` of pod ${each.pod}` : ""}`);
  }
  const hardware = [device.model, device.memoryMib ? `${Math.round(device.memoryMib / 1024)} GiB` : "", device.uuid];
  return parts.concat(hardware.filter(Boolean).join(", ") || []).join("; ");
}

export function inTrouble(device) {
  return Boolean(device.lost || device.unhealthy || device.trespasses?.length);
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

// "for 5 min", by this browser's clock.
export function age(since) {
  const seconds = (Date.now() - Date.parse(since)) / 1000;
  for (const [unit, length] of UNITS) {
    const number = Math.floor(seconds / length);
    if (number >= 1) return `for ${number} ${unit}${unit === "day" && number > 1 ? "s" : ""}`;
  }
  return "just now";
}

// A message's parts, separated by semicolons outside of brackets.
export function clauses(message) {
  return message.split(/; (?![^(]*\))/);
}
