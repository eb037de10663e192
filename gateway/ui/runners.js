// Which runner a form proposes: on every page the same.

import { request } from "./api.js";

const OWN = "runner";
const LOOKED_AT = 20;

/** Fill `select` with these names. What was chosen in this browser stays chosen. */
export function offerRunners(select, names) {
  const known = names.length ? names : ["hermes", "scripted"];
  const chosen = localStorage.getItem(OWN) ?? "hermes";
  select.replaceChildren(...known.map((name) => new Option(name, name, false, name === chosen)));
  select.addEventListener("change", () => localStorage.setItem(OWN, select.value));
}

/** Where nobody chose: the runner whose run was the last to complete. Without Hermes the first one from here should not
 * fail. */
export async function proposeRunner(select) {
  if (localStorage.getItem(OWN)) return;
  const names = [...select.options].map((option) => option.value);
  const query = new URLSearchParams({ limit: LOOKED_AT, status: "completed" });
  const { runs } = await request(`v1/runs?${query}`).catch(() => ({ runs: [] }));
  const known = runs.find((run) => names.includes(run.runner))?.runner;
  if (known && !localStorage.getItem(OWN)) select.value = known;
}
