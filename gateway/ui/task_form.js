// The form that makes a task. What is written in it outlasts a reload, until it was sent.

import { newKey, request } from "./api.js";
import { $, make } from "./dom.js";
import { offerRunners, proposeRunner } from "./runners.js";
import { RISKS, riskWord } from "./task_words.js";

const DRAFT = "task-draft";
const FIELDS = ["goal", "plan", "runner", "approval_from", "approvals", "max_steps", "model", "session_id"];

// What it says follows a script and never is a plan.
const PLANLESS = new Set(["scripted"]);

let key = newKey();
let count = 0;
let planChosen = false;

/** A step of one's own plan: a group of fields. */
function stepFields(given = {}) {
  const group = make("fieldset", "own-step");
  group.append(make("legend"));
  const id = ++count;
  const add = (input, name, label) => {
    const row = make("div", "field");
    const title = make("label", "", label);
    title.htmlFor = input.id = `own-${id}-${name}`;
    input.dataset.name = name;
    row.append(title, input);
    group.append(row);
    return input;
  };
  const title = add(make("input"), "title", "Title");
  title.maxLength = 200;
  const instruction = add(make("textarea"), "instruction", "Instruction");
  instruction.rows = 2;
  const risk = add(make("select"), "risk", "Risk");
  risk.append(...RISKS.map((it) => new Option(riskWord(it), it)));
  const approval = add(make("select"), "approval", "Approval");
  approval.append(new Option("as its risk says", ""), new Option("needed", "yes"), new Option("not needed", "no"));
  const values = { title: "", instruction: "", risk: "medium", approval: "", ...given };
  for (const it of [title, instruction, risk, approval]) it.value = values[it.dataset.name];
  title.required = instruction.required = true;
  const remove = make("button", "quiet-button", "Remove this step");
  remove.type = "button";
  remove.addEventListener("click", () => {
    const heir = group.previousElementSibling ?? group.nextElementSibling;
    group.remove();
    number();
    saveDraft();
    (heir?.querySelector("input") ?? $("add-step")).focus();
  });
  group.append(remove);
  $("own-steps").append(group);
  number();
  return title;
}

function number() {
  const groups = [...$("own-steps").children];
  groups.forEach((group, i) => {
    group.querySelector("legend").textContent = `Step ${i + 1}`;
    group.querySelector("button").hidden = groups.length < 2;
  });
}

const readStep = (group) =>
  Object.fromEntries([...group.querySelectorAll("[data-name]")].map((input) => [input.dataset.name, input.value]));

const readSteps = () => [...$("own-steps").children].map(readStep);

const value = (name) => $("start").elements[name].value;

function saveDraft() {
  const fields = Object.fromEntries(FIELDS.map((name) => [name, value(name)]));
  sessionStorage.setItem(DRAFT, JSON.stringify({ key, fields, steps: readSteps() }));
}

function loadDraft() {
  const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null");
  // The same key as before the reload: an answer that was lost with it does not make the task twice.
  if (draft) key = draft.key;
  for (const [name, text] of Object.entries(draft?.fields ?? {})) $("start").elements[name].value = text;
  for (const step of draft?.steps ?? []) stepFields(step);
  planChosen = Boolean(draft);
}

function showPlan() {
  const runner = value("runner");
  $("plan-made").textContent = `${runner === "hermes" ? "Hermes" : runner} makes it`;
  if (!planChosen) $("plan").value = PLANLESS.has(runner) ? "own" : "made";
  const own = value("plan") === "own";
  if (own && !$("own-steps").children.length) stepFields();
  $("own-plan").hidden = !own;
  // What is hidden is not asked for: a browser would refuse to send a form for a field that nobody sees.
  for (const group of $("own-steps").children) group.disabled = !own;
}

function body(by) {
  const sent = { goal: value("goal"), runner: value("runner"), planner: value("runner") };
  for (const name of ["approval_from", "approvals"]) sent[name] = value(name);
  for (const name of ["model", "session_id"]) if (value(name).trim()) sent[name] = value(name).trim();
  if (value("plan") === "own") sent.steps = readSteps().map(planned);
  else if (value("max_steps")) sent.max_steps = Number(value("max_steps"));
  if (by) sent.by = by;
  return sent;
}

const planned = ({ title, instruction, risk, approval }) => ({
  title, instruction, risk, ...(approval && { approval: approval === "yes" }),
});

/** Fill it as it was left, with these runners. */
export function openForm(runners) {
  offerRunners($("runner"), runners);
  loadDraft();
  showPlan();
  if (!planChosen) proposeRunner($("runner")).then(showPlan);
  $("plan").addEventListener("change", () => (planChosen = true));
  $("start").addEventListener("input", () => {
    key = newKey();
    saveDraft();
  });
  $("start").addEventListener("change", showPlan);
  $("add-step").addEventListener("click", () => {
    stepFields().focus();
    saveDraft();
  });
  $("goal").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      $("start").requestSubmit();
    }
  });
}

/** Make the task → its id. Throws what `request` throws. */
export async function makeTask(by) {
  const made = await request("v1/tasks", { method: "POST", body: body(by), headers: { "Idempotency-Key": key } });
  sessionStorage.setItem(`cancel:${made.task_id}`, made.cancel_token);
  sessionStorage.removeItem(DRAFT);
  return made.task_id;
}
