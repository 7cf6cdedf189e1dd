// The waiting pods and their reasons. Pods of one group, or with equal shares, and the same reason are one entry.

import { updateAges } from "./ages.js";
import { paint } from "./colour.js";
import { element, plural, reconcile } from "./dom.js";
import { lines } from "./words.js";

const SHOWN_PODS = 4;

export function drawWaiting(list, pods) {
  const together = new Map();
  for (const pod of pods) {
    const key = `${pod.group}\n${pod.share ?? ""}\n${pod.reason}`;
    if (!together.has(key)) together.set(key, { key, group: pod.group, share: pod.share, reason: pod.reason, why: pod.why, since: pod.since, pods: [], workloads: new Set() });
    together.get(key).pods.push(pod.pod);
    together.get(key).workloads.add(pod.workload ?? "");
  }
  reconcile(list, [...together.values()], ({ key }) => key, drawEntry);
  updateAges(list);
}

export function waitingText(pod) {
  // Not by its reason, which names groups and nodes that have nothing of what is looked for.
  return `${pod.pod} ${pod.group} ${pod.share ?? ""} ${pod.workload ?? ""} waiting`.toLowerCase();
}

function drawEntry({ group, share, why, since, pods, workloads }) {
  const [first, ...particulars] = lines(why);
  const shown = pods.slice(0, SHOWN_PODS).join(", ");
  const rest = pods.length - SHOWN_PODS;
  const maker = pods.length > 1 && workloads.size === 1 ? [...workloads][0] : "";
  const names = maker ? ` of ${maker}` : `: ${shown}${rest > 0 ? ` and ${rest} more` : ""}`;
  return element(
    "li",
    {},
    element(
      "p",
      { class: "who" },
      group ? paint(element("span", { class: "swatch", "aria-hidden": "true" }), group) : "",
      element("span", { class: "name" }, group || share),
      element("span", { class: "age", data: { since } }),
    ),
    element("p", {}, first),
    particulars.length ? element("ul", { class: "particulars" }, particulars.map((each) => element("li", {}, each))) : "",
    element("p", { class: "pods" }, `${plural(pods.length, "pod")}${names}`),
  );
}
