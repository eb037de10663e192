// The resuming client of every page: the stream of one run, or of one task, as an EventSource whose frames wait in a
// queue and are drained once per animation frame.
//
// A burst of any size is drawn in slices of a few milliseconds, so the page stays responsive. EventSource reconnects by
// itself, with the id of the last item it saw; only where it gave up (an answer that is no stream) this starts it anew.

import { at } from "./api.js";

const CONTROL = ["end", "reset", "gap", "cursor", "open"];
const SLICE = 8; // milliseconds of work in one animation frame
const HIDDEN_PAUSE = 250; // a hidden tab has no animation frames
const RETRY = 2000;
const SETTLED = 1200; // a connection that lasts so long without a frame is taken to be live

export class Feed {
  /** `path`: of a run or a task. `sink.frame(type, data)` for each frame in order, then `sink.flush()`; `sink.connection(state)`; and
   *  `sink.lost()`, a promise of whether to try again after the gateway refused. `cursor`: where another one left off,
   *  its `taken`. */
  constructor(path, types, sink, cursor = "") {
    this.path = path;
    this.types = [...new Set([...types, ...CONTROL])];
    this.sink = sink;
    this.queue = [];
    this.cursor = cursor; // of what arrived
    this.taken = cursor; // of what the sink has
    this.closed = false;
    this.scheduled = false;
    this.#open();
  }

  #open() {
    if (this.closed) return;
    const query = new URLSearchParams({ compact: "1" });
    if (this.cursor) query.set("cursor", this.cursor);
    const source = new EventSource(at(`${this.path}/stream?${query}`));
    this.source = source;
    this.#state("connecting");
    source.onopen = () => {
      this.settling = setTimeout(() => this.#state("live"), SETTLED);
    };
    source.onerror = () => this.#broken(source);
    for (const type of this.types) {
      source.addEventListener(type, (event) => this.#received(type, event));
    }
  }

  #received(type, event) {
    if (this.closed) return;
    if (event.lastEventId) this.cursor = event.lastEventId;
    this.queue.push([type, event.data, this.cursor]);
    clearTimeout(this.settling);
    this.#state("live");
    if (type === "end") this.#stop(); // or EventSource would come back to be told that there is no more
    this.#schedule();
  }

  async #broken(source) {
    clearTimeout(this.settling);
    if (this.closed || source !== this.source) return;
    this.#state("reconnecting");
    if (source.readyState !== EventSource.CLOSED) return;
    const again = await this.sink.lost();
    if (this.closed) return;
    if (again) {
      this.retry = setTimeout(() => this.#open(), RETRY);
    } else {
      this.#stop();
      this.#state("closed");
    }
  }

  #state(state) {
    if (state !== this.state) {
      this.state = state;
      this.sink.connection(state);
    }
  }

  #schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    const run = () => {
      if (!this.scheduled) return;
      this.scheduled = false;
      this.#drain();
    };
    if (document.hidden) setTimeout(run, HIDDEN_PAUSE);
    else {
      requestAnimationFrame(run);
      setTimeout(run, HIDDEN_PAUSE * 4); // hidden meanwhile, or not drawn: the queue must not grow for that
    }
  }

  #drain() {
    if (!this.sink) return;
    const until = performance.now() + SLICE;
    let taken = 0;
    while (taken < this.queue.length && performance.now() < until) {
      const [type, data, cursor] = this.queue[taken++];
      this.taken = cursor;
      let item;
      try {
        item = JSON.parse(data);
      } catch {
        continue; // a frame that no version of the gateway sends
      }
      this.sink.frame(type, item);
    }
    this.queue = this.queue.slice(taken);
    this.sink.flush();
    if (this.queue.length) this.#schedule();
    else if (this.closed && !this.reported) {
      this.reported = true;
      this.#state("ended");
    }
  }

  #stop() {
    this.closed = true;
    clearTimeout(this.settling);
    clearTimeout(this.retry);
    this.source.close();
  }

  /** Leave. The run goes on without us. */
  close() {
    this.#stop();
    this.queue = [];
    this.scheduled = false;
    this.reported = true;
    this.sink = null;
  }
}
