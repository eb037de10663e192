// One step on the page: what it is, how it stands, what people may do with it, and its run.

import { explain } from "./api.js";
import { make, set } from "./dom.js";
import { openDialog } from "./task_dialogs.js";
import { Live } from "./task_live.js";
import { RISKS, STEP_MARKS, decision, riskWord, stateWord } from "./task_words.js";
import { count, duration, money, plural } from "./words.js";

const LONG = 500; // characters of an instruction or a result from which its box may scroll, and takes the keyboard

export class StepCard {
  /** `task`: sends what people decide (`decide`, `answer`); `live`: what its run's view needs. */
  constructor(n, task, live) {
    this.n = n;
    this.task = task;
    this.element = make("li", "step");
    this.mark = make("span", "step-mark");
    this.mark.setAttribute("aria-hidden", "true");
    this.title = make("h3", "step-title");
    this.title.tabIndex = -1;
    this.name = make("span");
    this.title.append(make("span", "sr-only", `Step ${n}: `), this.name);
    this.state = make("span", "step-state");
    const head = make("div", "step-head");
    head.append(this.mark, this.title, this.state);
    this.tags = make("p", "step-tags");
    [this.risk, this.needs, this.facts] = [make("span", "risk"), make("span"), make("span", "step-facts")];
    this.tags.append(this.risk, this.needs, this.facts);
    this.instruction = textBox("p", "step-instruction", "Instruction");
    this.decided = make("p", "step-decided");
    this.error = make("p", "note step-error");
    this.error.dataset.level = "error";
    this.live = new Live({ own: `step:${n}`, ...live });
    this.result = make("section", "step-result");
    this.answer = textBox("div", "body", `Result of step ${n}`);
    this.more = make("p", "hint");
    this.result.append(make("h4", "", "Result"), this.answer, this.more);
    this.actions = this.#buttons();
    this.problem = make("p", "problem");
    this.problem.setAttribute("role", "alert");
    this.problem.hidden = true;
    const body = make("div", "step-body");
    body.append(
      this.tags, this.instruction, this.decided, this.error, this.live.asks, this.actions, this.problem,
      this.live.element, this.result,
    );
    this.element.append(head, body);
  }

  #buttons() {
    const row = make("div", "step-actions");
    const button = (className, text, act) => {
      const made = make("button", className, text);
      made.type = "button";
      made.setAttribute("aria-label", `${text} step ${this.n}`.replace("… ", " "));
      made.addEventListener("click", act);
      row.append(made);
      return made;
    };
    this.approve = button("primary", "Approve", () => this.#decide("approve", { revision: this.step.revision }));
    this.retry = button("primary", "Retry", () => this.#tell(() => this.task.decide("retry", {})));
    this.reject = button("danger", "Reject…", () => this.#reject());
    this.edit = button("", "Edit…", () => this.#edit());
    return row;
  }

  /** Draw it as it is. `halted`: the task halted here. */
  update(step, state, halted) {
    this.step = step;
    const passed = state.passed(step);
    const marked = step.pending && step.state === "approved" ? "Approved, not begun" : stateWord(step.state);
    Object.assign(this.element.dataset, { state: step.state, risk: step.risk });
    this.element.toggleAttribute("data-current", state.task.current_step === step.n);
    set(this.mark, STEP_MARKS[step.state] ?? String(step.n));
    set(this.name, step.title);
    set(this.state, passed ? "Left out" : marked);
    set(this.risk, riskWord(step.risk));
    this.risk.dataset.risk = step.risk;
    set(this.needs, step.approval ? "needs approval" : "needs no approval");
    set(this.facts, facts(step));
    this.instruction.show(step.instruction);
    this.#outcome(step, passed);
    this.live.show(step.run_id, step.state === "running", step.state === "running" ? step.asks : []);
    this.#allow(step, state, halted);
  }

  #outcome(step, passed) {
    const said = decision(step, passed);
    set(this.decided, said);
    this.decided.hidden = !said;
    const error = step.error && step.state === "failed" ? `${step.error.message} (${step.error.code})` : "";
    set(this.error, error);
    this.error.hidden = !error;
    const shown = new TextEncoder().encode(step.result ?? "").length;
    this.result.hidden = step.result === null || step.state === "running" || !step.result?.trim();
    this.answer.show((step.result ?? "").trim());
    const missing = step.result_bytes - shown;
    set(this.more, missing > 0 ? `${count(missing)} bytes more are in its run.` : "");
    this.more.hidden = missing <= 0;
  }

  #allow(step, state, halted) {
    this.keepFocus(() => {
      this.approve.hidden = !state.may("approve", step);
      this.reject.hidden = !state.may("reject", step);
      this.edit.hidden = !state.may("edit", step);
      this.retry.hidden = !halted;
      this.actions.hidden = [...this.actions.children].every((it) => it.hidden);
      this.approve.classList.toggle("primary", step.state === "waiting");
    });
  }

  /** What goes away would take the keyboard's place on the page with it. */
  keepFocus(change) {
    const active = document.activeElement;
    change();
    if (this.element.contains(active) && active.closest("[hidden]")) this.title.focus({ preventScroll: true });
  }

  visit() {
    this.element.scrollIntoView({ block: "center" });
    if (this.live.visitAsk()) return;
    const first = [...this.actions.children].find((it) => !it.hidden);
    (this.actions.hidden ? this.title : (first ?? this.title)).focus({ preventScroll: true });
  }

  async #tell(send) {
    if (this.sending) return;
    this.sending = true;
    this.problem.hidden = true;
    this.element.setAttribute("aria-busy", "true");
    try {
      await send();
    } catch (error) {
      this.problem.textContent = explain(error);
      this.problem.hidden = false;
    } finally {
      this.sending = false;
      this.element.removeAttribute("aria-busy");
    }
  }

  #decide(what, body) {
    return this.#tell(() => this.task.decide(`steps/${this.n}/${what}`, body));
  }

  #reject() {
    const { revision } = this.step;
    openDialog({
      title: `Reject step ${this.n}`,
      text: this.step.title,
      fields: [
        { name: "reason", label: "Why", required: true, max: 2000, hint: "It stands in the history." },
        {
          name: "then", label: "What then", kind: "choice", value: "halt",
          choices: [["halt", "Halt there, to edit or retry it"], ["continue", "Go on without it"]],
        },
      ],
      action: "Reject",
      danger: true,
      send: (values) => this.task.decide(`steps/${this.n}/reject`, { ...values, revision }),
      after: () => this.title,
    });
  }

  #edit() {
    const was = this.step;
    openDialog({
      title: `Edit step ${this.n}`,
      fields: [
        { name: "title", label: "Title", value: was.title, required: true, max: 200 },
        {
          name: "instruction", label: "Instruction", kind: "long", value: was.instruction, required: true, max: 8192,
          hint: "Ctrl + Enter saves it",
        },
        { name: "risk", label: "Risk", kind: "choice", value: was.risk, choices: RISKS.map((it) => [it, riskWord(it)]) },
        { name: "approval", label: "A person must approve it", kind: "check", value: was.approval },
        { name: "reason", label: "Why (may stay empty)", max: 2000 },
      ],
      action: "Save",
      send: (values) => this.#save(was, values),
      after: () => this.title,
    });
  }

  /** Only what differs is sent, so that the history says what was changed. Nothing differs: there is nothing to send. */
  async #save(was, { reason, ...values }) {
    const changed = Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== was[name]));
    if (!Object.keys(changed).length) return;
    // A risk that is raised brings its approval along, unless somebody says otherwise.
    const body = { ...changed, revision: was.revision };
    if (reason.trim()) body.reason = reason.trim();
    await this.task.decide(`steps/${this.n}/edit`, body);
  }
}

/** A text of any length: from some length on its box scrolls, and can be reached with the keyboard. */
function textBox(tag, className, label) {
  const element = make(tag, `${className} long-text`);
  element.show = (text) => {
    set(element, text);
    element.hidden = !text;
    if (text.length > LONG) {
      element.tabIndex = 0;
      element.setAttribute("role", "group");
      element.setAttribute("aria-label", label);
    } else for (const name of ["tabindex", "role", "aria-label"]) element.removeAttribute(name);
  };
  return element;
}

function facts(step) {
  const found = [];
  const took = (Date.parse(step.ended_at) - Date.parse(step.started_at)) / 1000;
  if (Number.isFinite(took)) found.push(duration(took));
  if (step.tries > 1) found.push(plural(step.tries, "try").replace("trys", "tries"));
  if (step.revision > 1) found.push(`edited, revision ${step.revision}`);
  const used = step.usage?.total ?? step.usage;
  const tokens = (used?.input_tokens ?? 0) + (used?.output_tokens ?? 0);
  if (tokens) found.push(plural(tokens, "token"));
  if (money(step.cost)) found.push(money(step.cost));
  return found.join(" · ");
}
