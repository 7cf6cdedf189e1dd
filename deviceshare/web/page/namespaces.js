// The namespaces of the pods on the page: what each has, in the colour of its parts of devices. One may be chosen: then only
// what its pods have or wait for is shown.

import { paint } from "./colour.js";
import { element, makeStop, plural, reconcile } from "./dom.js";
import { byName, gib } from "./words.js";

const of = (pod) => (pod ?? "").slice(0, Math.max((pod ?? "").indexOf("/"), 0));
const podsOf = (device) => [device.pod, ...(device.parts ?? []).map((part) => part.pod)];

// What the pods of each namespace have and wait for, by name.
export function namespacesOf({ nodes, groups, waiting }) {
  const found = new Map();
  const at = (pod) => {
    const name = of(pod);
    if (!found.has(name)) found.set(name, { name, pods: new Set(), devices: 0, parts: 0, mib: 0, waiting: 0 });
    return found.get(name);
  };
  const homes = new Map();
  for (const group of groups) {
    homes.set(group.name, new Set((group.pods ?? []).map((pod) => at(pod))));
    for (const pod of group.pods ?? []) at(pod).pods.add(pod);
  }
  for (const each of waiting) at(each.pod).waiting++;
  for (const device of nodes.flatMap((node) => node.devices ?? [])) {
    for (const home of device.use === "held" ? (homes.get(device.group) ?? []) : []) home.devices++;
    if (device.pod) at(device.pod).pods.add(device.pod);
    for (const part of device.use === "shared" ? (device.parts ?? []) : []) {
      at(part.pod).pods.add(part.pod);
      at(part.pod).parts++;
      at(part.pod).mib += ((device.memoryMib ?? 0) * (part.percent ?? 0)) / 100;
    }
  }
  found.delete("");
  return [...found.values()].map((each) => ({ ...each, pods: each.pods.size })).sort((a, b) => byName(a.name, b.name));
}

export function drawNamespaces(list, select, namespaces) {
  reconcile(list, namespaces, ({ name }) => name, drawNamespace);
  const buttons = [...list.querySelectorAll("button")];
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.namespace === select.value));
  makeStop(buttons, buttons.find((button) => button === document.activeElement) ?? buttons[0]);
  // The chosen one stays, also while it has no pod.
  const names = [...new Set([select.value, ...namespaces.map(({ name }) => name)])].filter(Boolean).sort(byName);
  if (select.looks === names.join(" ")) return;
  select.looks = names.join(" ");
  const chosen = select.value;
  select.replaceChildren(element("option", { value: "" }, "all"), ...names.map((name) => element("option", { value: name }, name)));
  select.value = chosen;
}

function drawNamespace({ name, pods, devices, parts, mib, waiting }) {
  const words = [
    devices && plural(devices, "device"),
    parts && `${mib ? `${gib(mib)} GiB` : plural(parts, "part")} in shares`,
    pods && plural(pods, "pod"),
    waiting && `${waiting} waiting`,
  ];
  return element(
    "li",
    {},
    element(
      "button",
      { type: "button", "aria-pressed": "false", tabindex: "-1", data: { namespace: name } },
      paint(element("span", { class: "swatch", "aria-hidden": "true" }), `${name}/`),
      element("span", { class: "name" }, name),
      element("span", { class: "facts" }, words.filter(Boolean).join(" · ")),
    ),
  );
}

// Which nodes, groups and waiting pods belong to a namespace; all of them to "".
export function within(namespace, { groups, waiting }) {
  if (!namespace) return { node: () => true, group: () => true, waiting: () => true };
  const here = (pod) => of(pod) === namespace;
  const waitedFor = new Set(waiting.filter((each) => here(each.pod)).map((each) => each.group));
  const group = (each) => (each.pods ?? []).some(here) || waitedFor.has(each.name);
  const names = new Set(groups.filter(group).map((each) => each.name));
  return {
    group,
    waiting: (each) => here(each.pod),
    node: (each) => (each.devices ?? []).some((device) => names.has(device.group) || podsOf(device).some(here)),
  };
}
