// How figures and times are written. Pure.

export function duration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${m} min` : `${m} min ${s} s`;
}

/** How long somebody has for an answer. */
export function remaining(seconds) {
  if (seconds <= 0) return "The time for an answer is over";
  if (seconds < 60) return `${Math.ceil(seconds)} s left to answer`;
  return `${Math.ceil(seconds / 60)} min left to answer`;
}

export function ago(iso, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(iso)) / 1000);
  if (seconds < 45) return "just now";
  if (seconds < 5400) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 129_600) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(iso).toLocaleDateString();
}

export const count = (n) => (n ?? 0).toLocaleString();

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** Which part of a task a run does, or "". */
export function partOf(run) {
  const step = run?.parent_run_id && /^(?:plan|step:(\d+))$/.exec(run.component ?? "");
  return step ? `${step[1] ? `step ${step[1]}` : "plan"} of a task` : "";
}

/** Any JSON value as text to read: strings as they are, the rest indented. */
export function pretty(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** One line that says what a tool was asked. */
export function brief(args) {
  if (args === undefined || args === null) return "";
  let text = args;
  if (typeof args === "object") {
    const values = Object.values(args);
    if (!values.length) return "";
    text = values.length === 1 && typeof values[0] === "string" ? values[0] : JSON.stringify(args);
  }
  const line = String(text).replace(/\s+/g, " ").trim();
  return line.length > 140 ? `${line.slice(0, 139)}…` : line;
}

export function money(cost) {
  if (!cost || cost.total === undefined) return "";
  const sign = cost.currency === "USD" || !cost.currency ? "$" : `${cost.currency} `;
  return `${cost.estimated ? "about " : ""}${sign}${cost.total}`;
}
