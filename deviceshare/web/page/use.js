// What the nodes' agents say of their devices' use: how busy each is, its memory in use, and the last hour as a line.
// The server asks them only while a page asks it, and this page asks only while it is visible.

import { element } from "./dom.js";
import { gib } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const RETRY_SECONDS = 15;
const MINUTES = 60;

let reports = new Map();

// `onUse` is called after each answer, with how many agents there are and how many of them answered.
export function followUse(onUse) {
  let timer = 0;

  async function ask() {
    let seconds = RETRY_SECONDS;
    try {
      const answer = await fetch("ui/use", { signal: AbortSignal.timeout(RETRY_SECONDS * 1000) });
      if (answer.ok) {
        const use = await answer.json();
        seconds = Math.max(use.seconds, 5);
        reports = new Map(use.nodes.map((node) => [node.node, node]));
        onUse(use.agents, reports.size);
      }
    } catch (error) {
      console.warn("Failed to fetch the use:", error);
    }
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(ask, seconds * 1000);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) ask();
  });
  ask();
}

// Shows what is known on the cards and tiles that are drawn.
export function markUse(list) {
  for (const card of list.children) {
    const report = reports.get(card.dataset.key);
    if (card.report === report) continue;
    card.report = report;
    const devices = report?.devices ?? [];
    const known = new Map(devices.flatMap((each) => [[number(each), each], [each.uuid || number(each), each]]));
    card.querySelector(".node-use").replaceChildren(...(report ? nodeUse(report, devices) : []));
    for (const tile of card.querySelectorAll(".device")) {
      const { uuid, number: at, fault } = tile.dataset;
      const use = fault === "lost" ? undefined : known.get(uuid || at) ?? (uuid ? undefined : known.get(at));
      tile.querySelector(".use")?.remove();
      tile.querySelector(".use-words")?.remove();
      if (use) tile.append(deviceUse(use), element("span", { class: "hidden use-words" }, `; ${useText(use)}`));
    }
  }
}

function number(device) {
  return `${device.resource} ${device.index}`;
}

function nodeUse(report, devices) {
  const busy = devices.map((each) => each.utilization).filter((each) => each !== undefined);
  const parts = [];
  if (busy.length) parts.push(`${Math.round(busy.reduce((all, each) => all + each, 0) / busy.length)}% busy`);
  const [used, total] = ["memoryUsedMib", "memoryTotalMib"].map((name) => devices.reduce((all, each) => all + (each[name] ?? 0), 0));
  if (total) parts.push(`${gib(used, 0)}/${gib(total, 0)} GiB`);
  return [element("span", {}, parts.join(" · ")), sparkline(report.hour)];
}

function deviceUse(use) {
  const words = [];
  if (use.utilization !== undefined) words.push(element("b", {}, `${use.utilization}%`));
  if (use.memoryTotalMib) words.push(element("span", {}, `${gib(use.memoryUsedMib ?? 0, 0)} GiB`));
  return element("span", { class: "use", "aria-hidden": "true" }, element("span", { class: "figures" }, words), sparkline(use.hour));
}

function useText(use) {
  const words = [];
  if (use.utilization !== undefined) words.push(`busy ${use.utilization}%`);
  if (use.memoryTotalMib) words.push(`${gib(use.memoryUsedMib ?? 0)} of ${gib(use.memoryTotalMib)} GiB of memory in use`);
  return words.join(", ");
}

// The last hour, a point a minute, from 0 to 100%; minutes that nobody knows leave a gap.
function sparkline(hour = []) {
  if (hour.filter((each) => each >= 0).length < 2) return "";
  const line = document.createElementNS(SVG, "svg");
  line.setAttribute("class", "spark");
  line.setAttribute("viewBox", `0 0 ${MINUTES - 1} 20`);
  line.setAttribute("preserveAspectRatio", "none");
  line.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  let pen = "M";
  const steps = hour.slice(-MINUTES).map((each, at, shown) => {
    if (!(each >= 0)) {
      pen = "M";
      return "";
    }
    const step = `${pen}${MINUTES - shown.length + at} ${(19 - each * 0.18).toFixed(1)}`;
    pen = "L";
    return step;
  });
  path.setAttribute("d", steps.join(""));
  line.append(path);
  return line;
}
