// How a task, its steps and its history are put into words. Pure.

export const RISKS = ["low", "medium", "high", "critical"];

const RISK_WORDS = { low: "Low risk", medium: "Medium risk", high: "High risk", critical: "Critical risk" };
const STATE_WORDS = {
  pending: "To come", waiting: "Waits for approval", approved: "Approved", running: "Running", completed: "Done",
  failed: "Failed", rejected: "Rejected", cancelled: "Cancelled",
};
const STATUS_WORDS = {
  queued: "Queued", planning: "Planning", running: "Running", waiting: "Waits for approval", halted: "Halted",
  completed: "Completed", cancelled: "Cancelled", failed: "Failed",
};
export const TASK_MARKS = {
  queued: "○", planning: "◌", running: "●", waiting: "?", halted: "!", completed: "✓", cancelled: "–", failed: "✕",
};
export const STEP_MARKS = { running: "●", waiting: "?", completed: "✓", failed: "✕", rejected: "✕", cancelled: "–" };

export const riskWord = (risk) => RISK_WORDS[risk] ?? risk;
export const stateWord = (state) => STATE_WORDS[state] ?? state;
export const statusWord = (status) => STATUS_WORDS[status] ?? status;

/** A time of day, with the date where it is not today's. */
export function clock(iso, now = new Date()) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return at.toDateString() === now.toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}

/** Decisions that no worker has obeyed yet, as a sentence. */
export const undoneStory = (decisions) => decisions.map((it) => story(it) + byWhom(it.by)).join(" · ");

export const byWhom = (name) => (name ? ` by ${name}` : "");

const tail = (text) => (text ? `: ${text}` : "");

/** What a person decided about a step last, or "". */
export function decision(step, passed) {
  const why = tail(step.reason);
  if (step.state === "rejected") return `Rejected${why}${passed ? " (the task goes on without it)" : ""}`;
  if (step.approved_at) return `Approved${byWhom(step.approved_by)}, ${clock(step.approved_at)}${why}`;
  return step.revision > 1 && step.reason ? `Edited${why}` : "";
}

const FIELDS = { title: "title", instruction: "instruction", risk: "risk", approval: "whether it needs approval" };
const SHORT = 160;
const brief = (value) => {
  const text = typeof value === "string" ? value : value === true ? "yes" : value === false ? "no" : String(value);
  return text.length > SHORT ? `${text.slice(0, SHORT - 1)}…` : text;
};

const edits = (detail) => Object.entries(detail.changed ?? {}).map(([name, was]) => `${FIELDS[name] ?? name} was “${brief(was)}”`);
const steps = (numbers) => (numbers.length ? `step${numbers.length === 1 ? "" : "s"} ${numbers.join(", ")}` : "");

const STORIES = {
  created: (e) => (e.by ? "The task began, asked for" : "The task began"),
  planning: (e) => (e.detail.try > 1 ? `Planning again, try ${e.detail.try}` : "A plan is being made"),
  plan_lost: () => "The planning was lost with its worker; it is tried again",
  plan_refused: (e) => `What was said is no plan${tail((e.detail.errors ?? []).join("; "))}`,
  plan_failed: (e) => `No plan came about${tail(e.detail.message)}`,
  planned: () => "The plan stands",
  step_waiting: (e) => `Step ${e.step} waits for approval`,
  step_approved: (e) => `Step ${e.step} was approved`,
  step_rejected: (e) => `Step ${e.step} was rejected${e.detail.then === "continue" ? "; the task goes on without it" : ""}`,
  step_edited: (e) => [`Step ${e.step} was edited`, ...edits(e.detail)].join("; "),
  approved: (e) => `All up to ${riskWord(e.detail.up_to).toLowerCase()} were approved${tail(steps(e.detail.approved ?? []))}`,
  step_started: (e) => `Step ${e.step} started${e.detail.try > 1 ? `, try ${e.detail.try}` : ""}`,
  step_restarted: (e) => `Step ${e.step} began again: its worker was lost`,
  input_requested: (e) => `Step ${e.step} asks ${e.detail.kind === "approval" ? "for an approval" : "a question"}`,
  input_answered: (e) => `Step ${e.step} ${SETTLED[e.detail.how] ?? "was answered"}${tail(e.detail.answer)}`,
  step_completed: (e) => `Step ${e.step} is done`,
  step_lost: (e) => `Step ${e.step} was lost with its worker; it is tried again`,
  step_failed: (e) => `Step ${e.step} failed${tail(e.detail.message)}`,
  retried: (e) => (e.detail.step ? `Retried from step ${e.detail.step}` : "It is tried again"),
  decision_refused: (e) => `A decision could not be obeyed${tail(e.detail.message)}`,
  completed: () => "The task is completed",
  cancelled: () => "The task was cancelled",
};
const SETTLED = { answered: "was answered", expired: "had no answer in time", stopped: "asks no longer" };

/** One entry of the history as a sentence, without its time. */
export function story(entry) {
  const told = STORIES[entry.what]?.({ ...entry, detail: entry.detail ?? {} });
  return told ?? entry.what.replaceAll("_", " ");
}
