// The page: starts runs, lists them, shows the one that the address names (`#run=ID`).

import { at, explain, newKey, request, taskPage } from "./api.js";
import { $, STATUS_MARKS, problem, set } from "./dom.js";
import { offerRunners, proposeRunner } from "./runners.js";
import { ITEM_TYPES } from "./state.js";
import { Watched, bottom, toNewest } from "./watched.js";
import { ago, partOf } from "./words.js";

const LIST_EVERY = 4000;
const LIST_PAGE = 20;

let types = ITEM_TYPES;
let current = null;

// Following the newest line, as long as the reader does.

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
  return row;
}

function drawRun(row, run) {
  const link = row.firstChild;
  row.dataset.status = run.status;
  set(link.querySelector(".mark"), STATUS_MARKS[run.status] ?? "?");
  const part = partOf(run);
  set(link.querySelector(".title"), run.component === "plan" && part ? "Plan of a task" : run.title || run.run_id);
  // A task's run has nothing to read but transitions, and a part of one is best seen among the others: both are on the
  // task's page.
  const task = part ? run.parent_run_id : run.runner === "task" ? run.run_id : "";
  link.href = task ? at(taskPage(task)) : `#run=${encodeURIComponent(run.run_id)}`;
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
  if (value("approvals") === "ask") body.input.approvals = "ask";
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
$("asks").addEventListener("click", () => current?.visitAsk());

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
    current = new Watched(id, types, listRuns);
    current.open();
    window.scrollTo(0, 0);
    lastY = 0;
    $("run-title").focus({ preventScroll: true });
  }
  listRuns();
}

async function capabilities() {
  try {
    const known = await request("v1/capabilities");
    types = [...new Set([...ITEM_TYPES, ...known.item_types])];
    offerRunners($("runner"), known.runners);
    proposeRunner($("runner"));
  } catch (error) {
    problem("service", explain(error));
  }
}

window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => !document.hidden && listRuns());
setInterval(() => !document.hidden && listRuns(), LIST_EVERY);
setInterval(() => current && !current.state.ended && current.tick(), 1000);

await capabilities();
show();
