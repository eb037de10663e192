// An approval or a question on the page: what is asked, buttons for the choices, a field for any other answer.
//
// Who answers first is the gateway's to say, and the run's item `input.answered` closes it here as on every other
// screen. Until that item comes an answer that was taken is only shown as sent.

import { explain } from "./api.js";
import { make } from "./dom.js";
import { remaining } from "./words.js";

let count = 0;

/** The words on the buttons: what a choice of an approval does. Its own word is what is sent. */
const LABELS = { once: "Approve once", session: "Approve for this session", always: "Always approve", deny: "Deny" };
const SAID = { expired: "Nobody answered in time", stopped: "No longer asked", ended: "The run has ended" };

export function buildAsk(entry, answer) {
  const element = make("section", "ask");
  const number = ++count;
  const title = make("h2", "ask-title", entry.title);
  title.id = `ask-${number}`;
  element.tabIndex = -1;
  element.setAttribute("role", "group");
  element.setAttribute("aria-labelledby", title.id);
  element.append(title, ...asked(entry));
  const controls = make("div", "ask-controls");
  const state = make("p", "ask-state");
  const problem = make("p", "problem");
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  element.append(controls, state, problem);

  let sending = false;
  let taken = false;
  const switchOff = (off) => controls.querySelectorAll("button, input").forEach((it) => (it.disabled = off));
  const send = async (text) => {
    if (sending || taken || entry.settled) return;
    sending = true;
    problem.hidden = true;
    keepFocus();
    switchOff(true);
    try {
      await answer(entry.id, text);
      taken = true;
      // The run's item may have been quicker than the answer to our request.
      if (!entry.settled) state.textContent = `Sent: ${text}`;
    } catch (error) {
      problem.textContent = explain(error);
      problem.hidden = false;
      // What is over stays switched off: the run tells how.
      if (!["already_answered", "run_ended", "unknown_request"].includes(error.code)) switchOff(false);
    } finally {
      sending = false;
    }
  };
  /** Controls that go away would take the keyboard's place on the page with them. */
  const keepFocus = () => {
    if (controls.contains(document.activeElement)) element.focus({ preventScroll: true });
  };
  if (entry.choices.length) controls.append(buttons(entry, send));
  if (entry.free) controls.append(field(entry, number, send));

  const clock = (it) => {
    if (taken || it.settled) return;
    const left = it.expires - Date.now() / 1000;
    state.textContent = Number.isFinite(left) ? remaining(left) : "";
  };
  const update = (it) => {
    element.dataset.state = it.settled ? it.settled.how : "open";
    if (!it.settled) return clock(it);
    title.textContent = it.what === "approval" ? "Approval" : it.title;
    keepFocus();
    controls.hidden = true;
    problem.hidden = true;
    const { how, answer: text } = it.settled;
    state.textContent = how === "answered" ? `Answered: ${text}` : [SAID[how] ?? how, text].filter(Boolean).join(": ");
  };
  const visit = () => {
    element.scrollIntoView({ block: "center" });
    (controls.querySelector("button:enabled, input:enabled") ?? element).focus({ preventScroll: true });
  };
  return { element, update, clock, visit };
}

function asked(entry) {
  const parts = [];
  if (entry.text) parts.push(make("p", "ask-text", entry.text));
  if (entry.command) {
    const command = make("pre", "ask-command", entry.command);
    command.tabIndex = 0;
    command.setAttribute("aria-label", "Command");
    command.setAttribute("role", "group");
    parts.push(command);
  }
  if (entry.rest) parts.push(make("p", "ask-text quiet", entry.rest));
  if (entry.missing) parts.push(make("p", "ask-text quiet", `${entry.missing.toLocaleString()} bytes more are not shown`));
  return parts;
}

function buttons(entry, send) {
  const row = make("div", "ask-buttons");
  for (const choice of entry.choices) {
    const label = (entry.what === "approval" && LABELS[choice]) || choice;
    const button = make("button", choice === "deny" ? "danger" : "", label);
    button.type = "button";
    button.addEventListener("click", () => send(choice));
    row.append(button);
  }
  return row;
}

function field(entry, number, send) {
  const form = make("form", "ask-form");
  form.autocomplete = "off";
  const label = make("label", "", entry.choices.length ? "Or another answer" : "Your answer");
  const input = make("input");
  label.htmlFor = input.id = `ask-${number}-answer`;
  input.maxLength = 8000;
  const button = make("button", "primary", "Send");
  button.type = "submit";
  form.append(label, input, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) send(input.value.trim());
    else input.focus();
  });
  return form;
}
