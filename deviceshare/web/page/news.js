// What changed, in words, for who can't see it change. Screen readers read the newest sentence when they have a moment; a
// burst makes one.

import { isIll } from "./words.js";

const SHOWN = 3;
const PAUSE_MS = 4000;

let before = null;
let untold = [];
let timer = 0;

export function tellNews(target, cluster) {
  const now = look(cluster);
  if (before) untold.push(...compare(before, now));
  before = now;
  if (untold.length && !timer) {
    timer = setTimeout(() => {
      const rest = untold.length - SHOWN;
      target.textContent = untold.slice(0, SHOWN).join(". ") + (rest > 0 ? `. And ${rest} more changes` : "");
      untold = [];
      timer = 0;
    }, PAUSE_MS);
  }
}

function look({ nodes, groups, waiting }) {
  const ill = nodes.flatMap((node) =>
    (node.devices ?? [])
      .filter(isIll)
      .map((device) => [`${node.name} ${device.resource} ${device.index}`, device.health]),
  );
  return {
    nodes: new Map(nodes.map((node) => [`Node ${node.name}`, node.obstacle ? `can't be used: ${node.obstacle}` : "can be used"])),
    groups: new Map(groups.map((group) => [`Group ${group.name}`, `is ${group.phase}${group.node ? ` on ${group.node}` : ""}`])),
    devices: new Map(ill.map(([device, what]) => [`Device ${device}`, `is ${what}`])),
    waiting: new Map([["Waiting pods", `are ${waiting.length} now`]]),
  };
}

function compare(then, now) {
  const gone = { nodes: "is gone", groups: "is gone", devices: "is healthy again", waiting: "" };
  return Object.keys(now).flatMap((kind) => [
    ...[...now[kind]].filter(([name, what]) => then[kind].get(name) !== what).map((pair) => pair.join(" ")),
    ...[...then[kind].keys()].filter((name) => !now[kind].has(name)).map((name) => `${name} ${gone[kind]}`),
  ]);
}
