// The gateway's JSON requests. Addresses are relative to where this file is, so every page works behind any path prefix.

const ROOT = new URL("../", import.meta.url);

/** The address of `path`, on whichever page this is asked. */
export const at = (path) => new URL(path, ROOT).href;

/** An answer that is no success: `problem` is the gateway's own account of it. */
export class ProblemError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the gateway answered ${status}`);
    this.status = status;
    this.code = problem.code || `http_${status}`;
    this.field = problem.field || null;
    this.title = problem.title || "";
    this.answer = problem.answer; // of a request that had its answer already
    this.how = problem.how;
  }
}

let leaving = false;
addEventListener("pageshow", () => {
  leaving = false; // shown again by the browser's “back”
});

/** JSON in, JSON out. Throws `ProblemError`, or `TypeError` where there was no answer at all. */
export async function request(path, { method = "GET", body, headers = {} } = {}) {
  const response = await fetch(at(path), {
    method,
    headers: body === undefined ? headers : { ...headers, "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  let value = {};
  try {
    value = text ? JSON.parse(text) : {};
  } catch {
    value = { detail: text.slice(0, 300) };
  }
  // The login ended while the page was open. Nothing else here is ever answered with 401. Of several requests that are
  // told so the first one leads away: another would break that off and begin anew.
  if (response.status === 401 && !leaving) {
    leaving = true;
    location.assign(at(`login?next=${encodeURIComponent(location.href)}`));
  }
  if (!response.ok) throw new ProblemError(response.status, value);
  return value;
}

/** What to tell somebody about an error: as it is, with its code and field. */
export function explain(error) {
  if (!(error instanceof ProblemError)) return "The gateway cannot be reached.";
  const field = error.field ? `, field ${error.field}` : "";
  return `${error.message} (${error.code}${field})`;
}

export const runPath = (id) => `v1/runs/${encodeURIComponent(id)}`;
export const taskPath = (id) => `v1/tasks/${encodeURIComponent(id)}`;
export const taskPage = (id) => `workspace/tasks/${encodeURIComponent(id)}`;

/** Random enough to name one attempt to start a run; `crypto.randomUUID` exists on secure origins only. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}
