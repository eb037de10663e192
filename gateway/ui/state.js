// What a run looks like, folded from its items. Knows no page: the view draws what `changed` names.
//
// Every item is applied exactly once and in order: the stream sees to that. So text is appended, never compared, and
// the only corrections are those that the stream announces: `reset`, `run.restarted`, and the merged `message`, which
// has the whole text of a round whose deltas retention removed.

/** What a run's stream may hold, as far as this page knows; a newer gateway names more. */
export const ITEM_TYPES = [
  "message.delta", "reasoning.delta", "refusal.delta", "annotation", "message", "tool_call.delta", "tool.started",
  "tool.progress", "tool.completed", "tool.failed", "usage", "cost", "cache", "summary", "event", "final", "failed",
  "cancelled",
];

const STATUS_OF_FENCE = { final: "completed", failed: "failed", cancelled: "cancelled" };
const QUIET_EVENTS = new Set(["model.started", "model.completed", "run.started"]);
const ASKS = { "approval.requested": "approval", "question.asked": "question" };
const ASK_FIELDS = new Set(["request_id", "choices", "free", "timeout_s", "expires_at", "truncated_bytes"]);
const LOUD_EVENTS = /warning|error|limit|fallback|retry|mismatch|rewound/;
const ENVELOPE = new Set(["run_id", "seq", "ts", "component_id", "name", "session_id", "parent_run_id"]);

/** The text of a merged message, and its reasoning apart. */
export function textOf(message, kind = "text") {
  const content = message?.content;
  if (typeof content === "string") return kind === "text" ? content : "";
  if (!Array.isArray(content)) return "";
  return content.filter((block) => block?.type === kind).map((block) => block.text ?? "").join("");
}

export class RunState {
  /** `own`: the component that needs no name on the page, since all of it is there. */
  constructor(own = "agent") {
    this.own = own;
    this.status = "queued";
    this.usage = null;
    this.cost = null;
    this.seq = 0;
    this.firstTs = null;
    this.lastTs = null;
    this.announcements = [];
    this.#forget();
  }

  #forget() {
    this.entries = [];
    this.byKey = new Map();
    this.changed = new Set();
    this.cleared = true;
    this.rounds = 0;
  }

  /** Forget what was shown: everything follows anew. */
  clear() {
    this.#forget();
    this.usage = this.cost = null;
    this.status = this.status === "queued" ? "queued" : "running";
  }

  get ended() {
    return this.status === "completed" || this.status === "failed" || this.status === "cancelled";
  }

  /** The view has drawn everything: start a new list of changes. */
  drawn() {
    this.changed.clear();
    this.cleared = false;
  }

  /** Apply one frame of the stream. */
  apply(type, item) {
    if (typeof item.seq === "number" && type !== "cursor") {
      this.seq = item.seq;
      if (item.ts) {
        this.firstTs ??= item.ts;
        this.lastTs = item.ts;
      }
      if (this.status === "queued") this.status = "running";
    }
    const rule = RULES[type];
    if (rule) rule.call(this, item, type);
    else if (!CONTROL.has(type)) this.note("quiet", type, payloadOf(item));
  }

  add(entry, key = null) {
    this.entries.push(entry);
    if (key !== null) this.byKey.set(key, entry);
    this.changed.add(entry);
    return entry;
  }

  touch(entry) {
    this.changed.add(entry);
  }

  note(level, title, detail = "") {
    return this.add({ kind: "note", level, title, detail });
  }

  say(text) {
    this.announcements.push(text);
  }

  /** Append to the block that an item belongs to. */
  text(kind, item) {
    if (!item.text) return;
    const key = `${kind}/${place(item)}/${item.index ?? 0}`;
    let entry = this.byKey.get(key);
    // Text that comes back to its block behind a tool is a new paragraph on the page.
    if (!entry || this.#toolSince(entry)) {
      entry = this.add({ kind, parts: [], pending: [], place: place(item), component: this.#part(item) }, key);
    }
    entry.parts.push(item.text);
    entry.pending.push(item.text);
    this.rounds = Math.max(this.rounds, item.round ?? 1);
    this.touch(entry);
  }

  #part({ component_id: part }) {
    return part === this.own || part === "agent" ? "" : part;
  }

  #toolSince(entry) {
    for (let i = this.entries.length - 1; i >= 0 && this.entries[i] !== entry; i--) {
      if (this.entries[i].kind === "tool") return true;
    }
    return false;
  }

  /** A round's merged message: shows what its deltas did not. */
  merged(message, where) {
    for (const kind of ["reasoning", "text", "refusal"]) {
      const whole = textOf(message, kind);
      const shown = this.entries.filter((e) => e.kind === kind && e.place === where);
      if (!whole || shown.map((e) => e.parts.join("")).join("") === whole) continue;
      const [first, ...rest] = shown.length ? shown : [this.add({ kind, parts: [], pending: [], place: where })];
      first.parts = [whole];
      first.pending = [];
      first.replaced = whole;
      this.touch(first);
      for (const entry of rest) {
        entry.parts = [];
        entry.pending = [];
        entry.replaced = "";
        this.touch(entry);
      }
    }
  }

  tool(item) {
    const known = this.byKey.get(`tool/${item.call_id}`);
    if (known) return known;
    const entry = { kind: "tool", id: item.call_id, name: item.name ?? "", args: undefined, raw: "", status: "called" };
    return this.add(entry, `tool/${item.call_id}`);
  }

  toolEnded(item, status) {
    const entry = this.tool(item);
    entry.status = status;
    entry.name = item.name || entry.name;
    entry.result = item.result;
    entry.error = item.error;
    entry.seconds = typeof item.duration_ms === "number" ? item.duration_ms / 1000 : item.ts - entry.started;
    this.touch(entry);
    this.say(status === "failed" ? `Tool ${entry.name} failed` : `Tool ${entry.name} finished`);
  }

  /** What the run asks people. `expires`: seconds since the epoch. Known already, it stays as it is. */
  asked(kind, { request_id: id, choices = [], free = false, expires, payload }) {
    const known = this.byKey.get(`ask/${id}`);
    if (known) return known;
    const { command, question, description, truncated_bytes: missing, ...rest } = payload;
    const entry = { kind: "ask", id, what: kind, choices, free, expires, settled: null, missing };
    entry.title = kind === "approval" ? "Approval needed" : "Question";
    Object.assign(entry, { command: command ?? "", text: question ?? description ?? "", rest: textOfFields(rest) });
    if (question && description) entry.text = `${question}\n\n${description}`;
    this.say(`${entry.title}: ${[entry.text, entry.command].filter(Boolean).join(". ")}`);
    return this.add(entry, `ask/${id}`);
  }

  /** `how`: answered, expired, stopped; or ended, where the run is over without a word on it. */
  settled(id, how, answer = "") {
    const entry = this.byKey.get(`ask/${id}`);
    if (!entry || entry.settled) return;
    entry.settled = { how, answer };
    this.touch(entry);
    if (how === "answered") this.say(`Answered: ${answer}`);
    else if (how === "expired") this.say("Nobody answered in time");
  }

  /** The asks that wait for somebody. */
  get waiting() {
    return this.entries.filter((entry) => entry.kind === "ask" && !entry.settled);
  }

  fence(item, type) {
    this.status = STATUS_OF_FENCE[type];
    for (const entry of this.waiting) this.settled(entry.id, "ended");
    if (item.usage) this.usage = item.usage;
    if (item.cost) this.cost = item.cost;
    for (const entry of this.entries) {
      if (entry.kind === "tool" && (entry.status === "running" || entry.status === "called")) {
        entry.status = "unfinished";
        this.touch(entry);
      }
    }
  }
}

const place = (item) => `${item.component_id ?? "agent"}/${item.round ?? 1}/${item.choice ?? 0}`;

const shown = (value) => (typeof value === "object" ? JSON.stringify(value) : value);

/** What an event says to a person: its own words where it has some. */
function payloadOf(item) {
  if (typeof item.message === "string" && item.message.trim()) return item.message;
  const rest = Object.entries(item).filter(([name]) => !ENVELOPE.has(name));
  return rest.map(([name, value]) => `${name}: ${shown(value)}`).join(", ");
}

function textOfFields(fields) {
  const rest = Object.entries(fields).filter(([name, value]) => !ASK_FIELDS.has(name) && value !== null && value !== "");
  return rest.map(([name, value]) => `${name}: ${shown(value)}`).join("\n");
}

const CONTROL = new Set(["end", "reset", "gap", "cursor", "open"]);

const RULES = {
  "message.delta"(item) {
    this.text("text", item);
  },
  "reasoning.delta"(item) {
    this.text("reasoning", item);
  },
  "refusal.delta"(item) {
    this.text("refusal", item);
  },
  annotation(item) {
    const it = item.annotation;
    const detail = typeof it === "object" && it ? it.url || it.title || JSON.stringify(it) : String(it);
    this.note("quiet", "source", detail);
  },
  message(item) {
    this.rounds = Math.max(this.rounds, item.round ?? 1);
    this.merged(item.message, place(item));
    const text = textOf(item.message);
    if (text) this.say(text.length > 600 ? `${text.slice(0, 600)} …` : text);
  },
  "tool_call.delta"(item) {
    const slot = `slot/${place(item)}/${item.index ?? 0}`;
    let entry = item.call_id ? this.byKey.get(`tool/${item.call_id}`) : this.byKey.get(slot);
    if (!entry) {
      entry = this.tool({ call_id: item.call_id || slot });
      this.byKey.set(slot, entry);
    } else if (item.call_id) this.byKey.set(slot, entry);
    if (item.name && !entry.raw && entry.name !== item.name) entry.name += item.name;
    entry.raw += item.arguments ?? "";
    this.touch(entry);
  },
  "tool.started"(item) {
    const entry = this.tool(item);
    Object.assign(entry, { status: "running", name: item.name, args: item.args, started: item.ts, preview: item.preview });
    entry.startedHere = Date.now();
    this.touch(entry);
    this.say(`Tool ${item.name} started`);
  },
  "tool.progress"(item) {
    const entry = this.tool(item);
    entry.preview = item.preview;
    this.touch(entry);
  },
  "tool.completed"(item) {
    this.toolEnded(item, "completed");
  },
  "tool.failed"(item) {
    this.toolEnded(item, "failed");
  },
  usage(item) {
    this.usage = item.total && Object.keys(item.total).length ? item.total : item;
  },
  cost(item) {
    this.cost = item;
  },
  cache(item) {
    this.note("quiet", `cache ${item.status}`, item.tokens ? `${item.what}, ${item.tokens} tokens` : item.what);
  },
  summary(item) {
    this.note("info", "The agent summed up its context", item.text);
  },
  event(item) {
    if (item.name === "run.restarted") {
      this.clear();
      this.note("warn", `Attempt ${item.attempt ?? "2"}`, "The run was started again; what came before is discarded.");
      this.say("The run was started again");
    } else if (ASKS[item.name]) {
      const payload = Object.fromEntries(Object.entries(item).filter(([name]) => !ENVELOPE.has(name)));
      this.asked(ASKS[item.name], { ...item, expires: item.expires_at, payload });
    } else if (item.name === "input.answered") {
      this.settled(item.request_id, item.how, item.answer);
    } else if (!QUIET_EVENTS.has(item.name)) {
      this.note(LOUD_EVENTS.test(item.name) ? "warn" : "quiet", item.name, payloadOf(item));
    }
  },
  final(item, type) {
    this.fence(item, type);
    const texts = this.entries.some((e) => e.kind === "text" && e.parts.length);
    if (item.message && !texts) this.merged(item.message, "final");
    this.say("Run completed");
  },
  failed(item, type) {
    this.fence(item, type);
    if (item.partial && !this.entries.some((e) => e.kind === "text")) this.merged(item.partial, "partial");
    const again = item.retryable ? " It may succeed if it is started again." : "";
    this.note("error", `Failed: ${item.code}`, `${item.message}${again}`);
    this.say(`Run failed: ${item.message}`);
  },
  cancelled(item, type) {
    this.fence(item, type);
    if (item.partial && !this.entries.some((e) => e.kind === "text")) this.merged(item.partial, "partial");
    this.note("warn", "Cancelled", item.message);
    this.say("Run cancelled");
  },
  reset(item) {
    this.clear();
    this.seq = 0;
    const why = item.reason === "rewound" ? "The store lost the end of this run’s log" : "The position was not valid";
    this.note("warn", "Started over", `${why} (${item.reason}); everything follows from the start.`);
  },
  gap(item) {
    const from = item.requested + 1;
    const to = item.earliest - 1;
    const what = to >= from ? `Items ${from} to ${to}` : "Items";
    this.note("warn", "Gap", `${what} are no longer kept. What follows begins at item ${item.earliest}.`);
    this.say("Some items are no longer kept");
  },
};
