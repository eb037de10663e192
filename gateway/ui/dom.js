// The few things that every part of the page does to it.

export const $ = (id) => document.getElementById(id);

/** Set a text, and touch the page only where it differs. */
export function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Show what went wrong, or hide it where `text` is empty. */
export function problem(id, text) {
  $(id).textContent = text;
  $(id).hidden = !text;
}

/** How the stream of what is shown stands: `connecting`, `live`, `ended` …. */
export function showConnection(state) {
  $("connection").dataset.state = state;
  set($("connection"), state === "ended" ? "complete" : state);
}

export const STATUS_MARKS = { queued: "○", running: "●", completed: "✓", failed: "✕", cancelled: "–" };

// Announcements for screen readers: never more than the reader can follow.

const spoken = [];
let speaking = false;

/** Say these, politely. Of many at once the last ones are said. */
export function announce(texts) {
  spoken.push(...texts);
  if (speaking || !spoken.length) return;
  speaking = true;
  $("announce").textContent = spoken.splice(0).slice(-3).join(". ");
  setTimeout(() => {
    speaking = false;
    announce([]);
  }, 1500);
}

export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
