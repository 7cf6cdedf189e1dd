// Marks what the filter's words find: whole tiles, and names in the text that is shown.

// https://developer.mozilla.org/en-US/docs/Web/API/CSS_Custom_Highlight_API: older browsers mark tiles only.
const marks = globalThis.Highlight ? new Highlight() : null;
if (marks) CSS.highlights.set("hit", marks);

export function markHits(lists, words) {
  for (const tile of lists.flatMap((list) => [...list.querySelectorAll(".device")])) {
    tile.classList.toggle("hit", words.some((word) => tile.states.includes(word)));
  }
  if (!marks) return;
  marks.clear();
  for (const name of words.length ? lists.flatMap((list) => [...list.querySelectorAll(".name, .pods, h3 a")]) : []) markText(name, words);
}

function markText(name, words) {
  const texts = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.toLowerCase();
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(texts.currentNode, at);
        range.setEnd(texts.currentNode, at + word.length);
        marks.add(range);
      }
    }
  }
}
