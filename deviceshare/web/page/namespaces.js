// The namespaces of the pods on the page, one of which may be chosen: then only what its pods have or wait for is shown.

import { element } from "./dom.js";
import { byName } from "./words.js";

const of = (pod) => (pod ?? "").slice(0, Math.max((pod ?? "").indexOf("/"), 0));
const podsOf = (device) => [device.pod, ...(device.parts ?? []).map((part) => part.pod)];

export function drawNamespaces(select, { nodes, groups, waiting }) {
  const devices = nodes.flatMap((node) => node.devices ?? []);
  const pods = [...groups.flatMap((group) => group.pods ?? []), ...waiting.map((each) => each.pod), ...devices.flatMap(podsOf)];
  // The chosen one stays, also while it has no pod.
  const names = [...new Set([select.value, ...pods.map(of)])].filter(Boolean).sort(byName);
  if (select.looks === names.join(" ")) return;
  select.looks = names.join(" ");
  const chosen = select.value;
  select.replaceChildren(element("option", { value: "" }, "all"), ...names.map((name) => element("option", { value: name }, name)));
  select.value = chosen;
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
