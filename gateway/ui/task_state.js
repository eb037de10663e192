// What a task looks like, folded from the events of its stream. Pure: the view draws it.
//
// Each event has the task in short and the steps that changed, whole. So the newest word on each is how it stands, a
// repetition does no harm, and where the head of the stream was trimmed nothing but history is lost. What is decided and
// not in the stream yet comes with the gateway's answer: the steps that are `pending`, and `decisions`.

const STATUS_OF_FENCE = { final: "completed", failed: "failed", cancelled: "cancelled" };
const ENDED = new Set(["completed", "cancelled", "failed"]);
const MAY = {
  approve: new Set(["pending", "waiting"]),
  reject: new Set(["pending", "waiting", "approved", "failed"]),
  edit: new Set(["pending", "waiting", "failed", "rejected"]),
};

export class TaskState {
  constructor() {
    this.clear();
  }

  /** Forget what was shown: everything follows anew. */
  clear() {
    this.task = null;
    this.steps = new Map();
    this.history = [];
    this.undone = []; // decisions that no worker has obeyed yet
    this.viewed = 0; // the version of the gateway's answer: it has what the stream tells up to there, and more
    this.fresh = []; // entries that were not there when the page was opened, for whoever announces them
    this.failure = null;
  }

  get version() {
    return this.task?.version ?? 0;
  }

  get ended() {
    return ENDED.has(this.task?.status);
  }

  /** The answer of `GET /v1/tasks/{id}`. What the stream has told since counts more. */
  take({ steps, history, decisions = [], ...task }) {
    if (task.version < this.version || this.ended) return;
    this.task = task;
    this.undone = decisions;
    this.viewed = task.version;
    for (const step of steps) this.steps.set(step.n, step);
    // Where retention cut the stream this page may have seen more than the gateway can tell.
    if (history.length >= this.history.length) this.history = [...history];
  }

  /** One frame of the stream. */
  apply(type, item) {
    if (type === "reset") this.clear();
    else if (type === "event") this.#event(item);
    else if (STATUS_OF_FENCE[type]) this.#fence(type, item);
  }

  #event({ name, version, at, by, reason, n, detail, task, step, steps }) {
    if (!name.startsWith("task.") || !task || task.version < this.version || task.version <= this.viewed) return;
    this.task = { ...this.task, ...task };
    for (const told of steps ?? (step ? [step] : [])) this.steps.set(told.n, told);
    const known = this.history.at(-1)?.version ?? 0;
    if (name === "task.resumed" || version <= known) return;
    const entry = { version, at, by, reason, detail, what: name.slice("task.".length), step: n };
    this.history.push(entry);
    this.fresh.push(entry);
    const told = (it) => it.at === at && it.step === n && (it.what === entry.what || entry.what === "decision_refused");
    if (this.undone.some(told)) this.undone = this.undone.filter((it) => !told(it));
  }

  #fence(type, item) {
    this.task = { ...this.task, status: STATUS_OF_FENCE[type], halted: null, current_step: null };
    this.undone = [];
    if (type === "failed") this.failure = { code: item.code, message: item.message };
  }

  // What people decide.

  /** The steps in their order. `pending`: with what was decided about them, and no worker has obeyed it yet. */
  get plan() {
    return [...this.steps.values()].sort((a, b) => a.n - b.n);
  }

  /** Somebody has decided `what`, and no worker has obeyed it yet. */
  decided(what) {
    return this.undone.some((it) => it.what === what);
  }

  /** Whether people may do `what` with a step: approve, reject, edit. */
  may(what, step) {
    if (this.ended || !MAY[what].has(step.state)) return false;
    if (what === "approve") return step.approval;
    return !(what === "edit" && step.state === "rejected" && this.passed(step));
  }

  /** Rejected, and the task goes on without it. */
  passed(step) {
    const last = [...this.history, ...this.undone].findLast((e) => e.step === step.n && e.what === "step_rejected");
    return step.state === "rejected" && last?.detail?.then === "continue";
  }

  /** The number of the step that waits for somebody, 0: the task itself does; null: nothing does. */
  get waits() {
    if (!this.task || this.ended || this.decided("cancelled")) return null;
    const asking = this.plan.find((step) => step.asks?.length && step.state === "running");
    if (asking) return asking.n;
    if (this.task.status === "halted") return this.decided("retried") ? null : (this.task.halted?.step ?? 0);
    const waiting = this.plan.find((step) => step.state === "waiting");
    return waiting ? waiting.n : null;
  }
}
