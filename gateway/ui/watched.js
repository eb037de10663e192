// One run on the screen: its record, its stream, and the head of the page that sums both up.

import { at, explain, request, runPath, taskPage } from "./api.js";
import { $, STATUS_MARKS, announce, problem, set, showConnection } from "./dom.js";
import { Feed } from "./feed.js";
import { RunState } from "./state.js";
import { RunView } from "./view.js";
import { count, duration, money, partOf, plural } from "./words.js";

// Following the newest line, as long as the reader does.

export const bottom = () => document.documentElement.scrollHeight - window.innerHeight;

export function toNewest() {
  $("jump").hidden = true;
  window.scrollTo(0, bottom());
}

export class Watched {
  /** `types`: the item types to listen for; `ended` is called once when the run has ended. */
  constructor(id, types, ended) {
    this.id = id;
    this.types = types;
    this.ended = ended;
    this.record = null;
    this.state = new RunState();
    this.view = new RunView($("output"), (id, answer) => this.answer(id, answer));
    this.follow = true;
    this.closed = false;
    this.asked = false;
    this.unknown = false; // there is no such run
  }

  async open() {
    this.connection("connecting");
    this.#head();
    try {
      await this.refresh();
    } catch (error) {
      if (this.closed) return;
      problem("run-problem", explain(error));
      if (error.status === 404 || error.status === 400 || error.status === 422) {
        this.unknown = true;
        this.connection("closed");
        this.#head();
        return;
      }
    }
    if (!this.closed) this.feed = new Feed(runPath(this.id), this.types, this);
  }

  async refresh() {
    const record = await request(runPath(this.id));
    if (this.closed) return;
    this.record = record;
    if (partOf(record)) this.state.own = record.component; // all of it is that part
    if (this.state.status === "queued") this.state.status = record.status;
    this.state.usage ??= record.usage?.total ?? record.usage;
    this.state.cost ??= record.cost;
    this.asked ||= record.cancel_requested;
    problem("run-problem", "");
    this.#head();
  }

  close() {
    this.closed = true;
    this.feed?.close();
  }

  /** Retention may have removed the item of an ask that is open still: the record has it. */
  async recover() {
    await this.refresh();
    for (const { kind, expires_at: until, ...ask } of this.record.pending_input ?? []) {
      this.state.asked(kind, { ...ask, expires: Date.parse(until) / 1000 });
    }
    this.flush();
  }

  async answer(id, answer) {
    const body = { request_id: id, answer };
    try {
      await request(`${runPath(this.id)}/input`, { method: "POST", body });
    } catch (error) {
      if (error.code === "already_answered" && !this.closed) this.#first(id, error);
      throw error;
    }
  }

  /** Somebody else was quicker, and the item that says so is on its way, unless retention has removed it. */
  #first(id, error) {
    this.state.settled(id, error.how ?? "answered", error.answer ?? "");
    this.flush();
  }

  visitAsk() {
    const [first] = this.state.waiting;
    this.follow = false;
    if (first) this.view.visit(first);
  }

  // What the feed tells.

  frame(type, item) {
    this.state.apply(type, item);
    if (type === "gap") this.lacking = true;
    if (type === "end") this.state.status = item.status ?? this.state.status;
  }

  flush() {
    if (this.closed) return;
    this.view.draw(this.state);
    this.#head();
    if (this.lacking) {
      this.lacking = false;
      this.recover().catch(() => {});
    }
    // Whoever is about to answer keeps what he answers before his eyes.
    if (this.follow && !document.activeElement?.closest('.ask[data-state="open"]')) toNewest();
    else $("jump").hidden = window.scrollY >= bottom() - 40;
    announce(this.state.announcements.splice(0));
    if (this.state.ended && !this.finished) {
      this.finished = true;
      this.refresh().catch(() => {});
      this.ended();
    }
  }

  connection(state) {
    showConnection(state);
  }

  /** The gateway refused the stream. Whether to ask again. */
  async lost() {
    try {
      await this.refresh();
    } catch (error) {
      problem("run-problem", explain(error));
      return !(error.status >= 400 && error.status < 500);
    }
    return !(this.state.ended && this.state.seq >= this.record.last_seq);
  }

  tick() {
    this.view.tick();
    this.#head();
  }

  async cancel() {
    this.asked = true;
    this.#head();
    const token = sessionStorage.getItem(`cancel:${this.id}`);
    try {
      await request(`${runPath(this.id)}/cancel`, { method: "POST", headers: token ? { "X-Cancel-Token": token } : {} });
    } catch (error) {
      this.asked = error.code === "run_ended";
      problem("run-problem", explain(error));
      this.#head();
    }
  }

  // The head: drawn whole, but only what differs touches the page.

  #head() {
    const { state, record } = this;
    set($("run-title"), record?.title || this.id);
    const status = this.unknown ? "unknown" : state.status;
    const asks = state.waiting.length;
    $("asks").hidden = !asks;
    set($("asks"), asks === 1 ? "Waits for your answer" : `Waits for ${asks} answers`);
    document.title = `${asks ? "?" : (STATUS_MARKS[status] ?? "")} ${record?.title || this.id} · Runcast`;
    set($("status"), this.asked && !state.ended ? "cancelling" : status);
    $("status").dataset.status = status;
    const cancel = $("cancel");
    // A button that goes away or is switched off would take the keyboard's place on the page with it.
    if (document.activeElement === cancel && (state.ended || this.asked)) $("run-title").focus({ preventScroll: true });
    cancel.hidden = state.ended || !record;
    cancel.disabled = this.asked;
    const part = partOf(record);
    $("task-link").hidden = !part && record?.runner !== "task";
    $("task-link").href = at(taskPage(part ? record.parent_run_id : this.id));
    set($("task-link"), part ? part[0].toUpperCase() + part.slice(1) : "Open this task");
    $("other-tab").hidden = this.unknown;
    $("other-tab").href = `#run=${encodeURIComponent(this.id)}`;
    set($("facts"), this.#facts());
    const message = record?.input?.message ?? "";
    $("asked").hidden = message.trim() === (record?.title ?? "");
    set($("asked-text"), message);
    figures(state);
    $("output").classList.toggle("waiting", state.entries.length === 0 && !state.ended && !this.unknown);
    $("output").dataset.waiting = state.status === "queued" ? "Waiting for a worker…" : "Waiting for the first words…";
    $("output").setAttribute("aria-busy", String(!state.ended && !this.unknown));
  }

  #facts() {
    const { state, record } = this;
    const facts = [record?.runner, this.#time(), state.seq ? plural(state.seq, "item") : ""];
    if (record?.attempt > 1) facts.push(`attempt ${record.attempt}`);
    if (record?.session_id) facts.push(`session ${record.session_id}`);
    return facts.filter(Boolean).join(" · ");
  }

  #time() {
    const { state, record } = this;
    if (!record) return "";
    const began = Date.parse(record.started_at ?? record.created_at);
    if (state.ended) return record.ended_at ? duration((Date.parse(record.ended_at) - began) / 1000) : "";
    return state.status === "queued" ? "" : `${Math.max(0, Math.floor((Date.now() - began) / 1000))} s`;
  }
}

const FIGURES = [
  ["input_tokens", "Input"], ["output_tokens", "Output"], ["cache_read_tokens", "From cache"],
  ["cache_write_tokens", "Into cache"], ["reasoning_tokens", "Reasoning"],
];

function figures(state) {
  const pairs = FIGURES.filter(([name]) => typeof state.usage?.[name] === "number" && (state.usage[name] || !name.includes("cache")));
  const rows = pairs.map(([name, label]) => [label, count(state.usage[name])]);
  if (money(state.cost)) rows.push(["Cost", money(state.cost)]);
  const list = $("figures");
  const key = JSON.stringify(rows);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.hidden = !rows.length;
  list.replaceChildren(
    ...rows.map(([label, value]) => {
      const group = document.createElement("div");
      group.append(Object.assign(document.createElement("dt"), { textContent: label }));
      group.append(Object.assign(document.createElement("dd"), { textContent: value }));
      return group;
    }),
  );
}
