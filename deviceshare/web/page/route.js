// The part of the address that names a group or a node: `#group/NAME`, `#node/NAME`. It survives a reload, and leads whoever
// gets the address to the same.

const KINDS = ["group", "node"];
const NOWHERE = { kind: "", name: "" };

export function linkTo(kind, name) {
  return `#${kind}/${encodeURIComponent(name)}`;
}

export function readRoute() {
  const [kind, ...rest] = location.hash.slice(1).split("/");
  if (!KINDS.includes(kind)) return NOWHERE;
  try {
    return { kind, name: decodeURIComponent(rest.join("/")) };
  } catch {
    return NOWHERE; // not what this page wrote
  }
}

// Puts it into the address, where the Back button finds it again.
export function writeRoute(kind, name) {
  const there = kind ? linkTo(kind, name) : `${location.pathname}${location.search}`;
  history.pushState(null, "", there);
}
