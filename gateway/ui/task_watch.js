// One task on the screen: its stream, what people send, and the view of both.

import { explain, request, runPath, taskPath } from "./api.js";
import { $, announce, problem, set, showConnection } from "./dom.js";
import { Feed } from "./feed.js";
import { openDialog } from "./task_dialogs.js";
import { TaskState } from "./task_state.js";
import { TaskView } from "./task_view.js";
import { byWhom, story } from "./task_words.js";

const TYPES = ["event", "final", "failed", "cancelled"];
const GONE = [400, 404, 422];

export class TaskWatch {
  /** `types`: what the stream of a step may hold. `who()`: the name that decisions are made in. `decided()` is called
   *  when the task has changed, for the list. */
  constructor(id, { types, who, changed }) {
    this.id = id;
    this.who = who;
    this.changed = changed;
    this.state = new TaskState();
    this.view = new TaskView(this, {
      types,
      answer: (run, ask, text) => this.answer(run, ask, text),
      changed: () => this.#draw(),
      say: announce,
    });
    this.asks = this.had = 0;
  }

  async open() {
    this.connection("connecting");
    try {
      await this.refresh();
    } catch (error) {
      problem("task-problem", explain(error));
      if (GONE.includes(error.status)) {
        this.connection("closed");
        $("status").hidden = true;
        set($("task-title"), this.id);
        return;
      }
    }
    this.feed = new Feed(taskPath(this.id), TYPES, this);
  }

  async refresh() {
    const nth = ++this.asks;
    const answer = await request(taskPath(this.id));
    if (nth < this.had) return; // a later one was quicker
    this.had = nth;
    this.state.take(answer);
    problem("task-problem", "");
    this.#draw();
  }

  /** How the list shows the task; none: it is too old for that. What others have decided does not come by the stream
   *  before a worker obeys it. */
  listed(task) {
    if (this.state.ended || !this.state.task) return;
    if (task && (task.version < this.state.version || task.pending_decisions === this.state.undone.length)) return;
    this.refresh().catch(() => {});
  }

  tick() {
    this.view.tick(this.state);
  }

  seen(visible) {
    for (const live of this.view.lives) live.seen(visible);
  }

  // What the feed tells.

  frame(type, item) {
    this.state.apply(type, item);
    if (type === "gap") this.lacking = true;
  }

  flush() {
    const fresh = this.state.fresh.splice(0);
    if (this.lacking) {
      this.lacking = false;
      this.refresh().catch(() => {});
    }
    this.#draw();
    announce(fresh.map((entry) => story(entry) + byWhom(entry.by)));
    if (fresh.length) this.changed();
  }

  connection(state) {
    showConnection(state);
  }

  /** The gateway refused the stream. Whether to ask again. */
  async lost() {
    try {
      await this.refresh();
    } catch (error) {
      problem("task-problem", explain(error));
      return !(error.status >= 400 && error.status < 500);
    }
    return !this.state.ended;
  }

  #draw() {
    this.view.draw(this.state);
  }

  // What people say.

  /** `what`: `approve`, `steps/2/reject` …. Throws what `request` throws. */
  async decide(what, body) {
    const by = this.who();
    const headers = {};
    const token = what === "cancel" ? sessionStorage.getItem(`cancel:${this.id}`) : null;
    if (token) headers["X-Cancel-Token"] = token;
    const sent = { ...body, ...(by && { by }) };
    await request(`${taskPath(this.id)}/${what}`, { method: "POST", body: sent, headers });
    // It is kept, whether a worker is there to tell the stream or not.
    await this.refresh().catch(() => {});
    this.changed();
  }

  /** What Hermes asks is answered through the task; so soon that the task has not heard of it, through the run itself. */
  async answer(run, id, answer) {
    const body = { request_id: id, answer };
    try {
      await request(`${taskPath(this.id)}/input`, { method: "POST", body });
    } catch (error) {
      if (error.code !== "unknown_request") throw error;
      await request(`${runPath(run)}/input`, { method: "POST", body });
    }
  }

  async approveAll(risk) {
    problem("approve-problem", "");
    try {
      await this.decide("approve", { up_to: risk });
    } catch (error) {
      problem("approve-problem", explain(error));
    }
  }

  async retry() {
    problem("task-problem", "");
    try {
      await this.decide("retry", {});
    } catch (error) {
      problem("task-problem", explain(error));
    }
  }

  cancel() {
    openDialog({
      title: "Cancel this task?",
      text: "What runs is stopped, what waits is not begun. Results that are there stay.",
      fields: [{ name: "reason", label: "Why (may stay empty)", max: 2000 }],
      action: "Cancel the task",
      danger: true,
      send: ({ reason }) => this.decide("cancel", reason.trim() ? { reason: reason.trim() } : {}),
      after: () => $("task-title"),
    });
  }

  visit() {
    this.view.visit(this.state.waits ?? 0);
  }
}
