// The panel of one device: what it is and who has which part of it, for fingers and keyboards as for a mouse.

import { ofNamespace, paint } from "./colour.js";
import { element } from "./dom.js";
import { linkTo } from "./route.js";
import { byName, facts, overuseText, shortName } from "./words.js";

let shown = null;

export function keyOf({ resource, index, uuid = "" }) {
  return `${resource} ${index} ${uuid}`;
}

// Opens the panel on a tile's device, or closes it when it shows that one already.
export function toggleDevice(panel, node, key) {
  const same = shown?.node === node && shown?.key === key;
  shown = same ? null : { node, key };
}

// Draws what the panel shows; closed, it returns which device it showed.
export function drawDevice(panel, nodes) {
  panel.hidden = !shown;
  if (!shown) return;
  const device = nodes.find((node) => node.name === shown.node)?.devices?.find((each) => keyOf(each) === shown.key);
  const looks = JSON.stringify([shown, device]);
  if (panel.looks === looks) return;
  panel.looks = looks;
  const focused = panel.contains(document.activeElement);
  panel.replaceChildren(
    element("h2", { id: "device-title", tabindex: "-1" }, device ? `${shortName(device.resource)} ${device.index} of ${shown.node}` : shown.node),
    element("button", { type: "button", class: "close" }, "Close"),
    ...(device ? content(device) : [element("p", {}, "This device is no longer there.")]),
  );
  if (focused) focusDevice(panel);
}

export function focusDevice(panel) {
  panel.querySelector("h2").focus({ preventScroll: true });
}

// Closes the panel, and returns which device it showed.
export function closeDevice(panel) {
  const before = shown;
  shown = null;
  panel.hidden = true;
  return before;
}

function content(device) {
  const parts = [...(device.parts ?? [])].sort((a, b) => (b.percent ?? 0) - (a.percent ?? 0) || byName(a.pod, b.pod));
  const over = new Map((device.overuses ?? []).map((each) => [each.pod, overuseText(each)]));
  return [
    element("ul", { class: "device-facts" }, facts(device).map((each) => element("li", {}, each))),
    device.group ? element("p", {}, element("a", { href: linkTo("group", device.group) }, `Show group ${device.group}`)) : "",
    parts.length ? element("h3", { id: "device-parts" }, "Who has which part") : "",
    parts.length ? element("ul", { class: "device-parts", "aria-labelledby": "device-parts" }, parts.map((part) => drawPart(part, over))) : "",
  ].filter(Boolean);
}

function drawPart(part, over) {
  return element(
    "li",
    {},
    paint(element("span", { class: "swatch", "aria-hidden": "true" }), ofNamespace(part.pod)),
    element("span", { class: "name" }, part.pod),
    element("span", { class: "part" }, [part.asked, part.limits, part.former && "may still use it"].filter(Boolean).join(", ")),
    over.has(part.pod) ? element("p", { class: "ailment" }, over.get(part.pod)) : "",
  );
}
