// What a task looks like, folded from the events of its stream. Pure: the view draws it.
//
// Each event has the task in short and the steps that changed, whole. So the newest word on each is how it stands, a
// repetition does no harm, and where the head of the stream was trimmed nothing but history is lost.

const STATUS_OF_FENCE = { final: "completed", failed: "failed", cancelled: "cancelled" };
const OF_ALL = new Set(["created", "planned", "approved", "retried", "cancelled"]); // they may change any step
const ENDED = new Set(["completed", "cancelled", "failed"]);
const MAY = {
  approve: new Set(["pending", "waiting"]),
  reject: new Set(["pending", "waiting", "approved"]),
  edit: new Set(["pending", "waiting", "failed", "rejected"]),
};

export class TaskState {
  constructor() {
    this.kept = new Map(); // decisions that the gateway has taken and the stream does not tell of yet, by step
    this.clear();
  }

  /** Forget what was shown: everything follows anew. */
  clear() {
    this.task = null;
    this.steps = new Map();
    this.history = [];
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
  take({ steps, history, ...task }) {
    if (task.version < this.version || this.ended) return;
    this.task = task;
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
    if (!name.startsWith("task.") || !task || task.version < this.version) return;
    this.task = { ...this.task, ...task };
    for (const told of steps ?? (step ? [step] : [])) this.steps.set(told.n, told);
    const known = this.history.at(-1)?.version ?? 0;
    if (name === "task.resumed" || version <= known) return;
    const entry = { version, at, by, reason, detail, what: name.slice("task.".length), step: n };
    this.history.push(entry);
    this.fresh.push(entry);
  }

  #fence(type, item) {
    this.task = { ...this.task, status: STATUS_OF_FENCE[type], halted: null, current_step: null };
    if (type === "failed") this.failure = { code: item.code, message: item.message };
  }

  // What people decide.

  /** The gateway has taken a decision when the task was of `version`; `steps` are those that it changes. */
  keep(steps, version) {
    for (const step of steps) this.kept.set(step.n, { version, step });
    this.forget();
  }

  /** Leave out what the stream tells of by now. */
  forget() {
    for (const [n, { version }] of this.kept) if (this.ended || this.#touched(n, version)) this.kept.delete(n);
  }

  #touched(n, version) {
    return this.history.some((e) => e.version > version && (e.step === n || (e.step === null && OF_ALL.has(e.what))));
  }

  /** The steps in their order, with what was decided about them. `kept`: no worker has obeyed it yet. */
  get plan() {
    const known = [...this.steps.values()].sort((a, b) => a.n - b.n);
    return known.map((step) => {
      const kept = this.kept.get(step.n);
      return kept ? { ...step, ...kept.step, kept: true } : step;
    });
  }

  /** Whether people may do `what` with a step: approve, reject, edit. */
  may(what, step) {
    if (this.ended || !MAY[what].has(step.state)) return false;
    if (what === "approve") return step.approval;
    return !(what === "edit" && step.state === "rejected" && this.passed(step));
  }

  /** Rejected, and the task goes on without it. */
  passed(step) {
    const last = this.history.findLast((e) => e.step === step.n && e.what === "step_rejected");
    return step.state === "rejected" && !step.kept && last?.detail?.then === "continue";
  }

  /** The number of the step that waits for somebody, 0: the task itself does; null: nothing does. */
  get waits() {
    if (!this.task || this.ended) return null;
    const asking = this.plan.find((step) => step.asks?.length && step.state === "running");
    if (asking) return asking.n;
    if (this.task.status === "halted") return this.task.halted?.step ?? 0;
    const waiting = this.plan.find((step) => step.state === "waiting");
    return waiting ? waiting.n : null;
  }
}
