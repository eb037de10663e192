// A task on the page: its head, its plan of steps, and its history. Touches only what differs.

import { at, taskPage } from "./api.js";
import { $, make, set } from "./dom.js";
import { Live } from "./task_live.js";
import { StepCard } from "./task_steps.js";
import { RISKS, TASK_MARKS, byWhom, clock, statusWord, story, undoneStory } from "./task_words.js";
import { duration, plural } from "./words.js";

const PATIENCE = 1500; // milliseconds in which a worker that is there obeys: until then nobody is told that none is
const STANDS_STILL = new Set(["queued", "waiting", "halted"]);

export class TaskView {
  /** `task` sends what people decide; `live`: what the view of a step's run needs. */
  constructor(task, live) {
    this.task = task;
    this.live = live;
    this.cards = new Map();
    this.told = 0;
    this.undoneSince = null;
    this.planning = new Live({ own: "plan", ...live });
    $("planning-live").replaceChildren(this.planning.asks, this.planning.element);
    $("steps").replaceChildren();
    $("history").replaceChildren();
  }

  get lives() {
    return [this.planning, ...[...this.cards.values()].map((card) => card.live)];
  }

  draw(state) {
    if (!state.task) return;
    this.#head(state);
    this.#planning(state);
    this.#steps(state);
    this.#approvals(state);
    this.#history(state);
  }

  /** The clocks. */
  tick(state) {
    for (const live of this.lives) live.tick();
    if (!state.task) return;
    set($("facts"), facts(state));
    this.#undone(state);
  }

  /** The keyboard goes to what waits for a person. */
  visit(n) {
    if (n) this.cards.get(n)?.visit();
    else if (!this.planning.visitAsk()) $("retry").focus();
  }

  #head(state) {
    const { task } = state;
    set($("task-title"), task.goal);
    const waits = state.waits ?? (this.planning.waiting.length ? 0 : null);
    const decided = state.undone.length > 0 && STANDS_STILL.has(task.status);
    const mark = waits !== null ? "?" : decided ? "…" : (TASK_MARKS[task.status] ?? "");
    document.title = `${mark} ${task.goal.slice(0, 80)} · Runcast`;
    const cancelling = !state.ended && (task.cancel_requested || state.decided("cancelled"));
    const awaits = decided && waits === null;
    set($("status"), cancelling ? "Cancelling" : awaits ? "Decided" : statusWord(task.status));
    $("status").dataset.status = awaits ? "queued" : task.status;
    set($("facts"), facts(state));
    keep($("task-title"), () => {
      $("waits").hidden = waits === null;
      set($("waits"), waits ? `Step ${waits} waits for you` : "It waits for you");
      $("cancel").hidden = state.ended || cancelling;
    });
    this.#goal(task.goal);
    this.#halt(state);
    this.#undone(state);
    progress(state);
  }

  /** The title has two lines. Where the goal has more, all of it is one click away. */
  #goal(goal) {
    const key = `${innerWidth} ${goal}`;
    if (key === this.goal) return;
    this.goal = key;
    const title = $("task-title");
    $("whole-goal").hidden = title.scrollHeight <= title.clientHeight + 2 && !goal.includes("\n");
    set($("whole-goal-text"), goal);
  }

  /** What is decided and waits for a worker. Where one is there it is obeyed before anybody could read this. */
  #undone({ undone }) {
    if (!undone.length) this.undoneSince = null;
    else this.undoneSince ??= performance.now();
    const long = undone.length > 0 && performance.now() - this.undoneSince >= PATIENCE;
    set($("undone-text"), long ? undoneStory(undone) : "");
    $("undone").hidden = !long;
  }

  #halt(state) {
    const halted = state.ended ? state.failure : state.task.halted;
    keep($("task-title"), () => {
      $("halted").hidden = !halted;
      $("retry").hidden = state.ended || !halted || state.decided("retried");
    });
    if (!halted) return;
    const where = halted.step ? `Step ${halted.step}: ` : "";
    const what = halted.code === "rejected" ? `rejected: ${halted.message}` : `${halted.message} (${halted.code})`;
    set($("halted-text"), where + what);
    set($("halted-title"), state.ended ? "Failed" : "Halted");
  }

  #planning(state) {
    const { task } = state;
    const planning = task.status === "planning";
    const planned = task.planned_by && task.planned_by !== "given";
    $("planning").hidden = !planned || (!planning && !task.planning_run_id);
    const did = planning ? "makes the plan" : state.plan.length ? "made the plan" : "made no plan";
    set($("planning-text"), `${task.planned_by} ${did}.`);
    this.planning.show(task.planning_run_id, planning && Boolean(task.planning_run_id));
  }

  #steps(state) {
    const plan = state.plan;
    for (const step of plan) {
      let card = this.cards.get(step.n);
      if (!card) {
        card = new StepCard(step.n, this.task, this.live);
        this.cards.set(step.n, card);
      }
      const halted = !state.ended && state.task.halted?.step === step.n && !state.decided("retried");
      const key = [step, state.undone, state.task.status, state.task.current_step, halted];
      if (card.key?.every((it, i) => it === key[i])) continue;
      card.key = key;
      card.update(step, state, halted);
    }
    const list = $("steps");
    for (const [n, card] of this.cards) {
      if (!state.steps.has(n)) {
        card.live.close();
        card.element.remove();
        this.cards.delete(n);
      }
    }
    plan.forEach(({ n }, i) => {
      const { element } = this.cards.get(n);
      if (list.children[i] !== element) list.insertBefore(element, list.children[i] ?? null);
    });
    const none = { queued: "Waiting for a worker…", planning: "The steps stand here as soon as there is a plan." };
    $("no-steps").hidden = plan.length > 0;
    set($("no-steps"), none[state.task.status] ?? "There is no plan.");
  }

  #approvals(state) {
    const open = state.plan.filter((step) => state.may("approve", step));
    keep($("plan-title"), () => ($("approve-all").hidden = open.length < 2));
    const most = RISKS.indexOf($("up-to").value);
    const count = open.filter((step) => RISKS.indexOf(step.risk) <= most).length;
    set($("approve-all-go"), count ? `Approve ${plural(count, "step")}` : "None of that risk");
    $("approve-all-go").setAttribute("aria-disabled", String(!count));
  }

  #history({ history }) {
    if (history.length < this.told || history[this.told - 1] !== this.last) {
      $("history").replaceChildren();
      this.told = 0;
    }
    $("history").append(...history.slice(this.told).map(line));
    this.told = history.length;
    this.last = history.at(-1);
    set($("history-count"), plural(history.length, "entry").replace("entrys", "entries"));
    for (const { what, step, detail } of history.slice(-8)) {
      if (what === "input_answered") this.cards.get(step)?.live.settled(detail.request_id, detail.how, detail.answer);
    }
  }
}

/** Do what hides things, and give the keyboard to `heir` where it was on one of them. */
function keep(heir, change) {
  const active = document.activeElement;
  change();
  if (active?.closest("[hidden]")) heir.focus({ preventScroll: true });
}

function line(entry) {
  const row = make("li");
  const time = make("time", "", clock(entry.at));
  time.dateTime = entry.at;
  time.title = new Date(entry.at).toLocaleString();
  row.append(time, make("span", "told", story(entry) + byWhom(entry.by)));
  if (entry.reason) row.append(make("q", "", entry.reason));
  return row;
}

function facts({ task, plan }) {
  const said = [];
  const steps = task.steps_total || plan.length;
  if (steps) said.push(`${task.steps_done} of ${plural(steps, "step")} done`);
  if (task.by) said.push(`asked for${byWhom(task.by)}`);
  const took = ((task.ended_at ? Date.parse(task.ended_at) : Date.now()) - Date.parse(task.created_at)) / 1000;
  if (took >= 0) said.push(task.ended_at || took >= 60 ? duration(took) : `${Math.floor(took)} s`);
  return said.join(" · ");
}

/** A bar of segments: for the eye only, the words beside it say the same. */
function progress({ plan }) {
  const bar = $("track");
  while (bar.children.length > plan.length) bar.lastChild.remove();
  while (bar.children.length < plan.length) bar.append(make("span"));
  plan.forEach((step, i) => (bar.children[i].dataset.state = step.state));
}

/** A task of the list. */
export function taskRow(id) {
  const row = make("li");
  row.dataset.id = id;
  const link = make("a");
  link.href = at(taskPage(id));
  const mark = make("span", "mark");
  mark.setAttribute("aria-hidden", "true");
  link.append(mark, make("span", "title"), make("span", "sub"));
  row.append(link);
  return row;
}
