// Times that grow old while the page is open: texts such as "for 5 min", and notes that something is out of date.

import { element } from "./dom.js";
import { age } from "./words.js";

// An agent that runs reports its turns again within ten minutes.
const STALE_SECONDS = 1200;

// Words and for how long, after each other.
export function sinceText(words, time) {
  return [words, " ", element("span", { data: { since: time ?? "" } }, age(time))];
}

// Children that are shown once a report of this time is out of date.
export function whenStale(reported, ...children) {
  return element("span", { class: "stale", data: { stale: reported ?? "" }, hidden: !isStale(reported) }, ...children);
}

export function updateAges(root) {
  for (const each of root.querySelectorAll("[data-since]")) {
    const words = age(each.dataset.since);
    if (each.textContent !== words) each.textContent = words;
  }
  for (const each of root.querySelectorAll("[data-stale]")) each.hidden = !isStale(each.dataset.stale);
}

function isStale(reported) {
  return !(Date.now() - Date.parse(reported) < STALE_SECONDS * 1000);
}
