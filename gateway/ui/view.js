// Draws what changed in a run, and nothing else. Text goes to the end of its text node: what is there is not touched.

import { buildAsk } from "./asks.js";
import { make } from "./dom.js";
import { brief, duration, pretty } from "./words.js";

const PIECE = 8_000; // characters in one text node: appending to a huge one is slow
const LONG = 6_000; // a tool's result beyond that is folded

/** A block of growing text. */
class Grown {
  constructor(element) {
    this.element = element;
    this.node = null;
  }

  append(text) {
    if (!this.element.firstChild) text = text.replace(/^\s*\n/, ""); // rounds are joined by blank lines; blocks have a margin
    if (!text) return;
    if (!this.node || this.node.length > PIECE) {
      this.node = document.createTextNode("");
      this.element.append(this.node);
    }
    this.node.appendData(text);
  }

  replace(text) {
    this.element.replaceChildren();
    this.node = null;
    if (text) this.append(text);
  }
}

const TITLES = { reasoning: "Reasoning", refusal: "Refusal" };
const MARKS = { called: "…", running: "▸", completed: "✓", failed: "✕", unfinished: "–" };
const WORDS = { called: "being called", running: "running", completed: "done", failed: "failed", unfinished: "not finished" };

export class RunView {
  /** `answer(id, text)` sends what somebody answered, and throws what `request` throws. `asks`: where what is asked is
   *  shown, among the rest unless said otherwise. */
  constructor(output, answer, asks = output) {
    this.output = output;
    this.asks = asks;
    this.answer = answer;
    this.drawn = new Map();
    this.#empty();
  }

  #empty() {
    this.output.replaceChildren();
    this.asks.replaceChildren();
    this.drawn.clear();
  }

  /** Bring the page up to date with `state`. */
  draw(state) {
    if (state.cleared) {
      this.#empty();
    }
    for (const entry of state.changed) {
      let parts = this.drawn.get(entry);
      if (!parts) {
        parts = BUILD[entry.kind](entry, this.answer);
        this.drawn.set(entry, parts);
        (entry.kind === "ask" ? this.asks : this.output).append(parts.element);
      }
      parts.update(entry);
    }
    state.drawn();
  }

  /** The clocks of running tools and open asks. */
  tick() {
    for (const [entry, parts] of this.drawn) {
      if (entry.kind === "tool" && entry.status === "running") parts.clock(entry);
      if (entry.kind === "ask" && !entry.settled) parts.clock(entry);
    }
  }

  /** Bring an entry onto the screen, and the keyboard to it. */
  visit(entry) {
    this.drawn.get(entry)?.visit?.();
  }
}

function buildText(entry) {
  const element = make("div", `block ${entry.kind}`);
  const body = entry.kind === "reasoning" ? reasoningBody(element) : make("div", "body");
  if (entry.kind === "refusal") element.append(make("p", "block-title", TITLES.refusal));
  if (entry.component) element.append(make("p", "block-title", entry.component));
  if (!body.isConnected && !element.contains(body)) element.append(body);
  const grown = new Grown(body);
  const update = (it) => {
    const pinned = body.scrollTop + body.clientHeight >= body.scrollHeight - 8;
    if (it.replaced !== undefined) {
      grown.replace(it.replaced);
      it.replaced = undefined;
    }
    if (it.pending.length) grown.append(it.pending.join(""));
    it.pending = [];
    element.hidden = it.parts.length === 0;
    if (it.kind === "reasoning" && pinned) body.scrollTop = body.scrollHeight;
  };
  return { element, update };
}

function reasoningBody(element) {
  const details = make("details");
  details.open = true;
  const body = make("div", "body");
  body.tabIndex = 0;
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", TITLES.reasoning);
  details.append(make("summary", "block-title", TITLES.reasoning), body);
  element.append(details);
  return body;
}

function buildTool() {
  const element = make("details", "tool");
  const summary = make("summary");
  const [mark, spoken] = [make("span", "mark"), make("span", "sr-only")];
  mark.setAttribute("aria-hidden", "true");
  const [name, asked, time] = [make("span", "tool-name"), make("span", "tool-asked"), make("span", "tool-time")];
  summary.append(mark, spoken, name, asked, time);
  const body = make("div", "tool-body");
  const [args, progress, result] = [section("Arguments"), section("Progress"), section("Result")];
  body.append(args.element, progress.element, result.element);
  element.append(summary, body);

  const clock = (it) => {
    const running = it.status === "running" && it.startedHere ? (Date.now() - it.startedHere) / 1000 : NaN;
    time.textContent = it.status === "running" ? (running >= 1 ? duration(running) : "") : duration(it.seconds);
  };
  const update = (it) => {
    element.dataset.status = it.status;
    mark.textContent = MARKS[it.status];
    spoken.textContent = `Tool, ${WORDS[it.status]}: `;
    name.textContent = it.name || "tool";
    asked.textContent = it.status === "running" && it.preview ? it.preview : brief(it.args ?? it.raw);
    args.show(pretty(it.args) || it.raw);
    progress.show(it.status === "running" ? (it.preview ?? "") : "");
    result.title(it.status === "failed" ? "Error" : "Result");
    result.show([it.error, pretty(it.result)].filter(Boolean).join("\n\n"));
    if (it.status === "failed" && !it.opened) element.open = it.opened = true;
    clock(it);
  };
  return { element, update, clock };
}

/** A titled block of preformatted text inside a tool; hidden while empty; long text is folded. */
function section(title) {
  const element = make("section");
  const heading = make("h3", "", title);
  const pre = make("pre");
  pre.tabIndex = 0;
  const all = make("button", "fold");
  all.type = "button";
  let whole = "";
  let folded = true;
  const put = () => {
    const long = whole.length > LONG;
    pre.textContent = long && folded ? `${whole.slice(0, LONG)}\n…` : whole;
    all.hidden = !(long && folded);
    all.textContent = `Show all ${whole.length.toLocaleString()} characters`;
  };
  all.addEventListener("click", () => {
    folded = false;
    put();
    pre.focus();
  });
  element.append(heading, pre, all);
  const show = (text) => {
    element.hidden = !text;
    if (text === whole) return;
    whole = text;
    put();
  };
  element.hidden = true;
  return { element, show, title: (text) => (heading.textContent = text) };
}

function buildNote(entry) {
  const element = make("p", "note");
  element.dataset.level = entry.level;
  element.append(make("strong", "", entry.title));
  if (entry.detail) element.append(" ", make("span", "", entry.detail));
  return { element, update: () => {} };
}

const BUILD = { text: buildText, reasoning: buildText, refusal: buildText, tool: buildTool, note: buildNote, ask: buildAsk };
