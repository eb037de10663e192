// The run of a step (or of the plan) as it streams: its text, its tools, and what it asks people.
//
// A running one opens by itself; one that is over is read when somebody opens it. A hidden tab lets go of its stream, for
// a browser has six connections to a server of HTTP/1.1, and goes on where it was when it is looked at.

import { at, request, runPath } from "./api.js";
import { make, set } from "./dom.js";
import { Feed } from "./feed.js";
import { RunState } from "./state.js";
import { RunView } from "./view.js";

const AWAIT = [100, 200, 400, 800, 1600]; // milliseconds: a step is told of just before its run is made
const FOLLOWS = 24; // pixels from the end that still count as being there

export class Live {
  /** `own`: the component whose run it is. `answer(run, request, text)` sends an answer. `changed()` is called when it has
   *  drawn, `say(texts)` with what to announce. */
  constructor({ own, types, answer, changed, say }) {
    Object.assign(this, { own, types, changed, say });
    this.sends = answer;
    this.asks = make("div", "live-asks");
    this.element = make("details", "live");
    this.title = make("span", "live-title");
    this.link = make("span", "connection");
    const summary = make("summary");
    summary.append(this.title, this.link);
    summary.addEventListener("click", () => (this.chosen = true));
    this.output = make("div", "live-output");
    this.output.tabIndex = 0;
    this.output.setAttribute("role", "log");
    this.output.setAttribute("aria-live", "off");
    this.output.setAttribute("aria-label", `Live text of ${own.replace(":", " ")}`);
    this.whole = make("a", "live-run", "Open this run");
    this.element.append(summary, this.output, this.whole);
    this.element.addEventListener("toggle", () => this.element.open && this.#start());
    this.element.hidden = true;
  }

  /** What to show now: the run, whether it runs, and the asks that the task knows of. */
  show(runId, running, asks = []) {
    if (runId !== this.runId) this.#turnTo(runId);
    this.element.hidden = !runId;
    if (!runId) return;
    set(this.title, running ? "Live" : "What it did");
    if (running && !this.running) {
      this.element.open = true;
      this.chosen = false;
      this.#start();
    } else if (!running && this.running && !this.chosen && !this.element.contains(document.activeElement)) {
      this.element.open = false;
    }
    this.running = running;
    for (const { kind, expires_at: until, payload, ...ask } of asks) {
      this.state.asked(kind, { ...ask, payload, expires: Date.parse(until) / 1000 });
    }
    if (asks.length) this.view.draw(this.state);
  }

  /** The task says that an ask has its answer: its own item may be on its way. */
  settled(id, how, answer) {
    if (!this.state?.byKey.has(`ask/${id}`)) return;
    this.state.settled(id, how, answer);
    this.view.draw(this.state);
  }

  get waiting() {
    return this.state?.waiting ?? [];
  }

  /** The keyboard goes to the first thing that is asked. */
  visitAsk() {
    const [first] = this.waiting;
    if (first) this.view.visit(first);
    return Boolean(first);
  }

  tick() {
    this.view?.tick();
  }

  /** The tab is looked at, or is not. */
  seen(visible) {
    if (!this.started || this.over) return;
    if (!visible) this.#leave();
    else if (!this.feed) this.#open();
  }

  close() {
    this.#leave();
    this.runId = null;
  }

  #turnTo(runId) {
    this.#leave();
    this.runId = runId;
    this.cursor = "";
    this.running = this.started = this.over = false;
    this.state = new RunState(this.own);
    this.view = new RunView(this.output, (id, text) => this.sends(this.runId, id, text), this.asks);
    this.whole.href = runId ? at(`#run=${encodeURIComponent(runId)}`) : "";
  }

  #leave() {
    if (this.feed) this.cursor = this.feed.taken;
    this.feed?.close();
    this.feed = null;
  }

  async #start() {
    if (this.started || !this.runId) return;
    this.started = true;
    const run = this.runId;
    for (const pause of AWAIT) {
      const found = await request(runPath(run)).then(() => true, (error) => error.status !== 404);
      if (found || run !== this.runId) break;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
    if (run === this.runId && !document.hidden) this.#open();
  }

  #open() {
    this.feed ??= new Feed(runPath(this.runId), this.types, this, this.cursor);
  }

  // What the feed tells.

  frame(type, item) {
    this.state.apply(type, item);
    if (type === "end") this.over = true;
  }

  flush() {
    const box = this.output;
    const follow = box.scrollTop + box.clientHeight >= box.scrollHeight - FOLLOWS;
    this.view.draw(this.state);
    if (follow) box.scrollTop = box.scrollHeight;
    const said = this.state.announcements.splice(0);
    if (this.running) this.say(said);
    this.changed();
  }

  connection(state) {
    this.link.dataset.state = state;
    set(this.link, { live: "", ended: "", closed: "not kept any more" }[state] ?? state);
  }

  /** The gateway refused the stream. Whether to ask again. */
  async lost() {
    const run = this.runId;
    try {
      const record = await request(runPath(run));
      return !(this.state.ended && this.state.seq >= record.last_seq);
    } catch (error) {
      return this.running || !(error.status >= 400 && error.status < 500);
    }
  }
}
