// DOM elements from data. Text always becomes a text node, so a name can't become markup.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== "" && child !== null && child !== undefined));
  return made;
}

// Makes a list show `items`, in their order. Unchanged elements are kept, so that focus and a screen reader's position
// are kept too; `key` names an item, `draw` creates its element.
export function reconcile(list, items, key, draw) {
  const before = new Map([...list.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const name = key(item);
    const looks = JSON.stringify(item);
    const old = before.get(name);
    before.delete(name);
    if (old && old.looks === looks) return old;
    const made = draw(item, old);
    made.dataset.key = name;
    made.looks = looks;
    if (old) old.replaceWith(made);
    return made;
  });
  before.forEach((gone) => gone.remove());
  wanted.forEach((child, at) => {
    if (list.children[at] !== child) list.insertBefore(child, list.children[at] ?? null);
  });
}

// Moves among the buttons of a list, which are a single stop of the tab key.
export function onArrow(buttons, event) {
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  const next = buttons[Math.min(Math.max(to, 0), buttons.length - 1)];
  makeStop(buttons, next);
  next.focus();
}

// Makes exactly one of the buttons reachable by the tab key.
export function makeStop(buttons, at) {
  for (const button of buttons) button.tabIndex = button === at ? 0 : -1;
}

export function text(id, words) {
  const found = document.getElementById(id);
  if (found.textContent !== words) found.textContent = words;
}

export function plural(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}
