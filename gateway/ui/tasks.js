// The page of tasks: makes them, lists them, shows the one that the address names (`workspace/tasks/ID`).

import { at, explain, request, taskPage } from "./api.js";
import { $, problem, set } from "./dom.js";
import { ITEM_TYPES } from "./state.js";
import { makeTask, openForm } from "./task_form.js";
import { taskRow } from "./task_view.js";
import { TaskWatch } from "./task_watch.js";
import { TASK_MARKS, statusWord } from "./task_words.js";
import { ago } from "./words.js";

const LIST_EVERY = 4000;
const LIST_PAGE = 20;

const id = decodeURIComponent(location.pathname.match(/\/workspace\/tasks\/([^/]+)$/)?.[1] ?? "");
let current = null;

// The list.

let pages = 1;
let listing = false;

async function list() {
  if (listing) return;
  listing = true;
  try {
    const tasks = [];
    let before = "";
    for (let page = 0; page < pages; page++) {
      const query = new URLSearchParams({ limit: LIST_PAGE, ...(before && { before }) });
      const answer = await request(`v1/tasks?${query}`);
      tasks.push(...answer.tasks);
      before = answer.next;
      if (!before) break;
    }
    draw(tasks, Boolean(before));
    current?.listed(tasks.find((task) => task.task_id === id));
    problem("service", "");
  } catch (error) {
    problem("service", explain(error));
  } finally {
    listing = false;
  }
}

function draw(tasks, more) {
  const rows = $("tasks");
  const known = new Map([...rows.children].map((row) => [row.dataset.id, row]));
  const wanted = tasks.map((task) => drawRow(known.get(task.task_id) ?? taskRow(task.task_id), task));
  // Only the difference: replacing a row would take the focus from it.
  for (const row of [...rows.children]) if (!wanted.includes(row)) row.remove();
  wanted.forEach((row, i) => rows.children[i] !== row && rows.insertBefore(row, rows.children[i] ?? null));
  $("tasks-empty").hidden = tasks.length > 0;
  $("more").hidden = !more;
}

function drawRow(row, task) {
  const link = row.firstChild;
  const decided = task.pending_decisions > 0;
  row.dataset.status = decided ? "queued" : task.status;
  set(link.querySelector(".mark"), decided ? "…" : (TASK_MARKS[task.status] ?? "?"));
  set(link.querySelector(".title"), task.goal.slice(0, 200));
  const done = task.steps_total ? ` · ${task.steps_done} of ${task.steps_total}` : "";
  const status = task.cancel_requested && !task.ended_at ? "Cancelling" : decided ? "Waits for a worker" : statusWord(task.status);
  set(link.querySelector(".sub"), `${status}${done} · ${ago(task.created_at)}`);
  if (task.task_id === id) link.setAttribute("aria-current", "true");
  return row;
}

// Who decides: a name for the history, where there is nobody to ask who it is.

const who = () => $("who").value.trim();
$("who").value = localStorage.getItem("who") ?? "";
$("who").addEventListener("input", () => localStorage.setItem("who", who()));

$("start").addEventListener("submit", async (event) => {
  event.preventDefault();
  problem("start-problem", "");
  $("submit").setAttribute("aria-disabled", "true");
  try {
    location.assign(at(taskPage(await makeTask(who()))));
  } catch (error) {
    problem("start-problem", explain(error));
  } finally {
    $("submit").removeAttribute("aria-disabled");
  }
});

$("more").addEventListener("click", () => {
  pages += 1;
  list();
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  (id ? $("task-title") : $("main")).focus();
});
$("cancel").addEventListener("click", () => current?.cancel());
$("retry").addEventListener("click", () => current?.retry());
$("waits").addEventListener("click", () => current?.visit());
$("up-to").addEventListener("change", () => current?.flush());
$("approve-all").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("approve-all-go").getAttribute("aria-disabled") !== "true") current?.approveAll($("up-to").value);
});

document.addEventListener("visibilitychange", () => {
  current?.seen(!document.hidden);
  if (!document.hidden) list();
});
setInterval(() => !document.hidden && list(), LIST_EVERY);
setInterval(() => current?.tick(), 1000);

async function capabilities() {
  try {
    return await request("v1/capabilities");
  } catch (error) {
    problem("service", explain(error));
    return { runners: [], item_types: [] };
  }
}

document.body.dataset.view = id ? "run" : "home";
$("empty").hidden = Boolean(id);
$("task").hidden = !id;
const { runners, item_types: types } = await capabilities();
openForm(runners);
if (id) {
  current = new TaskWatch(id, { types: [...new Set([...ITEM_TYPES, ...types])], who, changed: list });
  $("task-title").focus({ preventScroll: true });
  current.open();
}
list();
