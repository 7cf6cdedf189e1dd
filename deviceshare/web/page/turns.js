// The turns of a group or of a device: who has the turn, and which pods wait for how long.

import { sinceText, whenStale } from "./ages.js";
import { element, plural } from "./dom.js";

// One line, always shown.
export function turnLine(turn) {
  return element(
    "p",
    { class: "turn" },
    turn.holder ? holder(turn.holder) : "no turn is given: a former agent's may not have ended",
    turn.waitingCount ? ` · ${turn.waitingCount} ${turn.waitingCount > 1 ? "wait" : "waits"} for it` : "",
    whenStale(turn.reported, sinceText(" · the agent has reported nothing", turn.reported), " and may have stopped"),
  );
}

// The waiting pods, the next one first.
export function waitingList(turn, name) {
  const waiting = turn.waiting ?? [];
  const rest = (turn.waitingCount ?? 0) - waiting.length;
  if (!waiting.length) return "";
  return element(
    "ol",
    { class: "turn-queue", "aria-label": `Waiting for the turn of ${name}` },
    waiting.map((each) => element("li", {}, each.pod, gone(each), sinceText(" waits", each.since), priority(each))),
    rest > 0 ? element("li", { class: "rest" }, `and ${rest} more`) : "",
  );
}

// What the filter finds it by.
export function turnText(turn) {
  return turn ? ["turn", turn.holder?.pod, ...(turn.waiting ?? []).map((each) => each.pod)].filter(Boolean).join(" ") : "";
}

// The turns on devices that pods have shares of, in their node's card; those of groups stand with the groups.
export function nodeTurns(node, shortName, old) {
  const open = new Set([...(old?.querySelectorAll(".turns details[open]") ?? [])].map((each) => each.dataset.of));
  const turns = (node.turns ?? []).filter((turn) => !turn.group);
  if (!turns.length && !node.moreTurns) return "";
  const draw = (turn) => {
    const name = `${shortName(turn.resource)} ${turn.index}`;
    const queue = waitingList(turn, `${name} of ${node.name}`);
    const line = [element("span", { class: "of" }, `${name}:`), turnLine(turn)];
    return queue ? element("details", { open: open.has(name), data: { of: name } }, element("summary", {}, line), queue) : line;
  };
  return element(
    "ul",
    { class: "turns", "aria-label": `Turns on ${node.name}` },
    turns.map((turn) => element("li", {}, draw(turn))),
    node.moreTurns ? element("li", {}, `and ${plural(node.moreTurns, "more queue")} of turns`) : "",
  );
}

function holder(each) {
  return [
    element("b", {}, each.pod),
    gone(each),
    sinceText(" has the turn", each.since),
    priority(each),
    each.asked ? ", was asked to end" : "",
    each.lostSince ? element("span", { class: "lost" }, sinceText(", lost contact", each.lostSince)) : "",
  ];
}

function gone(each) {
  return each.gone ? element("span", { class: "lost" }, " (no such pod)") : "";
}

function priority(each) {
  return each.priority ? `, priority ${each.priority}` : "";
}
