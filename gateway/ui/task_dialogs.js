// The dialogs about a step and the task: fields, a button that sends them, and what went wrong, shown where it was said.
//
// Enter sends (in a long text Ctrl + Enter), Escape closes; then the keyboard is where it was, or where it can be.

import { explain } from "./api.js";
import { make } from "./dom.js";

let count = 0;

/** One field. `kind`: text, long, choice, check. */
function field({ name, label, kind = "text", value = "", choices = [], required = false, max = 0, hint = "" }, send) {
  const row = make("div", kind === "check" ? "field check" : "field");
  const input = make({ long: "textarea", choice: "select" }[kind] ?? "input");
  const title = make("label", "", label);
  title.htmlFor = input.id = `dialog-${++count}`;
  input.name = name;
  input.required = required;
  if (max) input.maxLength = max;
  if (kind === "choice") input.append(...choices.map(([word, text]) => new Option(text, word, false, word === value)));
  else if (kind === "check") Object.assign(input, { type: "checkbox", checked: value });
  else input.value = value;
  if (kind === "long") input.rows = Math.min(10, Math.max(3, Math.ceil(value.length / 60)));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    if (kind === "long" && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    send();
  });
  row.append(...(kind === "check" ? [input, title] : [title, input]));
  if (hint) {
    const said = make("p", "hint", hint);
    input.setAttribute("aria-describedby", (said.id = `${input.id}-hint`));
    row.append(said);
  }
  return { row, name, read: () => (kind === "check" ? input.checked : input.value) };
}

/** Open a dialog. `send(values)` does it, and throws what `request` throws: then the dialog stays and says so. `after()`
 *  is where the keyboard goes when what had it is gone. */
export function openDialog({ title, text = "", fields, action, danger = false, send, after }) {
  const before = document.activeElement;
  const dialog = make("dialog");
  const form = make("form", "start");
  const heading = make("h2", "dialog-title", title);
  dialog.setAttribute("aria-labelledby", (heading.id = `dialog-${++count}`));
  const rows = fields.map((it) => field(it, () => form.requestSubmit()));
  const problem = make("p", "problem");
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  const buttons = make("div", "dialog-buttons");
  const [close, go] = [make("button", "", "Back"), make("button", danger ? "danger strong" : "primary", action)];
  close.type = "button";
  go.type = "submit";
  buttons.append(close, go);
  form.noValidate = false;
  form.append(heading, ...(text ? [make("p", "quiet", text)] : []), ...rows.map((it) => it.row), problem, buttons);
  dialog.append(form);

  let sending = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (sending) return;
    sending = true;
    problem.hidden = true;
    try {
      await send(Object.fromEntries(rows.map((it) => [it.name, it.read()])));
      dialog.close();
    } catch (error) {
      problem.textContent = explain(error);
      problem.hidden = false;
    } finally {
      sending = false;
    }
  });
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    const there = before?.isConnected && !before.closest("[hidden]") && before !== document.body;
    (there ? before : after()).focus({ preventScroll: true });
  });
  document.body.append(dialog);
  dialog.showModal();
  (rows[0]?.row.querySelector("input, textarea, select") ?? go).focus();
}
