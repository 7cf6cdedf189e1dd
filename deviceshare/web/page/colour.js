// Groups' colours, computed from their names, so that a group has the same one in every browser at any time. Two groups
// may share one: their names stand beside it everywhere.

// Hues in degrees of OKLCH, without red, which marks unhealthy devices. The tones stand in style.css.
const HUES = [55, 78, 100, 128, 155, 185, 215, 242, 265, 290, 315, 342];
const TONES = ["soft", "vivid", "deep"];

export function colour(name) {
  // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/; the final steps separate names that differ in one digit only.
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(name)) hash = Math.imul(hash ^ byte, 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d) >>> 0;
  return { hue: HUES[hash % HUES.length], tone: TONES[Math.floor(hash / HUES.length) % TONES.length] };
}

export function paint(target, name) {
  const { hue, tone } = colour(name);
  target.style.setProperty("--hue", hue);
  target.dataset.tone = tone;
  return target;
}
