"""Counters and gauges of the broker, in the process's default Prometheus registry.

Every bound has one: where something waits, is cut, is sent again or is given up, a number here moves. What each means
to an operator stands in docs/observability.md.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "ANNOUNCED",
    "APPENDED",
    "APPEND_CALLS",
    "APPEND_REFUSED",
    "APPEND_SECONDS",
    "AUDIT_GAPS",
    "AUDIT_LOST",
    "BACK_PRESSURE",
    "BUILD",
    "CANCELS",
    "CONTROL_FRAMES",
    "COST_BOOKED",
    "COST_CAP",
    "COST_REFUSED",
    "COST_RESERVED",
    "COST_SPENT",
    "CREATED",
    "CUT",
    "DELIVERY_LAG",
    "DEMOTED",
    "EPOCHS",
    "FEEDS",
    "FOLLOWED",
    "LANE_BROKEN",
    "LANE_READS",
    "LIVE_RUNS",
    "LOOP_LAG",
    "LOOP_TASKS",
    "OUTAGES",
    "RANGE_READS",
    "RENDERS",
    "REPEATED",
    "RESENT",
    "RESERVATIONS_ABANDONED",
    "RESET",
    "RETRIES",
    "RETURNED",
    "RUNS_SETTLED",
    "SESSION_FREED_LATE",
    "SESSION_REFUSED",
    "SESSION_WAITS",
    "SETTLE_LAG",
    "SPLIT",
    "STORE_CONNECTIONS",
    "STORE_INTERRUPTIONS",
    "STORE_REQUESTS",
    "STORE_SECONDS",
    "STORE_WAITING",
    "STREAMS",
    "STREAM_BYTES",
    "STREAM_SECONDS",
    "SWEEPS",
    "SWEEP_SECONDS",
    "SWEPT",
    "TRUNCATED_BYTES",
    "VIEWERS",
    "VIEWERS_BEHIND",
    "WAITING",
]

_STORE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2)
"""Seconds. A request to the store has 2 by default."""
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)

BUILD = Gauge("runcast_build_info", "1: this version runs here", ["version"], multiprocess_mode="livemax")

APPENDED = Counter("runcast_items_appended", "Items that this process appended to logs")
APPEND_CALLS = Counter("runcast_append_calls", "Append scripts that this process called, retries included")
APPEND_SECONDS = Histogram("runcast_append_seconds", "What one append took, where the store answered", buckets=_STORE)
APPEND_REFUSED = Counter("runcast_append_refusals", "Appends that the store refused", ["reason"])
RETRIES = Counter("runcast_append_retries", "Append calls that were repeated because the store did not answer")
RESENT = Counter("runcast_items_resent", "Items sent again because the store had lost them")
EPOCHS = Counter("runcast_epochs", "Logs whose lost end could not be sent again, so that their epoch changed")
OUTAGES = Counter("runcast_outages_given_up", "Publishers that gave up because the store stayed away too long")
BACK_PRESSURE = Counter("runcast_publisher_waits", "Times that a runner had to wait for a full publisher")
SPLIT = Counter("runcast_items_split", "Extra items made from texts longer than one item may be")
TRUNCATED_BYTES = Counter("runcast_truncated_bytes", "Bytes cut from fields longer than one item may be")

CREATED = Counter("runcast_runs_created", "Runs that this process made")
REPEATED = Counter("runcast_runs_repeated", "Requests to make a run whose idempotency key had made it already")
CANCELS = Counter("runcast_cancels", "Cancels of runs that were asked for", ["result"])
ANNOUNCED = Counter("runcast_bus_announcements", "Entries that this process wrote to the event bus itself")

LIVE_RUNS = Gauge(
    "runcast_live_runs",
    "Runs that have not ended, of the whole store, as this process's last sweep saw them",
    ["status"],
    multiprocess_mode="livemax",
)
SWEEPS = Counter("runcast_sweeps", "Sweeps for lost workers", ["result"])
SWEPT = Counter("runcast_swept_runs", "Runs that this process's sweeps did something about", ["action"])
SWEEP_SECONDS = Histogram("runcast_sweep_seconds", "What one sweep took", buckets=_SLOW)

STORE_REQUESTS = Counter("runcast_store_requests", "Requests to the store, blocking reads left out", ["result"])
STORE_SECONDS = Histogram(
    "runcast_store_request_seconds", "Time to the store's answer, waiting for a connection included", buckets=_STORE
)
STORE_INTERRUPTIONS = Counter("runcast_store_interruptions", "Times that the store was seen to be away")
STORE_CONNECTIONS = Gauge("runcast_store_connections", "Connections to the store", ["use"], multiprocess_mode="livesum")
STORE_WAITING = Gauge(
    "runcast_store_waiting", "Requests that wait for a connection to the store", multiprocess_mode="livesum"
)
LOOP_LAG = Histogram(
    "runcast_event_loop_lag_seconds",
    "How much later than it should a timer of the process's event loop fires",
    buckets=_LAG,
)
LOOP_TASKS = Gauge("runcast_event_loop_tasks", "Tasks of the process's event loop", multiprocess_mode="livesum")

FOLLOWED = Gauge("runcast_followed_keys", "Streams that the lanes of this process follow", multiprocess_mode="livesum")
LANE_READS = Counter("runcast_lane_reads", "Blocking reads that returned, of all lanes")
LANE_BROKEN = Counter("runcast_lane_interruptions", "Times that a lane lost its connection")
FEEDS = Gauge("runcast_feeds", "Runs with at least one viewer in this process", multiprocess_mode="livesum")
VIEWERS = Gauge("runcast_viewers", "Viewers attached to this process", multiprocess_mode="livesum")
VIEWERS_BEHIND = Gauge(
    "runcast_viewers_behind",
    "Viewers that are not live: they read what they missed, or their socket takes nothing",
    ["why"],
    multiprocess_mode="livesum",
)
STREAMS = Counter("runcast_streams", "Streams that viewers began", ["format"])
STREAM_SECONDS = Histogram(
    "runcast_stream_seconds", "How long streams of viewers lasted, by why they ended", ["reason"], buckets=_LONG
)
STREAM_BYTES = Counter("runcast_stream_bytes", "Bytes of frames written to viewers")
DELIVERY_LAG = Histogram(
    "runcast_delivery_lag_seconds",
    "From an item's making to its fan-out to live viewers; the clocks of two machines may differ by more",
    buckets=_LAG,
)
RANGE_READS = Counter("runcast_range_reads", "Range reads for viewers that catch up")
RENDERS = Counter("runcast_renders", "Renderings of a batch for one group of viewers")
DEMOTED = Counter("runcast_viewers_demoted", "Viewers that left the live group because their socket was full")
RETURNED = Counter("runcast_viewers_returned", "Demoted viewers that caught up and are back in the live group")
WINDOWS = Gauge("runcast_windows_bytes", "Memory of the windows of followed runs", multiprocess_mode="livesum")
WINDOWS_CUT = Counter("runcast_windows_cut_bytes", "Memory that windows gave up, since all took too much together")
WAITING = Gauge(
    "runcast_viewers_waiting_bytes",
    "Bytes written to viewers that their sockets have not taken",
    multiprocess_mode="livesum",
)
CUT = Counter("runcast_viewers_cut", "Viewers cut off", ["reason"])
RESET = Counter("runcast_viewers_reset", "Viewers cut off whose connection did not take the rest of a frame either")
CONTROL_FRAMES = Counter("runcast_control_frames", "Control frames sent to viewers", ["name"])

SESSION_WAITS = Counter("runcast_session_waits", "Runs that had to wait for an earlier one of their session")
SESSION_REFUSED = Counter("runcast_session_refusals", "Runs refused because one of their session was open")
SESSION_FREED_LATE = Counter(
    "runcast_session_turns_freed_late", "Turns of a session that its run's worker never freed: a lease passed instead"
)

COST_REFUSED = Counter("runcast_cost_refusals", "Runs refused because a cost cap was reached", ["scope"])
COST_BOOKED = Counter("runcast_cost_booked_dollars", "Dollars that this process booked for runs that ended")
RUNS_SETTLED = Counter(
    "runcast_runs_settled",
    "Runs that this process booked, by whether their cost is known or what was reserved",
    ["cost"],
)
SETTLE_LAG = Histogram(
    "runcast_settle_lag_seconds",
    "From a run's end to its being booked",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 15, 60, 600, 86_400),
)
RESERVATIONS_ABANDONED = Counter("runcast_cost_reservations_abandoned", "Reservations given back: no run was made")
COST_SPENT = Gauge(
    "runcast_cost_spent_dollars",
    "Dollars spent today (UTC) by all together; where a cap is set",
    multiprocess_mode="livemax",
)
COST_RESERVED = Gauge(
    "runcast_cost_reserved_dollars", "Dollars held back today for runs that go on", multiprocess_mode="livemax"
)
COST_CAP = Gauge("runcast_cost_cap_dollars", "The cap of a day for all together", multiprocess_mode="livemax")
AUDIT_LOST = Counter("runcast_audit_lost", "Notes of the audit that could not be stored")
AUDIT_GAPS = Counter("runcast_audit_gaps", "Times that the audit's file fell behind what the stream keeps")
