// The colours of groups, and of namespaces, whose pods have parts of devices. Each new name gets the colour that differs most
// from those in use, and keeps it while the page is open; names stand beside colours everywhere.

// Hues in degrees of OKLCH, without red, which marks unhealthy devices. The tones stand in style.css.
const HUES = [55, 78, 100, 128, 155, 185, 215, 242, 265, 290, 315, 342];
const TONES = ["vivid", "soft", "deep"];
const PALETTE = TONES.flatMap((tone) => HUES.map((hue) => ({ hue, tone, names: 0 })));
// As far apart as two tones of one hue seem to be, in degrees.
const TONE_DISTANCE = 25;

const given = new Map();

// Gives colours to new names, and takes back those of names that are gone.
export function assignColours(names) {
  const there = new Set(names);
  for (const [name, colour] of given) {
    if (there.has(name)) continue;
    colour.names--;
    given.delete(name);
  }
  // By hash, so that a page that is opened anew gives most names what they had.
  const fresh = [...there].filter((name) => !given.has(name));
  for (const [, name] of fresh.map((name) => [hash(name), name]).sort(([a], [b]) => a - b)) give(name);
}

// The name under which a namespace has its colour; a group's can't contain a slash.
export function ofNamespace(pod) {
  return pod.slice(0, pod.indexOf("/") + 1);
}

export function paint(target, name) {
  const { hue, tone } = given.get(name) ?? give(name);
  target.style.setProperty("--hue", hue);
  target.dataset.tone = tone;
  return target;
}

function give(name) {
  const fewest = Math.min(...PALETTE.map((colour) => colour.names));
  const open = PALETTE.filter((colour) => colour.names === fewest);
  const used = fewest ? [] : PALETTE.filter((colour) => colour.names);
  const gap = (colour) => Math.min(...used.map((other) => distance(colour, other)));
  const chosen = used.length ? open.reduce((best, each) => (gap(each) > gap(best) ? each : best)) : open[hash(name) % open.length];
  chosen.names++;
  given.set(name, chosen);
  return chosen;
}

function distance(one, other) {
  const turn = Math.abs(one.hue - other.hue);
  return Math.min(turn, 360 - turn) + (one.tone === other.tone ? 0 : TONE_DISTANCE);
}

// FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
function hash(name) {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(name)) value = Math.imul(value ^ byte, 0x01000193);
  return value >>> 0;
}
