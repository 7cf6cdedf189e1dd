// The waiting pods and their reasons. Pods of one workload are one entry, as are others of one group, or with equal shares,
// that wait for the same reason.

import { updateAges } from "./ages.js";
import { paint } from "./colour.js";
import { element, plural, reconcile } from "./dom.js";
import { lines } from "./words.js";

const SHOWN_PODS = 4;

export function drawWaiting(list, pods) {
  const together = new Map();
  for (const pod of pods) {
    const { group, share = "", reason, why, since, workload = "" } = pod;
    const key = `${group}\n${share}\n${workload || reason}`;
    if (!together.has(key)) together.set(key, { key, group, share, workload, since, pods: [], reasons: new Map() });
    together.get(key).pods.push(pod.pod);
    together.get(key).reasons.set(lines(why)[0], why);
  }
  const entries = [...together.values()].map((entry) => ({ ...entry, reasons: [...entry.reasons.values()] }));
  reconcile(list, entries, ({ key }) => key, drawEntry);
  updateAges(list);
}

export function waitingText(pod) {
  // Not by its reason, which names groups and nodes that have nothing of what is looked for.
  return `${pod.pod} ${pod.group} ${pod.share ?? ""} ${pod.workload ?? ""} waiting`.toLowerCase();
}

function drawEntry({ group, share, workload, since, pods, reasons }, old) {
  const [first, ...particulars] = lines(reasons[0]);
  const shown = pods.slice(0, SHOWN_PODS).join(", ");
  const rest = pods.length - SHOWN_PODS;
  const folded = workload && pods.length > 1;
  const names = folded ? ` of ${workload}` : `: ${shown}${rest > 0 ? ` and ${rest} more` : ""}`;
  const all = `${plural(pods.length, "pod")}${names}`;
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
    particulars.length ? fold("particulars", "on each node", particulars, old) : "",
    ...reasons.slice(1).map((why) => element("p", {}, `Others: ${lines(why)[0]}`)),
    folded || rest > 0 ? fold("pods", all, pods, old) : element("p", { class: "pods" }, all),
  );
}

// A list to unfold; it stays so while its entry is drawn anew.
function fold(name, title, lines, old) {
  const open = old?.querySelector(`details.${name}`)?.open;
  return element("details", { class: name, open }, element("summary", {}, title), element("ul", {}, lines.map((line) => element("li", {}, line))));
}
