// The page: starts runs, lists them, shows the one that the address names (`#run=ID`).

import { explain, newKey, request, runPath } from "./api.js";
import { Feed } from "./feed.js";
import { RunState } from "./state.js";
import { RunView } from "./view.js";
import { ago, count, duration, money, plural } from "./words.js";

const $ = (id) => document.getElementById(id);
const LIST_EVERY = 4000;
const LIST_PAGE = 20;
const STATUS_MARKS = { queued: "○", running: "●", completed: "✓", failed: "✕", cancelled: "–" };
const TYPES = [
  "message.delta", "reasoning.delta", "refusal.delta", "annotation", "message", "tool_call.delta", "tool.started",
  "tool.progress", "tool.completed", "tool.failed", "usage", "cost", "cache", "summary", "event", "final", "failed",
  "cancelled",
];

let types = TYPES;
let current = null;

function problem(id, text) {
  $(id).textContent = text;
  $(id).hidden = !text;
}

// Announcements for screen readers: never more than the reader can follow.

const spoken = [];
let speaking = false;

function announce(texts) {
  spoken.push(...texts);
  if (speaking || !spoken.length) return;
  speaking = true;
  $("announce").textContent = spoken.splice(0).slice(-3).join(". ");
  setTimeout(() => {
    speaking = false;
    announce([]);
  }, 1500);
}

// One run on the screen.

class Watched {
  constructor(id) {
    this.id = id;
    this.record = null;
    this.state = new RunState();
    this.view = new RunView($("output"));
    this.follow = true;
    this.closed = false;
    this.asked = false;
  }

  async open() {
    this.#head();
    try {
      await this.refresh();
    } catch (error) {
      if (this.closed) return;
      problem("run-problem", explain(error));
      if (error.status === 404 || error.status === 400 || error.status === 422) {
        this.connection("closed");
        this.#head();
        return;
      }
    }
    if (!this.closed) this.feed = new Feed(runPath(this.id), types, this);
  }

  async refresh() {
    const record = await request(runPath(this.id));
    if (this.closed) return;
    this.record = record;
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

  // What the feed tells.

  frame(type, item) {
    this.state.apply(type, item);
    if (type === "end") this.state.status = item.status ?? this.state.status;
  }

  flush() {
    if (this.closed) return;
    this.view.draw(this.state);
    this.#head();
    if (this.follow) toNewest();
    else $("jump").hidden = false;
    announce(this.state.announcements.splice(0));
    if (this.state.ended && !this.finished) {
      this.finished = true;
      this.refresh().catch(() => {});
      listRuns();
    }
  }

  connection(state) {
    const element = $("connection");
    element.dataset.state = state;
    set(element, state === "ended" ? "complete" : state);
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
    document.title = `${STATUS_MARKS[state.status] ?? ""} ${record?.title || this.id} · Runcast`;
    set($("status"), this.asked && !state.ended ? "cancelling" : state.status);
    $("status").dataset.status = state.status;
    $("cancel").hidden = state.ended || !record;
    $("cancel").disabled = this.asked;
    $("other-tab").href = `#run=${encodeURIComponent(this.id)}`;
    set($("facts"), this.#facts());
    const message = record?.input?.message ?? "";
    $("asked").hidden = message.trim() === (record?.title ?? "");
    set($("asked-text"), message);
    figures(state);
    $("output").classList.toggle("waiting", state.entries.length === 0 && !state.ended);
    $("output").dataset.waiting = state.status === "queued" ? "Waiting for a worker…" : "Waiting for the first words…";
    $("output").setAttribute("aria-busy", String(!state.ended));
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

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
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

// Following the newest line, as long as the reader does.

const bottom = () => document.documentElement.scrollHeight - window.innerHeight;

function toNewest() {
  $("jump").hidden = true;
  window.scrollTo(0, bottom());
}

let lastY = 0;

window.addEventListener("scroll", () => {
  const up = window.scrollY < lastY - 2;
  lastY = window.scrollY;
  if (!current) return;
  // Only going up is leaving: growing content also moves the bottom away.
  if (window.scrollY >= bottom() - 40) current.follow = true;
  else if (up) current.follow = false;
  if (current.follow) $("jump").hidden = true;
}, { passive: true });

$("jump").addEventListener("click", () => {
  if (current) current.follow = true;
  toNewest();
});

// The list of runs.

let pages = 1;
let listing = false;

async function listRuns() {
  if (listing) return;
  listing = true;
  try {
    const runs = [];
    let before = "";
    for (let page = 0; page < pages; page++) {
      const query = new URLSearchParams({ limit: LIST_PAGE, ...(before && { before }) });
      const answer = await request(`v1/runs?${query}`);
      runs.push(...answer.runs);
      before = answer.next;
      if (!before) break;
    }
    drawRuns(runs, Boolean(before));
    problem("service", "");
  } catch (error) {
    problem("service", explain(error));
  } finally {
    listing = false;
  }
}

function drawRuns(runs, more) {
  const list = $("runs");
  const known = new Map([...list.children].map((row) => [row.dataset.id, row]));
  const rows = runs.map((run) => drawRun(known.get(run.run_id) ?? newRow(run.run_id), run));
  if (rows.length !== list.children.length || rows.some((row, i) => row !== list.children[i])) {
    // Only the difference: replacing a row would take the focus from it.
    for (const row of [...list.children]) if (!rows.includes(row)) row.remove();
    rows.forEach((row, i) => list.children[i] !== row && list.insertBefore(row, list.children[i] ?? null));
  }
  $("runs-empty").hidden = runs.length > 0;
  $("more").hidden = !more;
}

function newRow(id) {
  const row = document.createElement("li");
  row.dataset.id = id;
  row.innerHTML = '<a><span class="mark" aria-hidden="true"></span><span class="title"></span><span class="sub"></span></a>';
  row.firstChild.href = `#run=${encodeURIComponent(id)}`;
  return row;
}

function drawRun(row, run) {
  const link = row.firstChild;
  row.dataset.status = run.status;
  set(link.querySelector(".mark"), STATUS_MARKS[run.status] ?? "?");
  set(link.querySelector(".title"), run.title || run.run_id);
  set(link.querySelector(".sub"), `${run.status} · ${run.runner} · ${ago(run.created_at)}`);
  if (current?.id === run.run_id) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
  return row;
}

$("more").addEventListener("click", () => {
  pages += 1;
  listRuns();
});

// Starting one.

let key = newKey();

function metadata(text) {
  const out = {};
  for (const line of text.split("\n").filter((it) => it.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`metadata needs “key = value”, one a line: ${line.trim()}`);
    out[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return out;
}

function asked(form) {
  const value = (name) => form.elements[name].value.trim();
  const body = { runner: value("runner"), input: { message: form.elements.prompt.value } };
  if (value("model")) body.input.model = value("model");
  if (value("session")) body.session_id = value("session");
  const extra = metadata(form.elements.metadata.value);
  if (Object.keys(extra).length) body.metadata = extra;
  return body;
}

$("start").addEventListener("input", () => {
  key = newKey();
});

$("start").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  problem("start-problem", "");
  $("submit").disabled = true;
  try {
    // The same key until it worked or the form changed: a lost answer does not start it twice.
    const run = await request("v1/runs", { method: "POST", body: asked(form), headers: { "Idempotency-Key": key } });
    sessionStorage.setItem(`cancel:${run.run_id}`, run.cancel_token);
    key = newKey();
    form.elements.prompt.value = "";
    location.hash = `run=${encodeURIComponent(run.run_id)}`;
  } catch (error) {
    problem("start-problem", error instanceof TypeError || error.code ? explain(error) : error.message);
  } finally {
    $("submit").disabled = false;
    listRuns();
  }
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("start").requestSubmit();
  }
});

$("cancel").addEventListener("click", () => current?.cancel());

$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  (current ? $("output") : $("main")).focus();
});

// The address says what is shown.

function show() {
  const id = new URLSearchParams(location.hash.slice(1)).get("run");
  if (current?.id === id) return;
  current?.close();
  current = null;
  document.body.dataset.view = id ? "run" : "home";
  $("empty").hidden = Boolean(id);
  $("run").hidden = !id;
  $("jump").hidden = true;
  problem("run-problem", "");
  document.title = "Runcast";
  if (id) {
    current = new Watched(id);
    current.open();
    window.scrollTo(0, 0);
    $("run-title").focus({ preventScroll: true });
  }
  listRuns();
}

async function capabilities() {
  try {
    const known = await request("v1/capabilities");
    types = [...new Set([...TYPES, ...known.item_types])];
    const names = known.runners.length ? known.runners : ["hermes", "scripted"];
    const chosen = localStorage.getItem("runner");
    $("runner").replaceChildren(...names.map((name) => new Option(name, name, false, name === (chosen ?? "hermes"))));
  } catch (error) {
    problem("service", explain(error));
  }
}

$("runner").addEventListener("change", (event) => localStorage.setItem("runner", event.target.value));
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => !document.hidden && listRuns());
setInterval(() => !document.hidden && listRuns(), LIST_EVERY);
setInterval(() => current && !current.state.ended && current.tick(), 1000);

await capabilities();
show();
