// The list of groups, where the keyboard chooses one: a single stop for the tab key, arrow keys inside.

import { sinceText } from "./ages.js";
import { paint } from "./colour.js";
import { element, makeStop, plural, reconcile } from "./dom.js";
import { linkTo } from "./route.js";
import { turnLine, turnText, waitingList } from "./turns.js";
import { byName, lines, selectedText, wantsText } from "./words.js";

const RANK = { Degraded: 0, Pending: 1 };

export function drawGroups(list, groups) {
  const sorted = [...groups].sort((a, b) => (RANK[a.phase] ?? 2) - (RANK[b.phase] ?? 2) || byName(a.name, b.name));
  reconcile(list, sorted, (group) => group.name, drawGroup);
}

export function groupText(group) {
  const parts = [group.name, group.phase, group.node, group.idleSince && "idle", turnText(group.turn), ...(group.pods ?? [])];
  return parts.filter(Boolean).join(" ").toLowerCase();
}

function drawGroup(group, old) {
  const pods = group.pods ?? [];
  const id = `group-${group.name}`;
  return element(
    "li",
    { class: "group" },
    element(
      "button",
      { type: "button", "aria-pressed": "false", "aria-describedby": `${id}-facts`, data: { group: group.name }, tabindex: "-1" },
      paint(element("span", { class: "swatch", "aria-hidden": "true" }), group.name),
      element("span", { class: "name" }, group.name),
      element("span", { class: "phase", data: { phase: group.phase } }, group.phase),
    ),
    element("p", { class: "facts", id: `${id}-facts` }, facts(group)),
    group.idleSince ? element("p", { class: "idle-since" }, sinceText("idle", group.idleSince)) : "",
    group.turn ? turnLine(group.turn) : "",
    group.ailment ? element("p", { class: "ailment" }, group.ailment) : "",
    element(
      "div",
      { class: "more", hidden: !(old && !old.querySelector(".more").hidden) },
      group.turn ? waitingList(group.turn, group.name) : "",
      element("ul", {}, (group.why ? lines(group.why) : []).map((each) => element("li", {}, each))),
      pods.length ? element("ul", { class: "pods", "aria-label": `Pods of ${group.name}` }, pods.map((pod) => element("li", {}, pod))) : "",
    ),
  );
}

function facts(group) {
  const pods = group.pods?.length ?? 0;
  const where = group.node ? [selectedText(group.devices) || "no devices"] : [`wants ${wantsText(group.wants)}`];
  if (pods || group.node) where.push(plural(pods, "pod"));
  if (group.waiting) where.push(`${group.waiting} waiting`);
  if (group.gated) where.push(`${group.gated} gated`);
  const node = group.node ? [element("a", { href: linkTo("node", group.node) }, group.node), " · "] : [];
  return [...node, where.join(" · ")];
}

// Marks the chosen group, and makes exactly one of them reachable by the tab key.
export function markGroups(list, chosen) {
  const buttons = [...list.querySelectorAll("button")];
  for (const button of buttons) {
    const pressed = button.dataset.group === chosen;
    button.setAttribute("aria-pressed", String(pressed));
    button.closest("li").querySelector(".more").hidden = !pressed;
  }
  const focused = buttons.find((button) => button === document.activeElement);
  makeStop(buttons, focused ?? buttons.find((button) => button.dataset.group === chosen) ?? buttons[0]);
}
