// Announcements of changes for screen readers, in sentences. A burst of changes becomes one announcement.

import { isUnhealthy } from "./words.js";

const SHOWN = 3;
const PAUSE_MS = 4000;

let before = null;
let unannounced = [];
let timer = 0;

export function announceChanges(target, cluster) {
  const now = look(cluster);
  if (before) unannounced.push(...compare(before, now));
  before = now;
  if (unannounced.length && !timer) {
    timer = setTimeout(() => {
      const rest = unannounced.length - SHOWN;
      target.textContent = unannounced.slice(0, SHOWN).join(". ") + (rest > 0 ? `. And ${rest} more changes` : "");
      unannounced = [];
      timer = 0;
    }, PAUSE_MS);
  }
}

function look({ nodes, groups, waiting }) {
  const unhealthy = nodes.flatMap((node) =>
    (node.devices ?? [])
      .filter(isUnhealthy)
      .map((device) => [`${node.name} ${device.resource} ${device.index}`, device.health]),
  );
  return {
    nodes: new Map(nodes.map((node) => [`Node ${node.name}`, node.obstacle ? `can't be used: ${node.obstacle}` : "can be used"])),
    groups: new Map(groups.map((group) => [`Group ${group.name}`, `is ${group.phase}${group.node ? ` on ${group.node}` : ""}`])),
    devices: new Map(unhealthy.map(([device, what]) => [`Device ${device}`, `is ${what}`])),
    waiting: new Map([["Waiting pods", `are ${waiting.length} now`]]),
  };
}

function compare(then, now) {
  const gone = { nodes: "was deleted", groups: "was deleted", devices: "recovered", waiting: "" };
  return Object.keys(now).flatMap((kind) => [
    ...[...now[kind]].filter(([name, what]) => then[kind].get(name) !== what).map((pair) => pair.join(" ")),
    ...[...then[kind].keys()].filter((name) => !now[kind].has(name)).map((name) => `${name} ${gone[kind]}`),
  ]);
}
